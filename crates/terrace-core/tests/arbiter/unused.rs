//! Memory that programs of live guests have and do not use, by its age: given to those that swap, before page cache.

use terrace_core::arbiter::KnownDemand;
use terrace_core::demand::Aged;

use super::alone::{Alone, Files, SECOND};
use super::{GIB, MIB};

/// Memory that programs of the second VM use.
const USED: u64 = 2 * GIB;

/// A VM of 1 GiB, and one of 4 GiB whose programs have nearly all of it.
fn beside_idle_programs(swapped_out: Option<u64>) -> Alone {
    let mut host = Alone::dp(&[GIB, 4 * GIB]);
    host.vm(2).files = Some(Files {
        programs: 4 * GIB - 400 * MIB,
        reads: 0,
        from_disk: 0,
        faults: Some(0),
        is_uncounted: false,
        free: 0,
        swapped_out,
    });
    host
}

/// Lets the ages of the second VM's memory be known, observed for so many seconds.
fn observe(host: &mut Alone, observed: u64) {
    let mapped_bytes = host.vm(2).size - 400 * MIB;
    let aged = Aged {
        mapped_bytes,
        unused_bytes: mapped_bytes.saturating_sub(USED),
        span_ns: observed * SECOND,
    };
    host.vm(2).demand = Some(KnownDemand {
        aged: Some(aged),
        ..KnownDemand::default()
    });
}

/// Lets the first VM swap for so long.
fn swaps(host: &mut Alone, seconds: u64, observed: u64) {
    for _ in 0..seconds {
        observe(host, observed);
        host.swaps(1, 1);
    }
}

fn steps(host: &Alone) -> Vec<u64> {
    let orders = host.orders.iter().filter(|(_, id, _)| *id == 2);
    orders.map(|(_, _, size)| *size).collect()
}

#[test]
fn one_that_swaps_gets_what_others_programs_do_not_use() {
    let mut host = beside_idle_programs(Some(MIB));
    host.seconds(60);
    swaps(&mut host, 300, 100);
    let steps = steps(&host);
    let mut before = 4 * GIB;
    for size in &steps {
        assert!(before - size <= before / 20 + 2 * MIB, "{steps:?}");
        before = *size;
    }
    let has = host.vm(2).size;
    assert!(has >= USED + 400 * MIB, "{} MiB", has / MIB);
    assert!(has < USED + 700 * MIB, "{} MiB: {steps:?}", has / MIB);
    assert!(host.vm(1).size > 2 * GIB);
    let why = "MiB that they do not use, by its age; vm1";
    let says = |(id, said): &(u32, String)| *id == 2 && said.contains(why);
    assert!(host.said.iter().any(says), "{:?}", host.said);
    let cache = |(id, said): &(u32, String)| *id == 2 && said.contains("page cache");
    let first = host.said.iter().position(says);
    let cached = host.said.iter().position(cache);
    assert!(cached.is_none_or(|cached| first < Some(cached)));
}

/// As on NFS: Linux gives the balloon files before it swaps, and whether they are missed nobody sees.
#[test]
fn nothing_is_taken_by_ages_where_reads_are_not_counted() {
    let mut host = beside_idle_programs(Some(MIB));
    let files = host.vm(2).files.as_mut().expect("files");
    files.is_uncounted = true;
    host.seconds(60);
    swaps(&mut host, 300, 100);
    assert!(steps(&host).is_empty());
}

#[test]
fn nothing_is_taken_by_ages_while_nobody_swaps() {
    let mut host = beside_idle_programs(Some(MIB));
    observe(&mut host, 100);
    host.seconds(600);
    assert_eq!(host.orders, []);
}

#[test]
fn ages_of_seconds_take_nothing() {
    let mut host = beside_idle_programs(Some(MIB));
    host.seconds(60);
    swaps(&mut host, 25, 59);
    let taken = 4 * GIB - host.vm(2).size;
    // A step of page cache.
    assert!(taken <= 84 * MIB, "{} MiB", taken / MIB);
}

#[test]
fn a_guest_without_swap_is_not_asked_for_what_it_has_to_hold() {
    for swapped_out in [None, Some(0)] {
        let mut host = beside_idle_programs(swapped_out);
        host.seconds(60);
        swaps(&mut host, 300, 100);
        let says = |(_, said): &(u32, String)| said.contains("by its age");
        assert!(!host.said.iter().any(says), "{:?}", host.said);
        // Page cache alone.
        assert!(host.vm(2).size > 4 * GIB - 400 * MIB);
    }
}

/// Linux gives the balloon files before it swaps, so what goes is not what its programs do not use.
#[test]
fn files_that_are_read_again_end_the_taking_by_ages() {
    let mut host = beside_idle_programs(Some(MIB));
    let reads = 2 * GIB + GIB / 4;
    let programs = GIB + GIB / 2;
    if let Some(files) = &mut host.vm(2).files {
        (files.programs, files.reads) = (programs, reads);
    }
    host.seconds(60);
    let (mut least, mut missed) = (u64::MAX, 0);
    for _ in 0..280 {
        host.vm(2).demand = Some(KnownDemand {
            aged: Some(Aged {
                mapped_bytes: programs,
                unused_bytes: GIB,
                span_ns: 100 * SECOND,
            }),
            ..KnownDemand::default()
        });
        host.swaps(1, 1);
        least = least.min(host.vm(2).size);
        missed += u64::from(host.vm(2).size < programs + reads);
    }
    assert!(!steps(&host).is_empty(), "nothing was taken");
    assert!(missed <= 30, "its files did not fit for {missed} s");
    let enough = programs + reads - 256 * MIB;
    assert!(least >= enough, "{} MiB at least", least / MIB);
}
