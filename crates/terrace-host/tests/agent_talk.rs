//! The bytes of a hostile guest, whatever they are: the fuzz body on stable Rust.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use terrace_proto::agent::{AgentMessage, Heartbeat, Message as _, NodeMemory, Report};
use terrace_proto::{Tick, TierId};
use terrace_testkit::fuzz::{changed, frames::agent_seeds, fuzz_agent_talk};

fn beat(sequence: u64, guest_ms: u64, change: impl FnOnce(&mut Report)) -> AgentMessage {
    let node = |node, tier| NodeMemory {
        node,
        tier: TierId(tier),
        total_bytes: 2 << 30,
        free_bytes: 1 << 20,
    };
    let mut report = Report {
        nodes: vec![node(0, 0), node(1, 1)],
        ..Report::default()
    };
    change(&mut report);
    let time = Tick(guest_ms.saturating_mul(1_000_000));
    let beat = Heartbeat::new(sequence, time, report).unwrap();
    AgentMessage::Heartbeat(Box::new(beat))
}

#[test]
fn the_corpus_and_its_changes_break_no_promise_of_the_watch() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/agent_bytes");
    let files: Vec<_> = fs::read_dir(folder).unwrap().collect();
    assert!(files.len() >= agent_seeds().len());
    for file in files {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        fuzz_agent_talk(&bytes);
        for number in 0..300 {
            fuzz_agent_talk(&changed(&bytes, number));
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_break_no_promise_of_the_watch(data in proptest::collection::vec(any::<u8>(), 0..2048)) {
        fuzz_agent_talk(&data);
    }

    /// Well-formed messages with any values: bytes alone seldom get past the check.
    #[test]
    fn any_heartbeats_break_no_promise_of_the_watch(
        beats in proptest::collection::vec((any::<[u64; 6]>(), any::<bool>()), 1..20),
    ) {
        let mut talk = Vec::new();
        for (n, small) in beats {
            let scale = if small { 1 << 40 } else { 1 };
            let message = beat(n[0] / scale, n[1] / scale, |r| {
                r.nodes[0].total_bytes = n[2] / scale;
                r.nodes[0].free_bytes = n[3] / scale;
                r.activity.promoted_pages = n[4] / scale;
                r.faults.minor = n[5] / scale;
            });
            talk.extend(message.encode().unwrap());
        }
        fuzz_agent_talk(&talk);
    }
}
