//! Page cache of live guests: given in small steps to those that swap, and back once it is missed.

use terrace_core::arbiter::{ArbiterConfig, Rule};
use terrace_proto::{MemoryBalance, MemoryRights, ProviderId, Tick};

use super::alone::{Alone, Files, SECOND};
use super::{GIB, MIB};

/// The step of a VM of 4 GiB: 2 %, in whole blocks.
const STEP: u64 = 4 * GIB / 50 + 2 * MIB;

/// A VM of 1 GiB, and one of 4 GiB that holds files, of which it reads so many bytes again and again.
fn beside_files(reads: u64) -> Alone {
    let mut host = Alone::dp(&[GIB, 4 * GIB]);
    host.vm(2).files = Some(Files {
        programs: GIB,
        reads,
        from_disk: 700 * MIB,
        faults: Some(0),
        is_uncounted: false,
        free: 0,
        swapped_out: None,
    });
    host
}

fn orders_of_files(host: &Alone) -> Vec<(u64, u64)> {
    let orders = host.orders.iter().filter(|(_, id, _)| *id == 2);
    orders.map(|(at, _, size)| (*at, *size)).collect()
}

#[test]
fn one_that_swaps_gets_files_that_nobody_reads_step_by_step() {
    let mut host = beside_files(GIB);
    host.seconds(60);
    assert_eq!(host.orders, [], "nobody swapped");
    host.swaps(1, 600);
    let given = orders_of_files(&host);
    assert!(given.len() >= 10, "{given:?}");
    let mut before = (0, 4 * GIB);
    for (at, size) in given {
        let taken = before.1 - size;
        assert!(taken <= STEP, "{} MiB at once", taken / MIB);
        assert!(at >= before.0 + 30, "again after {} s", at - before.0);
        before = (at, size);
    }
    assert!(host.vm(1).size > GIB + 400 * MIB);
    let why = |said: &String| said.contains("of page cache that it does not miss so far; vm1");
    assert!(host.said.iter().any(|(id, said)| *id == 2 && why(said)));
}

#[test]
fn a_guest_whose_cache_is_its_working_set_gets_it_back_at_once() {
    let mut host = beside_files(3 * GIB - 64 * MIB);
    host.seconds(60);
    host.swaps(1, 280);
    let missing = |host: &mut Alone| 4 * GIB - host.vm(2).size;
    assert!(!orders_of_files(&host).is_empty());
    assert_eq!(missing(&mut host), 0, "{:?}", host.orders);
    // It read from disk for the seconds of one step.
    let read = host.vm(2).files.unwrap().from_disk - 700 * MIB;
    assert!(read <= 16 * 50 * MIB, "{} MiB", read / MIB);
    let back = "from disk since it gave page cache: it gets that back, and keeps 4 GiB for 300 s";
    assert!(
        host.said
            .iter()
            .any(|(id, said)| *id == 2 && said.contains(back)),
        "{:?}",
        host.said
    );
    assert_eq!(orders_of_files(&host).len(), 2, "{:?}", host.orders);
    // In half an hour it is tried again after 5 and after 15 minutes.
    host.swaps(1, 1800);
    assert_eq!(missing(&mut host), 0);
    assert!(orders_of_files(&host).len() <= 6, "{:?}", host.orders);
}

#[test]
fn files_are_not_taken_for_the_reserve() {
    let mut host = beside_files(0);
    host.seconds(600);
    assert_eq!(host.orders, []);
}

fn files(host: &mut Alone) -> &mut Files {
    host.vm(2).files.as_mut().unwrap()
}

/// Lets the first VM swap until the second one gives a step of its cache.
fn until_it_gives(host: &mut Alone) {
    let before = orders_of_files(host).len();
    while orders_of_files(host).len() == before {
        host.swaps(1, 1);
        assert!(host.second < 20_000, "it gives nothing");
    }
}

/// One that gave a step of its page cache to one that swaps, beside a third VM.
fn giver_beside_a_third() -> Alone {
    let mut host = beside_a_third(ArbiterConfig::default(), &[GIB, 4 * GIB, 4 * GIB]);
    host.seconds(60);
    until_it_gives(&mut host);
    host
}

/// The one that swaps gets of the 3 GiB that the third one does not use.
fn is_lent_to(host: &mut Alone, seconds: u64) {
    host.swaps(1, seconds);
    let size = host.vm(1).size / MIB;
    assert!(size > 2048, "{size} MiB beside one with 3 GiB free");
}

/// The same with a third VM of 4 GiB that uses all it has.
fn beside_a_third(config: ArbiterConfig, sizes: &[u64]) -> Alone {
    let rule = Rule::Dp;
    let mut host = Alone::new(ArbiterConfig { rule, ..config }, sizes);
    host.vm(2).files = beside_files(0).vm(2).files;
    host
}

/// Idle for 20 minutes, then all of its cache is its working set, for an hour.
#[test]
fn one_that_reads_again_later_gets_all_back_that_it_gave() {
    let mut host = beside_files(0);
    host.seconds(60);
    host.swaps(1, 1200);
    assert!(host.vm(2).size < 3 * GIB, "it gave little");
    files(&mut host).reads = 3 * GIB - 64 * MIB;
    host.swaps(1, 3600);
    let missing = (4 * GIB - host.vm(2).size) / MIB;
    assert_eq!(missing, 0, "MiB are missing after an hour");
}

/// The same, and the taker swaps no more and has 700 MiB free.
#[test]
fn one_that_reads_again_later_gets_what_nobody_uses() {
    let mut host = beside_files(0);
    host.seconds(60);
    host.swaps(1, 1200);
    host.vm(1).need.used_swap_bytes = 0;
    host.seconds(60);
    host.frees(1, 700 * MIB);
    files(&mut host).reads = 3 * GIB - 64 * MIB;
    host.seconds(3600);
    let more = host.vm(2).size / MIB;
    assert!(
        more > 2400,
        "{more} MiB of 4096 beside 700 MiB that are free"
    );
}

/// A working set that is read every 10 minutes, for 5 s.
#[test]
fn one_that_reads_all_every_ten_minutes_is_not_drained() {
    let mut host = beside_files(0);
    host.seconds(60);
    for second in 0..7200 {
        files(&mut host).reads = if second % 600 < 5 {
            3 * GIB - 64 * MIB
        } else {
            0
        };
        host.swaps(1, 1);
    }
    let missing = (4 * GIB - host.vm(2).size) / MIB;
    assert!(missing <= 2 * STEP / MIB, "{missing} MiB are missing");
}

/// The same every 70 s: a step that ended well is missed by the next read.
#[test]
fn a_step_that_is_missed_a_minute_later_comes_back() {
    let mut host = beside_files(0);
    host.seconds(60);
    for second in 0..7200 {
        files(&mut host).reads = if second % 70 < 5 {
            3 * GIB - 64 * MIB
        } else {
            0
        };
        host.swaps(1, 1);
    }
    let missing = (4 * GIB - host.vm(2).size) / MIB;
    assert!(missing <= STEP / MIB, "{missing} MiB are missing");
}

/// A liar makes all lending stop, for ever.
#[test]
fn a_guest_that_hides_its_faults_stops_no_lending() {
    let mut host = giver_beside_a_third();
    files(&mut host).faults = Some(1_000_000);
    host.swaps(1, 30);
    // Its balloon driver reports -1 from now on; when it is held no more, it gives what it does not use.
    files(&mut host).faults = None;
    host.seconds(600);
    files(&mut host).free = 2 * GIB;
    host.seconds(7200);
    host.frees(3, 3 * GIB);
    host.seconds(70);
    is_lent_to(&mut host, 3600);
}

/// One that cannot take its memory back now.
#[test]
fn one_that_is_left_alone_stops_no_lending() {
    let mut host = giver_beside_a_third();
    let said = MemoryBalance {
        provider: ProviderId(2),
        is_on: false,
        is_pause: true,
    };
    host.arbiter.balance(Tick(host.second * SECOND), said);
    files(&mut host).faults = Some(1_000_000);
    host.frees(3, 3 * GIB);
    is_lent_to(&mut host, 280);
}

#[test]
fn one_above_its_new_ceiling_stops_no_lending() {
    let mut host = giver_beside_a_third();
    let rights = MemoryRights {
        provider: ProviderId(2),
        vm: None,
        floor_bytes: 256 * MIB,
        ceiling_bytes: 3 * GIB,
        weight: 1000,
    };
    host.arbiter.rights(Tick(host.second * SECOND), rights);
    files(&mut host).faults = Some(1_000_000);
    host.frees(3, 3 * GIB);
    is_lent_to(&mut host, 280);
}

/// A trial of the same step ends the hold after 300 s; what was missed holds for 40 minutes.
#[test]
fn a_trial_that_shortens_the_hold_stops_no_lending() {
    let mut host = beside_a_third(ArbiterConfig::default(), &[GIB, 4 * GIB, 4 * GIB]);
    host.seconds(60);
    for round in 0..4 {
        until_it_gives(&mut host);
        let files = files(&mut host);
        files.faults = files.faults.map(|faults| faults + 20_000);
        host.seconds(if round < 3 { (300 << round) + 60 } else { 0 });
    }
    for _ in 0..60 {
        // What the taker loses counts.
        host.vm(1).need.lost_ns += SECOND / 2;
        host.vm(1).need.major_faults += 5000;
        host.swaps(1, 1);
    }
    host.seconds(400);
    files(&mut host).free = 2 * GIB;
    host.seconds(300);
    host.frees(3, 3 * GIB);
    host.seconds(70);
    is_lent_to(&mut host, 1200);
}

/// QEMU does not answer once, as when its disks are busy.
#[test]
fn one_answer_that_is_missing_ends_no_watch() {
    let mut host = beside_files(0);
    host.seconds(60);
    until_it_gives(&mut host);
    files(&mut host).reads = 3 * GIB - 64 * MIB;
    files(&mut host).is_uncounted = true;
    host.swaps(1, 1);
    files(&mut host).is_uncounted = false;
    host.swaps(1, 3600);
    assert_eq!((4 * GIB - host.vm(2).size) / MIB, 0);
}
