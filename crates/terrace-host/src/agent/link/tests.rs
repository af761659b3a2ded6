use std::os::unix::net::UnixListener;

use terrace_proto::Gfn;
use terrace_testkit::agent::{heartbeat, hello};

use super::super::{AgentState, Lie, Verdict};
use super::*;

/// QEMU's end of the port, and an agent behind it.
struct Guest {
    _folder: tempfile::TempDir,
    listener: UnixListener,
    stream: Option<UnixStream>,
    decoder: Decoder<HostMessage>,
}

fn at(ms: u64) -> Tick {
    Tick(ms * 1_000_000)
}

fn orders(mode: Mode) -> Orders {
    Orders {
        mode,
        paused: false,
        budgets: Budgets::default(),
    }
}

impl Guest {
    fn new() -> (Self, AgentLink) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("vm.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let config = WatchConfig {
            ram_bytes: Some(4 << 30),
            ..WatchConfig::default()
        };
        let link = AgentLink::new(socket, config, orders(Mode::Guest), at(0));
        let guest = Self {
            _folder: folder,
            listener,
            stream: None,
            decoder: Decoder::default(),
        };
        (guest, link)
    }

    fn accept(&mut self) {
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        self.stream = Some(stream);
        self.decoder = Decoder::default();
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.as_mut().unwrap().write(bytes)
    }

    fn say(&mut self, message: &AgentMessage) {
        let frame = message.encode().unwrap();
        assert_eq!(self.bytes(&frame).unwrap(), frame.len());
    }

    fn heard(&mut self) -> Vec<HostMessage> {
        let mut bytes = vec![0; 1 << 20];
        match self.stream.as_mut().unwrap().read(&mut bytes) {
            Ok(len) => self.decoder.push(&bytes[..len]),
            Err(_) => Vec::new(),
        }
    }

    /// Connects and speaks until it is trusted; the next sequence is 2.
    fn trusted() -> (Self, AgentLink) {
        let (mut guest, mut link) = Self::new();
        link.step(at(0));
        guest.accept();
        guest.say(&hello(7));
        guest.say(&heartbeat(1));
        link.step(at(100));
        assert_eq!(link.view().verdict, Verdict::Trusted);
        (guest, link)
    }
}

#[test]
fn a_hello_is_welcomed_and_told_what_is_wanted_and_not_before() {
    let (mut guest, mut link) = Guest::new();
    link.step(at(0));
    guest.accept();
    link.step(at(3000));
    assert!(guest.heard().is_empty(), "nothing that could grow old");
    guest.say(&hello(7));
    link.step(at(3100));
    let welcome = HostMessage::Welcome {
        version: 1,
        session: 7,
    };
    let heard = guest.heard();
    assert_eq!(heard[0], welcome);
    assert_eq!(heard[1..], orders(Mode::Guest).messages());
    link.step(at(3500));
    assert!(guest.heard().is_empty());
    link.step(at(4100));
    assert_eq!(guest.heard(), orders(Mode::Guest).messages(), "each second");
    link.order(orders(Mode::Off));
    link.step(at(4200));
    assert_eq!(guest.heard()[0], HostMessage::Mode(Mode::Off), "or at once");
}

#[test]
fn heartbeats_keep_the_agent_trusted_and_a_cut_ends_that() {
    let (mut guest, mut link) = Guest::trusted();
    for n in 2..20 {
        guest.say(&heartbeat(n));
        link.step(at(n * 1000));
        assert_eq!(link.view().verdict, Verdict::Trusted);
    }
    guest.stream = None;
    link.step(at(20_000));
    assert!(matches!(link.view().state, AgentState::Absent(_)));
    link.step(at(24_000));
    let Verdict::Fallback(why) = link.view().verdict else {
        panic!("{:?}", link.view());
    };
    assert!(why.contains("silent for 5 s"), "{why}");
}

#[test]
fn an_absent_qemu_is_retried_with_growing_pauses() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("vm.sock");
    let config = WatchConfig::default();
    let mut link = AgentLink::new(socket.clone(), config, orders(Mode::Guest), at(0));
    link.step(at(0));
    let AgentState::Absent(why) = link.view().state else {
        panic!();
    };
    assert!(why.contains("vm.sock"), "{why}");
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    link.step(at(999));
    assert!(listener.accept().is_err(), "too early");
    link.step(at(1000));
    listener.accept().unwrap();
    assert_eq!(link.view().state, AgentState::Connected);
}

#[test]
fn a_host_that_restarts_asks_who_is_there() {
    let (mut guest, link) = Guest::trusted();
    let socket = link.socket.clone();
    drop(link);
    let mut link = AgentLink::new(socket, WatchConfig::default(), orders(Mode::Guest), at(0));
    link.step(at(0));
    guest.accept();
    guest.say(&heartbeat(9));
    link.step(at(100));
    assert_eq!(guest.heard(), [HostMessage::WhoIsThere]);
    guest.say(&hello(8));
    guest.say(&heartbeat(10));
    link.step(at(200));
    assert_eq!(link.view().verdict, Verdict::Trusted);
}

#[test]
fn an_agent_killed_in_mid_message_is_followed_by_its_successor() {
    let (mut guest, mut link) = Guest::trusted();
    let half = heartbeat(2).encode().unwrap();
    guest.bytes(&half[..half.len() / 2]).unwrap();
    // The new one's hello is taken for the rest of that, at first.
    guest.say(&hello(8));
    link.step(at(1000));
    guest.say(&hello(8));
    link.step(at(3100));
    guest.say(&heartbeat(1));
    link.step(at(3200));
    let view = link.view();
    assert_eq!((view.verdict, view.heartbeats), (Verdict::Trusted, 2));
    assert!(view.garbage_bytes > 0);
}

#[test]
fn garbage_is_a_lie_and_no_more_of_it_is_kept() {
    let (mut guest, mut link) = Guest::trusted();
    guest.bytes(&[0x55; 40_000]).unwrap();
    link.step(at(200));
    let view = link.view();
    assert!(matches!(view.state, AgentState::Lying(Lie::Garbage(_))));
    assert!(link.decoder.pending() <= 1);
}

#[test]
fn a_flood_is_read_at_a_bounded_rate_and_is_a_lie() {
    let (mut guest, mut link) = Guest::trusted();
    let mut sequence = 1;
    let mut frames = Vec::new();
    for step in 1..=50 {
        // As much as the socket takes.
        while frames.len() < 1 << 20 {
            sequence += 1;
            frames.extend(heartbeat(sequence).encode().unwrap());
        }
        while let Ok(len) = guest.bytes(&frames) {
            frames.drain(..len);
        }
        link.step(at(100 + step * 10));
    }
    let state = link.view().state;
    assert!(
        matches!(state, AgentState::Lying(Lie::Flood { .. })),
        "{state}"
    );
    let one = heartbeat(2).encode().unwrap().len() as u64;
    let read = link.decoder.counts().messages * one;
    assert!(read <= BYTES_AT_ONCE + BYTES_PER_S, "half a second: {read}");
}

#[test]
fn who_lied_is_told_to_stop_and_an_operator_may_forgive() {
    let (mut guest, mut link) = Guest::trusted();
    guest.say(&heartbeat(0));
    link.step(at(1000));
    assert!(matches!(link.view().state, AgentState::Lying(_)));
    link.order(orders(Mode::Off));
    guest.heard();
    link.step(at(2000));
    assert_eq!(guest.heard()[0], HostMessage::Mode(Mode::Off));
    link.forgive(at(3000));
    link.step(at(3000));
    guest.accept();
    guest.say(&hello(9));
    for n in 1..8 {
        guest.say(&heartbeat(n));
        link.step(at(3000 + n * 1000));
    }
    assert_eq!(link.view().verdict, Verdict::Trusted);
}

#[test]
fn frames_go_out_in_coordinated_mode_only() {
    let (mut guest, mut link) = Guest::trusted();
    let frames = || Frames::new(1, vec![Gfn(5)], vec![Gfn(6)]).unwrap();
    assert!(!link.send_frames(frames()));
    link.order(orders(Mode::Coordinated));
    assert!(link.send_frames(frames()));
    link.step(at(200));
    assert!(guest.heard().contains(&HostMessage::Frames(frames())));
}

#[test]
fn an_agent_that_does_not_read_makes_nothing_grow() {
    let (mut guest, mut link) = Guest::trusted();
    link.order(orders(Mode::Coordinated));
    let many = || Frames::new(1, vec![Gfn(1 << 39); 4096], Vec::new()).unwrap();
    let sent = (0..1000)
        .filter(|n| {
            link.step(at(200 + n));
            link.send_frames(many())
        })
        .count();
    assert!((1..100).contains(&sent), "{sent}");
    assert!(link.out.len() <= MAX_WAITING);
    guest.say(&heartbeat(2));
    link.step(at(1500));
    assert_eq!(link.view().heartbeats, 2, "it is still heard");
}

#[test]
fn hot_pages_are_named_in_any_mode_and_not_before_the_hello() {
    let (_, mut link) = Guest::new();
    let set = Gather::set(1, 4800, &[Gfn(1), Gfn(2)]);
    assert!(!link.send_hot(set[0].clone()));
    let (mut guest, mut link) = Guest::trusted();
    guest.heard();
    link.order(orders(Mode::Off));
    // The largest set fits into what may wait.
    let frames: Vec<Gfn> = (0..1 << 14).map(|n| Gfn((1 << 39) + n)).collect();
    let set = Gather::set(2, 4800, &frames);
    assert!(set.iter().all(|part| link.send_hot(part.clone())));
    let mut heard = Vec::new();
    for ms in 0..100 {
        link.step(at(200 + ms));
        heard.extend(guest.heard());
    }
    heard.retain(|message| matches!(message, HostMessage::Gather(_)));
    assert_eq!(heard.len(), 4);
    assert_eq!(heard[3], HostMessage::Gather(set[3].clone()));
}
