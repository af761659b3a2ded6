//! The sensitivity of a comparison, as a table for people: a row for each model of the machine, a column for each policy.

use terrace_repro::compare::sensitivity::Sensitivity;
use terrace_repro::compare::way;
use terrace_sim::RunResult;

use crate::render;

/// The table, and which orders hold; nothing if one model alone was run.
pub fn text(runs: &[&RunResult]) -> String {
    let Some(found) = Sensitivity::of(runs) else {
        return String::new();
    };
    let policies: Vec<&str> = found.slowdowns.iter().map(|r| r.policy.as_str()).collect();
    let header: Vec<&str> = ["MODEL"].into_iter().chain(policies.clone()).collect();
    let numbers: Vec<usize> = (1..header.len()).collect();
    let models = found.models.iter().map(Some);
    let rows: Vec<Vec<String>> = [None]
        .into_iter()
        .chain(models)
        .map(|model| row(runs, model, &policies))
        .collect();
    let mut out =
        "\nSlowdown against all-fast on each model, geometric mean over the VMs:\n\n".to_owned();
    out += &render::table(&header, &numbers, &rows);
    out.push('\n');
    for sentence in found.sentences() {
        out += &format!("{sentence}.\n");
    }
    out
}

fn row(runs: &[&RunResult], model: Option<&String>, policies: &[&str]) -> Vec<String> {
    let cell = |policy: &&str| {
        let same = |run: &&&RunResult| run.policy == *policy && run.model.as_ref() == model;
        let slowdown = runs.iter().find(same).and_then(|run| way::slowdown(run));
        slowdown.map_or("-".into(), |slowdown| format!("{slowdown:.3}"))
    };
    let name = model.map_or("as written", String::as_str);
    [name.to_owned()]
        .into_iter()
        .chain(policies.iter().map(cell))
        .collect()
}
