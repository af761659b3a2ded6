//! What a fuzzer runs over any bytes, as plain functions: `fuzz/` calls them on nightly Rust, and tests call
//! them on stable over the committed corpus, changed corpus and random bytes.
//!
//! Each panics where a promise of this module's code does not hold.

use std::fmt::Debug;

use super::{
    AgentMessage, Budgets, Decoder, Frames, HEADER, Heartbeat, Hello, HostMessage, MAX_BODY,
    Message, Mode, NodeMemory, Pressure, Report, Text, Versions,
};
use crate::{Gfn, Tick, TierId};

/// Bytes of a guest, as the host decodes them.
pub fn fuzz_agent_bytes(data: &[u8]) {
    check(data, Decoder::<AgentMessage>::default);
}

/// Bytes of a host, as the agent decodes them.
pub fn fuzz_host_bytes(data: &[u8]) {
    check(data, Decoder::<HostMessage>::default);
}

/// A message that a decoder must find behind garbage.
pub(super) trait Sample: Message + Clone + Debug + PartialEq {
    fn sample() -> Self;
}

impl Sample for AgentMessage {
    fn sample() -> Self {
        hello(7)
    }
}

impl Sample for HostMessage {
    fn sample() -> Self {
        Self::Pause(true)
    }
}

pub(super) fn check<M: Sample>(data: &[u8], decoder: impl Fn() -> Decoder<M>) {
    let mut whole = decoder();
    let messages = whole.push(data);
    is_bounded(&whole);

    // The same bytes in other pieces are the same messages.
    let mut pieces = decoder();
    let mut again = Vec::new();
    let (mut rest, mut size) = (data, 1 + data.first().map_or(0, |b| usize::from(*b)));
    while !rest.is_empty() {
        let (now, later) = rest.split_at(size.min(rest.len()));
        again.extend(pieces.push(now));
        is_bounded(&pieces);
        rest = later;
        size = 1 + (size * 7 + now.len()) % 300;
    }
    assert_eq!(messages, again, "in other pieces");
    assert_eq!(whole.counts(), pieces.counts());

    // What was accepted can be sent, and is then the same.
    for message in &messages {
        let frame = message.encode().expect("what was decoded can be encoded");
        let got = decoder().push(&frame);
        assert_eq!(got, std::slice::from_ref(message), "sent on");
    }

    // Whatever came, the next frame is found, or the link is said to be broken.
    let mut left = whole.pending() + 1;
    while whole.pending() > 0 {
        whole.cut();
        assert!(whole.pending() < left, "each cut takes something away");
        left = whole.pending();
    }
    let frame = M::sample().encode().expect("a sample can be encoded");
    let found = whole.push(&frame);
    assert_eq!(found.len(), usize::from(whole.broken().is_none()));
}

fn is_bounded<M: Message>(decoder: &Decoder<M>) {
    assert!(
        decoder.wants().max(decoder.pending()) <= HEADER + MAX_BODY,
        "it holds {} bytes and waits for {}",
        decoder.pending(),
        decoder.wants()
    );
}

/// A hello of a session.
#[must_use]
pub fn hello(session: u64) -> AgentMessage {
    AgentMessage::Hello(Hello {
        versions: Versions::OURS,
        session,
        program: Text::lossy("0.1.0"),
    })
}

/// A heartbeat of a guest with two nodes.
///
/// # Panics
/// Never: the report is within bounds.
#[must_use]
pub fn heartbeat(sequence: u64) -> AgentMessage {
    let node = |node, total_bytes| NodeMemory {
        node,
        tier: TierId(u8::try_from(node).unwrap_or(0)),
        total_bytes,
        free_bytes: total_bytes / 4,
    };
    let report = Report {
        nodes: vec![node(0, 1 << 30), node(1, 3 << 30)],
        pressure: Some(Pressure {
            some_avg10_hundredths: 125,
            ..Pressure::default()
        }),
        ..Report::default()
    };
    let time = Tick(sequence.saturating_mul(1_000_000_000));
    let heartbeat = Heartbeat::new(sequence, time, report).expect("within bounds");
    AgentMessage::Heartbeat(Box::new(heartbeat))
}

/// What a corpus begins with: name and bytes, of a guest.
///
/// # Panics
/// Never: all of it can be encoded.
#[must_use]
pub fn agent_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |m: &AgentMessage| m.encode().expect("a seed can be encoded");
    let (hello, beat) = (frame(&hello(7)), frame(&heartbeat(1)));
    let mut talk = hello.clone();
    talk.extend((1..4).flat_map(|n| frame(&heartbeat(n))));
    let mut killed = beat[..beat.len() / 2].to_vec();
    killed.extend(&talk);
    let mut long = beat.clone();
    long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut unknown = beat.clone();
    unknown.splice(HEADER.., [0x77, 0x77, 1, 2, 3]);
    unknown[4..8].copy_from_slice(&5_u32.to_le_bytes());
    let mut flipped = talk.clone();
    flipped[hello.len() + 20] ^= 0x40;
    vec![
        ("hello", hello),
        ("heartbeat", beat),
        ("talk", talk),
        ("killed-in-the-middle", killed),
        ("too-long", long),
        ("wrong-check", unknown),
        ("flipped-bit", flipped),
        ("text", b"login: root\r\nPassword: ".to_vec()),
    ]
}

/// The same of a host.
///
/// # Panics
/// Never: all of it can be encoded.
#[must_use]
pub fn host_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |m: &HostMessage| m.encode().expect("a seed can be encoded");
    let welcome = HostMessage::Welcome {
        version: 1,
        session: 7,
    };
    let refused = HostMessage::Refused {
        session: 7,
        reason: Text::lossy("no common version"),
    };
    let budgets = Budgets::new(1 << 30, 10).expect("within bounds");
    let frames = Frames::new(3, vec![Gfn(1), Gfn(9)], vec![Gfn(0x10_0000)]).expect("few");
    let all = [
        welcome,
        HostMessage::Mode(Mode::Coordinated),
        HostMessage::Pause(false),
        HostMessage::Budgets(budgets),
        HostMessage::Frames(frames.clone()),
        HostMessage::WhoIsThere,
    ];
    let talk: Vec<u8> = all.iter().flat_map(frame).collect();
    vec![
        ("talk", talk.clone()),
        ("refused", frame(&refused)),
        ("frames", frame(&HostMessage::Frames(frames))),
        ("cut", talk[..talk.len() - 3].to_vec()),
    ]
}

/// `data` changed a little, as the number says: flipped, overwritten, cut, doubled, joined with itself.
#[must_use]
pub fn changed(data: &[u8], number: u64) -> Vec<u8> {
    let mut bytes = data.to_vec();
    let mut state = number ^ 0x9e37_79b9_7f4a_7c15;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let below = u64::try_from(below.max(1)).unwrap_or(1);
        usize::try_from(state % below).unwrap_or(0)
    };
    for _ in 0..=next(4) {
        let at = next(bytes.len());
        match next(6) {
            _ if bytes.is_empty() => bytes.push(0xd7),
            0 => bytes[at] ^= 1 << next(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, 0xd7][next(6)],
            2 => bytes.truncate(at),
            3 => {
                let tail = bytes[at..].to_vec();
                bytes.extend(tail);
            }
            4 => drop(bytes.splice(at..at, data[..next(data.len())].to_vec())),
            _ => drop(bytes.drain(at..at + next(bytes.len() - at))),
        }
    }
    bytes
}
