//! The mechanism under a hostile policy: whatever is proposed, and however moves and answers fail, its
//! invariants hold after every event.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

mod mover;
mod rules;
mod steps;
mod tracked;
mod world;

use std::collections::BTreeSet;

use proptest::prelude::*;
use terrace_core::demand::Track;
use terrace_core::pages::Pages;
use terrace_core::place::{Flow, PlaceStage, Proposal, Room};
use terrace_proto::TierId;
use world::World;

/// Repeatable random numbers (SplitMix64).
#[derive(Clone)]
pub struct Dice(pub u64);

impl Dice {
    /// 0 to `n` − 1.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
    }
}

/// Proposes anything.
pub struct Chaos {
    /// The random source.
    pub dice: Dice,
    /// Claims that every demotion is forced, so that floors are strict.
    pub all_forced: bool,
}

impl PlaceStage for Chaos {
    fn propose(&mut self, _: u64, pages: &Pages, _: &Room) -> Proposal {
        let d = &mut self.dice;
        let flows = (0..1 + d.below(4))
            .map(|_| {
                let mut units: Vec<u32> = (0..d.below(400))
                    .map(|_| match d.below(20) {
                        0 => u32::MAX,
                        1 => u32::try_from(pages.units() as u64 + d.below(9)).unwrap(),
                        _ => u32::try_from(d.below(pages.units() as u64)).unwrap(),
                    })
                    .collect();
                units.extend(units.clone().iter().take(20));
                Flow {
                    to: TierId(match d.below(20) {
                        0 => pages.tiers() + 1,
                        n => u8::try_from(n % u64::from(pages.tiers())).unwrap(),
                    }),
                    forced: if self.all_forced {
                        usize::MAX
                    } else {
                        usize::try_from(d.below(200)).unwrap()
                    },
                    units,
                }
            })
            .collect();
        Proposal {
            flows,
            ..Proposal::default()
        }
    }

    fn propose_between(&mut self, round: u64, pages: &Pages, room: &Room) -> Vec<Flow> {
        self.propose(round, pages, room).flows
    }

    fn degree(&self, _: u64, _: &Pages, _: u32) -> Option<u8> {
        None
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 150 } else { 600 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn the_mechanism_holds_its_invariants_after_every_event(
        seed in 0_u64..1_000_000,
        tiers in 2_usize..=3,
        all_forced in any::<bool>(),
        ops in prop::collection::vec(0_u8..120, 50..400),
    ) {
        let mut world = World::new(seed, tiers, all_forced);
        world.memory();
        world.arrive();
        for op in ops {
            world.step(op);
        }
    }

    #[test]
    fn hot_lists_hold_the_invariants_after_every_event(
        seed in 0_u64..1_000_000,
        tiers in 2_usize..=3,
        ops in prop::collection::vec(0_u8..120, 50..400),
    ) {
        let mut world = World::with_lists(seed, tiers);
        world.memory();
        world.arrive();
        for op in ops {
            world.step(op);
        }
    }

    #[test]
    fn rates_hold_the_invariants_after_every_event(
        seed in 0_u64..1_000_000,
        tiers in 2_usize..=3,
        ops in prop::collection::vec(0_u8..120, 50..400),
    ) {
        let mut world = World::with_rates(seed, tiers);
        world.memory();
        world.arrive();
        for op in ops {
            world.step(op);
        }
    }
}

/// A world of VMs that are tracked, after so many steps of which every other one is a forged report.
fn tracked(seed: u64, track: Track, steps: u64) -> World {
    let mut world = World::with_tracking(seed, track);
    world.memory();
    world.arrive();
    let mut dice = Dice(seed);
    for step in 0..steps {
        let forged = 43 + dice.below(6);
        let op = if step % 2 == 0 {
            forged
        } else {
            dice.below(120)
        };
        world.step(u8::try_from(op).unwrap());
    }
    world
}

#[test]
fn tracking_holds_the_invariants_after_every_event() {
    let (mut faults, mut rests, mut phases) = (0, 0, 0);
    for seed in 0..if cfg!(debug_assertions) { 40 } else { 160 } {
        let track = [Track::Auto, Track::Always][usize::from(seed % 3 == 0)];
        let world = tracked(seed, track, 1000);
        for vm in world.guests.keys() {
            let demand = world.engine.demand(*vm).unwrap();
            faults += demand.tracked_faults;
            rests += demand.rests;
            phases += demand.phases;
        }
    }
    assert!(
        faults > 500 && rests > 0 && phases > 0,
        "{faults} {rests} {phases}"
    );
}

#[test]
fn hot_lists_move_pages_between_hostile_events() {
    moves_between_hostile_events(|seed| World::with_lists(seed, 2));
}

#[test]
fn rates_move_pages_between_hostile_events() {
    moves_between_hostile_events(|seed| World::with_rates(seed, 2));
}

fn moves_between_hostile_events(world: impl Fn(u64) -> World) {
    let (mut promoted, mut demoted) = (0, 0);
    for seed in 0..12 {
        let mut world = world(seed);
        world.memory();
        let mut dice = Dice(seed);
        for _ in 0..1200 {
            world.step(u8::try_from(dice.below(120)).unwrap());
        }
        for vm in world.guests.keys() {
            let counters = world.engine.vm(*vm).unwrap().counters;
            promoted += counters.promoted_pages;
            demoted += counters.demoted_pages;
        }
    }
    assert!(promoted > 0 && demoted > 0, "{promoted} {demoted}");
}

#[test]
fn the_hostile_policy_causes_moves_and_refusals() {
    let (mut promoted, mut demoted, mut kinds) = (0, 0, BTreeSet::new());
    for seed in 0..12 {
        let mut world = World::new(seed, 2, false);
        world.memory();
        let mut dice = Dice(seed);
        for _ in 0..600 {
            world.step(u8::try_from(dice.below(120)).unwrap());
        }
        for vm in world.guests.keys() {
            let counters = world.engine.vm(*vm).unwrap().counters;
            promoted += counters.promoted_pages;
            demoted += counters.demoted_pages;
            kinds.extend(counters.refused.iter().map(|(kind, _)| *kind));
        }
    }
    assert!(promoted > 500 && demoted > 500, "{promoted} {demoted}");
    assert!(kinds.len() >= 12, "refused for {kinds:?}");
}
