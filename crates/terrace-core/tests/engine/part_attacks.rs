//! Answers about parts that lie, logs of them, and memory that parts do not fit.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use terrace_core::arbiter::ArbiterConfig;
use terrace_core::session::replay::replay;
use terrace_core::{EngineConfig, PhaseView, PolicyName};
use terrace_proto::log::Record;
use terrace_proto::{
    Action, Event, Gfn, GuestMemory, MemoryRights, PAGE_SIZE, PageSize, Part, PartAnswer, PartCell,
    ProviderId, RamChange, RamRange, RequestId, ScanStats, Space, Tick, VmId,
};
use terrace_testkit::engine::scattered::{FAST, PAGES};
use terrace_testkit::engine::{Host, SECOND, spec};
use terrace_testkit::fuzz::changed;
use terrace_testkit::log::written;

use crate::ages::live;
use crate::in_rounds::{VM, host_with, last};
use crate::parts::passes;

const MS: u64 = 1_000_000;

fn config(parts: u16) -> EngineConfig {
    EngineConfig {
        policy: PolicyName::Vtmm.into(),
        scan_parts: parts,
        window_ms: 20,
        ..EngineConfig::default()
    }
}

fn answer(id: u64, part: Part, cells: &[(u32, u64, u64)]) -> Event {
    let cell = |&(at, mapped, accessed): &(u32, u64, u64)| PartCell {
        at,
        mapped,
        accessed,
    };
    Event::ScannedPart(Box::new(PartAnswer {
        id: RequestId(id),
        space: Space::Guest(VM),
        part,
        cells: cells.iter().map(cell).collect(),
        huge: Vec::new(),
        written: None,
        stats: ScanStats::default(),
    }))
}

/// A VM's first three seconds, with forged answers between true ones if so: to requests never made, to those of before again. Returns
/// how many were forged, too.
fn with_forged(is_forged: bool) -> (Host, u64) {
    let mut host = host_with(config(4));
    let mut forged = 0;
    for turn in 0..600 {
        host.run_until(Tick(turn * 5 * MS));
        let part = Part::new(turn, 2, 3).unwrap();
        let cells = [(0, u64::MAX, u64::MAX), (0, 1, 1)];
        let of_nothing = answer(1_000_000 + turn, part, &cells);
        let answers = host.log().iter().rev();
        let mut answers = answers.filter_map(|(_, record)| match record {
            Record::Event(event @ Event::ScannedPart(a)) if a.id.0 < 1_000_000 => Some(event),
            _ => None,
        });
        // One that was given already, and taken.
        let again = answers.nth(1).cloned();
        for event in again.into_iter().chain([of_nothing]).filter(|_| is_forged) {
            host.after(0, event);
            forged += 1;
        }
    }
    host.run_until(Tick(50 * SECOND));
    (host, forged)
}

#[test]
fn answers_about_parts_that_nobody_asked_for_change_nothing() {
    let ((quiet, _), (host, forged)) = (with_forged(false), with_forged(true));
    let counters = host.engine().vm(VM).unwrap().counters;
    assert_eq!(
        (counters.malformed_answers, counters.rounds_abandoned),
        (0, 0)
    );
    assert!(forged > 1_000);
    assert_eq!(counters.stale_answers, forged);
    assert_eq!(last(&host), last(&quiet));
    let replayed = replay(&written(host.log())[..]).unwrap();
    assert_eq!(replayed.unrecorded_actions, 0);
}

/// An answer whose figures are all as large as can be takes the VM's own scans, and nothing else.
#[test]
fn counts_that_a_worker_makes_up_overflow_nothing() {
    const MOST: u64 = u64::MAX;
    let mut host = host_with(config(4));
    host.arrive(spec(2, PAGES, FAST), Box::new(|page, _| (page < 9, false)));
    host.run_until(Tick(SECOND / 10));
    for _ in 0..400 {
        host.run_until(Tick(host.now.0 + MS));
        let Some((_, pass)) = passes(&host)
            .into_iter()
            .rfind(|(_, pass)| pass.space.vm() == VM)
        else {
            continue;
        };
        let lie = PartAnswer {
            id: pass.id,
            space: pass.space,
            part: pass.part,
            cells: Vec::new(),
            huge: Vec::new(),
            written: None,
            stats: ScanStats {
                tables: MOST,
                leaves: MOST,
                accessed: MOST,
                cleared: MOST,
                lost_races: MOST,
                pruned: MOST,
                elapsed_ns: MOST,
                cpu_ns: MOST,
                ..ScanStats::default()
            },
        };
        host.after(0, Event::ScannedPart(Box::new(lie)));
    }
    host.run_until(Tick(100 * SECOND));
    let other = host.engine().vm(VmId(2)).unwrap();
    assert!(other.counters.rounds > 0, "another VM waits for it");
    assert_eq!(
        replay(&written(host.log())[..]).unwrap().unrecorded_actions,
        0
    );
}

/// The records of a log, each as its bytes.
fn records(log: &[u8]) -> Vec<&[u8]> {
    let mut rest = &log[10..];
    let mut records = Vec::new();
    while rest.len() >= 14 {
        let len = u32::from_le_bytes(rest[2..6].try_into().unwrap());
        let (record, after) = rest.split_at(14 + len as usize);
        records.push(record);
        rest = after;
    }
    records
}

/// Bytes of answers and requests about parts are changed at random: the log is refused with a reason, or the answer counts for
/// what it is.
#[test]
fn a_log_with_lying_parts_is_refused_or_ignored() {
    const KINDS: [u16; 2] = [0x100 + 35, 0x200 + 11];
    let mut host = Host::new(config(4), &[600, 2_400]);
    host.arrive(
        spec(1, 600, 100),
        Box::new(|page, _| (page % 7 == 0, false)),
    );
    host.run_until(Tick(30 * SECOND));
    let log = written(host.log());
    let records = records(&log);
    let kind = |record: &[u8]| u16::from_le_bytes(record[..2].try_into().unwrap());
    let of_parts: Vec<usize> = (0..records.len())
        .filter(|i| KINDS.contains(&kind(records[*i])))
        .collect();
    assert!(of_parts.len() > 70, "{}", of_parts.len());
    let (mut taken, mut refused) = (0, 0);
    for number in 0..600_u64 {
        let at = of_parts[usize::try_from(number * 7).unwrap() % of_parts.len()];
        let body = changed(&records[at][14..], number);
        let mut bytes = log[..10].to_vec();
        for (i, record) in records.iter().enumerate() {
            if i != at {
                bytes.extend(*record);
                continue;
            }
            bytes.extend(&record[..2]);
            bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
            bytes.extend(&record[6..14]);
            bytes.extend(&body);
        }
        match replay(&bytes[..]) {
            Ok(_) => taken += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        }
    }
    assert!(
        taken > 0 && refused > 100,
        "{taken} taken, {refused} refused"
    );
}

/// More parts than leaf tables, and than pages.
#[test]
fn a_vm_of_one_page_has_rounds_by_1024_parts() {
    for pages in [1, 63, 600] {
        let mut host = Host::new(
            EngineConfig {
                window_ms: 1,
                ..config(1024)
            },
            &[2 * pages, 4 * pages],
        );
        host.arrive(spec(1, pages, pages), Box::new(|_, _| (true, false)));
        host.guests.get_mut(&VM).unwrap().cpu_ns = 1024;
        host.run_until(Tick(120 * SECOND));
        let round = last(&host);
        assert_eq!((round.scan.scans, round.known_pages), (1024 * 9, pages));
    }
}

fn ram(pages: u64) -> Event {
    let range = RamRange {
        start: Gfn(0),
        pages,
    };
    Event::RamChanged(RamChange {
        vm: VM,
        ram: vec![range],
        unit: PageSize::Base,
    })
}

/// Memory comes or goes between a part's question and its answer: the answer is of the old map.
#[test]
fn memory_that_changes_in_the_middle_of_a_part_ends_the_round() {
    for pages in [1, PAGES / 2, PAGES - 1, PAGES + 1, 2 * PAGES] {
        let mut host = host_with(config(4));
        while passes(&host)
            .last()
            .is_none_or(|(_, pass)| pass.part.index() < 2)
        {
            host.run_until(Tick(host.now.0 + MS / 10));
        }
        let guest = host.guests.get_mut(&VM).unwrap();
        guest.tier.resize(usize::try_from(pages).unwrap(), 1);
        guest
            .accessed
            .resize(usize::try_from(pages).unwrap(), false);
        host.after(0, ram(pages));
        host.run_until(Tick(200 * SECOND));
        let view = host.engine().vm(VM).unwrap();
        let counters = view.counters;
        assert_eq!(
            (counters.malformed_answers, counters.rounds_abandoned),
            (0, 1),
            "{pages}"
        );
        assert_eq!(view.last_round.unwrap().known_pages, pages);
        assert_eq!(
            replay(&written(host.log())[..]).unwrap().unrecorded_actions,
            0
        );
    }
}

/// A part that is never answered, and one that failed: the round ends, and the next one begins with the first part.
#[test]
fn a_part_that_is_never_answered_ends_the_round_alone() {
    let mut host = host_with(config(4));
    while passes(&host)
        .last()
        .is_none_or(|(_, pass)| pass.part.index() < 2)
    {
        host.run_until(Tick(host.now.0 + MS / 10));
    }
    let asked = passes(&host).len();
    let failure = terrace_proto::ScanFailure {
        id: passes(&host)[asked - 1].1.id,
        vm: VM,
        reason: "the worker gave an impossible answer".into(),
        fatal: false,
    };
    host.after(0, Event::ScanFailed(failure));
    host.run_until(Tick(200 * SECOND));
    let view = host.engine().vm(VM).unwrap();
    assert_eq!(view.counters.rounds_abandoned, 1);
    let next = passes(&host)[asked].1;
    assert_eq!((next.part.index(), next.discover), (0, true));
    assert!(!matches!(view.phase, PhaseView::Unscannable { .. }));
    assert_eq!(last(&host).known_pages, PAGES);
}

/// A sample of which nothing is mapped says nothing; one of everything says all.
#[test]
fn a_sample_finer_than_the_tables_claims_no_memory() {
    for pages in [1, 600] {
        let arbiter = ArbiterConfig {
            age_sample: 1024,
            ..live()
        };
        let config = EngineConfig {
            policy: PolicyName::Vtmm.into(),
            arbiter,
            ..EngineConfig::default()
        };
        let mut host = Host::new(config, &[pages * 2, pages * 4]);
        host.arrive(spec(1, pages, pages), Box::new(|_, _| (true, false)));
        for (id, vm) in [(1, Some(VM)), (2, None)] {
            host.after(
                0,
                Event::MemoryRights(MemoryRights {
                    provider: ProviderId(id),
                    vm,
                    floor_bytes: PAGE_SIZE,
                    ceiling_bytes: u64::MAX,
                    weight: 1000,
                }),
            );
        }
        for second in 70..300 {
            host.run_until(Tick(second * SECOND));
            host.after(
                0,
                Event::GuestMemory(Box::new(GuestMemory {
                    provider: ProviderId(2),
                    age_ms: Some(0),
                    free_bytes: Some(0),
                    swapped_in_bytes: Some(0),
                    swapped_out_bytes: Some(second << 20),
                    ..GuestMemory::default()
                })),
            );
        }
        assert!(passes(&host).len() > 20);
        let found = passes(&host)[0].1.part.has(Gfn(0));
        let aged = host.engine().vm(VM).unwrap().aged;
        assert!(found || aged.is_none(), "{aged:?}");
        assert_eq!(
            replay(&written(host.log())[..]).unwrap().unrecorded_actions,
            0
        );
    }
}

/// Whatever the round is at, actions name parts that exist, of a draw of as many as configured.
#[test]
fn every_part_that_is_asked_for_exists() {
    let mut host = host_with(config(1024));
    host.run_until(Tick(3 * SECOND));
    let asked = host.log().iter().filter_map(|(_, record)| match record {
        Record::Action(Action::ScanPart(request)) => Some(request.part),
        _ => None,
    });
    assert!(asked.clone().count() > 20);
    assert!(
        asked
            .into_iter()
            .all(|part| part.count() == 1024 && part.index() < 1024)
    );
}
