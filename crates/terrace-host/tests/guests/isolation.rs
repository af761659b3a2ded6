//! Rules 2, 4 and 5, on a guest whose user half hangs under two top-level tables.

use std::collections::BTreeSet;

use terrace_proto::PagingRegisters;

use crate::Group;
use crate::guest::{CLEAR, Frames, Guest, Pass, READ_ONLY};
use crate::heat::{count, measure};
use crate::lazyfree::{
    madv_free_pages_rewritten_after_a_scan_survive,
    madv_free_pages_survive_with_their_dirty_bits_moved_aside,
};
use crate::machine::Machine;
use crate::picture::only_accessed_bits_change;
use crate::{stale, storm};

/// In CR3, of the two tables that lie side by side: the one for user mode.
const USER_TABLE: u64 = 0x1000;

pub const GROUP: Group = Group {
    machine: Machine {
        cpu: "qemu64",
        vcpus: 2,
        memory_mib: 256,
        options: "region=32 hot=10 pause_ms=5 pti=on",
    },
    tests: &[
        (
            "a_scan_changes_nothing_but_accessed_bits",
            a_scan_changes_nothing_but_accessed_bits,
        ),
        (
            "pruned_scans_of_an_isolated_guest_find_what_full_passes_find",
            pruned_scans_of_an_isolated_guest_find_what_full_passes_find,
        ),
        ("ten_page_hot_set_is_found", ten_page_hot_set_is_found),
        (
            "madv_free_pages_rewritten_after_a_scan_survive",
            madv_free_pages_rewritten_after_a_scan_survive,
        ),
        (
            "madv_free_pages_survive_with_their_dirty_bits_moved_aside",
            madv_free_pages_survive_with_their_dirty_bits_moved_aside,
        ),
        (
            "thousands_of_scans_under_a_fork_storm_lose_no_byte",
            storm::thousands_of_scans_under_a_fork_storm_lose_no_byte,
        ),
        (
            "a_reset_in_mid_round_of_a_guest_with_kaslr_loses_no_byte",
            stale::a_reset_in_mid_round_of_a_guest_with_kaslr_loses_no_byte,
        ),
    ],
};

fn a_scan_changes_nothing_but_accessed_bits(guest: &mut Guest) {
    guest.ask("churn 2");
    for _ in 0..5 {
        guest.wait_for_passes(2);
        let (answer, bits) = only_accessed_bits_change(guest);
        println!(
            "{bits} accessed bits changed, {} of them in leaves; {} top-level tables",
            answer.stats.cleared, answer.stats.roots
        );
    }
    guest.ask("churn 0");
    guest.expect_intact();
}

/// With isolation the processor walks through the kernel's table while it is in the kernel and through
/// its neighbour while it is not, and both lead to the same tables below. The kernel never touches the
/// region, so in the kernel's table nothing marks the way there: a scan that starts from this one alone
/// must not be pruned by it.
fn pruned_scans_of_an_isolated_guest_find_what_full_passes_find(guest: &mut Guest) {
    is_isolated(guest);
    // A few of the region's leaf tables.
    guest.ask("hot 4");
    let hot = guest.frames("truth");
    let registers = registers_in_the_kernel(guest, &hot);
    let scan = |guest: &mut Guest, pass| guest.try_scan_from(pass, registers.clone()).unwrap();
    let pruning = |pass| Pass {
        prune: true,
        ..pass
    };
    let mut pruned = 0;
    for _ in 0..20 {
        scan(guest, pruning(CLEAR));
        guest.wait_for_passes(2);
        // Stopped, so that both passes are about the same moment.
        guest.stop();
        let by_pruning = scan(guest, pruning(READ_ONLY));
        let by_all = scan(guest, READ_ONLY);
        guest.go_on();
        pruned += by_pruning.stats.pruned;
        let all = by_all.accessed.iter();
        let missed = all.filter(|page| !by_pruning.accessed.get(*page)).count();
        assert_eq!(missed, 0, "accessed pages that pruning missed");
        assert_eq!(count(&by_pruning.accessed, &hot), hot.len());
    }
    assert!(pruned > 100, "only {pruned} subtrees were left out");
    println!("20 pruned scans saw what full passes see; {pruned} subtrees were left out");
    guest.ask("hot 800");
    guest.expect_intact();
}

/// Registers of a moment in the kernel from which these pages are found, without any table that was found
/// before.
fn registers_in_the_kernel(guest: &mut Guest, hot: &Frames) -> Vec<PagingRegisters> {
    guest.forget();
    for _ in 0..500 {
        let mut registers = guest.registers();
        registers.iter_mut().for_each(|r| r.cr3 &= !USER_TABLE);
        // Twice: the first request of all recognises the kernel.
        for _ in 0..2 {
            let answer = guest.try_scan_from(READ_ONLY, registers.clone());
            if answer.is_ok_and(|answer| count(&answer.known, hot) == hot.len()) {
                return registers;
            }
        }
    }
    panic!("no virtual CPU runs the guest's program");
}

/// Fails unless a virtual CPU is seen with both tables of a pair.
fn is_isolated(guest: &mut Guest) {
    guest.ask("churn 1");
    let mut seen = BTreeSet::new();
    for _ in 0..2000 {
        seen.extend(guest.registers().iter().map(|r| r.cr3 >> 12));
        if seen.iter().any(|frame| seen.contains(&(frame ^ 1))) {
            guest.ask("churn 0");
            return;
        }
    }
    panic!("no pair of top-level tables in {} samples", seen.len());
}

/// An emulated processor keeps what it translated until it is flushed; isolation makes every entry
/// into the kernel flush it.
fn ten_page_hot_set_is_found(guest: &mut Guest) {
    guest.ask("hot 10");
    for _ in 0..5 {
        let heat = measure(guest, false);
        println!("with page-table isolation: {heat}");
        assert_eq!((heat.found, heat.hot), (10, 10));
    }
    guest.ask("hot 800");
    guest.expect_intact();
}
