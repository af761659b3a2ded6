//! The PMU sampler on records of the running kernel: page faults, which every machine samples.
//!
//! Most of these tests sample their own thread and the children that it starts, which `kernel.perf_event_paranoid` up
//! to 2 permits to everybody. If nothing is permitted, they say so by name. With `TERRACE_NEEDS_PERF` set they fail
//! instead.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use terrace_agent::sampler::pmu::{Kernel, Opener, Pmu, Recipe, SampleKind, Settings};
use terrace_agent::sampler::{Drained, Sample, Sampler, Target};
use terrace_core::ranges::{Params, Range, RangeTree};
use terrace_sys::perf::{Event, EventAttr, SOFTWARE, SOFTWARE_PAGE_FAULTS, Scope};
use terrace_sys::{HostRoot, SharedMapping, SysError};

/// Opens events of this thread, and of the children it starts later, if events of a CPU were asked for.
#[derive(Debug)]
struct Own;

impl Opener for Own {
    fn open(
        &self,
        attr: &EventAttr,
        scope: Scope,
        leader: Option<&Event>,
    ) -> Result<Event, SysError> {
        let Scope::Cpu(cpu) = scope else {
            panic!("{scope:?}")
        };
        let attr = EventAttr {
            inherit: true,
            ..*attr
        };
        let scope = Scope::Process {
            pid: 0,
            cpu: Some(cpu),
        };
        Event::open(&attr, scope, leader)
    }
}

/// Whether the running kernel lets the opener open page faults. If not, the test prints so past the harness's capture.
fn permitted(test: &str, opener: &dyn Opener) -> bool {
    let attr = Recipe::page_faults().events[0].attr;
    match opener.open(&attr, Scope::Cpu(0), None) {
        Ok(_) => true,
        Err(error) if matches!(error.errno(), libc::EACCES | libc::EPERM | libc::ENOSYS) => {
            let message = format!("\nSKIPPED {test}: NOT TESTED, since {error}\n");
            io::stderr().write_all(message.as_bytes()).unwrap();
            assert!(
                std::env::var_os("TERRACE_NEEDS_PERF").is_none(),
                "{message}, but TERRACE_NEEDS_PERF is set"
            );
            false
        }
        Err(error) => panic!("{error}"),
    }
}

fn own(ring_pages: u32) -> Pmu {
    let settings = Settings { ring_pages };
    let recipe = Recipe::page_faults();
    Pmu::open_with(HostRoot::default(), recipe, settings, Box::new(Own)).unwrap()
}

/// Memory whose pages fault when they are touched, as often as wanted.
struct Memory(SharedMapping);

impl Memory {
    fn new(pages: u64) -> Self {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(pages * 4096).unwrap();
        let len = usize::try_from(pages * 4096).unwrap();
        Self(SharedMapping::new(file.as_fd(), 0, len).unwrap())
    }

    fn range(&self) -> Range {
        let start = self.0.as_ptr() as u64 / 4096;
        Range {
            start,
            end: start + self.0.len() as u64 / 4096,
        }
    }

    /// Writes to pages, counted from the first, each of which faults once.
    fn touch(&self, pages: impl Iterator<Item = u64>) {
        self.0.forget_pages(0, u64::MAX).unwrap();
        for page in pages {
            let at = usize::try_from(page * 4096).unwrap();
            assert!(at < self.0.len());
            // SAFETY: inside of the mapping.
            unsafe { self.0.as_ptr().add(at).write_volatile(1) };
        }
    }
}

fn target(pid: u32) -> Target {
    Target {
        pid,
        ranges: Vec::new(),
    }
}

fn me() -> Vec<Target> {
    vec![target(std::process::id())]
}

fn drain(pmu: &mut Pmu) -> (Vec<Sample>, Drained) {
    let mut samples = Vec::new();
    let drained = pmu.drain(&mut |sample| samples.push(sample)).unwrap();
    (samples, drained)
}

/// The number of samples that are of a range.
fn within(samples: &[Sample], range: Range) -> usize {
    let inside = |s: &&Sample| range.start <= s.range.start && s.range.end <= range.end;
    samples.iter().filter(inside).count()
}

#[test]
fn faults_of_a_process_lead_the_tree_to_its_hot_range() {
    if !permitted("faults_of_a_process_lead_the_tree_to_its_hot_range", &Own) {
        return;
    }
    let mut pmu = own(64);
    assert_eq!(pmu.name(), "page-faults");
    // A root of 64 MiB, of which 2 MiB are hot and all else is touched now and then.
    let memory = Memory::new(16_384);
    let root = memory.range();
    // A whole block, wherever the kernel put the mapping: ranges are split at multiples of 2 MiB.
    let first = (root.start + 9 * 512).next_multiple_of(512);
    let hot = Range {
        start: first,
        end: first + 512,
    };
    let hot_pages = hot.start - root.start..hot.end - root.start;
    let mut tree = RangeTree::new(pmu.params(1), &[root]);
    pmu.watch(&me()).unwrap();
    // ⌈log2(root ÷ hot)⌉ epochs, and one for a first scan.
    for _ in 0..6 {
        for _ in 0..4 {
            let all = (0..16_384).step_by(512);
            let now_and_then = all.filter(|page| !hot_pages.contains(page));
            memory.touch(hot_pages.clone().chain(now_and_then));
        }
        let (samples, drained) = drain(&mut pmu);
        assert_eq!(drained, Drained::default());
        assert_eq!(within(&samples, hot), 4 * 512);
        assert_eq!(within(&samples, root), 4 * (512 + 31));
        for sample in samples {
            assert_eq!(
                (sample.pid, sample.range.pages(), sample.accesses),
                (std::process::id(), 1, 1)
            );
            tree.count(sample.range.start);
        }
        tree.end_epoch();
        tree.decay();
    }
    let hottest = tree.leaves().max_by_key(|leaf| leaf.count).unwrap();
    assert!(
        hot.start <= hottest.range.start && hottest.range.end <= hot.end,
        "{hottest:?} is not within {hot:?}"
    );
    assert!(pmu.counters().unknown >= 6 * 4 * (512 + 31));
}

#[test]
fn the_hottest_of_several_mappings_is_found() {
    if !permitted("the_hottest_of_several_mappings_is_found", &Own) {
        return;
    }
    let mut pmu = own(64);
    let memories: Vec<Memory> = (0..4).map(|_| Memory::new(512)).collect();
    let seeds: Vec<Range> = memories.iter().map(Memory::range).collect();
    let mut tree = RangeTree::new(Params::paper(1), &seeds);
    pmu.watch(&me()).unwrap();
    for (number, memory) in memories.iter().enumerate() {
        let rounds = if number == 2 { 5 } else { 1 };
        (0..rounds).for_each(|_| memory.touch(0..200));
    }
    drain(&mut pmu).0.iter().for_each(|sample| {
        tree.count(sample.range.start);
    });
    let hottest = tree.leaves().max_by_key(|leaf| leaf.count).unwrap();
    assert_eq!((hottest.range, hottest.count), (seeds[2], 1000));
}

/// Binds the calling thread to the CPU on which it runs.
fn stay_on_this_cpu() {
    // SAFETY: takes no pointers.
    let cpu = unsafe { libc::sched_getcpu() };
    let cpu = usize::try_from(cpu).expect("a CPU");
    // SAFETY: a set of CPUs is a plain array of bits, empty if all are zero.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set holds 1,024 CPUs; the macro leaves greater numbers out.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is valid for the call, and of the size that is given.
    let rc = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    assert_eq!(rc, 0, "the thread stays on CPU {cpu}");
}

#[test]
fn an_overrun_is_counted_and_sampling_goes_on() {
    if !permitted("an_overrun_is_counted_and_sampling_goes_on", &Own) {
        return;
    }
    // The records that a CPU's ring lost are counted by that CPU's next record.
    stay_on_this_cpu();
    let mut pmu = own(1);
    pmu.watch(&me()).unwrap();
    let memory = Memory::new(4000);
    memory.touch(0..4000);
    let got = within(&drain(&mut pmu).0, memory.range());
    assert!((100..4000).contains(&got), "{got}");
    let mut lost = 0;
    for _ in 0..10_000 {
        if lost >= 4000 - got as u64 {
            break;
        }
        memory.touch(0..50);
        let (samples, drained) = drain(&mut pmu);
        assert_eq!(within(&samples, memory.range()), 50);
        lost += drained.lost;
    }
    assert!(lost >= 4000 - got as u64, "{lost}");
    assert_eq!(pmu.counters().lost, lost);
    assert_eq!(pmu.counters().malformed, 0);
}

#[test]
fn nothing_is_sampled_while_nobody_is_watched() {
    if !permitted("nothing_is_sampled_while_nobody_is_watched", &Own) {
        return;
    }
    let mut pmu = own(8);
    let memory = Memory::new(100);
    memory.touch(0..100);
    assert_eq!(drain(&mut pmu), (vec![], Drained::default()));
    assert_eq!(pmu.running_share(), None);
    pmu.watch(&me()).unwrap();
    memory.touch(0..100);
    pmu.watch(&[]).unwrap();
    memory.touch(0..100);
    // Earlier records are of no process that is watched now.
    assert_eq!(drain(&mut pmu).0, vec![]);
    let counters = pmu.counters();
    assert!((100..150).contains(&counters.foreign), "{counters:?}");
    assert_eq!(counters.samples(), 0);
    pmu.watch(&me()).unwrap();
    memory.touch(0..100);
    assert_eq!(within(&drain(&mut pmu).0, memory.range()), 100);
}

#[test]
fn memory_is_one_ring_per_cpu_and_little_else() {
    if !permitted("memory_is_one_ring_per_cpu_and_little_else", &Own) {
        return;
    }
    let mut pmu = own(Settings::default().ring_pages);
    let rings = pmu.sampled_cpus() * 65 * 4096;
    assert_eq!((pmu.memory_bytes(), pmu.failed_cpus()), (rings, None));
    let targets: Vec<Target> = (1..=1000).map(target).collect();
    pmu.watch(&targets).unwrap();
    let memory = Memory::new(20_000);
    memory.touch(0..20_000);
    drain(&mut pmu);
    let heap = pmu.memory_bytes() - rings;
    assert!(heap <= 2 * 64 * 4096 + 2 * 1000 * 4, "{heap}");
}

#[test]
fn a_half_full_ring_wakes_whoever_waits() {
    if !permitted("a_half_full_ring_wakes_whoever_waits", &Own) {
        return;
    }
    let mut pmu = own(4);
    pmu.watch(&me()).unwrap();
    let memory = Memory::new(3000);
    memory.touch(0..3000);
    let mut polls: Vec<libc::pollfd> = pmu
        .fds()
        .map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    assert_eq!(polls.len(), pmu.sampled_cpus());
    // SAFETY: as many valid entries as said. The wake-up comes soon or never.
    let ready = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as _, 60_000) };
    assert!(ready >= 1);
    assert!(!drain(&mut pmu).0.is_empty());
}

/// A shell that starts so many processes one after the other, as soon as it is asked to.
fn forking_shell(children: u32) -> Child {
    let script = format!(
        "read go; i=0; while [ $i -lt {children} ]; do (exec true); i=$((i+1)); done; exit 7"
    );
    Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap()
}

fn go_and_wait(mut shell: Child) {
    shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(shell.wait().unwrap().code(), Some(7));
}

/// Runs a storm of forks and exits under one watched process.
fn forks_and_exits(pmu: &mut Pmu) {
    pmu.watch(&me()).unwrap();
    let shells = [forking_shell(20), forking_shell(20)];
    let pids = shells.each_ref().map(Child::id);
    pmu.watch(&[target(pids[0])]).unwrap();
    shells.into_iter().for_each(go_and_wait);
    let (samples, drained) = drain(pmu);
    assert_eq!(drained, Drained::default());
    assert!(samples.iter().all(|sample| sample.pid == pids[0]));
    // Each fork makes the shell copy pages that it writes to afterwards.
    assert!(samples.len() >= 20, "{}", samples.len());
    // Two times twenty children of their own numbers, and the other shell.
    assert!(pmu.counters().foreign > samples.len() as u64);
    // The process ended and is still watched: no error, and nothing more of it.
    pmu.watch(&[target(pids[0])]).unwrap();
    go_and_wait(forking_shell(1));
    assert_eq!(drain(pmu).0, vec![]);
}

#[test]
fn forks_and_exits_of_sampled_processes_are_no_trouble() {
    if permitted("forks_and_exits_of_sampled_processes_are_no_trouble", &Own) {
        forks_and_exits(&mut own(64));
    }
}

#[test]
fn everybody_is_sampled_by_one_ring_per_cpu() {
    if !permitted("everybody_is_sampled_by_one_ring_per_cpu", &Kernel) {
        return;
    }
    // Room for what everybody else on this machine does.
    let settings = Settings { ring_pages: 1024 };
    let mut pmu = Pmu::open(HostRoot::default(), Recipe::page_faults(), settings).unwrap();
    forks_and_exits(&mut pmu);
    // Samples of another thread of a process bear the process's number.
    let memory = Memory::new(100);
    pmu.watch(&me()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| memory.touch(0..100));
    });
    let (samples, _) = drain(&mut pmu);
    assert_eq!(within(&samples, memory.range()), 100);
    // Page faults need no PMU, so that they never wait for one.
    assert_eq!(pmu.running_share(), Some(1.0));
}

fn put(dir: &Path, file: &str, text: &str) {
    let path = dir.join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// An opener of page faults if PEBS is asked for: faults as such for loads, minor faults for stores. Notes which
/// events had a leader.
#[derive(Debug, Clone, Default)]
struct InsteadOfPebs {
    asked: Arc<Mutex<Vec<(u64, bool)>>>,
}

impl Opener for InsteadOfPebs {
    fn open(
        &self,
        attr: &EventAttr,
        scope: Scope,
        leader: Option<&Event>,
    ) -> Result<Event, SysError> {
        let asked = (attr.config, leader.is_some());
        self.asked.lock().unwrap().push(asked);
        let config = match attr.config {
            0x82d0 => 5,
            _ => SOFTWARE_PAGE_FAULTS,
        };
        let attr = EventAttr {
            pmu: SOFTWARE,
            config,
            config1: 0,
            period: u64::from(attr.period > 0),
            precise: 0,
            ..*attr
        };
        Own.open(&attr, scope, leader)
    }
}

#[test]
fn two_events_and_a_companion_share_a_ring_as_with_pebs() {
    if !permitted("two_events_and_a_companion_share_a_ring_as_with_pebs", &Own) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let device = "sys/bus/event_source/devices/cpu";
    for (file, text) in [
        ("type", "4\n"),
        ("caps/max_precise", "3\n"),
        ("format/event", "config:0-7\n"),
        ("format/umask", "config:8-15\n"),
        ("format/ldlat", "config1:0-15\n"),
        ("events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
        ("events/mem-loads-aux", "event=0x03,umask=0x82\n"),
    ] {
        put(dir.path(), &format!("{device}/{file}"), text);
    }
    let online = "sys/devices/system/cpu/online";
    let cpus = HostRoot::default().read(online).unwrap();
    put(dir.path(), online, &cpus);
    let root = HostRoot::new(dir.path());
    let recipe = Recipe::pebs(&root).unwrap();
    assert_eq!(recipe.kind, SampleKind::Pebs);
    let opener = InsteadOfPebs::default();
    let asked = opener.asked.clone();
    let settings = Settings { ring_pages: 8 };
    let mut pmu = Pmu::open_with(root, recipe, settings, Box::new(opener)).unwrap();
    assert_eq!(pmu.name(), "pebs");
    assert_eq!(
        asked.lock().unwrap()[..3],
        [(0x8203, false), (0x1cd, true), (0x82d0, false)]
    );
    pmu.watch(&me()).unwrap();
    let memory = Memory::new(200);
    memory.touch(0..200);
    let (samples, drained) = drain(&mut pmu);
    assert_eq!(within(&samples, memory.range()), 400);
    assert_eq!(drained, Drained::default());
    let counters = pmu.counters();
    assert!(counters.loads >= 200 && counters.stores >= 200);
    assert_eq!(counters.unknown, 0);
}

/// A machine whose CPU 1 comes and goes; events are of this thread on all CPUs.
#[derive(Debug, Clone, Default)]
struct Hotplugged {
    unplugged: Arc<Mutex<bool>>,
}

impl Opener for Hotplugged {
    fn open(&self, attr: &EventAttr, scope: Scope, _: Option<&Event>) -> Result<Event, SysError> {
        if scope == Scope::Cpu(1) && *self.unplugged.lock().unwrap() {
            return Err(SysError {
                call: "perf_event_open",
                what: "CPU 1".into(),
                source: io::Error::from_raw_os_error(libc::ENODEV),
            });
        }
        Event::open(attr, Scope::Process { pid: 0, cpu: None }, None)
    }
}

#[test]
fn cpus_that_come_and_go_are_followed() {
    if !permitted("cpus_that_come_and_go_are_followed", &Own) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let online = "sys/devices/system/cpu/online";
    put(dir.path(), online, "0-1\n");
    let opener = Hotplugged::default();
    let unplugged = opener.unplugged.clone();
    // The CPU goes between the read of the list and the opening.
    *unplugged.lock().unwrap() = true;
    let recipe = Recipe::page_faults();
    let root = HostRoot::new(dir.path());
    let settings = Settings { ring_pages: 8 };
    let mut pmu = Pmu::open_with(root, recipe, settings, Box::new(opener)).unwrap();
    let (failed, why) = pmu.failed_cpus().unwrap();
    assert_eq!((pmu.sampled_cpus(), *failed), (1, 1));
    assert!(
        why.contains("CPU 1") && why.contains("went offline"),
        "{why}"
    );
    let memory = Memory::new(10);
    let seen = |pmu: &mut Pmu| {
        pmu.watch(&me()).unwrap();
        memory.touch(0..10);
        let (samples, _) = drain(pmu);
        (within(&samples, memory.range()), pmu.sampled_cpus())
    };
    // It cannot be opened as long as it is away.
    assert_eq!(seen(&mut pmu), (10, 1));
    *unplugged.lock().unwrap() = false;
    // Each of the two "CPUs" sees all of this thread's faults here.
    assert_eq!(seen(&mut pmu), (20, 2));
    assert_eq!(pmu.failed_cpus(), None);
    put(dir.path(), online, "0\n");
    assert_eq!(seen(&mut pmu), (10, 1));
    put(dir.path(), online, "0-1\n");
    assert_eq!(seen(&mut pmu), (20, 2));
    put(dir.path(), online, "1\n");
    *unplugged.lock().unwrap() = true;
    assert_eq!(seen(&mut pmu), (10, 1), "what runs is not touched");
    put(dir.path(), online, "\n");
    assert!(pmu.watch(&me()).is_err(), "no CPU is left");
}
