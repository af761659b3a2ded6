//! A program's compute time, solved from one column of a paper: what it costs to have all of its memory
//! slow.
//!
//! With c the compute time per access, f and s the time per access that memory takes in the fast and in
//! the slow tier, the column says (c + s) / (c + f). Given the parallelism, f and s come from the
//! machine, so c = (s − f) / (column − 1) − f. Memory that is busier is slower, so f and s are measured
//! anew with the c that was found, a few times.

use terrace_sim::{Options, Pace, RunError, Scenario, Stop, number::float};

use crate::compare::simulate;

/// Steps of the solution; each brings c to within a part of its last change.
const STEPS: usize = 4;

/// Length of a run that measures f or s: machine time in ns.
const MEASURE_NS: u64 = 10_000_000;

/// The scenario with the first VM's compute time such that `all-slow` takes `column` times as long as `all-fast`; 0
/// if even that makes too little of memory. `None` if it was told to end.
///
/// # Errors
/// If the scenario cannot be run.
pub fn solve(
    scenario: &Scenario,
    column: f64,
    report: &dyn Fn(f64) -> bool,
) -> Result<Option<Scenario>, RunError> {
    if column <= 1.0 {
        let what =
            format!("a slowdown of {column} by slow memory leaves no compute time to solve for");
        return Err(RunError(what));
    }
    let mut solved = scenario.clone();
    for _ in 0..STEPS {
        let pace = solved.vms[0].workload.pace();
        let c = pace.compute_ns;
        let Some(fast) = access_ns(solved.all_fast(), report)? else {
            return Ok(None);
        };
        let Some(slow) = access_ns(solved.all_slow(), report)? else {
            return Ok(None);
        };
        let compute_ns = next(c, fast, slow, column);
        solved = with_compute(&solved, Pace { compute_ns, ..pace });
    }
    Ok(Some(solved))
}

/// The next compute time, from the last and the times per access that came of it.
fn next(c: f64, fast: f64, slow: f64, column: f64) -> f64 {
    ((slow - fast) / (column - 1.0) - (fast - c)).max(0.0)
}

fn with_compute(scenario: &Scenario, pace: Pace) -> Scenario {
    let mut scenario = scenario.clone();
    scenario.vms[0].workload = scenario.vms[0].workload.with_pace(pace);
    scenario
}

/// Time of one access of one of the first VM's vCPUs, ns.
fn access_ns(scenario: Scenario, report: &dyn Fn(f64) -> bool) -> Result<Option<f64>, RunError> {
    let mut short = scenario;
    short.vms.truncate(1);
    short.vms[0].stop = Stop::Duration(MEASURE_NS * short.machine.scale);
    // Measuring is a small part of the run that it is for: the bar stands still.
    let go_on = |_: f64| report(0.0);
    let output = simulate(&short, Options::default(), &go_on, &mut |_| {})?;
    let vcpus = f64::from(short.vms[0].vcpus);
    Ok(output.map(|output| {
        let accesses = float(output.result.accesses);
        let ns = float(MEASURE_NS);
        ns * vcpus / accesses.max(1.0)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compute_time_is_what_the_column_asks_for() {
        // 40 ns of memory when fast, 100 when slow: (20 + 100) / (20 + 40) is 2.
        assert!((next(20.0, 60.0, 120.0, 2.0) - 20.0).abs() < 1e-9);
        assert!(
            (next(0.0, 40.0, 100.0, 2.0) - 20.0).abs() < 1e-9,
            "from any start"
        );
    }

    #[test]
    fn a_column_that_memory_cannot_reach_gives_no_compute_time() {
        assert_eq!(next(5.0, 45.0, 105.0, 9.0), 0.0);
    }
}
