//! The reasons why the kernel does not open a PMU's events, and what to change.

use terrace_sys::{HostRoot, SysError};

use super::holders::holders;
use super::recipe::Recipe;

/// The alternative to a PMU.
pub(super) const INSTEAD: &str = "without it, accesses are sampled by DAMON, coarsely";

/// The reason why events could not be opened, and what to change.
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
            "nothing: the agent tries again when the CPU is back online".into(),
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
            "the kernel is locked down for confidentiality and permits no sampling".into(),
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
        why += ", but the program that uses it cannot be seen from here";
        changes.push(
            "look for a profiler on this machine that keeps the PMU for itself (OProfile, a vendor's driver), \
             and end it"
                .into(),
        );
    }
    (why, format!("{}; {INSTEAD}", changes.join("; ")))
}

/// The kind of this machine: its vendor, and whether it is a guest.
pub(super) struct Machine {
    pub(super) guest: bool,
    amd: bool,
}

impl Machine {
    pub(super) fn of(root: &HostRoot) -> Self {
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

    /// The change that would give this machine PEBS or IBS.
    pub(super) fn gain(&self) -> &'static str {
        match (self.guest, self.amd) {
            (true, false) => {
                "give the VM a vPMU: -cpu host,pmu=on (libvirt: <cpu mode='host-passthrough'/>, <pmu \
                 state='on'/>), on an \
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
                "switch IBS on in the firmware's settings; the kernel must have CONFIG_PERF_EVENTS and \
                 CONFIG_CPU_SUP_AMD"
            }
        }
    }
}
