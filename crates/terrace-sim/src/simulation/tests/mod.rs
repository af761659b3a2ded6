mod attached;
mod demand;
mod gather;
mod guest_moves;
mod hemem;
mod host;
mod resizes;
mod sweep;

use std::path::Path;

use terrace_proto::Action;

use super::*;
use crate::machine::tables::Level;

/// A load on the lowest eighth of its memory: the memory above is never touched.
const SCENARIO: &str = r#"
[machine]
tiers = ["dram", "pmem"]
scale = 512
vcpus_per_vm = 1
[[vm]]
name = "a"
fast = "4GiB"
slow = "8GiB"
policy = "vtmm"
start = "slow"
tables = "first"
workload = { kind = "phases", duration = "20s", of = [
  { kind = "hotset", size = "1GiB", hot = 0.2, hot_access = 0.9, write = 0.5, duration = "60s" },
  { kind = "hotset", size = "8GiB", hot = 0.2, hot_access = 0.9, write = 0.5, duration = "60s" },
] }
"#;

/// The actions of the first round; with `flip`, A of a page that no load touches is set in the middle of its first
/// window.
fn actions(flip: bool) -> Vec<Action> {
    let scenario = Scenario::parse(SCENARIO, "flip", Path::new(".")).unwrap();
    let mut simulation = Simulation::recorded(&scenario, Options::default()).unwrap();
    simulation.advance(300_000_000);
    let guest = &simulation.vms[0].space.guest;
    let untouched = crate::base::number::low(guest.pages()) - 1;
    assert_eq!(guest.entry(Level::Leaf, untouched) & 1 << 5, 0);
    if flip {
        assert!(guest.mark(Level::Leaf, untouched, false));
    }
    simulation.advance(15_000_000_000);
    let log = simulation.take_log().into_iter();
    log.filter_map(|(_, record)| match record {
        Record::Action(action) => Some(action),
        _ => None,
    })
    .collect()
}

#[test]
fn one_flipped_accessed_bit_changes_an_action() {
    assert_eq!(actions(false), actions(false));
    assert_ne!(actions(true), actions(false));
}

#[test]
fn cost_is_gib_times_price_and_unknown_without_a_price() {
    let mut tiers = crate::scenario::presets();
    tiers[0].price_per_gib = Some(3.0);
    let tiers = &mut tiers[..2];
    tiers[1].price_per_gib = Some(0.5);
    assert_eq!(cost(&[2 << 30, 3 << 29], tiers), Some(6.75));
    tiers[1].price_per_gib = None;
    assert_eq!(cost(&[2 << 30, 3 << 29], tiers), None);
    assert_eq!(cost(&[2 << 30, 0], tiers), Some(6.0));
}
