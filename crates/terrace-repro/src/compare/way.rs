//! The part of the way from `first-touch` to `static-best` that a policy goes.

use terrace_sim::{RunResult, Way};

/// The policies between which the way lies.
pub const ENDS: [&str; 2] = ["first-touch", "static-best"];

/// The distance of the ends below which there is no way, as a part of first-touch's run time.
const TOO_SHORT: f64 = 0.01;

/// Fills in the way of runs of one scenario, if both ends are among them. If `static-best` is the slower one, there is no
/// way either: it failed as a bound.
pub fn fill_in(runs: &mut [&mut RunResult]) {
    let [Some(first_touch), Some(best)] = ENDS.map(|name| {
        let end = runs.iter().find(|run| run.policy == name)?;
        slowdown(end)
    }) else {
        return;
    };
    for run in runs {
        let gone = slowdown(run).map(|it| (first_touch - it) / (first_touch - best));
        let is_long = first_touch - best > TOO_SHORT * first_touch;
        run.way = Some(Way(gone.filter(|_| is_long)));
    }
}

/// The sentence about a `static-best` that is slower than `first-touch`.
pub const FAILED: &str = "static-best is slower than first-touch here, so it is no bound and there is no WAY: the load does \
    other work in a slower run, or what is hot changes. Give it ops instead of a duration, or more time.";

/// Whether `static-best` is slower than `first-touch` in some comparison: at one size of a sweep, say.
#[must_use]
pub fn has_failed(runs: &[&RunResult]) -> bool {
    let [start, best] = ENDS.map(|name| runs.iter().filter(move |run| run.policy == name));
    best.clone().any(|best| {
        let mut same = start
            .clone()
            .filter(|start| (&start.sweep, &start.model) == (&best.sweep, &best.model));
        let both = |start: &&RunResult| slowdown(best).zip(slowdown(start));
        same.any(|start| both(start).is_some_and(|(best, start)| best > start * (1.0 + TOO_SHORT)))
    })
}

/// The geometric mean of the VMs' slowdowns. `None` if one of them is not known.
#[must_use]
pub fn slowdown(run: &RunResult) -> Option<f64> {
    let logs = run
        .vms
        .iter()
        .map(|vm| vm.slowdown_vs_all_fast.map(f64::ln));
    let logs = logs.collect::<Option<Vec<_>>>()?;
    let (sum, count) = logs
        .iter()
        .fold((0.0, 0.0), |(sum, n), log| (sum + log, n + 1.0));
    Some((sum / count).exp()).filter(|mean| mean.is_finite())
}

#[cfg(test)]
mod tests {
    use terrace_sim::VmResult;

    use super::*;

    fn runs(runs: &[(&str, &[f64])]) -> Vec<RunResult> {
        let run = |(policy, slowdowns): &(&str, &[f64])| RunResult {
            policy: (*policy).into(),
            vms: slowdowns
                .iter()
                .map(|slowdown| VmResult {
                    slowdown_vs_all_fast: Some(*slowdown),
                    ..VmResult::default()
                })
                .collect(),
            ..RunResult::default()
        };
        runs.iter().map(run).collect()
    }

    fn ways(of: &[(&str, &[f64])]) -> Vec<Option<Option<f64>>> {
        let mut runs = runs(of);
        fill_in(&mut runs.iter_mut().collect::<Vec<_>>());
        runs.into_iter()
            .map(|run| run.way.map(|way| way.0))
            .collect()
    }

    #[test]
    fn the_ends_are_0_and_1_and_a_policy_may_be_beyond_either() {
        let found = ways(&[
            ("first-touch", &[2.0]),
            ("vtmm", &[1.5]),
            ("tpp", &[2.5]),
            ("clairvoyant", &[1.0]),
            ("static-best", &[1.2]),
        ]);
        let found: Vec<f64> = found.into_iter().map(|way| way.unwrap().unwrap()).collect();
        let wanted = [0.0, 0.625, -0.625, 1.25, 1.0];
        for (found, wanted) in found.into_iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-9, "{found} {wanted}");
        }
    }

    #[test]
    fn several_vms_count_by_the_geometric_mean_of_their_slowdowns() {
        // 4, 2 and 1 as means.
        let found = ways(&[
            ("first-touch", &[2.0, 8.0]),
            ("static-best", &[1.0, 1.0]),
            ("vtmm", &[1.0, 4.0]),
        ]);
        assert!((found[2].unwrap().unwrap() - 2.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_bound_that_failed_is_the_end_of_no_way() {
        let found = ways(&[
            ("first-touch", &[2.0]),
            ("static-best", &[3.0]),
            ("vtmm", &[1.5]),
        ]);
        assert_eq!(found, [Some(None); 3]);
        let failed = |start: &[f64], best: &[f64]| {
            let runs = runs(&[("first-touch", start), ("static-best", best)]);
            has_failed(&runs.iter().collect::<Vec<_>>())
        };
        assert!(failed(&[2.0], &[3.0]) && !failed(&[2.0], &[2.01]));
        // One VM is slower and the other gains more: there is a way.
        assert!(!failed(&[2.0, 4.0], &[2.2, 2.0]));
    }

    #[test]
    fn ends_within_1_percent_have_no_way_between_them() {
        let found = ways(&[
            ("first-touch", &[1.009]),
            ("static-best", &[1.0]),
            ("vtmm", &[1.0]),
        ]);
        assert_eq!(found, [Some(None); 3]);
        assert_eq!(
            ways(&[("first-touch", &[2.0]), ("vtmm", &[1.0])]),
            [None; 2]
        );
    }
}
