//! The bytes of a hostile host, as the agent takes them.

use std::time::Duration;

use terrace_agent::channel::{Conversation, LinkConfig, MAX_FRAMES};
use terrace_proto::agent::{
    AgentMessage, Budgets, HostMessage, MAX_HOT, Message as _, Mode, Report,
};
use terrace_proto::{Gfn, Tick};

use crate::agent::heartbeat;

/// Feeds bytes of a host to the agent after a welcome.
///
/// # Panics
/// If the agent holds or hands out more than it may: that is the fuzzer's finding.
pub fn fuzz_host_talk(data: &[u8]) {
    let config = LinkConfig {
        budgets: Budgets::new(1 << 20, 5).unwrap_or_default(),
        memory_end: Gfn(1 << 18),
        gathers: true,
        ..LinkConfig::default()
    };
    let mut talk = Conversation::new(&config);
    let mut now = Tick(0);
    talk.begin(now, 7);
    let welcome = [
        HostMessage::Welcome {
            version: 1,
            session: 7,
        },
        HostMessage::Mode(Mode::Coordinated),
    ];
    let welcome: Vec<u8> = welcome.iter().flat_map(|m| m.encode()).flatten().collect();
    let mut lost = talk.take(now, &welcome).is_err();
    assert!(!lost, "a welcome is no fault");
    for piece in data.chunks(1 + data.len() / 3) {
        now = now.after(Duration::from_millis(u64::from(piece[0]) * 20));
        lost = lost || talk.take(now, piece).is_err();
        assert!(talk.waiting_frames() <= MAX_FRAMES);
        assert!(talk.waiting_hot() <= MAX_HOT);
        if let Some(hot) = talk.take_hot() {
            are_distinct(&hot.frames, config.memory_end);
            assert!(hot.frames.len() as u64 <= hot.named);
        }
        let instructions = talk.take_instructions(now);
        assert_eq!(
            instructions.budgets.within(config.budgets),
            instructions.budgets
        );
        let frames = &instructions.frames;
        are_distinct(
            &[&frames.promote[..], &frames.demote].concat(),
            config.memory_end,
        );
        assert_eq!(talk.waiting_frames(), 0);
    }
    // Whatever it said, the agent says hello or sends a heartbeat when its time has come.
    let due = now.after(Duration::from_secs(31));
    assert!(talk.speak(due, &report()).is_some());
}

/// Checks frames that were taken.
fn are_distinct(frames: &[Gfn], memory_end: Gfn) {
    assert!(frames.iter().all(|gfn| *gfn < memory_end));
    let mut all = frames.to_vec();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), frames.len(), "each is named once");
}

fn report() -> Report {
    match heartbeat(1) {
        AgentMessage::Heartbeat(beat) => beat.report().clone(),
        AgentMessage::Hello(_) => Report::default(),
    }
}
