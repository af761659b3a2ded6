//! Changes of the manager in force, by hand-made news.

use std::path::PathBuf;
use std::sync::mpsc::channel;

use terrace_core::provision::ProvisionConfig;
use terrace_host::agent::{AgentState, AgentView, Lie, Orders, Verdict};
use terrace_host::qemu::who::HypervisorConfig;
use terrace_proto::agent::{Heartbeat, Mode, NodeMemory, Report};
use terrace_proto::{
    Gfn, GuestNode, MovePlan, PageMove, PageSize, PlanId, RamRange, Tick, TierId, TierLimit, VmId,
    VmSpec,
};
use terrace_sys::{ProcessId, start_time};

use super::super::*;
use crate::api::snapshot::{About, Snapshot};
use crate::messages::{AgentVm, Discovered, State};
use crate::played::host;
use crate::provisioning;
use crate::registry::{InForce, Managed};
use crate::served::Served as _;

pub(super) fn daemon(vm: &str) -> (tempfile::TempDir, Daemon) {
    let folder = tempfile::tempdir().unwrap();
    host(folder.path());
    let mut config = Config::parse(&format!("[vm.db1]\n{vm}\n")).unwrap();
    let root = HostRoot::new(folder.path());
    let topology = Arc::new(Topology::read(&root, &[]).unwrap());
    config.follow(&topology).unwrap();
    // The threads' messages have no receiver.
    let (inbox, _) = channel();
    let config = Arc::new(config);
    let provisioning = Provisioning::new(
        provisioning::finder(HypervisorConfig::default()),
        ProvisionConfig::default(),
    );
    let daemon = Daemon::new(
        config,
        root,
        topology,
        inbox,
        Claims::default(),
        provisioning,
    )
    .unwrap();
    (folder, daemon)
}

fn own() -> ProcessId {
    let pid = std::process::id();
    let start_time = start_time(std::path::Path::new("/proc"), pid).unwrap();
    ProcessId { start_time, pid }
}

pub(super) fn find(daemon: &mut Daemon, ram_bytes: u64) {
    let config = daemon.config.vm("db1").unwrap();
    let vm = AgentVm {
        config,
        ram_bytes: Some(ram_bytes),
    };
    daemon.found(Discovered {
        name: "db1".into(),
        process: Some(own()),
        socket: PathBuf::from("/nowhere"),
        state: State::Agent(Box::new(vm)),
        findings: Vec::new(),
    });
}

pub(super) fn db1(daemon: &Daemon) -> VmKey {
    daemon.vms.key("db1").unwrap()
}

fn in_force(daemon: &Daemon) -> &InForce {
    &daemon.vms.agent(db1(daemon)).unwrap().in_force
}

fn view(state: AgentState, verdict: Verdict) -> AgentView {
    AgentView {
        state,
        verdict,
        program: None,
        heartbeat: None,
        heartbeats: 0,
        unknown: 0,
        garbage_bytes: 0,
    }
}

pub(super) fn trusted(daemon: &mut Daemon) {
    let news = view(AgentState::Speaking, Verdict::Trusted);
    daemon.agent_news(db1(daemon), Some(news));
}

fn fallen(daemon: &mut Daemon, why: &str) {
    let state = AgentState::Absent("x".into());
    let news = view(state, Verdict::Fallback(why.to_owned()));
    daemon.agent_news(db1(daemon), Some(news));
}

pub(super) fn lying(daemon: &mut Daemon) {
    let state = AgentState::Lying(Lie::Malformed);
    let news = view(state, Verdict::Fallback("its agent lies".to_owned()));
    daemon.agent_news(db1(daemon), Some(news));
}

/// Manages the VM as if the host had made it ready.
pub(super) fn manage(daemon: &mut Daemon) -> VmId {
    let id = VmId(77);
    let ram = RamRange {
        start: Gfn(0),
        pages: 256,
    };
    let limit = TierLimit {
        floor_bytes: 0,
        ceiling_bytes: u64::MAX,
    };
    daemon.handle(Event::VmArrived(VmSpec {
        vm: id,
        name: "db1".into(),
        ram: vec![ram],
        unit: PageSize::Base,
        limits: vec![limit; 2],
        weight: 1000,
        moves: false,
    }));
    let entry = daemon.vms.get_mut(db1(daemon)).unwrap();
    entry.managed = Some(Managed::new(id, "a test".into()));
    assert!(daemon.engine().vm(id).is_some());
    id
}

pub(super) fn orders(daemon: &Daemon) -> Orders {
    daemon.agents.orders(daemon.vms.agent(db1(daemon)).unwrap())
}

pub(super) fn count_events(daemon: &Daemon, text: &str) -> usize {
    let events = daemon.events().after(0).unwrap();
    events.iter().filter(|e| e.text.contains(text)).count()
}

#[test]
fn a_vm_whose_agent_speaks_is_unknown_to_the_engine() {
    let (_folder, mut daemon) = daemon("mode = \"guest\"\nscan = true");
    find(&mut daemon, 1 << 30);
    assert!(matches!(in_force(&daemon), InForce::Waiting));
    assert_eq!(orders(&daemon).mode, Mode::Guest);
    trusted(&mut daemon);
    assert!(matches!(in_force(&daemon), InForce::Guest));
    assert!(daemon.engine().vms().is_empty());
    assert!(!daemon.discoverer.claims().is_by_host("db1"));
    let copy = Snapshot::of(&daemon, &About::Vm("db1".into()))
        .ok()
        .unwrap();
    let vm = copy.detail("db1").ok().unwrap().vm;
    assert_eq!(vm.mode, terrace_api::types::Mode::Guest);
}

#[test]
fn silence_hands_the_vm_to_the_host_and_speech_takes_it_back() {
    let (_folder, mut daemon) = daemon("mode = \"guest\"\nscan = true");
    find(&mut daemon, 1 << 30);
    trusted(&mut daemon);
    fallen(&mut daemon, "silent for 5 s");
    assert!(daemon.discoverer.claims().is_by_host("db1"));
    assert_eq!(orders(&daemon).mode, Mode::Off, "one owner per A bit");
    assert_eq!(
        count_events(&daemon, "falls back: silent for 5 s; the host manages it"),
        1
    );
    let id = manage(&mut daemon);
    trusted(&mut daemon);
    assert!(!daemon.discoverer.claims().is_by_host("db1"));
    assert!(daemon.vms.get(db1(&daemon)).unwrap().managed.is_none());
    assert!(daemon.engine().vm(id).is_none());
    assert_eq!(orders(&daemon).mode, Mode::Guest);
    assert_eq!(count_events(&daemon, "answers again"), 1);
}

#[test]
fn the_agent_goes_on_only_when_the_hosts_threads_have_ended() {
    let (_folder, mut daemon) = daemon("mode = \"guest\"\nscan = true");
    find(&mut daemon, 1 << 30);
    let scanning = Arc::new(());
    daemon.set_in_force(db1(&daemon), InForce::Returning(Arc::downgrade(&scanning)));
    trusted(&mut daemon);
    assert_eq!(orders(&daemon).mode, Mode::Off);
    drop(scanning);
    trusted(&mut daemon);
    assert_eq!(orders(&daemon).mode, Mode::Guest);
}

#[test]
fn without_scan_the_host_leaves_the_vm_to_its_agent() {
    let (_folder, mut daemon) = daemon("mode = \"guest\"");
    find(&mut daemon, 1 << 30);
    lying(&mut daemon);
    assert!(!daemon.discoverer.claims().is_by_host("db1"));
    assert_eq!(orders(&daemon).mode, Mode::Guest);
    assert_eq!(
        count_events(&daemon, "the host leaves it alone (scan = false)"),
        1
    );
}

#[test]
fn falling_back_is_told_once_whatever_the_reason_becomes() {
    let (_folder, mut daemon) = daemon("mode = \"guest\"\nscan = true\nfallback = \"observe\"");
    find(&mut daemon, 1 << 30);
    for n in 0..5 {
        fallen(&mut daemon, &format!("silent: error {n}"));
    }
    assert_eq!(count_events(&daemon, "falls back"), 1);
    assert_eq!(count_events(&daemon, "watches it and moves nothing"), 1);
    let why = daemon.vms.agent(db1(&daemon)).unwrap().fallback();
    assert_eq!(why, Some("silent: error 4"));
    daemon.agent_news(db1(&daemon), None);
    let why = daemon.vms.agent(db1(&daemon)).unwrap().fallback().unwrap();
    assert!(why.contains("defect"), "{why}");
}

#[test]
fn an_operator_pauses_the_agent_and_its_stand_in() {
    let (_folder, mut daemon) = daemon("mode = \"guest\"\nscan = true");
    find(&mut daemon, 1 << 30);
    trusted(&mut daemon);
    assert!(daemon.halt_agents(Some(db1(&daemon)), true));
    assert!(orders(&daemon).paused);
    fallen(&mut daemon, "silent");
    let id = manage(&mut daemon);
    daemon.carry_pause(db1(&daemon));
    assert!(daemon.engine().vm(id).unwrap().paused);
    daemon.command(Command::Resume(None));
    assert!(!orders(&daemon).paused);
    daemon.found(Discovered {
        name: "plain".into(),
        process: None,
        socket: PathBuf::from("/elsewhere"),
        state: State::Ignored,
        findings: Vec::new(),
    });
    let plain = daemon.vms.key("plain");
    assert!(plain.is_some() && !daemon.halt_agents(plain, true));
}

#[test]
fn a_liar_is_believed_again_only_when_it_is_resumed_by_name() {
    let (_folder, mut daemon) = daemon("mode = \"guest\"\nscan = true");
    find(&mut daemon, 1 << 30);
    lying(&mut daemon);
    daemon.command(Command::Resume(None));
    assert_eq!(count_events(&daemon, "believed again"), 0);
    daemon.halt_agents(Some(db1(&daemon)), false);
    assert_eq!(count_events(&daemon, "believed again"), 1);
    assert!(
        daemon.discoverer.claims().take_reinspect("db1"),
        "its RAM may have grown"
    );
}

#[test]
fn a_reinspected_vm_keeps_its_agent_and_learns_its_size() {
    let (_folder, mut daemon) = daemon("mode = \"guest\"");
    find(&mut daemon, 1 << 30);
    trusted(&mut daemon);
    find(&mut daemon, 2 << 30);
    let agent = daemon.vms.agent(db1(&daemon)).unwrap();
    assert!(matches!(agent.in_force, InForce::Guest));
    assert_eq!(agent.ram_bytes, Some(2 << 30));
}

#[test]
fn without_nodes_the_host_goes_on_alone_and_says_so() {
    let (_folder, mut daemon) = daemon("mode = \"coordinated\"\nscan = true");
    find(&mut daemon, 1 << 30);
    assert_eq!(orders(&daemon).mode, Mode::Coordinated);
    let id = manage(&mut daemon);
    let vm = db1(&daemon);
    daemon.found_nodes(vm, id, Ok(Vec::new()));
    trusted(&mut daemon);
    trusted(&mut daemon);
    assert_eq!(
        count_events(&daemon, "the guest moves what the host names"),
        1
    );
    fallen(&mut daemon, "silent");
    fallen(&mut daemon, "silent");
    assert_eq!(count_events(&daemon, "silent; the host continues alone"), 1);
    assert!(daemon.engine().vm(id).is_some());
    lying(&mut daemon);
    assert_eq!(orders(&daemon).mode, Mode::Off);
    let copy = Snapshot::of(&daemon, &About::Doctor).ok().unwrap();
    let agent = copy.detail("db1").ok().unwrap().vm.agent.unwrap();
    assert!(
        agent
            .in_force
            .contains("the host by itself: its agent is not heard"),
        "{}",
        agent.in_force
    );
    let findings = &copy.doctor().vms["db1"];
    assert!(findings.iter().any(|f| f.name == "coordinated"));
}

#[test]
fn nodes_that_are_no_tiers_leave_the_host_in_force() {
    let (_folder, mut daemon) = daemon("mode = \"coordinated\"\nscan = true");
    find(&mut daemon, 1 << 30);
    let id = manage(&mut daemon);
    let vm = db1(&daemon);
    let mixed = "its memory 'm1' is bound to the host's nodes [0, 1]";
    daemon.found_nodes(vm, id, Err(mixed.to_owned()));
    trusted(&mut daemon);
    let moves = |daemon: &Daemon| daemon.vms.agent(vm).unwrap().moves.clone();
    assert_eq!(moves(&daemon), Err(mixed.to_owned()));
    // Memory was plugged in, and each node lies in one tier now.
    let node = |start, tier| GuestNode {
        start: Gfn(start),
        pages: 128,
        tier: TierId(tier),
    };
    daemon.found_nodes(vm, id, Ok(vec![node(0, 0), node(128, 1)]));
    trusted(&mut daemon);
    let why = moves(&daemon).unwrap_err();
    assert!(why.contains("no node in tier 0"), "{why}");
    let memory = |node, tier| NodeMemory {
        node,
        tier: TierId(tier),
        total_bytes: 128 * 4096,
        free_bytes: 4096,
    };
    let report = Report {
        nodes: vec![memory(0, 0), memory(1, 1)],
        ..Report::default()
    };
    let speaks = AgentView {
        heartbeat: Heartbeat::new(1, Tick(1), report).ok(),
        ..view(AgentState::Speaking, Verdict::Trusted)
    };
    daemon.agent_news(vm, Some(speaks));
    let why = moves(&daemon).unwrap_err();
    assert!(why.contains("puts pages back"), "{why}");
    fallen(&mut daemon, "silent");
    assert!(moves(&daemon).unwrap_err().contains("not heard"));
}

#[test]
fn what_was_named_of_an_old_map_is_named_no_more() {
    let (_folder, mut daemon) = daemon("mode = \"coordinated\"\nscan = true");
    find(&mut daemon, 1 << 30);
    let id = manage(&mut daemon);
    let page = |page| PageMove {
        gfn: Gfn(page),
        to: TierId::FAST,
    };
    daemon.name_pages(MovePlan {
        id: PlanId(1),
        vm: id,
        moves: (0..3000).map(page).collect(),
    });
    daemon.map_changed(id, "a DIMM was plugged in");
    assert!(daemon.named.end(id, Tick(0)).is_empty());
}

#[test]
fn a_vm_that_ended_takes_its_agent_along() {
    let (_folder, mut daemon) = daemon("mode = \"guest\"\nscan = true");
    find(&mut daemon, 1 << 30);
    fallen(&mut daemon, "silent");
    let vm = db1(&daemon);
    // In the test's tree there is no such process.
    daemon.forget_ended();
    assert!(daemon.vms.len() == 0 && !daemon.discoverer.claims().is_by_host("db1"));
    daemon.agent_news(vm, Some(view(AgentState::Speaking, Verdict::Trusted)));
    assert_eq!(daemon.vms.len(), 0, "late news revive nothing");
}
