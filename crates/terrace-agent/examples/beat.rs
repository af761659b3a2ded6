//! Speaks to the host over the agent's port and prints the answers: `beat [SECONDS]`. For trying out a port: the
//! example samples nothing and moves nothing.

use std::time::Duration;

use terrace_agent::channel::{HostLink, LinkConfig, guest_memory_end};
use terrace_proto::agent::Report;
use terrace_sys::{HostRoot, MonotonicClock};

fn main() {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok());
    let end = Duration::from_secs(seconds.unwrap_or(30));
    let root = HostRoot::default();
    let config = LinkConfig {
        memory_end: guest_memory_end(&root),
        ..LinkConfig::default()
    };
    println!("memory ends at frame {}", config.memory_end);
    let mut link = HostLink::open(&root, config).expect("the default name is one");
    let clock = MonotonicClock::start();
    let mut said = String::new();
    while clock.now().0 < u64::try_from(end.as_nanos()).unwrap_or(u64::MAX) {
        let before = clock.now();
        link.beat(before, &Report::default());
        let took = clock.now().since(before);
        let (state, instructions) = (link.state(), link.take_instructions());
        let now = format!(
            "{state}; mode {}, paused {}, {} bytes/s, {:?}",
            instructions.mode,
            instructions.paused,
            instructions.budgets.bytes_per_s(),
            link.counts(),
        );
        // Counts rise all the time; the state and instructions are what matters.
        let key = now.split(", Counts").next().unwrap_or_default().to_owned();
        if key != said || took > Duration::from_millis(50) {
            println!("{:6.1} s, beat took {took:?}: {now}", before.0 as f64 / 1e9);
            said = key;
        }
        std::thread::sleep(Duration::from_millis(250));
    }
}
