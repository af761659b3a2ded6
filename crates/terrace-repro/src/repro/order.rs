//! The order of systems: how many pairs of them stand as the paper has them.

use terrace_sim::number::float;

use super::row::{Claim, Row};

/// A system in a comparison.
#[derive(Clone, Debug)]
pub struct System {
    /// The paper's figure, or the system's place if the text gives an order alone. Two systems with the same one are
    /// no pair.
    pub paper: f64,
    /// The simulator's figure. It grows and falls as the paper's does.
    pub simulated: Result<f64, String>,
}

impl System {
    /// A system.
    #[must_use]
    pub fn new(paper: f64, simulated: Result<f64, String>) -> Self {
        Self { paper, simulated }
    }
}

/// A row about the order of systems in some comparisons: only systems of one comparison are paired. Two systems that
/// are equal here are not in order.
#[must_use]
pub fn row(what: &str, comparisons: &[Vec<System>]) -> Row {
    let mut all = 0;
    let mut in_order = Ok(0);
    for (one, other) in comparisons.iter().flat_map(|systems| pairs(systems)) {
        all += 1;
        in_order = in_order.and_then(|sum| Ok(sum + u64::from(is_in_order(one, other)?)));
    }
    let claim = Claim::AtLeast(float(all));
    Row::new(what, "pairs", claim, in_order.map(float))
}

/// The pairs that the paper has an order for.
fn pairs(systems: &[System]) -> Vec<(&System, &System)> {
    let mut pairs = Vec::new();
    for (at, one) in systems.iter().enumerate() {
        let others = systems.iter().skip(at + 1);
        let differ = |other: &&System| one.paper.total_cmp(&other.paper).is_ne();
        pairs.extend(others.filter(differ).map(|other| (one, other)));
    }
    pairs
}

fn is_in_order(one: &System, other: &System) -> Result<bool, String> {
    let (first, second) = (one.simulated.clone()?, other.simulated.clone()?);
    Ok(first.total_cmp(&second) == one.paper.total_cmp(&other.paper))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repro::row::Standing;

    fn systems(figures: &[(f64, f64)]) -> Vec<System> {
        let system = |(paper, simulated): &(f64, f64)| System::new(*paper, Ok(*simulated));
        figures.iter().map(system).collect()
    }

    #[test]
    fn a_reversed_order_is_far_however_close_the_figures_are() {
        let close = systems(&[(1.0, 0.86), (0.9, 1.0)]);
        let row = row("order", &[close]);
        assert_eq!((row.simulated, row.standing()), (Some(0.0), Standing::Far));
    }

    #[test]
    fn pairs_are_counted_within_each_comparison_alone() {
        let one = systems(&[(1.0, 10.0), (2.0, 20.0), (3.0, 15.0)]);
        let other = systems(&[(5.0, 1.0), (6.0, 2.0)]);
        let row = row("order", &[one, other]);
        assert_eq!(row.paper, Claim::AtLeast(4.0));
        assert_eq!(row.simulated, Some(3.0));
        assert_eq!(row.standing(), Standing::Far);
    }

    #[test]
    fn equal_in_the_paper_is_no_pair_and_equal_here_is_not_in_order() {
        let row = |figures: &[(f64, f64)]| row("order", &[systems(figures)]);
        assert_eq!(row(&[(1.0, 1.0), (1.0, 2.0)]).paper, Claim::AtLeast(0.0));
        assert_eq!(row(&[(1.0, 2.0), (2.0, 2.0)]).simulated, Some(0.0));
        assert_eq!(row(&[(1.0, 1.0), (2.0, 2.0)]).standing(), Standing::Near);
    }

    #[test]
    fn a_run_that_failed_leaves_no_order() {
        let mut systems = systems(&[(1.0, 1.0), (2.0, 2.0)]);
        systems[1].simulated = Err("it failed".into());
        let row = row("order", &[systems]);
        assert_eq!(
            (row.simulated, row.missing.as_deref()),
            (None, Some("it failed"))
        );
    }
}
