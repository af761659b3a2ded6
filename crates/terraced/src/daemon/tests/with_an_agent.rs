//! The daemon and a guest's agent, each with its real end of the channel; a test plays QEMU between them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use terrace_agent::channel::{HostLink, LinkConfig, LinkState};
use terrace_api::types::{Agent, Doctor, Done, EventLine, Health, Mode, VmDetail};
use terrace_proto::agent::{Mechanism, Mode as AgentMode, NodeMemory, Report, Text};
use terrace_proto::{Gfn, Tick, TierId};
use terrace_sys::{HostRoot, MonotonicClock};

use crate::messages::{AgentVm, State};
use crate::played::{Served, play_process, process, put, serve_with};
use terrace_config::Config;

const RAM: u64 = 4 << 30;

/// Guest and QEMU's port, as folders and sockets: bytes go through as they come.
struct Vm {
    served: Served,
    stop: Arc<AtomicBool>,
    bridge: Option<JoinHandle<()>>,
    clock: MonotonicClock,
    config: String,
}

/// Joins QEMU's chardev socket and the guest's port until `stop` is set.
fn join(host: &UnixListener, guest: &UnixListener, stop: &AtomicBool) {
    let (mut a, mut b): (Option<UnixStream>, Option<UnixStream>) = (None, None);
    let accept = |listener: &UnixListener, end: &mut Option<UnixStream>| {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            *end = Some(stream);
        }
    };
    while !stop.load(Ordering::Relaxed) {
        accept(host, &mut a);
        accept(guest, &mut b);
        if !pump(&mut a, &mut b) {
            a = None;
        }
        if !pump(&mut b, &mut a) {
            b = None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Passes bytes on; `false` if `from` is closed. Bytes without a receiver are lost, as in QEMU.
fn pump(from: &mut Option<UnixStream>, to: &mut Option<UnixStream>) -> bool {
    let mut bytes = [0; 4096];
    let Some(stream) = from else {
        return true;
    };
    match stream.read(&mut bytes) {
        Ok(0) => false,
        Ok(len) => {
            if let Some(to) = to {
                // An end that does not read loses bytes: the other one gets over it.
                let _ = to.write(&bytes[..len]);
            }
            true
        }
        Err(_) => true,
    }
}

impl Vm {
    fn start(vm: &str) -> Self {
        let mut config = String::new();
        let served = serve_with(|folder| {
            let folder = folder.display();
            // Apart from the monitors: only the daemon's thread of agents is to connect there.
            config =
                format!("[agent]\nfolder = \"{folder}/agent\"\nsilence = \"2s\"\n[vm.db1]\n{vm}\n");
            config.clone()
        });
        let root = served.folder.path();
        play_process(root, process(7));
        put(
            root,
            "sys/class/virtio-ports/vport1p1/name",
            "org.terrace.agent.0\n",
        );
        fs::create_dir(root.join("dev")).unwrap();
        fs::create_dir(root.join("agent")).unwrap();
        let host = UnixListener::bind(root.join("agent/db1.sock")).unwrap();
        let guest = UnixListener::bind(root.join("dev/vport1p1")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        for listener in [&host, &guest] {
            listener.set_nonblocking(true).unwrap();
        }
        let bridge = std::thread::spawn(move || join(&host, &guest, &stopped));
        let this = Self {
            served,
            stop,
            bridge: Some(bridge),
            clock: MonotonicClock::start(),
            config,
        };
        this.find();
        this
    }

    fn find(&self) {
        let config = Config::parse(&self.config).unwrap().vm("db1").unwrap();
        let vm = AgentVm {
            config,
            ram_bytes: Some(RAM),
        };
        self.served.find("db1", Some(7), State::Agent(Box::new(vm)));
    }

    fn agent(&self) -> HostLink {
        let config = LinkConfig {
            silence: Duration::from_secs(2),
            beat_every: Duration::from_millis(200),
            memory_end: Gfn(RAM >> 12),
            ..LinkConfig::default()
        };
        HostLink::open(&HostRoot::new(self.served.folder.path()), config).unwrap()
    }

    fn show(&self) -> VmDetail {
        self.served.get("/v1/vms/db1").unwrap()
    }

    /// Lets the agent beat until the daemon shows the expected state.
    fn until(
        &self,
        link: &mut HostLink,
        report: &Report,
        what: impl Fn(&Agent) -> bool,
    ) -> VmDetail {
        for _ in 0..2000 {
            link.beat(self.now(), report);
            let shown = self.show();
            if shown.vm.agent.as_ref().is_some_and(&what) {
                return shown;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("never came: {:?}, {}", self.show().vm.agent, link.state());
    }

    fn now(&self) -> Tick {
        self.clock.now()
    }

    /// Waits until the daemon shows the expected state, without an agent that beats.
    fn wait(&self, what: impl Fn(&Agent) -> bool) -> VmDetail {
        for _ in 0..2000 {
            let shown = self.show();
            if shown.vm.agent.as_ref().is_some_and(&what) {
                return shown;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("never came: {:?}", self.show().vm.agent);
    }

    fn count_events(&self, text: &str) -> usize {
        let events: Vec<EventLine> = self.served.get("/v1/events").unwrap();
        events.iter().filter(|e| e.text.contains(text)).count()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(bridge) = self.bridge.take() {
            bridge.join().unwrap();
        }
    }
}

fn report() -> Report {
    let node = |node, tier| NodeMemory {
        node,
        tier: TierId(tier),
        total_bytes: RAM / 2,
        free_bytes: 1 << 20,
    };
    Report {
        nodes: vec![node(0, 0), node(1, 1)],
        mechanism: Mechanism {
            sampler: Text::lossy("damon"),
            policy: Text::lossy("hyperplace"),
            mover: Text::lossy("move_pages"),
        },
        ..Report::default()
    }
}

fn trusted(agent: &Agent) -> bool {
    agent.fallback.is_none() && agent.in_force.starts_with("the agent in the guest")
}

#[test]
fn a_live_agent_is_shown_and_the_host_does_not_scan() {
    let vm = Vm::start("mode = \"guest\"\nscan = true");
    let mut link = vm.agent();
    let shown = vm.until(&mut link, &report(), trusted);
    assert_eq!(shown.vm.mode, Mode::Guest);
    let stage = |name: &str| {
        let stage = shown.stages.iter().find(|s| s.stage == name);
        stage.unwrap().mechanism.clone()
    };
    assert_eq!(stage("observe"), "damon (in the guest)");
    assert_eq!(stage("move"), "move_pages (in the guest)");
    let agent = shown.vm.agent.unwrap();
    assert_eq!(agent.report.unwrap().nodes[1].total_bytes, RAM / 2);
    assert!(!vm.served.claims.is_by_host("db1"));
    let instructions = link.take_instructions();
    assert_eq!(
        (instructions.by_host, instructions.mode),
        (true, AgentMode::Guest)
    );
    let doctor: Doctor = vm.served.get("/v1/doctor").unwrap();
    let found = doctor.vms["db1"]
        .iter()
        .find(|f| f.name == "agent")
        .unwrap();
    assert_eq!(found.health, Health::Ok);
}

#[test]
fn a_pause_reaches_the_agent_and_a_resume_too() {
    let vm = Vm::start("mode = \"guest\"");
    let mut link = vm.agent();
    vm.until(&mut link, &report(), trusted);
    for (what, paused) in [("pause", true), ("resume", false)] {
        let done: Done = vm.served.post(&format!("/v1/vms/db1/{what}")).unwrap();
        assert_eq!(done.done, format!("db1: {what}d"));
        let mut beats = 0;
        while link.take_instructions().paused != paused {
            link.beat(vm.now(), &report());
            std::thread::sleep(Duration::from_millis(20));
            beats += 1;
            assert!(beats < 2000, "never {what}d");
        }
    }
}

#[test]
fn a_silent_agent_is_replaced_by_the_host_and_comes_back() {
    let vm = Vm::start("mode = \"guest\"\nscan = true");
    let mut link = vm.agent();
    vm.until(&mut link, &report(), trusted);
    let shown = vm.wait(|a| a.fallback.is_some());
    let agent = shown.vm.agent.unwrap();
    assert!(agent.fallback.unwrap().contains("silent for 2 s"));
    assert!(vm.served.claims.is_by_host("db1"));
    assert_eq!(vm.count_events("falls back: its agent is silent"), 1);
    vm.until(&mut link, &report(), trusted);
    assert!(!vm.served.claims.is_by_host("db1"));
    assert_eq!(vm.count_events("answers again"), 1);
}

#[test]
fn a_lying_agent_is_stopped_and_accepted_again_by_an_operator() {
    let vm = Vm::start("mode = \"guest\"\nscan = true");
    let mut link = vm.agent();
    vm.until(&mut link, &report(), trusted);
    let mut lie = report();
    lie.nodes[0].free_bytes = u64::MAX;
    let shown = vm.until(&mut link, &lie, |a| a.fallback.is_some());
    let agent = shown.vm.agent.unwrap();
    assert!(agent.state.starts_with("lying: node 0"), "{}", agent.state);
    let mut beats = 0;
    while link.take_instructions().mode != AgentMode::Off {
        link.beat(vm.now(), &report());
        std::thread::sleep(Duration::from_millis(20));
        beats += 1;
        assert!(beats < 2000, "never told to stop");
    }
    vm.served.post::<Done>("/v1/vms/db1/resume").unwrap();
    vm.until(&mut link, &report(), trusted);
    assert_eq!(vm.count_events("believed again"), 1);
}

#[test]
fn an_agent_that_restarts_goes_on_without_a_fallback() {
    let vm = Vm::start("mode = \"guest\"\nscan = true");
    let mut first = vm.agent();
    let mut busy = report();
    busy.activity.epochs = 900;
    vm.until(&mut first, &busy, trusted);
    drop(first);
    let mut second = vm.agent();
    let fresh = |a: &Agent| a.report.as_ref().is_some_and(|r| r.activity.epochs == 0);
    vm.until(&mut second, &report(), |a| trusted(a) && fresh(a));
    assert_eq!(vm.count_events("falls back"), 0);
}

#[test]
fn garbage_and_a_flood_are_told_and_the_daemon_goes_on() {
    for (bytes, state) in [
        (vec![0x5a_u8; 60_000], "lying: it sends garbage"),
        (unknown_frames(3000), "lying: it sends more than"),
    ] {
        let vm = Vm::start("mode = \"guest\"");
        let mut link = vm.agent();
        vm.until(&mut link, &report(), trusted);
        drop(link);
        let mut port = UnixStream::connect(vm.served.folder.path().join("dev/vport1p1")).unwrap();
        port.write_all(&bytes).unwrap();
        let shown = vm.wait(|a| a.state.starts_with(state));
        assert_eq!(shown.vm.mode, Mode::Ignored);
        assert!(
            shown.vm.reason.contains("leaves it alone"),
            "{}",
            shown.vm.reason
        );
    }
}

/// Frames of an unknown kind, as a later version might send.
fn unknown_frames(count: usize) -> Vec<u8> {
    use terrace_proto::agent::{HostMessage, Message as _};
    HostMessage::WhoIsThere.encode().unwrap().repeat(count)
}

#[test]
fn without_a_host_the_agent_goes_on_and_greets_the_next_one() {
    let vm = Vm::start("mode = \"guest\"");
    let mut link = vm.agent();
    vm.until(&mut link, &report(), trusted);
    // The daemon forgets the VM, as when it ends, and finds it again.
    fs::remove_file(vm.served.folder.path().join("proc/7/stat")).unwrap();
    while vm.served.get::<VmDetail>("/v1/vms/db1").is_ok() {
        link.beat(vm.now(), &report());
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut beats = 0;
    while link.take_instructions().by_host {
        link.beat(vm.now(), &report());
        std::thread::sleep(Duration::from_millis(20));
        beats += 1;
        assert!(beats < 2000, "never on its own: {}", link.state());
    }
    assert_eq!(link.take_instructions().mode, AgentMode::Guest);
    play_process(vm.served.folder.path(), process(7));
    vm.find();
    vm.until(&mut link, &report(), trusted);
    assert!(matches!(link.state(), LinkState::Welcomed(_)));
}
