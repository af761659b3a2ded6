//! Whole rounds on a tiny simulated host.

mod common;

use common::{Host, SECOND, draw, spec};
use terrace_core::{EngineConfig, PhaseView, PolicyName};
use terrace_proto::{Tick, VmId};

fn hot(page: u64) -> bool {
    page % 5 == 3
}

/// A fifth of the pages, scattered, takes nearly all accesses.
fn scattered(page: u64, scan: u64) -> (bool, bool) {
    let d = draw(page, scan);
    if hot(page) {
        (d < 230, d < 80)
    } else {
        (d < 10, d < 2)
    }
}

fn host(policy: PolicyName) -> Host {
    let config = EngineConfig {
        policy: policy.into(),
        ..EngineConfig::default()
    };
    Host::new(config, &[4096, 16384])
}

#[test]
fn golden() {
    let mut h = host(PolicyName::Vtmm);
    h.arrive(spec(1, 4096, 900), Box::new(scattered));
    h.run_until(Tick(20 * SECOND));
    let view = h.engine.vm(VmId(1)).unwrap();
    println!("{view:#?}");
    println!(
        "{:?}",
        h.engine.explain_page(VmId(1), terrace_proto::Gfn(3))
    );
    assert_eq!(h.on_fast(1, hot), 819);
    assert_eq!(view.phase, PhaseView::Waiting);
}
