//! Frames of the agent's channel, decoded by either end.

use std::fmt::Debug;

use terrace_proto::Gfn;
use terrace_proto::agent::{
    AgentMessage, Budgets, Decoder, Frames, Gather, HEADER, HostMessage, MAX_BODY, Message, Mode,
    Text,
};

use crate::agent::{heartbeat, hello};

/// Decodes bytes of a guest as the host does.
pub fn fuzz_agent_bytes(data: &[u8]) {
    check(data, Decoder::<AgentMessage>::default);
}

/// Decodes bytes of a host as the agent does.
pub fn fuzz_host_bytes(data: &[u8]) {
    check(data, Decoder::<HostMessage>::default);
}

/// A message that a decoder must find behind garbage.
pub trait Sample: Message + Clone + Debug + PartialEq {
    /// The message.
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

/// Checks the promises of a decoder on any bytes.
///
/// # Panics
/// If one does not hold: that is the fuzzer's finding.
pub fn check<M: Sample>(data: &[u8], decoder: impl Fn() -> Decoder<M>) {
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

/// The first inputs of a corpus: name and bytes that a guest sends.
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

/// The first inputs of a corpus: name and bytes that a host sends.
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
    let parts = [
        Gather::new(1, 3, 4800, vec![Gfn(7), Gfn(0x10_0000)]),
        Gather::new(1, 3, 4800, vec![Gfn(7)]),
        Gather::new(2, 0, 0, Vec::new()),
    ];
    let parts = parts.into_iter().flatten().map(HostMessage::Gather);
    let gather = parts.flat_map(|part| frame(&part)).collect();
    vec![
        ("talk", talk.clone()),
        ("refused", frame(&refused)),
        ("frames", frame(&HostMessage::Frames(frames))),
        ("gather", gather),
        ("cut", talk[..talk.len() - 3].to_vec()),
    ]
}
