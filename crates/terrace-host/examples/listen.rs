//! Listens to a guest's agent on QEMU's end of its port and prints what is believed: `listen SOCKET [SECONDS]`.

use std::time::Duration;

use terrace_host::agent::{AgentLink, Orders, WatchConfig};
use terrace_proto::agent::{Budgets, Mode};
use terrace_sys::MonotonicClock;

fn main() {
    let mut args = std::env::args().skip(1);
    let socket = args.next().expect("usage: listen SOCKET [SECONDS]");
    let seconds = args.next().and_then(|s| s.parse().ok());
    let end = Duration::from_secs(seconds.unwrap_or(30));
    let clock = MonotonicClock::start();
    let orders = Orders {
        mode: Mode::Off,
        paused: false,
        budgets: Budgets::default(),
    };
    let config = WatchConfig::default();
    let mut link = AgentLink::new(socket.into(), config, orders, clock.now());
    let mut said = String::new();
    while clock.now().0 < u64::try_from(end.as_nanos()).unwrap_or(u64::MAX) {
        link.step(clock.now());
        let view = link.view();
        let now = format!("{}; {:?}", view.state, view.verdict);
        if now != said {
            let at = clock.now().0 / 1_000_000;
            println!("{at:6} ms: {now}; {} heartbeats", view.heartbeats);
            said = now;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("{:?}", link.view());
}
