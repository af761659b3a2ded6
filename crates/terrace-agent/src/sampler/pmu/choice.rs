//! Which PMU sampler this machine has, or why it has none, in words that can be acted on.

use terrace_sys::{Finding, HostRoot, SysError};

use super::cpus::{Kernel, Opener, online, open_on};
use super::holders::holders;
use super::recipe::DEVICES;
use super::{Kind, Lacks, Recipe};

/// The finding's name in `doctor`.
const NAME: &str = "pmu";
/// What there is without a PMU.
const INSTEAD: &str = "without it, accesses are sampled by DAMON, coarsely";
/// Pages do not matter to whether an event can be opened.
const TRIAL_RING_BYTES: u32 = 4096;

/// What was found.
#[derive(Clone, Debug)]
pub struct Choice {
    /// What to give [`super::Pmu::open`]; its events were opened and closed on one CPU.
    pub recipe: Option<Recipe>,
    /// The same for people.
    pub finding: Finding,
}

/// Looks for a PMU that can sample accesses and tries it.
#[must_use]
pub fn choose(root: &HostRoot) -> Choice {
    choose_with(root, &Kernel)
}

/// The same, with somebody else than the kernel who opens events.
#[must_use]
pub fn choose_with(root: &HostRoot, opener: &dyn Opener) -> Choice {
    let mut refused = None;
    let mut lacking = Vec::new();
    for found in [
        (Kind::Pebs, Recipe::pebs(root)),
        (Kind::Ibs, Recipe::ibs(root)),
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

/// Opens the events on one CPU and closes them; says how many CPUs there are.
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
        Kind::Pebs => "PEBS samples slow loads and all stores, one of 4093",
        Kind::Ibs => "IBS samples loads that miss the near caches, and stores",
        Kind::PageFaults => "page faults are sampled",
    };
    let on = match &recipe.microarchitecture[..] {
        "" => format!("{cpus} CPUs"),
        name => format!("{cpus} CPUs ({name})"),
    };
    let mut why = format!(
        "{what}, on {on}; its events could be opened, but it was not run on hardware by those who wrote it"
    );
    if recipe.kind == Kind::Ibs && older_than_6_1(root) {
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

/// By its version; distributions carry changes back, so that this is no more than a warning.
fn older_than_6_1(root: &HostRoot) -> bool {
    let release = root.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < (6, 1),
        _ => false,
    }
}

/// Nothing that could be tried.
fn absent(root: &HostRoot, lacking: &[(Kind, Lacks)]) -> Finding {
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
        .find(|(kind, lacks)| *kind == Kind::Pebs && !matches!(lacks, Lacks::Device));
    let place = if machine.guest { "guest" } else { "machine" };
    let why = match pmu {
        Some((_, lacks)) => format!("this {place} has neither PEBS nor IBS: {lacks}"),
        None => format!("no PMU in this {place}"),
    };
    Finding::missing(NAME, why, format!("{}; {INSTEAD}", machine.gain()))
}

/// Why events could not be opened, and what to change.
pub(super) fn explain(root: &HostRoot, recipe: &Recipe, error: &SysError) -> (String, String) {
    let kind = recipe.kind.name();
    let say = |why: String, change: String| (format!("{kind}: {why} ({error})"), change);
    match error.errno() {
        libc::EACCES | libc::EPERM => {
            let (why, change) = not_permitted(root);
            say(why, change)
        }
        libc::EBUSY => {
            let (why, change) = taken(root);
            say(why, change)
        }
        libc::ENODEV => say(
            "the CPU went offline".into(),
            "nothing: it is tried again when it is back".into(),
        ),
        libc::ENOENT => say(
            "the kernel does not know the event, or has no driver for this PMU".into(),
            format!("{}; {INSTEAD}", Machine::of(root).gain()),
        ),
        libc::EOPNOTSUPP => say(
            "the PMU does not sample that event with addresses".into(),
            format!("{}; {INSTEAD}", Machine::of(root).gain()),
        ),
        libc::ENOSYS => say(
            "the kernel was built without performance events".into(),
            format!("run a kernel with CONFIG_PERF_EVENTS; {INSTEAD}"),
        ),
        libc::EMFILE | libc::ENFILE => say(
            "too many open files: each CPU takes two or three".into(),
            "raise the agent's LimitNOFILE".into(),
        ),
        _ => say(
            "the kernel refuses the event".into(),
            format!("report it with the kernel's version; {INSTEAD}"),
        ),
    }
}

fn not_permitted(root: &HostRoot) -> (String, String) {
    let locked = root.read("sys/kernel/security/lockdown");
    if locked.is_ok_and(|text| text.contains("[confidentiality]")) {
        return (
            "the kernel is locked down for confidentiality and lets nobody sample".into(),
            format!("boot with lockdown=integrity; {INSTEAD}"),
        );
    }
    let paranoid = root.read("proc/sys/kernel/perf_event_paranoid");
    let paranoid = paranoid.map_or_else(|_| "unknown".into(), |text| text.trim().to_owned());
    (
        format!("not permitted to sample all processes (kernel.perf_event_paranoid is {paranoid})"),
        "run the agent with CAP_PERFMON (AmbientCapabilities=CAP_PERFMON; CAP_SYS_ADMIN before Linux 5.8); in a \
         container, its seccomp profile must allow perf_event_open, too"
            .into(),
    )
}

fn taken(root: &HostRoot) -> (String, String) {
    let others = holders(root);
    let watchdog = root.read("proc/sys/kernel/nmi_watchdog");
    let watchdog = watchdog.is_ok_and(|text| text.trim() == "1");
    let mut why = "the PMU is taken".to_owned();
    let mut changes = Vec::new();
    if !others.is_empty() {
        why += &format!("; events are open in {}", others.join(", "));
        changes.push(format!("end {}", others.join(", ")));
    }
    if watchdog {
        why += "; the NMI watchdog holds a counter";
        changes.push("sysctl kernel.nmi_watchdog=0".into());
    }
    if changes.is_empty() {
        why += ", by whom cannot be seen from here";
        changes.push(
            "look for a profiler on this machine that keeps the PMU for itself (OProfile, a vendor's driver), and end it"
                .into(),
        );
    }
    (why, format!("{}; {INSTEAD}", changes.join("; ")))
}

/// What kind of machine this is.
struct Machine {
    guest: bool,
    amd: bool,
}

impl Machine {
    fn of(root: &HostRoot) -> Self {
        let text = root.read("proc/cpuinfo").unwrap_or_default();
        let line = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            lines
                .find(|(name, _)| name.trim() == key)
                .map(|line| line.1)
        };
        let flags = line("flags").unwrap_or_default();
        Self {
            guest: flags.split_whitespace().any(|flag| flag == "hypervisor"),
            amd: line("vendor_id").is_some_and(|vendor| vendor.trim() == "AuthenticAMD"),
        }
    }

    /// What would give it PEBS or IBS.
    fn gain(&self) -> &'static str {
        match (self.guest, self.amd) {
            (true, false) => {
                "give the VM a vPMU: -cpu host,pmu=on (libvirt: <cpu mode='host-passthrough'/>, <pmu state='on'/>), on an \
                 Intel host of the Ice Lake server generation or later with Linux 6.0 or later"
            }
            (true, true) => {
                "nothing to change in this VM: KVM gives no guest IBS; only Intel hosts of the Ice Lake server \
                 generation or later sample in guests"
            }
            (false, false) => {
                "look for the kernel's message 'Performance Events' at boot; PEBS with load latency needs an Intel \
                 processor whose firmware does not hide the PMU"
            }
            (false, true) => {
                "switch IBS on in the firmware's settings; the kernel must have CONFIG_PERF_EVENTS and CONFIG_CPU_SUP_AMD"
            }
        }
    }
}

#[cfg(test)]
mod tests;
