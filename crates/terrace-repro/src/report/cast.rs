//! Who is on a page: runs, policies and VMs, and the colour of each policy.

use terrace_sim::{Output, VmResult, VmTimeline};

use super::format::bytes;

/// Colours of policies in the style sheet; more policies use them again.
const COLOURS: usize = 12;

/// The runs of a page, or of one value of a sweep.
#[derive(Clone)]
pub struct Cast<'a> {
    /// The runs, as they came.
    pub runs: Vec<&'a Output>,
    policies: Vec<&'a str>,
    /// Names of the VMs, in order of appearance.
    pub vms: Vec<&'a str>,
}

impl<'a> Cast<'a> {
    pub fn new(runs: &'a [Output]) -> Self {
        let mut policies = Vec::new();
        let mut vms = Vec::new();
        for run in runs {
            add(&mut policies, &run.result.policy);
            run.result.vms.iter().for_each(|vm| add(&mut vms, &vm.name));
        }
        Self {
            runs: runs.iter().collect(),
            policies,
            vms,
        }
    }

    /// The cast with the runs of one value of a sweep (`None`: no sweep); colours stay.
    pub fn swept(&self, value: Option<u64>) -> Self {
        let here = |run: &&&Output| swept(run) == value;
        Self {
            runs: self.runs.iter().filter(here).copied().collect(),
            ..self.clone()
        }
    }

    /// The cast with the runs of one rule of sharing (`None`: rules are not compared); colours stay.
    pub fn sharing(&self, share: Option<&str>) -> Self {
        let here = |run: &&&Output| run.result.share.as_deref() == share;
        Self {
            runs: self.runs.iter().filter(here).copied().collect(),
            ..self.clone()
        }
    }

    /// The rules of sharing in order of appearance; a single `None` if rules are not compared.
    pub fn shares(&self) -> Vec<Option<&'a str>> {
        let mut shares = Vec::new();
        for run in &self.runs {
            let share = run.result.share.as_deref();
            if !shares.contains(&share) {
                shares.push(share);
            }
        }
        shares
    }

    /// The values of the sweep in order of appearance; a single `None` if there is no sweep.
    pub fn sweep(&self) -> Vec<Option<u64>> {
        let mut values = Vec::new();
        for run in &self.runs {
            let value = swept(run);
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values
    }

    /// Class of the style sheet that colours a policy.
    pub fn colour(&self, policy: &str) -> String {
        let position = self.policies.iter().position(|p| *p == policy);
        format!("c{}", position.unwrap_or(0) % COLOURS)
    }

    /// All policies with their colours.
    pub fn policies(&self) -> impl Iterator<Item = (&'a str, String)> {
        self.policies.iter().map(|p| (*p, self.colour(p)))
    }

    /// Time of the last sample of all, s.
    pub fn end(&self) -> f64 {
        let vms = self.runs.iter().flat_map(|run| &run.timeline.vms);
        let ends = vms.flat_map(|vm| vm.samples.iter().map(|s| s.at_s));
        ends.filter(|at| at.is_finite()).fold(0.0, f64::max)
    }
}

fn add<'a>(to: &mut Vec<&'a str>, name: &'a str) {
    if !to.contains(&name) {
        to.push(name);
    }
}

/// A run's value of the sweep.
pub fn swept(run: &Output) -> Option<u64> {
    run.result.sweep.as_ref().map(|sweep| sweep.bytes)
}

/// `fast 8 GiB` or `share dp`, for people: where a run is among others.
pub fn place_label(run: &Output) -> String {
    let share = run.result.share.as_ref();
    let sweep = run.result.sweep.as_ref();
    let swept = sweep.map(|s| format!("{} {}", s.key, bytes(s.bytes)));
    let labels = share.map(|share| format!("share {share}"));
    labels
        .into_iter()
        .chain(swept)
        .collect::<Vec<_>>()
        .join(", ")
}

/// A VM's part of a run.
pub fn result<'a>(run: &'a Output, vm: &str) -> Option<&'a VmResult> {
    run.result.vms.iter().find(|v| v.name == vm)
}

/// A VM's timeline in a run.
pub fn timeline<'a>(run: &'a Output, vm: &str) -> Option<&'a VmTimeline> {
    let found = run.timeline.vms.iter().find(|v| v.name == vm);
    found.filter(|v| !v.samples.is_empty())
}
