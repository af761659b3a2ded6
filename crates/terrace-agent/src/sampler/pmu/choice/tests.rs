//! Fake trees, and a kernel that answers as the test wants.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::Path;

use terrace_sys::perf::{Event, EventAttr, SOFTWARE, SOFTWARE_DUMMY, Scope};
use terrace_sys::{Health, SysError};

use super::*;

fn put(dir: &Path, file: &str, text: &str) {
    let path = dir.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A guest with this vendor's processor and no PMU.
fn guest(vendor: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let cpuinfo =
        format!("processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu vme hypervisor lahf_lm\n");
    put(dir.path(), "proc/cpuinfo", &cpuinfo);
    put(dir.path(), "sys/devices/system/cpu/online", "0-3\n");
    dir
}

/// Adds a PMU as a kernel on Ice Lake shows it.
fn with_pebs(dir: &Path, device: &str) {
    for (file, text) in [
        ("type", "4\n"),
        ("caps/max_precise", "3\n"),
        ("caps/pmu_name", "icelake\n"),
        ("format/event", "config:0-7\n"),
        ("format/umask", "config:8-15\n"),
        ("format/ldlat", "config1:0-15\n"),
        ("events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
        ("events/mem-stores", "event=0xd0,umask=0x82\n"),
    ] {
        put(dir, &format!("{DEVICES}/{device}/{file}"), text);
    }
}

/// Answers with an error number, or opens an event that never counts.
#[derive(Debug)]
struct Answers(i32);

impl Opener for Answers {
    fn open(&self, _: &EventAttr, _: Scope, _: Option<&Event>) -> Result<Event, SysError> {
        if self.0 != 0 {
            return Err(SysError {
                call: "perf_event_open",
                what: "CPU 0".into(),
                source: io::Error::from_raw_os_error(self.0),
            });
        }
        let dummy = EventAttr {
            pmu: SOFTWARE,
            config: SOFTWARE_DUMMY,
            exclude_kernel: true,
            ..EventAttr::default()
        };
        Event::open(&dummy, Scope::Process { pid: 0, cpu: None }, None)
    }
}

/// The choice if every event can be opened. `None` if this machine opens none at all; the test prints so past the
/// harness's capture.
fn chosen(test: &str, dir: &Path) -> Option<Choice> {
    let answer = Answers(0).open(&EventAttr::default(), Scope::Cpu(0), None);
    if let Err(error) = answer {
        let message = format!("\nSKIPPED {test}: NOT TESTED, since {error}\n");
        io::stderr().write_all(message.as_bytes()).unwrap();
        assert!(
            std::env::var_os("TERRACE_NEEDS_PERF").is_none(),
            "{message}, but TERRACE_NEEDS_PERF is set"
        );
        return None;
    }
    Some(choose_with(&HostRoot::new(dir), &Answers(0)))
}

/// The finding's reason and change, both.
fn message(dir: &Path, errno: i32) -> String {
    let choice = choose_with(&HostRoot::new(dir), &Answers(errno));
    assert!(choice.recipe.is_none());
    assert_eq!(choice.finding.health, Health::Missing);
    format!(
        "{} -> {}",
        choice.finding.found,
        choice.finding.advice.unwrap()
    )
}

#[test]
fn a_guest_without_a_pmu_is_told_which_one_to_give_it() {
    let dir = guest("GenuineIntel");
    let said = message(dir.path(), 0);
    assert!(said.starts_with("no PMU in this guest -> "), "{said}");
    for part in ["-cpu host,pmu=on", "Ice Lake", "DAMON"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_guests_pmu_without_pebs_is_told_apart_from_none() {
    let dir = guest("GenuineIntel");
    with_pebs(dir.path(), "cpu");
    let device = format!("{DEVICES}/cpu");
    put(dir.path(), &format!("{device}/caps/max_precise"), "0\n");
    let said = message(dir.path(), 0);
    assert!(said.contains("max_precise is 0"), "{said}");
    assert!(said.contains("-cpu host,pmu=on"), "{said}");
    // Precise, but without load latency.
    put(dir.path(), &format!("{device}/caps/max_precise"), "1\n");
    fs::remove_file(dir.path().join(format!("{device}/events/mem-loads"))).unwrap();
    let said = message(dir.path(), 0);
    assert!(said.contains("no events/mem-loads"), "{said}");
}

#[test]
fn guests_and_machines_of_amd_are_told_what_holds_for_them() {
    let dir = guest("AuthenticAMD");
    let said = message(dir.path(), 0);
    assert!(said.contains("KVM gives no guest IBS"), "{said}");
    let cpuinfo = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu vme\n";
    put(dir.path(), "proc/cpuinfo", cpuinfo);
    let said = message(dir.path(), 0);
    assert!(said.contains("no PMU in this machine"), "{said}");
    assert!(said.contains("firmware"), "{said}");
}

#[test]
fn each_refusal_of_the_kernel_has_words_of_its_own() {
    let dir = guest("GenuineIntel");
    with_pebs(dir.path(), "cpu");
    put(dir.path(), "proc/sys/kernel/perf_event_paranoid", "3\n");
    let mut seen = Vec::new();
    for (errno, parts) in [
        (libc::EACCES, ["perf_event_paranoid is 3", "CAP_PERFMON"]),
        (libc::EBUSY, ["the PMU is taken", "profiler"]),
        (
            libc::ENOENT,
            ["does not know the event", "-cpu host,pmu=on"],
        ),
        (libc::EOPNOTSUPP, ["does not sample that event", "Ice Lake"]),
        (
            libc::ENOSYS,
            ["without performance events", "CONFIG_PERF_EVENTS"],
        ),
        (libc::EMFILE, ["too many open files", "LimitNOFILE"]),
        (libc::ENODEV, ["went offline", "tries again"]),
        (libc::EINVAL, ["refuses the event", "kernel's version"]),
    ] {
        let said = message(dir.path(), errno);
        assert!(said.starts_with("pebs: "), "{said}");
        for part in parts {
            assert!(said.contains(part), "{errno}: {said}");
        }
        let first: String = said.chars().take(40).collect();
        assert!(!seen.contains(&first), "{said} again");
        seen.push(first);
    }
    assert!(message(dir.path(), libc::EPERM).contains("CAP_PERFMON"));
}

#[test]
fn who_holds_the_pmu_is_named() {
    let dir = guest("GenuineIntel");
    with_pebs(dir.path(), "cpu");
    put(dir.path(), "proc/4711/comm", "perf\n");
    fs::create_dir(dir.path().join("proc/4711/fd")).unwrap();
    symlink("anon_inode:[perf_event]", dir.path().join("proc/4711/fd/7")).unwrap();
    put(dir.path(), "proc/sys/kernel/nmi_watchdog", "1\n");
    let said = message(dir.path(), libc::EBUSY);
    for part in ["perf (4711)", "end perf (4711)", "kernel.nmi_watchdog=0"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn lockdown_is_not_taken_for_a_missing_capability() {
    let dir = guest("GenuineIntel");
    with_pebs(dir.path(), "cpu");
    let file = "sys/kernel/security/lockdown";
    put(dir.path(), file, "none integrity [confidentiality]\n");
    let said = message(dir.path(), libc::EPERM);
    assert!(said.contains("lockdown=integrity"), "{said}");
    put(dir.path(), file, "none [integrity] confidentiality\n");
    assert!(message(dir.path(), libc::EPERM).contains("CAP_PERFMON"));
}

#[test]
fn a_description_that_makes_no_sense_is_no_lack_of_hardware() {
    let dir = guest("GenuineIntel");
    for (file, text) in [
        ("format/ldlat", "config9:0-15\n"),
        ("format/event", "config:0-3\n"),
        ("events/mem-loads-aux", "event=\n"),
        ("caps/max_precise", "many\n"),
        ("type", "-1\n"),
    ] {
        with_pebs(dir.path(), "cpu");
        let path = format!("{DEVICES}/cpu/{file}");
        put(dir.path(), &path, text);
        let said = message(dir.path(), 0);
        assert!(said.contains(&path), "{said}");
        fs::remove_file(dir.path().join(path)).unwrap();
    }
}

#[test]
fn pebs_is_asked_for_as_large_pebs_wants_it() {
    let dir = guest("GenuineIntel");
    with_pebs(dir.path(), "cpu");
    let Some(choice) = chosen("pebs_is_asked_for_as_large_pebs_wants_it", dir.path()) else {
        return;
    };
    let recipe = choice.recipe.unwrap();
    assert_eq!((recipe.kind, recipe.events.len()), (SampleKind::Pebs, 2));
    let [load, store] = &recipe.events[..] else {
        panic!("{recipe:?}");
    };
    assert_eq!((load.attr.config, load.attr.config1), (0x1cd, 80));
    assert_eq!((store.attr.config, store.attr.config1), (0x82d0, 0));
    assert_eq!((&load.leader, &store.leader), (&None, &None));
    for wanted in [load, store] {
        let attr = wanted.attr;
        assert_eq!((attr.pmu, attr.period, attr.precise), (4, 4093, 2));
        assert!(attr.exclude_kernel && attr.exclude_guest && !attr.inherit);
        // Of LARGE_PEBS_FLAGS, arch/x86/events/perf_event.h: IP, TID, ADDR, ID, CPU, STREAM_ID, DATA_SRC,
        // IDENTIFIER, TRANSACTION.
        let large = 1 | 1 << 1 | 1 << 3 | 1 << 6 | 1 << 7 | 1 << 9 | 1 << 15 | 1 << 16 | 1 << 17;
        assert_eq!(attr.fields.bits() & !large, 0);
        assert_eq!(attr.fields, recipe.fields(), "they share a ring");
    }
    let finding = choice.finding;
    assert_eq!(
        (finding.name.as_ref(), finding.health),
        ("pmu", Health::Degraded)
    );
    for part in ["4 CPUs (icelake)", "not run on hardware"] {
        assert!(finding.found.contains(part), "{}", finding.found);
    }
}

#[test]
fn sapphire_rapids_gets_the_companion_of_its_load_event() {
    let dir = guest("GenuineIntel");
    with_pebs(dir.path(), "cpu");
    let file = format!("{DEVICES}/cpu/events/mem-loads-aux");
    put(dir.path(), &file, "event=0x03,umask=0x82\n");
    let recipe = Recipe::pebs(&HostRoot::new(dir.path())).unwrap();
    let leader = recipe.events[0].leader.unwrap();
    assert_eq!(
        (leader.config, leader.period, leader.precise),
        (0x8203, 0, 0)
    );
    assert!(leader.exclude_kernel);
    assert_eq!(recipe.events[1].leader, None);
}

#[test]
fn only_the_performance_cores_of_a_hybrid_processor_are_sampled() {
    let dir = guest("GenuineIntel");
    with_pebs(dir.path(), "cpu_core");
    let device = format!("{DEVICES}/cpu_core");
    put(dir.path(), &format!("{device}/cpus"), "2-9\n");
    let root = HostRoot::new(dir.path());
    let test = "only_the_performance_cores_of_a_hybrid_processor_are_sampled";
    let Some(choice) = chosen(test, dir.path()) else {
        return;
    };
    let recipe = choice.recipe.unwrap();
    assert_eq!(online(&root, &recipe).unwrap(), [2, 3]);
    assert!(choice.finding.found.contains("2 CPUs"));
    put(dir.path(), &format!("{device}/cpus"), "8-9\n");
    assert!(message(dir.path(), 0).contains("no CPU that is online"));
}

#[test]
fn ibs_is_asked_for_as_its_driver_wants_it() {
    let dir = guest("AuthenticAMD");
    put(dir.path(), &format!("{DEVICES}/ibs_op/type"), "11\n");
    let root = HostRoot::new(dir.path());
    let Some(choice) = chosen("ibs_is_asked_for_as_its_driver_wants_it", dir.path()) else {
        return;
    };
    let recipe = choice.recipe.unwrap();
    assert_eq!(recipe.kind.name(), "ibs");
    let attr = recipe.events[0].attr;
    assert_eq!((attr.pmu, attr.config, attr.precise), (11, 0, 0));
    // perf_ibs_init: EINVAL if the low four bits of the period are set, or anything is excluded.
    assert_eq!(attr.period % 16, 0);
    assert!(!attr.exclude_kernel && !attr.exclude_guest && !attr.exclude_hypervisor);
    assert!(choice.finding.found.contains("not run on hardware"));
    for (release, warned) in [
        ("6.0.9-1\n", true),
        ("5.14.0-el9", true),
        ("6.1.0", false),
        ("x", false),
    ] {
        put(dir.path(), "proc/sys/kernel/osrelease", release);
        let why = choose_with(&root, &Answers(0)).finding.found;
        assert_eq!(why.contains("may give no addresses"), warned, "{release}");
    }
    let format = format!("{DEVICES}/ibs_op/format/cnt_ctl");
    put(dir.path(), &format, "config:19\n");
    let recipe = Recipe::ibs(&root).unwrap();
    assert_eq!(recipe.events[0].attr.config, 1 << 19);
}

#[test]
fn the_running_machine_gets_an_answer_that_holds() {
    let choice = choose(&HostRoot::default());
    let finding = choice.finding;
    assert_eq!(choice.recipe.is_some(), finding.health != Health::Missing);
    let all = format!("{} -> {}", finding.found, finding.advice.unwrap());
    assert!(
        all.contains("DAMON") || all.contains("CAP_PERFMON"),
        "{all}"
    );
    println!("{all}");
}
