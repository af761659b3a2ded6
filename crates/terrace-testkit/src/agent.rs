//! The messages of an honest agent.

use terrace_proto::agent::{
    AgentMessage, Heartbeat, Hello, NodeMemory, Pressure, Report, Text, Versions,
};
use terrace_proto::{Tick, TierId};

/// The hello of a session.
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
