//! Page cache of live guests: given in small steps to those that swap, and back once it is missed.

use super::alone::{Alone, Files};
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
