//! Rules 2, 4 and 5, on a guest whose user half hangs under two top-level tables.

use std::collections::BTreeSet;

use terrace_proto::Rearm;

use crate::Group;
use crate::guest::{CLEAR, Guest, LOOK, Pass};
use crate::heat::{count, expect_found, measure};
use crate::lazyfree::{
    madv_free_pages_rewritten_after_a_scan_survive,
    madv_free_pages_survive_with_their_dirty_bits_moved_aside,
};
use crate::machine::Machine;
use crate::picture::only_accessed_bits_change;
use crate::storm;

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
            "pruned_scans_of_an_isolated_guest_find_what_a_full_pass_finds",
            pruned_scans_of_an_isolated_guest_find_what_a_full_pass_finds,
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
/// its neighbour while it is not, and both lead to the same tables below.
fn pruned_scans_of_an_isolated_guest_find_what_a_full_pass_finds(guest: &mut Guest) {
    is_isolated(guest);
    let mut pruned = 0;
    for _ in 0..20 {
        guest.scan(Pass {
            prune: true,
            ..CLEAR
        });
        guest.wait_for_passes(2);
        // Stopped, so that both passes are about the same moment.
        guest.stop();
        let by_pruning = guest.scan(Pass {
            prune: true,
            ..LOOK
        });
        let by_all = guest.scan(LOOK);
        guest.go_on();
        pruned += by_pruning.stats.pruned;
        let missed = by_all
            .accessed
            .iter()
            .filter(|p| !by_pruning.accessed.get(*p));
        assert_eq!(missed.count(), 0, "accessed pages that pruning missed");
        let hot = guest.frames("truth");
        assert_eq!(count(&by_pruning.accessed, &hot), hot.len());
    }
    assert!(pruned > 0, "nothing was pruned");
    println!("20 pruned scans saw what full passes see; {pruned} subtrees were left out");
    let heat = measure(guest, true);
    expect_found(&heat);
    // A clustered corner of the guest alone stays hot: most is pruned, nothing of it is missed.
    guest.ask("hot 40");
    let heat = measure(guest, true);
    println!("pruned: {heat}; {} subtrees were left out", heat.pruned);
    assert_eq!(heat.found, heat.hot, "{heat}");
    guest.expect_intact();
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

/// An emulated processor keeps what it translated until it is told to forget; isolation makes every entry
/// into the kernel tell it to.
fn ten_page_hot_set_is_found(guest: &mut Guest) {
    guest.ask("hot 10");
    for _ in 0..5 {
        let heat = measure(guest, false);
        println!("with page-table isolation: {heat}");
        assert_eq!((heat.found, heat.hot), (10, 10));
    }
    assert!(
        guest
            .try_scan(Pass {
                rearm: Rearm::None,
                ..LOOK
            })
            .is_ok()
    );
    guest.ask("hot 800");
    guest.expect_intact();
}
