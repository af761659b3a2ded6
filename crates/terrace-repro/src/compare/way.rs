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

/// The geometric mean of the VMs' slowdowns.
fn slowdown(run: &RunResult) -> Option<f64> {
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

    fn ways(runs: &[(&str, &[f64])]) -> Vec<Option<Option<f64>>> {
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
        let mut runs: Vec<RunResult> = runs.iter().map(run).collect();
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
