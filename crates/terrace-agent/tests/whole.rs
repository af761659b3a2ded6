//! The whole loop on a real process of this machine, with a sampler whose samples the test sets and a kernel that
//! only notes where pages are: on a machine with one node nothing can really move.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use terrace_agent::agent::Agent;
use terrace_agent::channel::{FrameRequests, Instructions};
use terrace_agent::config::Config;
use terrace_agent::host::own_instructions;
use terrace_agent::room::Room;
use terrace_agent::sampler::{Drained, Sample, Sampler, SamplerError, Samplers, Target};
use terrace_core::ranges::{Params, Range};
use terrace_proto::agent::{Budgets, Heartbeat, Mode};
use terrace_proto::{Gfn, Tick};
use terrace_sys::HostRoot;
use terrace_testkit::pages::{FakePage, FakePages};

/// Memory of the program that is managed.
const MIB: usize = 64;
/// Pages of 2 MiB.
const BLOCK: u64 = 512;

/// Not a test: the program that is managed, if the environment asks for it.
#[test]
fn child_with_memory() {
    if std::env::var_os("TERRACE_AGENT_TEST_CHILD").is_none() {
        return;
    }
    let memory = vec![1_u8; MIB << 20];
    println!("memory {}", memory.as_ptr() as u64);
    std::io::stdout().flush().expect("as set up");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("as set up");
    std::hint::black_box(&memory);
}

/// A running program with memory; ends with the test.
struct Program {
    child: Child,
    /// The first whole block of its memory, as a page number.
    start: u64,
}

impl Program {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "child_with_memory", "--nocapture"])
            .env("TERRACE_AGENT_TEST_CHILD", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("as set up");
        let mut lines = BufReader::new(child.stdout.take().expect("as set up")).lines();
        let address: u64 = loop {
            let line = lines
                .next()
                .expect("the program says where its memory is")
                .expect("a line");
            if let Some((_, address)) = line.split_once("memory ") {
                break address.parse().expect("as set up");
            }
        };
        // The rest of what it prints is not read; the pipe must stay open.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            start: (address / 4096).div_ceil(BLOCK) * BLOCK,
        }
    }

    fn blocks(&self, from: u64, count: u64) -> Range {
        Range {
            start: self.start + from * BLOCK,
            end: self.start + (from + count) * BLOCK,
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A kernel that has all pages on the slow node at first, and plenty of room.
fn kernel() -> FakePages {
    let kernel = FakePages::default();
    let mut state = kernel.state();
    state.others_on = Some(1);
    state.room = [(0, 1 << 40), (1, 1 << 40)].into();
    drop(state);
    kernel
}

/// A sampler that reports so many accesses of ranges in each epoch.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Vec<(Range, u32)>>>);

impl Sampler for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn params(&self, _: u32) -> Params {
        Params::paper(1)
    }

    fn watch(&mut self, _: &[Target]) -> Result<(), SamplerError> {
        Ok(())
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Sample)) -> Result<Drained, SamplerError> {
        for (range, accesses) in self.0.lock().expect("no panic before").iter() {
            // Page by page, as a PMU reports them.
            for n in 0..u64::from(*accesses) {
                let page = range.start + n * range.pages() / u64::from(*accesses);
                sink(Sample {
                    pid: PID.with(std::cell::Cell::get),
                    range: Range {
                        start: page,
                        end: page + 1,
                    },
                    accesses: 1,
                });
            }
        }
        Ok(Drained::default())
    }
}

thread_local! {
    static PID: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// A machine with one real process and two nodes.
fn machine(dir: &Path, pid: u32) -> HostRoot {
    let put = |path: &str, text: &str| {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().expect("as set up")).expect("as set up");
        std::fs::write(path, text).expect("as set up");
    };
    put("sys/devices/system/node/online", "0-1\n");
    for (id, cpus) in [(0, "0\n"), (1, "\n")] {
        let base = format!("sys/devices/system/node/node{id}");
        put(&format!("{base}/cpulist"), cpus);
        put(&format!("{base}/distance"), "10 20\n");
        put(
            &format!("{base}/meminfo"),
            &format!("Node {id} MemTotal: 1048576 kB\n"),
        );
    }
    let zone = |node: u32| format!("Node {node}, zone Normal\n  pages free 262144\n  high 0\n");
    put("proc/zoneinfo", &(zone(0) + &zone(1)));
    let process = format!("proc/{pid}");
    std::os::unix::fs::symlink(Path::new("/").join(&process), dir.join(&process))
        .expect("as set up");
    HostRoot::new(dir)
}

struct Bench {
    agent: Agent,
    program: Program,
    kernel: FakePages,
    scripted: Scripted,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new(more: &str) -> Self {
        let dir = tempfile::tempdir().expect("as set up");
        let program = Program::start();
        PID.with(|pid| pid.set(program.child.id()));
        let root = machine(dir.path(), program.child.id());
        let text = format!(
            "{more}\n[processes]\nmin = \"32MiB\"\n[capacity]\nfast = \"16MiB\"\n\
             [budget]\ncpu_percent = 100\n"
        );
        let config = Config::parse(&text).expect("as set up");
        let (kernel, scripted) = (kernel(), Scripted::default());
        let room = Room::read(root.clone(), &[], None).expect("as set up");
        let sampler = scripted.clone();
        let samplers = Samplers::of(vec![Box::new(move || {
            Ok(Box::new(sampler.clone()) as Box<dyn Sampler>)
        })]);
        let agent = Agent::new(config, root, room, Box::new(kernel.clone()), samplers);
        Self {
            agent,
            program,
            kernel,
            scripted,
            dir,
        }
    }

    fn tell(&self, heat: &[(Range, u32)]) {
        *self.scripted.0.lock().expect("no panic before") = heat.to_vec();
    }

    fn on_fast(&self, range: Range) -> u64 {
        let (pid, state) = (self.program.child.id(), self.kernel.state());
        let fast = |page: &u64| state.node_at(pid, page * 4096) == Some(0);
        u64::try_from((range.start..range.end).filter(fast).count()).expect("as set up")
    }

    /// The number of pages of the program's memory in fast memory; its text and stack come up beside it.
    fn memory_on_fast(&self) -> u64 {
        self.on_fast(self.program.blocks(0, 31))
    }

    fn steps(&mut self, epochs: u32) {
        (0..epochs).for_each(|_| self.agent.step());
    }
}

#[test]
fn a_hot_range_comes_up_follows_and_then_all_is_quiet() {
    let mut bench = Bench::new("");
    let (hot, next) = (bench.program.blocks(10, 6), bench.program.blocks(20, 6));
    bench.tell(&[(hot, 600)]);
    bench.steps(15);
    assert_eq!(bench.on_fast(hot), 6 * BLOCK, "{:#?}", bench.agent.status());
    bench.steps(8);
    let status = bench.agent.status();
    assert!(status.quiet_epochs >= 5, "{status:#?}");
    bench.tell(&[(next, 600)]);
    bench.steps(15);
    assert_eq!(
        bench.on_fast(next),
        6 * BLOCK,
        "{:#?}",
        bench.agent.status()
    );
    assert!(bench.memory_on_fast() <= 4096, "the capacity holds");
    assert!(status.promoted_pages >= status.demoted_pages);
}

#[test]
fn an_agent_that_may_not_move_only_observes() {
    let mut bench = Bench::new("moves = false");
    let hot = bench.program.blocks(10, 4);
    bench.tell(&[(hot, 600)]);
    bench.steps(12);
    let status = bench.agent.status();
    assert_eq!(
        (bench.memory_on_fast(), status.mode.as_str()),
        (0, "observing")
    );
    let hottest = &status.ranges[0];
    assert!(
        hottest.start >= hot.start * 4096 && hottest.end <= hot.end * 4096,
        "{hottest:?}"
    );
}

#[test]
fn a_paused_agent_does_nothing() {
    let mut bench = Bench::new("");
    bench.tell(&[(bench.program.blocks(10, 4), 600)]);
    bench.agent.follow(Instructions {
        paused: true,
        ..own_instructions(Budgets::default())
    });
    bench.steps(12);
    let status = bench.agent.status();
    assert_eq!((status.epochs, status.mode.as_str()), (0, "paused"));
    assert_eq!(bench.memory_on_fast(), 0);
}

#[test]
fn an_agent_that_is_off_or_coordinated_leaves_pages_alone() {
    for mode in [Mode::Off, Mode::Coordinated] {
        let mut bench = Bench::new("");
        bench.tell(&[(bench.program.blocks(10, 4), 600)]);
        bench.agent.follow(Instructions {
            by_host: true,
            mode,
            frames: FrameRequests {
                promote: vec![Gfn(1), Gfn(2)],
                demote: vec![Gfn(3)],
            },
            ..own_instructions(Budgets::default())
        });
        bench.steps(12);
        assert_eq!(bench.agent.status().mode, mode.to_string());
        assert_eq!(bench.memory_on_fast(), 0);
        let report = bench.agent.report();
        assert_eq!((report.frames_taken, report.frames_refused), (0, 3));
        assert_eq!(report.mode, mode);
    }
}

#[test]
fn what_the_host_is_told_is_within_bounds() {
    let mut bench = Bench::new("");
    bench.steps(3);
    let report = bench.agent.report();
    assert_eq!(report.nodes.len(), 2);
    assert_eq!(report.activity.processes, 1);
    assert_eq!(report.mechanism.sampler.as_str(), "scripted");
    Heartbeat::new(1, Tick(0), report).expect("an honest heartbeat");
}

#[test]
fn under_a_uniform_load_ranges_stay_few_and_moves_die_out() {
    let mut bench = Bench::new("");
    bench.tell(&[(bench.program.blocks(0, 31), 1000)]);
    bench.steps(30);
    let before = bench.agent.status();
    bench.steps(20);
    let after = bench.agent.status();
    assert_eq!(before.promoted_pages, after.promoted_pages, "{after:#?}");
    assert!(after.processes[0].leaves < 100, "{after:#?}");
}

#[test]
fn a_process_that_ends_is_forgotten() {
    let mut bench = Bench::new("");
    bench.tell(&[(bench.program.blocks(10, 4), 600)]);
    bench.steps(2);
    assert_eq!(bench.agent.status().processes.len(), 1);
    bench.program.child.kill().expect("as set up");
    bench.program.child.wait().expect("as set up");
    bench.steps(1);
    assert_eq!(bench.agent.status().processes, []);
}

#[test]
fn what_is_more_than_the_capacity_goes_down_coldest_first() {
    let mut bench = Bench::new("");
    let hot = bench.program.blocks(4, 2);
    bench.tell(&[(hot, 600)]);
    let all = bench.program.blocks(0, 31);
    for page in all.start..all.end {
        let pid = bench.program.child.id();
        let mut state = bench.kernel.state();
        state.put(pid, page * 4096, FakePage::base(0));
    }
    bench.steps(30);
    let status = bench.agent.status();
    assert!(bench.memory_on_fast() <= 4096, "{status:#?}");
    assert_eq!(bench.on_fast(hot), 2 * BLOCK, "the hot range stays");
}

#[test]
fn a_run_that_was_recorded_is_replayed_to_the_byte() {
    let mut bench = Bench::new("");
    let file = bench.dir.path().join("agent.trlog");
    bench.agent.record(&file).expect("as set up");
    bench.tell(&[(bench.program.blocks(10, 6), 600)]);
    bench.steps(12);
    bench.tell(&[(bench.program.blocks(20, 6), 600)]);
    bench.agent.follow(own_instructions(
        Budgets::new(64 << 20, 50).expect("within bounds"),
    ));
    bench.steps(8);
    bench.agent.finish().expect("as set up");
    let log = std::fs::File::open(&file).expect("as set up");
    let replayed = terrace_core::session::replay::replay(log).expect("the same is decided");
    assert!(replayed.actions > 100, "{replayed:?}");
    let whole = (
        replayed.unrecorded_actions,
        replayed.cut_off,
        replayed.skipped,
    );
    assert_eq!(whole, (0, false, 0));
    let promoted = bench.agent.status().promoted_pages;
    assert!(promoted >= 6 * BLOCK, "{promoted}");
}
