//! Huge pages: steps beside a reconciler, and a balloon whose QEMU is this process.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use terrace_config::Config;
use terrace_core::provision::ProvisionConfig;
use terrace_host::HostRoot;
use terrace_proto::provision::{
    BlockStatus, CollapseReport, CollapseRequest, Collapsed, Mechanism, NotCollapsed,
    ProviderError, ProviderKind, ProviderQuery, ProviderStatus, SizeOrder,
};
use terrace_proto::{OrderId, ProviderId};
use terrace_sys::{ProcessId, start_time};

use super::super::provider::{CollapseStep, Provider, VmContext};
use super::super::qemu;
use super::super::reconciler::Reconciler;
use super::GIB;
use super::qemu::Qemu;
use super::script::status;
use crate::messages::{Input, ProviderNews};

const ID: ProviderId = ProviderId(1);
const BLOCK: usize = 2 << 20;

fn context(root: &Path, process: Option<ProcessId>) -> VmContext {
    VmContext {
        name: "vm".into(),
        pid: process.map(|process| process.pid),
        process,
        monitor: root.join("vm.sock"),
        config: Config::parse("").unwrap().vm("vm").unwrap(),
        is_asked_for: true,
        root: HostRoot::new(root),
        lookout: super::super::lookout::Lookout::default(),
    }
}

fn request() -> CollapseRequest {
    CollapseRequest {
        provider: ID,
        number: 7,
        from: 0,
        blocks: 32,
        leave: Vec::new(),
        host_reserve_percent: 0,
        is_first: true,
    }
}

/// The work of a step that a test scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Collapses one block after the other until it is told that it is over.
    UntilOver,
    Panics,
}

/// A provider whose steps a test scripts.
struct Stepping {
    step: Step,
    collapses: Arc<AtomicBool>,
    /// Held while a query waits.
    gate: Arc<Mutex<()>>,
}

impl Provider for Stepping {
    fn mechanism(&self) -> Mechanism {
        Mechanism {
            kind: ProviderKind::Balloon,
            name: "the balloon".into(),
            at: "script".into(),
        }
    }

    fn query(&mut self, _verify: bool) -> Result<ProviderStatus, ProviderError> {
        drop(self.gate.lock().unwrap());
        Ok(status([GIB, GIB]))
    }

    fn order(&mut self, _size_bytes: &[Option<u64>]) -> Result<(), ProviderError> {
        let collapses = self.collapses.load(Ordering::Acquire);
        assert!(!collapses, "a block is collapsed as the balloon is told");
        Ok(())
    }

    fn collapse(&mut self, _request: &CollapseRequest) -> Result<CollapseStep, NotCollapsed> {
        let (step, collapses) = (self.step, Arc::clone(&self.collapses));
        collapses.store(true, Ordering::Release);
        Ok(Box::new(move |is_over| {
            assert_eq!(step, Step::UntilOver, "a fault that a test wants");
            while !is_over() {
                std::thread::sleep(Duration::from_millis(1));
            }
            collapses.store(false, Ordering::Release);
            Ok(Collapsed::default())
        }))
    }
}

/// A reconciler of a scripted provider.
struct Rig {
    _folder: tempfile::TempDir,
    reconciler: Reconciler,
    inputs: Receiver<Input>,
    gate: Arc<Mutex<()>>,
    collapses: Arc<AtomicBool>,
}

fn rig(step: Step) -> Rig {
    let folder = tempfile::tempdir().unwrap();
    let (inbox, inputs) = channel();
    let (gate, collapses) = (Arc::default(), Arc::default());
    let stepping = Stepping {
        step,
        collapses: Arc::clone(&collapses),
        gate: Arc::clone(&gate),
    };
    let mut stepping = Some(stepping);
    let find = Box::new(move || {
        let found = stepping.take();
        Ok(found.map(|found| Box::new(found) as Box<dyn Provider>))
    });
    let context = context(folder.path(), None);
    let pace = ProvisionConfig::default();
    let reconciler = Reconciler::start(ID, context, find, pace, inbox).unwrap();
    Rig {
        _folder: folder,
        reconciler,
        inputs,
        gate,
        collapses,
    }
}

#[derive(Debug, PartialEq)]
enum News {
    Seen,
    Ordered(Result<(), ProviderError>),
    Collapsed(Result<Collapsed, NotCollapsed>),
}

impl Rig {
    fn query(&self) {
        let query = ProviderQuery {
            provider: ID,
            number: 1,
            verify: false,
            is_awaited: false,
        };
        self.reconciler.query(query).unwrap();
    }

    fn order(&self) {
        let order = SizeOrder {
            order: OrderId(1),
            provider: ID,
            size_bytes: vec![Some(GIB)],
        };
        self.reconciler.order(order).unwrap();
    }

    /// The next news of the provider.
    fn next(&self) -> News {
        loop {
            let input = self.inputs.recv_timeout(Duration::from_secs(60)).unwrap();
            return match input {
                Input::Provider(ProviderNews::Seen(..)) => News::Seen,
                Input::Provider(ProviderNews::Answered(outcome)) => News::Ordered(outcome.result),
                Input::Provider(ProviderNews::Collapsed(report)) => {
                    let CollapseReport { number, result, .. } = *report;
                    assert_eq!(number, 7);
                    News::Collapsed(result)
                }
                _ => continue,
            };
        }
    }
}

#[test]
fn a_step_holds_up_no_query_and_ends_before_an_order_is_given() {
    let rig = rig(Step::UntilOver);
    rig.reconciler.collapse(request()).unwrap();
    for _ in 0..3 {
        rig.query();
        assert_eq!(rig.next(), News::Seen);
        assert!(rig.collapses.load(Ordering::Acquire));
    }
    rig.order();
    assert_eq!(rig.next(), News::Collapsed(Ok(Collapsed::default())));
    // The provider itself looks that no step runs.
    assert_eq!(rig.next(), News::Ordered(Ok(())));
}

#[test]
fn a_step_that_an_order_overtakes_is_not_begun() {
    let rig = rig(Step::UntilOver);
    let gate = rig.gate.lock().unwrap();
    rig.query();
    rig.reconciler.collapse(request()).unwrap();
    rig.order();
    drop(gate);
    assert_eq!(rig.next(), News::Seen);
    let why = "it is on its way to another size".into();
    assert_eq!(rig.next(), News::Collapsed(Err(NotCollapsed::NotNow(why))));
    assert_eq!(rig.next(), News::Ordered(Ok(())));
    assert!(!rig.collapses.load(Ordering::Acquire));
}

#[test]
fn a_step_ends_with_the_reconciler() {
    let rig = rig(Step::UntilOver);
    rig.reconciler.collapse(request()).unwrap();
    rig.query();
    assert_eq!(rig.next(), News::Seen);
    let Rig {
        reconciler, inputs, ..
    } = rig;
    drop(reconciler);
    // What the query read of the guest may come after it.
    let mut rest = inputs.into_iter();
    assert!(rest.any(|input| matches!(input, Input::Provider(ProviderNews::Collapsed(_)))));
}

#[test]
fn a_step_that_panics_is_answered() {
    let rig = rig(Step::Panics);
    rig.reconciler.collapse(request()).unwrap();
    let News::Collapsed(Err(NotCollapsed::NotNow(why))) = rig.next() else {
        panic!("there is no result");
    };
    assert!(why.contains("a fault of terraced's own"), "{why}");
    rig.query();
    assert_eq!(rig.next(), News::Seen);
}

/// A QEMU that is this process: two blocks of RAM, whole, on a host where all memory may have huge pages.
struct Host {
    folder: tempfile::TempDir,
    ram: &'static mut [u64],
}

fn host() -> Host {
    let folder = tempfile::tempdir().unwrap();
    let thp = "sys/kernel/mm/transparent_hugepage/enabled";
    crate::played::put(folder.path(), thp, "[always] madvise never");
    std::os::unix::fs::symlink("/proc", folder.path().join("proc")).unwrap();
    let count = 3 * BLOCK / 8;
    // The test's to the end of the process: other tests' memory may lie beside it.
    let all = vec![7_u64; count].leak();
    let skip = all.as_ptr().align_offset(BLOCK);
    let ram = &mut all[skip..skip + 2 * BLOCK / 8];
    let qemu = Qemu::default().with_balloon(true);
    let qemu = qemu.with_ram(ram.as_ptr() as usize, 2 * BLOCK);
    qemu.play(&folder.path().join("vm.sock"));
    Host { folder, ram }
}

impl Host {
    /// The step of a balloon whose process started then.
    fn prepare(&self, start_time: u64) -> Result<CollapseStep, NotCollapsed> {
        let pid = std::process::id();
        let process = ProcessId { start_time, pid };
        let mut find = qemu::find(&context(self.folder.path(), Some(process)));
        let mut provider = find().unwrap().unwrap();
        provider.collapse(&request())
    }
}

fn started() -> u64 {
    start_time("/proc".as_ref(), std::process::id()).unwrap()
}

#[test]
fn a_balloons_qemu_gets_huge_pages_of_its_ram() {
    let host = host();
    let step = host.prepare(started()).unwrap();
    let done = match step(&|| false) {
        Ok(done) => done,
        Err(why) => {
            eprintln!("SKIPPED, NOT TESTED HERE: {why:?}");
            return;
        }
    };
    // Which of them were made is the host's: it may have had huge pages by itself, or none free.
    let is_known = |status| !matches!(status, BlockStatus::Failed(_));
    let blocks = &done.blocks;
    assert!(
        blocks
            .iter()
            .all(|one| one.block < 2 && is_known(one.status))
    );
    assert!(done.before.is_some() && done.after.is_some());
    assert!(host.ram.iter().all(|word| *word == 7));
}

#[test]
fn a_step_that_is_over_before_it_begins_touches_nothing() {
    let host = host();
    let Ok(done) = host.prepare(started()).unwrap()(&|| true) else {
        eprintln!("SKIPPED, NOT TESTED HERE: this kernel collapses nothing");
        return;
    };
    assert_eq!((done.blocks.len(), done.next), (0, Some(0)));
}

#[test]
fn a_process_that_has_the_number_of_the_vms_is_not_touched() {
    let host = host();
    let Err(NotCollapsed::NotNow(why)) = host.prepare(started() - 1) else {
        panic!("it is another process");
    };
    assert!(why.contains("another one has its number"), "{why}");
}
