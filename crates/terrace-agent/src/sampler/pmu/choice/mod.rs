//! Choice of the PMU sampler for this machine, or the reason why it has none, in words that can be acted on.

use terrace_sys::{Finding, HostRoot};

use super::cpus::{Kernel, Opener, online, open_on};
use super::holders::holders;
use super::recipe::{DEVICES, Lacks, Recipe, SampleKind};
use super::refusal::{INSTEAD, Machine, explain};

/// The finding's name in `doctor`.
const NAME: &str = "pmu";
/// Ring size that the trial assumes, bytes. It does not matter to whether an event can be opened.
const TRIAL_RING_BYTES: u32 = 4096;

/// The result of the choice.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The recipe for [`super::Pmu::open`], if a PMU can be used; its events were opened and closed on one CPU.
    pub recipe: Option<Recipe>,
    /// The same result for people.
    pub finding: Finding,
}

/// Searches for a PMU that can sample accesses and tries it.
#[must_use]
pub fn choose(root: &HostRoot) -> Choice {
    choose_with(root, &Kernel)
}

/// Does the same as [`choose`], with an opener other than the kernel.
#[must_use]
pub fn choose_with(root: &HostRoot, opener: &dyn Opener) -> Choice {
    let mut refused = None;
    let mut lacking = Vec::new();
    for found in [
        (SampleKind::Pebs, Recipe::pebs(root)),
        (SampleKind::Ibs, Recipe::ibs(root)),
    ] {
        let recipe = match found {
            (_, Ok(recipe)) => recipe,
            (kind, Err(lacks)) => {
                lacking.push((kind, lacks));
                continue;
            }
        };
        match try_on_one_cpu(root, &recipe, opener) {
            Ok(cpus) => {
                let finding = usable(root, &recipe, cpus);
                return Choice {
                    recipe: Some(recipe),
                    finding,
                };
            }
            Err((why, change)) => refused = Some(Finding::missing(NAME, why, change)),
        }
    }
    Choice {
        recipe: None,
        finding: refused.unwrap_or_else(|| absent(root, &lacking)),
    }
}

/// Opens the events on one CPU and closes them. Returns the number of CPUs.
fn try_on_one_cpu(
    root: &HostRoot,
    recipe: &Recipe,
    opener: &dyn Opener,
) -> Result<usize, (String, String)> {
    let cpus = online(root, recipe).map_err(|e| (e.to_string(), INSTEAD.to_owned()))?;
    let mut refused = None;
    for cpu in &cpus {
        match open_on(recipe, *cpu, TRIAL_RING_BYTES, opener) {
            Ok(_) => return Ok(cpus.len()),
            Err(error) => {
                // Only of a CPU that went offline meanwhile the others may think differently.
                let gone = error.errno() == libc::ENODEV;
                refused = Some(error);
                if !gone {
                    break;
                }
            }
        }
    }
    Err(match refused {
        Some(error) => explain(root, recipe, &error),
        None => {
            let kind = recipe.kind.name();
            let why = format!("no CPU that is online has the PMU of {kind}");
            (why, INSTEAD.to_owned())
        }
    })
}

fn usable(root: &HostRoot, recipe: &Recipe, cpus: usize) -> Finding {
    let what = match recipe.kind {
        SampleKind::Pebs => "PEBS samples slow loads and all stores, one of 4093",
        SampleKind::Ibs => "IBS samples loads that miss the near caches, and stores",
        SampleKind::PageFaults => "page faults are sampled",
    };
    let on = match &recipe.microarchitecture[..] {
        "" => format!("{cpus} CPUs"),
        name => format!("{cpus} CPUs ({name})"),
    };
    let mut why = format!(
        "{what}, on {on}; its events could be opened, but it was not run on hardware by those who wrote it"
    );
    if recipe.kind == SampleKind::Ibs && older_than_6_1(root) {
        why += "; this kernel may give no addresses, which came with Linux 6.1: see whether samples arrive";
    }
    let others = holders(root);
    if !others.is_empty() {
        why += &format!(
            "; events are also open in {}, which may take turns with ours or cost us large PEBS",
            others.join(", ")
        );
    }
    let change =
        "compare the ranges that it finds with those of DAMON (sampler = \"damon\"), and report";
    Finding::degraded(NAME, why, change)
}

/// Whether the kernel is older than 6.1, by its version; distributions carry changes back, so that this is no more
/// than a warning.
fn older_than_6_1(root: &HostRoot) -> bool {
    let release = root.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < (6, 1),
        _ => false,
    }
}

/// The finding if there was nothing to try.
fn absent(root: &HostRoot, lacking: &[(SampleKind, Lacks)]) -> Finding {
    let machine = Machine::of(root);
    // A description that cannot be read comes first: it is no lack of the hardware.
    let broken = lacking
        .iter()
        .find(|(_, lacks)| matches!(lacks, Lacks::Format(_) | Lacks::Read(_)));
    if let Some((kind, lacks)) = broken {
        let why = format!("{}: {lacks}", kind.name());
        let change =
            format!("let the agent read /{DEVICES}, or report the kernel's version; {INSTEAD}");
        return Finding::missing(NAME, why, change);
    }
    let pmu = lacking
        .iter()
        .find(|(kind, lacks)| *kind == SampleKind::Pebs && !matches!(lacks, Lacks::Device));
    let place = if machine.guest { "guest" } else { "machine" };
    let why = match pmu {
        Some((_, lacks)) => format!("this {place} has neither PEBS nor IBS: {lacks}"),
        None => format!("no PMU in this {place}"),
    };
    Finding::missing(NAME, why, format!("{}; {INSTEAD}", machine.gain()))
}

#[cfg(test)]
mod tests;
