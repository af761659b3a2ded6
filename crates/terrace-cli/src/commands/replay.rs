//! `terrace sim replay LOG`: with the policy that recorded it, or with another one.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde::Serialize;
use terrace_core::PolicyChoice;
use terrace_core::session::other::{Other, Outcome, ReplayReport, VmReport, replay_with};
use terrace_core::session::replay::{Replayed, replay};

use crate::args::sim::Replay;
use crate::output::files::{check_apart, put};
use crate::{output, render};

/// The output of `--json` for a replay with the recorded policy.
#[derive(Serialize)]
struct Same {
    #[serde(flatten)]
    replayed: Replayed,
    /// Always true: a replay that differs is an error.
    all_equal: bool,
}

pub fn run(args: &Replay) -> Result<ExitCode> {
    let name = args.log.display();
    check_apart([args.log.as_path()], args.json.as_deref())?;
    let file = File::open(&args.log).with_context(|| format!("cannot open the log {name}"))?;
    let input = BufReader::new(file);
    let text = match &args.policy {
        None => {
            let replayed = replay(input).with_context(|| name.to_string())?;
            let same = Same {
                replayed,
                all_equal: true,
            };
            json(args.json.as_deref(), &same)?;
            same_text(&same.replayed)
        }
        Some(policy) => {
            let other = Other {
                policy: choice(policy)?,
                window_ms: args.window,
            };
            if let Some(renamed) = other.policy.renamed("--policy") {
                output::tell(format_args!("terrace: {renamed}"));
            }
            let report = replay_with(input, &other).with_context(|| name.to_string())?;
            json(args.json.as_deref(), &report)?;
            other_text(&report)
        }
    };
    if !args.json.as_deref().is_some_and(output::is_standard) {
        output::print(text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A policy as people write it: a name, or a table of stages.
fn choice(text: &str) -> Result<PolicyChoice> {
    if !text.trim_start().starts_with('{') {
        return Ok(PolicyChoice::Named(text.to_owned()));
    }
    #[derive(serde::Deserialize)]
    struct Wrapped {
        policy: PolicyChoice,
    }
    let wrapped: Wrapped =
        toml::from_str(&format!("policy = {text}")).with_context(|| format!("--policy {text}"))?;
    Ok(wrapped.policy)
}

fn json<T: Serialize>(out: Option<&Path>, value: &T) -> Result<()> {
    let Some(path) = out else {
        return Ok(());
    };
    if output::is_standard(path) {
        return output::print_json(value);
    }
    put(path, &(serde_json::to_string_pretty(value)? + "\n"))
}

fn same_text(r: &Replayed) -> String {
    let mut out = format!(
        "{} records: {} events, {} actions. All actions are equal to the recorded ones.\n",
        r.records, r.events, r.actions
    );
    out += &rest(r.skipped, r.cut_off, r.given_up.as_deref());
    if r.unrecorded_actions > 0 {
        out += &format!(
            "The log stops between an event and its actions; {} are not in it.\n",
            r.unrecorded_actions
        );
    }
    out
}

fn rest(skipped: u64, cut_off: bool, given_up: Option<&str>) -> String {
    let mut out = String::new();
    if skipped > 0 {
        out +=
            &format!("{skipped} records of kinds that this version does not know were skipped.\n");
    }
    if cut_off {
        out += "The log is cut off in the middle of a record; all before it was replayed.\n";
    }
    if let Some(why) = given_up {
        out += &format!("Nothing was recorded from its end on: {why}.\n");
    }
    out
}

fn other_text(report: &ReplayReport) -> String {
    let mut out = format!(
        "{} on what {} recorded: windows of {:.1} s, {:.0} s from the first record to the last.\n\n",
        report.policy, report.recorded_policy, report.window_s, report.log_s,
    );
    let header = [
        "VM", "POLICY", "ROUNDS", "PROMOTED", "DEMOTED", "FAST", "COVERAGE", "OBSERVED",
    ];
    let mut rows = Vec::new();
    for vm in &report.vms {
        rows.push(row(vm, &report.policy, &vm.other));
        rows.push(row(vm, "as recorded", &vm.recorded));
    }
    out += &render::table(&header, &[2, 3, 4, 5, 6, 7], &rows);
    out += "\nFAST: share of the known accesses that were to pages in the first tier. COVERAGE: share of \
            the mapped\npages' windows of which it is known whether the page was accessed. OBSERVED: time \
            in windows.\n";
    for vm in report.vms.iter().filter(|vm| vm.missed_rounds > 0) {
        out += &format!(
            "{}: {} rounds of the log were missed, because moves were still under way.\n",
            vm.name, vm.missed_rounds
        );
    }
    for note in &report.notes {
        out += &format!("Note: {note}.\n");
    }
    out + &rest(report.skipped, report.cut_off, report.given_up.as_deref())
}

fn row(vm: &VmReport, policy: &str, outcome: &Outcome) -> Vec<String> {
    let share = |share: Option<f64>| share.map_or("-".into(), |s| format!("{:.1} %", s * 100.0));
    vec![
        vm.name.clone(),
        policy.to_owned(),
        outcome.rounds.to_string(),
        render::pages(outcome.promoted_pages),
        render::pages(outcome.demoted_pages),
        share(outcome.fast_share),
        share(vm.coverage),
        format!("{:.1} s", vm.observed_s),
    ]
}
