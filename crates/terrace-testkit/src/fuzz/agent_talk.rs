//! The bytes of a hostile guest, as the host's watch over its agent takes them.

use std::time::Duration;

use terrace_host::agent::{AgentState, AgentWatch, Verdict, WatchConfig};
use terrace_proto::Tick;
use terrace_proto::agent::{AgentMessage, Decoder, HostMessage};

use crate::agent::{heartbeat, hello};

/// RAM of the guest that talks.
const RAM_BYTES: u64 = 4 << 30;

/// Feeds bytes of a guest to the host's watch after an honest hello and heartbeat, piece by piece with time between
/// them.
///
/// # Panics
/// If an impossible claim is believed: that is the fuzzer's finding.
pub fn fuzz_agent_talk(data: &[u8]) {
    let config = WatchConfig {
        ram_bytes: Some(RAM_BYTES),
        ..WatchConfig::default()
    };
    let mut now = Tick(0);
    let mut watch = AgentWatch::new(config, now);
    let mut decoder = Decoder::<AgentMessage>::default();
    watch.connected();
    let welcome = watch.hear(now, hello(7));
    assert!(matches!(welcome, Some(HostMessage::Welcome { .. })));
    watch.hear(now, heartbeat(1));
    let mut lied = false;
    for piece in data.chunks(1 + data.len() / 4) {
        now = now.after(Duration::from_millis(u64::from(piece[0]) * 40));
        let before = watch.view();
        for message in decoder.push(piece) {
            let answer = watch.hear(now, message);
            assert!(!matches!(answer, Some(HostMessage::Frames(_))));
        }
        watch.met(now, decoder.counts(), decoder.broken());
        watch.tick(now);
        check(&watch, lied);
        if lied {
            assert_eq!(watch.view().heartbeats, before.heartbeats);
        }
        lied = lied || matches!(watch.state(), AgentState::Lying(_));
    }
    // Nobody is trusted for what was said long ago.
    watch.tick(now.after(config.silence));
    assert!(matches!(watch.verdict(), Verdict::Fallback(_)));
}

fn check(watch: &AgentWatch, lied: bool) {
    let view = watch.view();
    if lied {
        assert!(matches!(view.state, AgentState::Lying(_)), "no way back");
    }
    if matches!(view.state, AgentState::Lying(_)) {
        assert!(matches!(view.verdict, Verdict::Fallback(_)));
    }
    let Some(beat) = view.heartbeat else {
        return;
    };
    let nodes = &beat.report().nodes;
    assert!(nodes.iter().all(|n| n.free_bytes <= n.total_bytes));
    let total = nodes
        .iter()
        .map(|n| u128::from(n.total_bytes))
        .sum::<u128>();
    assert!(total <= u128::from(RAM_BYTES + RAM_BYTES / 16));
}
