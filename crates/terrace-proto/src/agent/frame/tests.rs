use super::super::{
    AgentMessage, Budgets, Frames, GREATEST_GFN, Heartbeat, Hello, HostMessage, MAX_FRAMES,
    MAX_NODES, NodeMemory, Pressure, Report, SwapSpace, Text, Versions,
};
use super::*;
use crate::{Gfn, Tick, TierId};

const NODES: u32 = 64;
const _: () = assert!(MAX_NODES == 64);

fn hello(session: u64) -> AgentMessage {
    AgentMessage::Hello(Hello {
        versions: Versions::OURS,
        session,
        program: Text::lossy("0.1.0"),
    })
}

fn heartbeat(sequence: u64) -> AgentMessage {
    let beat = Heartbeat::new(sequence, Tick(sequence), Report::default()).unwrap();
    AgentMessage::Heartbeat(Box::new(beat))
}

fn frame(message: &impl Message) -> Vec<u8> {
    message.encode().unwrap()
}

fn raw_frame(body: &[u8]) -> Vec<u8> {
    let mut frame = MARK.to_vec();
    frame.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    frame.extend(crc32(body).to_le_bytes());
    frame.extend(body);
    frame
}

#[test]
fn the_check_is_the_crc_of_the_standard() {
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
}

#[test]
fn messages_come_whole_in_whatever_pieces() {
    let sent = vec![hello(1), heartbeat(1), heartbeat(2)];
    let bytes: Vec<u8> = sent.iter().flat_map(frame).collect();
    for size in [1, 2, 3, 7, 64, bytes.len()] {
        let mut decoder = Decoder::<AgentMessage>::default();
        let got: Vec<AgentMessage> = bytes.chunks(size).flat_map(|c| decoder.push(c)).collect();
        assert_eq!(got, sent);
        assert_eq!(decoder.pending(), 0);
    }
}

#[test]
fn unknown_kinds_and_later_fields_are_skipped() {
    let mut bytes = raw_frame(&[0x77, 0x77, 9, 9, 9]);
    let mut longer = frame(&hello(3))[HEADER..].to_vec();
    longer.extend([1, 2, 3]);
    bytes.extend(raw_frame(&longer));
    let mut decoder = Decoder::<AgentMessage>::default();
    assert_eq!(decoder.push(&bytes), [hello(3)]);
    assert_eq!(
        (decoder.counts().unknown, decoder.counts().malformed),
        (1, 0)
    );
}

#[test]
fn messages_of_the_other_direction_are_unknown() {
    let mut guest = Decoder::<HostMessage>::default();
    assert!(guest.push(&frame(&hello(1))).is_empty());
    let mut host = Decoder::<AgentMessage>::default();
    let frames = Frames::new(1, vec![Gfn(1)], Vec::new()).unwrap();
    assert!(host.push(&frame(&HostMessage::Frames(frames))).is_empty());
    assert_eq!((guest.counts().unknown, host.counts().unknown), (1, 1));
}

#[test]
fn garbage_before_a_frame_is_counted_and_the_frame_found() {
    let mut bytes = b"\xd7Tgboot messages \xd7\xd7".to_vec();
    let garbage = bytes.len() as u64;
    bytes.extend(frame(&heartbeat(4)));
    let mut decoder = Decoder::<AgentMessage>::default();
    assert_eq!(decoder.push(&bytes), [heartbeat(4)]);
    assert_eq!(decoder.counts().garbage_bytes, garbage);
}

#[test]
fn half_a_frame_of_a_killed_agent_hides_the_next_until_cut() {
    let half = frame(&heartbeat(1));
    let mut bytes = half[..half.len() - 5].to_vec();
    bytes[4] = 0xff; // longer than all that follows
    bytes.extend(frame(&hello(2)));
    let mut decoder = Decoder::<AgentMessage>::default();
    assert!(decoder.push(&bytes).is_empty());
    assert_eq!(decoder.cut(), [hello(2)]);
    assert_eq!(decoder.pending(), 0);
}

#[test]
fn endless_garbage_breaks_the_link_and_nothing_is_kept() {
    let mut decoder = Decoder::<AgentMessage>::default();
    let chunk = [0xaa; 4096];
    let pushes = (0..1000).take_while(|_| {
        decoder.push(&chunk);
        decoder.broken().is_none()
    });
    assert_eq!(pushes.count(), 2 * MAX_BODY / chunk.len());
    assert!(matches!(decoder.broken(), Some(Broken::Garbage(_))));
    assert!(decoder.push(&frame(&hello(1))).is_empty());
    assert_eq!(decoder.pending(), 0);
}

#[test]
fn marks_in_marks_cost_a_bounded_number_of_checks() {
    let mut one = MARK.to_vec();
    one.extend(60_000_u32.to_le_bytes());
    let bytes = one.repeat(40_000);
    let mut decoder = Decoder::<AgentMessage>::default();
    decoder.push(&bytes);
    assert!(matches!(decoder.broken(), Some(Broken::BadChecks(_))));
    assert!(decoder.counts().bad_checks <= u64::from(MAX_BAD_FRAMES) + 1);
}

fn report(change: impl FnOnce(&mut Report)) -> Report {
    let mut report = Report::default();
    change(&mut report);
    report
}

#[test]
fn values_out_of_bounds_are_refused_here_and_on_the_wire() {
    let node = |node, tier| NodeMemory {
        node,
        tier: TierId(tier),
        ..NodeMemory::default()
    };
    let bad = [
        report(|r| r.nodes = (0..=NODES).map(|n| node(n, 0)).collect()),
        report(|r| r.nodes = vec![node(0, 4)]),
        report(|r| r.nodes = vec![node(1, 0), node(1, 1)]),
        report(|r| r.nodes = vec![node(0, 0), node(0, 1)]),
        report(|r| r.nodes = vec![node(2, 0), node(1, 1)]),
        report(|r| {
            r.pressure = Some(Pressure {
                full_avg10_hundredths: 10_001,
                ..Pressure::default()
            });
        }),
    ];
    for report in bad {
        // The bytes that a sender without these checks would send.
        let body = postcard::to_extend(&(1_u64, Tick(1), &report), vec![2, 0]).unwrap();
        assert!(Heartbeat::new(1, Tick(1), report).is_err());
        let mut decoder = Decoder::<AgentMessage>::default();
        assert!(decoder.push(&raw_frame(&body)).is_empty());
        assert_eq!(decoder.counts().malformed, 1);
    }
    for (bytes, cpu) in [(u64::MAX, 10), (0, 0), (0, 101)] {
        assert!(Budgets::new(bytes, cpu).is_err());
    }
    let most = Frames::new(1, vec![Gfn(0); MAX_FRAMES], Vec::new()).unwrap();
    frame(&HostMessage::Frames(most));
    assert!(Frames::new(1, vec![Gfn(0); MAX_FRAMES], vec![Gfn(0)]).is_err());
    assert!(Frames::new(1, vec![Gfn(GREATEST_GFN.0 + 1)], Vec::new()).is_err());
}

#[test]
fn the_largest_messages_fit_a_frame() {
    let nodes = (0..NODES).map(|node| NodeMemory {
        node: node + (u32::MAX - NODES),
        tier: TierId(3),
        total_bytes: u64::MAX,
        free_bytes: u64::MAX,
    });
    let report = report(|r| r.nodes = nodes.collect());
    let beat = Heartbeat::new(u64::MAX, Tick(u64::MAX), report).unwrap();
    frame(&AgentMessage::Heartbeat(Box::new(beat)));
    let frames = Frames::new(u64::MAX, vec![GREATEST_GFN; MAX_FRAMES], Vec::new()).unwrap();
    frame(&HostMessage::Frames(frames));
}

#[test]
fn swap_is_appended_and_an_agent_of_before_does_not_say_it() {
    let swap = SwapSpace {
        total_bytes: 9,
        used_bytes: 4,
    };
    let said = report(|r| r.swap = Some(swap));
    let beat = Heartbeat::new(1, Tick(1), said.clone()).unwrap();
    let decoded = |tail: &[u8]| {
        // What an agent of before sends, and something after it.
        let body = postcard::to_extend(&(1_u64, Tick(1), &said), vec![2, 0]).unwrap();
        let mut decoder = Decoder::<AgentMessage>::default();
        let messages = decoder.push(&raw_frame(&[&body, tail].concat()));
        assert_eq!(decoder.counts().malformed, 0);
        match messages.as_slice() {
            [AgentMessage::Heartbeat(beat)] => beat.report().swap,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(decoded(&[]), None);
    assert_eq!(decoded(&[0]), None);
    assert_eq!(decoded(&[1, 9, 4]), Some(swap));
    assert_eq!(decoded(&[1, 9, 4, 77]), Some(swap), "of a later version");
    assert_eq!(decoded(&[1, 9]), None);
    assert_eq!(decoded(&[7; 40]), None);
    let mut decoder = Decoder::<AgentMessage>::default();
    let message = AgentMessage::Heartbeat(Box::new(beat));
    assert_eq!(decoder.push(&frame(&message)), [message]);
}
