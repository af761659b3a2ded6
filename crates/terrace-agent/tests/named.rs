//! Frames that a host names, and what may come between their look-up and the move: a real process whose table of pages is
//! played, and a kernel that only notes where pages are.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use terrace_agent::agent::Agent;
use terrace_agent::channel::{FrameRequests, Instructions};
use terrace_agent::config::Config;
use terrace_agent::frames::NotMoved;
use terrace_agent::host::own_instructions;
use terrace_agent::room::Room;
use terrace_agent::sampler::Samplers;
use terrace_agent::status::Status;
use terrace_proto::agent::{Budgets, Mode};
use terrace_proto::{Gfn, PAGE_SIZE};
use terrace_sys::{HostRoot, MoveOutcome, MoveTo, Pages, SysError};
use terrace_testkit::pages::{FakePage, FakePages, State};

/// The program's pages that have a frame.
const PAGES: u64 = 16;
/// The first of their frames: node 1 begins there.
const FIRST: u64 = 1 << 12;

/// A kernel to which something happens right before pages move.
#[derive(Clone)]
struct Meddled {
    kernel: FakePages,
    before: Arc<Mutex<Option<Meddling>>>,
}

type Meddling = Box<dyn FnOnce(&mut State) + Send>;

impl Pages for Meddled {
    fn call(
        &self,
        pid: u32,
        addresses: &[u64],
        to: Option<MoveTo>,
        status: &mut [i32],
    ) -> Result<MoveOutcome, SysError> {
        if to.is_some()
            && let Some(meddle) = self.before.lock().unwrap().take()
        {
            meddle(&mut self.kernel.state());
        }
        self.kernel.call(pid, addresses, to, status)
    }

    fn swaps(&self) -> Result<(), String> {
        self.kernel.swaps()
    }

    fn swap(
        &self,
        up: (u32, &[u64]),
        down: (u32, &[u64]),
        status: &mut [i32],
    ) -> Result<(), SysError> {
        self.kernel.swap(up, down, status)
    }

    fn migrates(&self) -> Result<(), String> {
        self.kernel.migrates()
    }

    fn migrate(&self, node: u32, frames: &[u64], status: &mut [i32]) -> Result<(), SysError> {
        self.kernel.migrate(node, frames, status)
    }
}

struct Bench {
    agent: Agent,
    kernel: FakePages,
    before: Arc<Mutex<Option<Meddling>>>,
    child: Child,
    /// The first page of its heap.
    start: u64,
    _dir: tempfile::TempDir,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Bench {
    /// A program whose pages lie on the slow node, on a machine whose kernel is set up by `set_up`.
    fn new(set_up: impl FnOnce(&mut State, u32, u64)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let pid = child.id();
        let start = heap(pid) / PAGE_SIZE;
        let root = machine(dir.path(), pid, start);
        let kernel = FakePages::default();
        let mut state = kernel.state();
        state.room = [(0, 1 << 30), (1, 1 << 30)].into();
        for page in start..start + PAGES {
            state.put(pid, page * PAGE_SIZE, FakePage::base(1));
        }
        set_up(&mut state, pid, start);
        drop(state);
        let text = "[processes]\nmin = \"4KiB\"\nnames = [\"cat\"]\n[budget]\ncpu_percent = 100\n";
        let before = Arc::default();
        let pages = Meddled {
            kernel: kernel.clone(),
            before: Arc::clone(&before),
        };
        let room = Room::read(root.clone(), &[], None).unwrap();
        let config = Config::parse(text).unwrap();
        let agent = Agent::new(
            config,
            root,
            room,
            Box::new(pages),
            Samplers::of(Vec::new()),
        );
        let mut bench = Self {
            agent,
            kernel,
            before,
            child,
            start,
            _dir: dir,
        };
        bench.agent.follow(orders(&[], &[]));
        bench.agent.step();
        bench
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has something happen right before pages move.
    fn before_the_move(&self, meddle: impl FnOnce(&mut State) + Send + 'static) {
        *self.before.lock().unwrap() = Some(Box::new(meddle));
    }

    /// Names frames, as numbers from the first one on.
    fn name(&mut self, promote: &[u64], demote: &[u64]) -> Status {
        self.agent.follow(orders(promote, demote));
        self.agent.status()
    }

    fn node(&self, page: u64) -> Option<i32> {
        let state = self.kernel.state();
        state.node_at(self.pid(), (self.start + page) * PAGE_SIZE)
    }
}

/// The first address of a process's heap, once it has one: it has just been started.
fn heap(pid: u32) -> u64 {
    loop {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        if let Some(line) = maps.lines().find(|line| line.ends_with("[heap]"))
            && fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() == "cat\n"
        {
            let start = line.split('-').next().unwrap();
            return u64::from_str_radix(start, 16).unwrap();
        }
        std::thread::yield_now();
    }
}

/// A machine with two nodes and one process, whose table of pages is played.
fn machine(dir: &Path, pid: u32, start: u64) -> HostRoot {
    let put = |path: &str, text: &str| {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("sys/devices/system/node/online", "0-1\n");
    let mut zones = String::new();
    for (id, cpus) in [(0, "0\n"), (1, "\n")] {
        let node = format!("sys/devices/system/node/node{id}");
        put(&format!("{node}/cpulist"), cpus);
        put(&format!("{node}/distance"), "10 20\n");
        put(
            &format!("{node}/meminfo"),
            &format!("Node {id} MemTotal: 1048576 kB\n"),
        );
        zones.push_str(&format!(
            "Node {id}, zone Normal\n  pages free 262144\n  high 0\n  spanned {FIRST}\n  start_pfn: {}\n",
            id * FIRST
        ));
    }
    put("proc/zoneinfo", &zones);
    let folder = dir.join(format!("proc/{pid}"));
    fs::create_dir_all(&folder).unwrap();
    for name in ["stat", "status", "maps", "comm"] {
        symlink(format!("/proc/{pid}/{name}"), folder.join(name)).unwrap();
    }
    let pagemap = File::create(folder.join("pagemap")).unwrap();
    for page in 0..PAGES {
        let entry: u64 = 1 << 63 | (FIRST + page);
        let at = (start + page) * 8;
        pagemap.write_all_at(&entry.to_ne_bytes(), at).unwrap();
    }
    HostRoot::new(dir)
}

fn orders(promote: &[u64], demote: &[u64]) -> Instructions {
    let gfns = |list: &[u64]| list.iter().map(|frame| Gfn(FIRST + frame)).collect();
    Instructions {
        by_host: true,
        mode: Mode::Coordinated,
        frames: FrameRequests {
            promote: gfns(promote),
            demote: gfns(demote),
        },
        ..own_instructions(Budgets::new(1 << 30, 100).unwrap())
    }
}

fn left(count: u64) -> NotMoved {
    NotMoved {
        left: count,
        ..NotMoved::default()
    }
}

fn plain(_: &mut State, _: u32, _: u64) {}

#[test]
fn named_frames_come_up_and_what_nobody_has_stays() {
    let mut bench = Bench::new(plain);
    let status = bench.name(&[0, 3, 999], &[5]);
    let unknown = NotMoved {
        unknown: 1,
        ..NotMoved::default()
    };
    assert_eq!((status.frames_taken, status.frames_refused), (3, unknown));
    assert_eq!(
        [0, 1, 3, 5].map(|page| bench.node(page)),
        [0, 1, 0, 1].map(Some)
    );
    assert!(status.no_migrate.contains("no module"), "{status:#?}");
    assert_eq!(
        (status.frames_index.pages, status.frames_index.left_out),
        (PAGES, 0)
    );
}

#[test]
fn a_process_exits_between_look_up_and_move() {
    let mut bench = Bench::new(plain);
    let pid = bench.pid();
    bench.before_the_move(move |state| {
        state.ended.insert(pid);
    });
    let status = bench.name(&[0, 1], &[]);
    assert_eq!((status.frames_taken, status.frames_refused), (0, left(2)));
    assert_eq!(status.mode, "coordinated");
}

#[test]
fn a_process_forks_between_look_up_and_move() {
    let mut bench = Bench::new(plain);
    let (pid, start) = (bench.pid(), bench.start);
    bench.before_the_move(move |state| {
        let shared = FakePage {
            others: true,
            ..FakePage::base(1)
        };
        state.put(pid, start * PAGE_SIZE, shared);
    });
    let status = bench.name(&[0, 1], &[]);
    assert_eq!((status.frames_taken, status.frames_refused), (1, left(1)));
    assert_eq!([0, 1].map(|page| bench.node(page)), [Some(1), Some(0)]);
}

#[test]
fn a_process_execs_between_look_up_and_move() {
    let mut bench = Bench::new(plain);
    let (pid, start) = (bench.pid(), bench.start);
    bench.before_the_move(move |state| {
        state.pages.clear();
        // The new program has one page at an address of the old one, which was not named.
        state.put(pid, start * PAGE_SIZE, FakePage::base(1));
    });
    let status = bench.name(&[0, 1, 2], &[]);
    // At most as many pages move as were named.
    assert_eq!((status.frames_taken, status.frames_refused), (1, left(2)));
    assert_eq!(bench.kernel.state().pages.len(), 1);
}

#[test]
fn a_cpuset_without_the_node_refuses_named_pages() {
    let mut bench = Bench::new(|state, pid, _| {
        state.refuses = [(pid, libc::EACCES)].into();
    });
    let status = bench.name(&[0, 1], &[]);
    assert_eq!((status.frames_taken, status.frames_refused), (0, left(2)));
    let said = |status: &Status| {
        let mut events = status.events.iter();
        events.any(|event| {
            event
                .text
                .contains("its pages stay where they are for a while")
        })
    };
    assert!(said(&status), "{status:#?}");
    // The kernel is not asked again and again.
    let calls = bench.kernel.state().calls.len();
    let status = bench.name(&[2], &[]);
    assert_eq!(
        (status.frames_refused, bench.kernel.state().calls.len()),
        (left(3), calls)
    );
}

#[test]
fn both_nodes_are_full_and_named_pages_stay() {
    let mut bench = Bench::new(|state, pid, start| {
        state.room.clear();
        state.put(pid, (start + 5) * PAGE_SIZE, FakePage::base(0));
    });
    let status = bench.name(&[0], &[5]);
    assert_eq!((status.frames_taken, status.frames_refused), (0, left(2)));
    assert_eq!([0, 5].map(|page| bench.node(page)), [Some(1), Some(0)]);
}

/// A machine whose module moves frames: those of the program, one of a process that is not managed, and one of the page cache.
fn with_module(state: &mut State, pid: u32, start: u64) {
    let own = (0..PAGES).map(|page| (FIRST + page, (pid, (start + page) * PAGE_SIZE)));
    let mut frames: std::collections::BTreeMap<u64, (u32, u64)> = own.collect();
    state.put(1, 0, FakePage::base(1));
    frames.insert(FIRST + 100, (1, 0));
    state.frames = Some(frames);
    state.other_frames = [
        (FIRST + 200, -libc::EOPNOTSUPP),
        (FIRST + 201, -libc::EAGAIN),
    ]
    .into();
}

#[test]
fn the_module_moves_frames_of_whoever_has_them() {
    let mut bench = Bench::new(with_module);
    let status = bench.name(&[0, 1, 100, 200, 201, 202], &[]);
    let stay = NotMoved {
        // The page cache, and a frame that nobody has.
        unknown: 2,
        left: 1,
        stale: 0,
    };
    assert_eq!((status.frames_taken, status.frames_refused), (3, stay));
    assert_eq!(bench.kernel.state().pages[&(1, 0)].node, 0);
    assert_eq!((status.no_migrate.as_str(), status.promoted_pages), ("", 3));
    assert!(bench.kernel.state().calls.is_empty(), "no move_pages");
}

#[test]
fn what_the_module_leaves_is_moved_by_its_pages() {
    let mut bench = Bench::new(|state, pid, start| {
        with_module(state, pid, start);
        state.other_frames.insert(FIRST + 2, -libc::E2BIG);
        state.other_frames.insert(FIRST + 3, -libc::EPERM);
    });
    let status = bench.name(&[0, 2, 3], &[]);
    assert_eq!((status.frames_taken, status.frames_refused), (3, left(0)));
    assert_eq!([0, 2, 3].map(|page| bench.node(page)), [Some(0); 3]);
    let calls = bench.kernel.state().calls.clone();
    assert_eq!(
        calls.iter().map(|call| call.addresses.len()).sum::<usize>(),
        2
    );
}

#[test]
fn the_module_finds_no_free_page_and_nothing_else_is_tried() {
    let mut bench = Bench::new(|state, pid, start| {
        with_module(state, pid, start);
        state.room.insert(0, 0);
    });
    let status = bench.name(&[0, 1], &[]);
    assert_eq!((status.frames_taken, status.frames_refused), (0, left(2)));
    assert_eq!(bench.node(0), Some(1));
}
