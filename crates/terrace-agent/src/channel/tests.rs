use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use terrace_proto::agent::{
    AgentMessage, Decoder, Frames, Gather, Hello, HostMessage, Message as _, NodeMemory, Text,
};

use super::*;

/// A guest with a port that a socket stands in for, and the test's stand-in for the host behind it.
struct Host {
    folder: tempfile::TempDir,
    listener: UnixListener,
    stream: Option<UnixStream>,
    decoder: Decoder<AgentMessage>,
}

const SECOND: Duration = Duration::from_secs(1);

fn at(ms: u64) -> Tick {
    Tick(ms * 1_000_000)
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        put(root, "sys/class/virtio-ports/vport1p1/name", "other\n");
        let name = format!("{DEFAULT_PORT}\n");
        put(root, "sys/class/virtio-ports/vport1p2/name", &name);
        fs::create_dir(root.join("dev")).unwrap();
        let listener = UnixListener::bind(root.join("dev/vport1p2")).unwrap();
        Self {
            folder,
            listener,
            stream: None,
            decoder: Decoder::default(),
        }
    }

    fn link(&self, change: impl FnOnce(&mut LinkConfig)) -> HostLink {
        let mut config = LinkConfig {
            budgets: Budgets::new(100 << 20, 20).unwrap(),
            memory_end: Gfn(1000),
            ..LinkConfig::default()
        };
        change(&mut config);
        HostLink::open(&HostRoot::new(self.folder.path()), config).unwrap()
    }

    fn accept(&mut self) {
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        self.stream = Some(stream);
        self.decoder = Decoder::default();
    }

    fn heard(&mut self) -> Vec<AgentMessage> {
        let mut bytes = vec![0; 1 << 20];
        match self.stream.as_mut().unwrap().read(&mut bytes) {
            Ok(len) => self.decoder.push(&bytes[..len]),
            Err(_) => Vec::new(),
        }
    }

    fn say(&mut self, message: &HostMessage) {
        self.bytes(&message.encode().unwrap());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.stream.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn hello(&mut self) -> Hello {
        match self.heard().as_slice() {
            [AgentMessage::Hello(hello)] => hello.clone(),
            other => panic!("no hello: {other:?}"),
        }
    }

    /// Lets the link greet, and welcomes it in a mode.
    fn welcome(&mut self, link: &mut HostLink, now: Tick, mode: Mode) {
        link.beat(now, &Report::default());
        self.accept();
        let session = self.hello().session;
        self.say(&HostMessage::Welcome {
            version: 1,
            session,
        });
        self.say(&HostMessage::Mode(mode));
        link.beat(now.after(SECOND), &Report::default());
        assert_eq!(link.state(), LinkState::Welcomed(1));
    }
}

fn beats(messages: &[AgentMessage]) -> Vec<u64> {
    let sequence = |m: &AgentMessage| match m {
        AgentMessage::Heartbeat(beat) => Some(beat.sequence()),
        AgentMessage::Hello(_) => None,
    };
    messages.iter().filter_map(sequence).collect()
}

#[test]
fn hello_welcome_and_heartbeats_go_round() {
    let mut host = Host::new();
    let mut link = host.link(|_| {});
    host.welcome(&mut link, at(0), Mode::Guest);
    for ms in [1100, 1900, 2000, 2500, 3000] {
        host.say(&HostMessage::Pause(true));
        link.beat(at(ms), &Report::default());
    }
    assert_eq!(beats(&host.heard()), [1, 2, 3], "one a second");
    let instructions = link.take_instructions();
    assert!(instructions.by_host && instructions.paused);
    assert_eq!(instructions.mode, Mode::Guest);
}

#[test]
fn without_a_port_the_agent_uses_its_own_configuration() {
    let host = Host::new();
    let mut link = host.link(|c| c.port = "org.example.none".into());
    link.beat(at(0), &Report::default());
    let LinkState::Down(why) = link.state() else {
        panic!("{:?}", link.state());
    };
    assert!(why.contains("name=org.example.none"), "{why}");
    let instructions = link.take_instructions();
    assert_eq!(
        (instructions.by_host, instructions.mode),
        (false, Mode::Guest)
    );
    let mut link = host.link(|_| {});
    link.beat(at(0), &Report::default());
    assert_eq!(link.state(), LinkState::Greeting);
    assert!(!link.take_instructions().by_host);
}

#[test]
fn a_port_that_comes_later_is_found_with_growing_pauses() {
    let mut host = Host::new();
    let name = host
        .folder
        .path()
        .join("sys/class/virtio-ports/vport1p2/name");
    fs::write(&name, "not yet\n").unwrap();
    let mut link = host.link(|_| {});
    link.beat(at(0), &Report::default());
    fs::write(&name, format!("{DEFAULT_PORT}\n")).unwrap();
    link.beat(at(999), &Report::default());
    assert!(matches!(link.state(), LinkState::Down(_)), "it pauses");
    link.beat(at(1000), &Report::default());
    assert_eq!(link.state(), LinkState::Greeting);
    host.accept();
    host.hello();
}

#[test]
fn names_that_are_paths_are_refused() {
    for name in ["", "../x", "a/b", "a b", ".."] {
        let config = LinkConfig {
            port: name.into(),
            ..LinkConfig::default()
        };
        assert!(HostLink::open(&HostRoot::default(), config).is_err());
    }
}

#[test]
fn a_silent_host_leaves_the_agent_its_configuration() {
    let mut host = Host::new();
    let mut link = host.link(|_| {});
    host.welcome(&mut link, at(0), Mode::Off);
    assert_eq!(link.take_instructions().mode, Mode::Off);
    link.beat(at(6500), &Report::default());
    assert_eq!(link.state(), LinkState::Silent);
    let instructions = link.take_instructions();
    assert_eq!(
        (instructions.by_host, instructions.mode),
        (false, Mode::Guest)
    );
    host.say(&HostMessage::Mode(Mode::Off));
    link.beat(at(7500), &Report::default());
    assert_eq!(link.take_instructions().mode, Mode::Off);
}

#[test]
fn a_restarted_host_is_greeted_again_and_instructions_hold() {
    let mut host = Host::new();
    let mut link = host.link(|_| {});
    host.welcome(&mut link, at(0), Mode::Off);
    host.stream = None;
    link.beat(at(2000), &Report::default());
    assert!(matches!(link.state(), LinkState::Down(_)));
    assert_eq!(link.take_instructions().mode, Mode::Off, "for a while");
    link.beat(at(3000), &Report::default());
    host.accept();
    host.hello();
    link.beat(at(9000), &Report::default());
    assert!(!link.take_instructions().by_host);
}

#[test]
fn an_unknown_host_gets_one_hello_and_no_flood() {
    let mut host = Host::new();
    let mut link = host.link(|_| {});
    host.welcome(&mut link, at(0), Mode::Guest);
    host.heard();
    for ms in 2000..2050 {
        host.say(&HostMessage::WhoIsThere);
        link.beat(at(ms), &Report::default());
    }
    host.hello();
    assert_eq!(link.state(), LinkState::Greeting);
}

#[test]
fn what_was_said_to_an_earlier_agent_is_not_believed() {
    let mut host = Host::new();
    let mut link = host.link(|_| {});
    link.beat(at(0), &Report::default());
    host.accept();
    let session = host.hello().session;
    host.say(&HostMessage::Welcome {
        version: 1,
        session: session ^ 1,
    });
    host.say(&HostMessage::Mode(Mode::Off));
    link.beat(at(500), &Report::default());
    assert_eq!(link.state(), LinkState::Greeting);
    assert!(!link.take_instructions().by_host);
}

#[test]
fn a_version_that_nobody_speaks_is_told_and_asked_for_rarely() {
    let mut host = Host::new();
    let mut link = host.link(|_| {});
    link.beat(at(0), &Report::default());
    host.accept();
    let session = host.hello().session;
    host.say(&HostMessage::Refused {
        session,
        reason: Text::lossy("no version in common"),
    });
    for s in 1..30 {
        link.beat(at(s * 1000), &Report::default());
    }
    let refused = LinkState::Refused("no version in common".into());
    assert_eq!(link.state(), refused);
    assert!(host.heard().is_empty(), "no heartbeats, no hellos");
    link.beat(at(31_000), &Report::default());
    host.hello();
}

#[test]
fn budgets_of_the_host_only_lower_the_agents_own() {
    let mut host = Host::new();
    let mut link = host.link(|_| {});
    host.welcome(&mut link, at(0), Mode::Guest);
    for (said, effective) in [
        ((1 << 40, 100), (100 << 20, 20)),
        ((1 << 20, 100), (1 << 20, 20)),
        ((1 << 40, 3), (100 << 20, 3)),
    ] {
        let said = Budgets::new(said.0, said.1).unwrap();
        host.say(&HostMessage::Budgets(said));
        link.beat(at(1500), &Report::default());
        let budgets = link.take_instructions().budgets;
        assert_eq!((budgets.bytes_per_s(), budgets.cpu_percent()), effective);
    }
}

fn frames(generation: u64, promote: &[u64], demote: &[u64]) -> HostMessage {
    let gfns = |of: &[u64]| of.iter().copied().map(Gfn).collect();
    HostMessage::Frames(Frames::new(generation, gfns(promote), gfns(demote)).unwrap())
}

#[test]
fn frames_are_accepted_once_in_coordinated_mode_within_memory() {
    let mut host = Host::new();
    let mut link = host.link(|_| {});
    host.welcome(&mut link, at(0), Mode::Guest);
    host.say(&frames(1, &[1], &[2]));
    link.beat(at(1100), &Report::default());
    assert_eq!(link.take_instructions().frames, FrameRequests::default());
    assert_eq!(link.counts().frames_refused, 2);
    host.say(&HostMessage::Mode(Mode::Coordinated));
    host.say(&frames(5, &[3, 999, 1000], &[4, 3]));
    host.say(&frames(4, &[9], &[]));
    link.beat(at(1200), &Report::default());
    let got = link.take_instructions().frames;
    assert_eq!(got.promote, [Gfn(3), Gfn(999)]);
    assert_eq!(got.demote, [Gfn(4)]);
    let counts = link.counts();
    assert_eq!((counts.frames_taken, counts.frames_refused), (3, 5));
    // A newer decision replaces what was not taken of the older one.
    host.say(&frames(6, &[10], &[]));
    host.say(&frames(7, &[11], &[]));
    link.beat(at(1300), &Report::default());
    assert_eq!(link.take_instructions().frames.promote, [Gfn(11)]);
    assert_eq!(link.take_instructions().frames, FrameRequests::default());
}

fn hot(generation: u64, whole: u32, frames: &[u64]) -> HostMessage {
    let frames = frames.iter().copied().map(Gfn).collect();
    HostMessage::Gather(Gather::new(generation, whole, 100, frames).unwrap())
}

#[test]
fn gather_is_heard_in_any_mode_and_counts_apart_from_frames() {
    let mut host = Host::new();
    let mut link = host.link(|c| c.gathers = true);
    host.welcome(&mut link, at(0), Mode::Off);
    host.say(&hot(2, 4, &[3, 999, 1000]));
    host.say(&hot(1, 1, &[5]));
    link.beat(at(1100), &Report::default());
    assert_eq!(link.take_hot(), None, "it is not whole");
    host.say(&hot(2, 4, &[3]));
    link.beat(at(1200), &Report::default());
    assert_eq!(link.take_hot().unwrap().frames, [Gfn(3), Gfn(999)]);
    assert_eq!(link.take_hot(), None);
    let counts = link.counts();
    assert_eq!((counts.hot_taken, counts.hot_refused), (2, 3));
    assert_eq!((counts.frames_taken, counts.frames_refused), (0, 0));
    // A host that began anew counts from the beginning.
    host.say(&HostMessage::WhoIsThere);
    link.beat(at(3000), &Report::default());
    host.say(&hot(1, 1, &[5]));
    link.beat(at(3100), &Report::default());
    assert_eq!(link.take_hot(), None, "before the welcome");
}

#[test]
fn gather_to_an_agent_that_does_not_gather_is_counted_and_left() {
    let mut host = Host::new();
    let mut link = host.link(|_| {});
    host.welcome(&mut link, at(0), Mode::Guest);
    host.say(&hot(1, 2, &[3, 4]));
    link.beat(at(1100), &Report::default());
    assert_eq!(link.take_hot(), None);
    let counts = link.counts();
    assert_eq!((counts.hot_taken, counts.hot_refused), (0, 2));
    assert_eq!(link.state(), LinkState::Welcomed(1));
}

#[test]
fn a_host_that_floods_with_gather_is_cut_off_and_fills_nothing() {
    let mut host = Host::new();
    let mut link = host.link(|c| c.gathers = true);
    host.welcome(&mut link, at(0), Mode::Guest);
    let flood: Vec<u8> = (1..=600)
        .flat_map(|generation| hot(generation, 16384, &[1, 2]).encode().unwrap())
        .collect();
    host.bytes(&flood);
    link.beat(at(1100), &Report::default());
    assert!(matches!(link.state(), LinkState::Down(_)));
    assert_eq!(link.counts().broken, 1);
    assert_eq!(link.take_hot(), None);
    link.beat(at(2100), &Report::default());
    host.accept();
    host.hello();
}

#[test]
fn a_host_that_floods_is_cut_off_for_a_while() {
    let mut host = Host::new();
    let mut link = host.link(|_| {});
    host.welcome(&mut link, at(0), Mode::Guest);
    let pause = HostMessage::Pause(true).encode().unwrap();
    host.bytes(&pause.repeat(4000));
    link.beat(at(1100), &Report::default());
    let LinkState::Down(why) = link.state() else {
        panic!("{:?}", link.state());
    };
    assert!(why.contains("64 messages a second"), "{why}");
    assert_eq!(link.counts().broken, 1);
}

#[test]
fn garbage_from_the_host_ends_the_link_half_a_frame_does_not() {
    let mut host = Host::new();
    let mut link = host.link(|_| {});
    host.welcome(&mut link, at(0), Mode::Guest);
    let half = frames(1, &[1; 300], &[]).encode().unwrap();
    host.bytes(&half[..half.len() - 1]);
    host.say(&HostMessage::Pause(true));
    link.beat(at(1100), &Report::default());
    host.say(&HostMessage::Pause(true));
    link.beat(at(3200), &Report::default());
    assert!(link.take_instructions().paused);
    assert!(link.counts().faults > 0);
    for _ in 0..3 {
        let garbage = vec![0x5a; 60_000];
        host.bytes(&garbage);
        link.beat(at(3300), &Report::default());
    }
    assert!(matches!(link.state(), LinkState::Down(_)));
    link.beat(at(4300), &Report::default());
    host.accept();
    host.hello();
}

#[test]
fn a_host_that_does_not_read_holds_nobody_up() {
    let mut host = Host::new();
    let mut link = host.link(|c| c.beat_every = Duration::ZERO);
    host.welcome(&mut link, at(0), Mode::Guest);
    for ms in 0..20_000 {
        link.beat(at(1100 + ms / 100), &Report::default());
    }
    let heard = beats(&host.heard());
    assert!(heard.len() > 10, "{}", heard.len());
    assert!(heard.windows(2).all(|w| w[0] < w[1]));
}

#[test]
fn a_report_out_of_bounds_is_not_sent() {
    let mut host = Host::new();
    let mut link = host.link(|_| {});
    host.welcome(&mut link, at(0), Mode::Guest);
    host.heard();
    let twice = Report {
        nodes: vec![NodeMemory::default(); 2],
        ..Report::default()
    };
    link.beat(at(2000), &twice);
    assert!(host.heard().is_empty());
    link.beat(at(2100), &Report::default());
    assert_eq!(beats(&host.heard()).len(), 1);
}

#[test]
fn the_end_of_memory_is_that_of_the_last_zone() {
    let dir = tempfile::tempdir().unwrap();
    let root = HostRoot::new(dir.path());
    assert_eq!(guest_memory_end(&root), Gfn(0));
    let zones = "Node 0, zone      DMA\n  pages free     3\n        spanned  4095\n  start_pfn:           1\n\
                 Node 1, zone   Normal\n        spanned  1000\n        present  900\n  start_pfn:           1048576\n\
                 Node 1, zone  Movable\n        spanned  0\n  start_pfn:           9999999\n";
    put(dir.path(), "proc/zoneinfo", zones);
    assert_eq!(guest_memory_end(&root), Gfn(1_049_576));
}
