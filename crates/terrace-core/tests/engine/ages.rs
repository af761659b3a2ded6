//! Scans of ages between rounds, while a VM that shares memory swaps.

use crate::in_rounds::scans;
use crate::parts::passes;
use terrace_core::arbiter::{ArbiterConfig, Rule};
use terrace_core::demand::Aged;
use terrace_core::session::replay::replay;
use terrace_core::{EngineConfig, PolicyName};
use terrace_proto::{
    Event, Gfn, GuestMemory, GuestWalks, MemoryRights, PAGE_SIZE, ProviderId, Rearm, ScanRequest,
    Tick, VmId,
};
use terrace_testkit::engine::{Host, SECOND, spec};
use terrace_testkit::log::written;

const MIB: u64 = 1 << 20;
/// Pages of the VM: 32 blocks, 8 of them in use.
const PAGES: u64 = 32 * 512;
const USED: u64 = 8 * 512;

/// A VM that is observed and one that is not, which share memory.
fn host(policy: PolicyName, arbiter: ArbiterConfig) -> Host {
    let config = EngineConfig {
        policy: policy.into(),
        arbiter,
        ..EngineConfig::default()
    };
    let mut host = Host::new(config, &[PAGES, 4 * PAGES]);
    host.arrive(
        spec(1, PAGES, PAGES),
        Box::new(|page, _| (page < USED, false)),
    );
    for (id, vm) in [(1, Some(VmId(1))), (2, None)] {
        let rights = MemoryRights {
            provider: ProviderId(id),
            vm,
            floor_bytes: MIB,
            ceiling_bytes: u64::MAX,
            weight: 1000,
        };
        host.after(0, Event::MemoryRights(rights));
    }
    host
}

pub fn live() -> ArbiterConfig {
    ArbiterConfig {
        rule: Rule::Dp,
        live: true,
        ..ArbiterConfig::default()
    }
}

/// Lets the second VM swap more and more in this second.
fn swaps(host: &mut Host, second: u64) {
    host.run_until(Tick(second * SECOND));
    let seen = GuestMemory {
        provider: ProviderId(2),
        age_ms: Some(0),
        free_bytes: Some(0),
        swapped_in_bytes: Some(0),
        swapped_out_bytes: Some(second * MIB),
        ..GuestMemory::default()
    };
    host.after(0, Event::GuestMemory(Box::new(seen)));
}

fn aged(host: &Host) -> Option<Aged> {
    host.engine().vm(VmId(1)).expect("a VM that arrived").aged
}

/// Scans that are of no round: all pages are cleared, and no table is searched for.
fn of_ages(host: &Host) -> Vec<(Tick, ScanRequest)> {
    let found = scans(host).into_iter();
    let found = found.map(|(at, scan)| (at, scan.clone()));
    found
        .filter(|(_, scan)| scan.rearm == Rearm::All && !scan.discover)
        .collect()
}

#[test]
fn nothing_is_scanned_for_ages_while_nobody_swaps() {
    let mut host = host(PolicyName::Vtmm, live());
    host.run_until(Tick(300 * SECOND));
    assert_eq!((of_ages(&host).len(), aged(&host)), (0, None));
}

#[test]
fn a_recorded_or_simulated_host_is_not_scanned_for_ages() {
    for (config, is_scanned) in [
        (
            ArbiterConfig {
                live: false,
                ..live()
            },
            false,
        ),
        (
            ArbiterConfig {
                age_window_ms: 0,
                ..live()
            },
            false,
        ),
        (live(), true),
    ] {
        let mut host = host(PolicyName::Vtmm, config);
        (70..200).for_each(|second| swaps(&mut host, second));
        assert_eq!(!of_ages(&host).is_empty(), is_scanned);
    }
}

#[test]
fn memory_that_programs_do_not_use_is_found_by_its_age() {
    let mut host = host(PolicyName::Vtmm, live());
    (70..300).for_each(|second| swaps(&mut host, second));
    let seen = aged(&host).unwrap();
    assert_eq!(seen.mapped_bytes, PAGES * PAGE_SIZE);
    assert_eq!(seen.unused_bytes, (PAGES - USED) * PAGE_SIZE);
    assert!(seen.span_ns > 200 * SECOND, "{seen:?}");
    // One in 5 s but for the rounds.
    let scans = of_ages(&host);
    assert!((30..=48).contains(&scans.len()), "{}", scans.len());
    let gaps = scans.windows(2).map(|two| two[1].0.since(two[0].0));
    assert!(gaps.min().unwrap().as_secs_f64() > 4.9);
    // They end ten minutes after the last one swapped.
    host.run_until(Tick(1000 * SECOND));
    let before = of_ages(&host).len();
    host.run_until(Tick(2000 * SECOND));
    assert_eq!((of_ages(&host).len(), aged(&host)), (before, None));
}

#[test]
fn a_sample_of_the_tables_stands_for_all() {
    let mut host = host(
        PolicyName::Vtmm,
        ArbiterConfig {
            age_sample: 4,
            ..live()
        },
    );
    (70..300).for_each(|second| swaps(&mut host, second));
    assert!(of_ages(&host).is_empty());
    let sampled: Vec<_> = passes(&host)
        .iter()
        .map(|(_, pass)| (*pass).clone())
        .collect();
    assert!((30..=48).contains(&sampled.len()), "{}", sampled.len());
    let part = sampled[0].part;
    assert_eq!(part.count(), 4);
    assert!(
        sampled
            .iter()
            .all(|pass| pass.part == part && pass.clear && !pass.discover)
    );
    assert!(!sampled[0].prune && sampled[1].prune);
    let blocks = |pages: u64| {
        (0..pages / 512)
            .filter(|block| part.has(Gfn(*block)))
            .count() as u64
    };
    let seen = aged(&host).unwrap();
    let bytes = |blocks: u64| blocks * 4 * 512 * PAGE_SIZE;
    assert_eq!(seen.mapped_bytes, bytes(blocks(PAGES)));
    assert_eq!(seen.unused_bytes, bytes(blocks(PAGES) - blocks(USED)));
    assert!(
        blocks(USED) > 0 && blocks(PAGES) > blocks(USED),
        "the seed says something"
    );
    let log = written(host.log());
    assert_eq!(replay(&log[..]).unwrap().unrecorded_actions, 0);
}

#[test]
fn a_guest_whose_programs_all_rest_uses_nothing() {
    let mut host = host(PolicyName::Vtmm, live());
    host.run_until(Tick(69 * SECOND));
    // It stops.
    host.guests.get_mut(&VmId(1)).unwrap().heat = Box::new(|_, _| (false, false));
    (70..1200).for_each(|second| swaps(&mut host, second));
    let seen = aged(&host).unwrap();
    assert_eq!(seen.unused_bytes, seen.mapped_bytes, "{seen:?}");
}

#[test]
fn a_scan_of_ages_takes_no_more_of_a_processor_than_others() {
    let mut host = host(PolicyName::Vtmm, live());
    host.run_until(Tick(69 * SECOND));
    // A scan of 10 s: every 20 s at half of a processor.
    host.guests.get_mut(&VmId(1)).unwrap().cpu_ns = 10 * SECOND;
    (70..400).for_each(|second| swaps(&mut host, second));
    let scans = of_ages(&host);
    let gaps = scans.windows(2).map(|two| two[1].0.since(two[0].0));
    let least = gaps.min().unwrap();
    assert!(scans.len() > 2 && least.as_secs() >= 19, "{least:?}");
}

#[test]
fn rounds_find_the_same_pages_beside_scans_of_ages() {
    let hot = |arbiter| {
        let mut host = host(PolicyName::Vtmm, arbiter);
        (70..400).for_each(|second| swaps(&mut host, second));
        let round = host.engine().vm(VmId(1)).unwrap().last_round.unwrap();
        (round.known_pages, round.hot_pages, round.degree_histogram)
    };
    let without = ArbiterConfig {
        age_window_ms: 0,
        ..live()
    };
    assert_eq!(hot(live()), hot(without));
}

#[test]
fn policies_whose_rounds_follow_each_other_tell_of_ages_too() {
    let mut host = host(PolicyName::Hmvisor, live());
    (70..300).for_each(|second| swaps(&mut host, second));
    let seen = aged(&host).unwrap();
    let used = seen.mapped_bytes - seen.unused_bytes;
    assert_eq!(used, USED * PAGE_SIZE, "{seen:?}");
}

/// Ages of another phase say nothing of what is used now.
#[test]
fn ages_begin_anew_when_a_guest_begins_to_use_other_memory() {
    let mut host = host(PolicyName::Vtmm, live());
    let mut walks = 0;
    for second in 70..300 {
        walks += if second < 200 { 1_000_000 } else { 4_000_000 };
        let provider = ProviderId(1);
        host.after(0, Event::GuestWalks(GuestWalks { provider, walks }));
        swaps(&mut host, second);
        if second == 199 {
            let seen = aged(&host).unwrap();
            assert!(seen.span_ns > 100 * SECOND, "{seen:?}");
        }
    }
    let seen = aged(&host).unwrap();
    assert!(seen.span_ns < 100 * SECOND, "{seen:?}");
    assert_eq!(seen.unused_bytes, (PAGES - USED) * PAGE_SIZE);
}
