//! Rules 6 and 12: which pages are read, and which are reported.

use std::os::fd::AsFd;

use terrace_sys::{SharedMapping, data_extents};

use crate::Group;
use crate::claims::{
    an_unproven_kernel_half_changes_no_byte, registers_that_name_pages_of_files_change_no_byte,
};
use crate::guest::{CLEAR, Guest, Pass, READ_ONLY, SEARCH_AND_CLEAR};
use crate::heat::{count, measure};
use crate::high::ram_above_4_gib_is_scanned_at_its_place_in_the_file;
use crate::holes::{
    pages_that_were_given_back_are_not_allocated_again,
    tables_that_name_untouched_memory_do_not_allocate_it,
};
use crate::machine::Machine;
use crate::picture::{Picture, allocated};

const MEMORY_MIB: u64 = 5 << 10;

/// RAM on both sides of the hole below 4 GiB, much of which the guest never touches, and no isolation: one
/// top-level table per process.
pub const GROUP: Group = Group {
    machine: Machine {
        cpu: "qemu64",
        vcpus: 2,
        memory_mib: MEMORY_MIB,
        options: "region=32 hot=10 pause_ms=5 pti=off",
    },
    tests: &[
        (
            "processes_that_sleep_are_found_by_their_kernel_half",
            processes_that_sleep_are_found_by_their_kernel_half,
        ),
        (
            "scans_do_not_allocate_memory_that_the_guest_never_touched",
            scans_do_not_allocate_memory_that_the_guest_never_touched,
        ),
        (
            "pages_that_no_process_maps_are_not_known_and_not_touched",
            pages_that_no_process_maps_are_not_known_and_not_touched,
        ),
        (
            "ram_above_4_gib_is_scanned_at_its_place_in_the_file",
            ram_above_4_gib_is_scanned_at_its_place_in_the_file,
        ),
        (
            "ten_page_hot_set_without_flushes_is_stated",
            ten_page_hot_set_without_flushes_is_stated,
        ),
        (
            "registers_that_name_pages_of_files_change_no_byte",
            registers_that_name_pages_of_files_change_no_byte,
        ),
        (
            "an_unproven_kernel_half_changes_no_byte",
            an_unproven_kernel_half_changes_no_byte,
        ),
        (
            "tables_that_name_untouched_memory_do_not_allocate_it",
            tables_that_name_untouched_memory_do_not_allocate_it,
        ),
        (
            "pages_that_were_given_back_are_not_allocated_again",
            pages_that_were_given_back_are_not_allocated_again,
        ),
    ],
};

const SEARCH: Pass = Pass {
    discover: true,
    ..READ_ONLY
};

fn processes_that_sleep_are_found_by_their_kernel_half(guest: &mut Guest) {
    // Linux itself has an address space or two beside that of the one process.
    let awake = guest.scan(SEARCH_AND_CLEAR).stats.roots;
    let sleeping = guest.frames("sleepers 8");
    assert_eq!(sleeping.len(), 8 * 64);
    let before = guest.scan(CLEAR);
    let known_before = count(&before.known, &sleeping);
    let after = guest.scan(SEARCH_AND_CLEAR);
    println!(
        "{awake} top-level tables without them; registers led to {} top-level tables and {known_before} of 512 pages of sleeping processes, a \
         search to {} and {}",
        before.stats.roots,
        after.stats.roots,
        count(&after.known, &sleeping)
    );
    // An idle processor keeps the table of who ran on it last, so two may be found by registers.
    assert!(known_before <= 2 * 64, "found without a search");
    assert_eq!(count(&after.known, &sleeping), sleeping.len());
    assert_eq!(after.stats.roots, awake + 8);
    // A space that was found once is scanned without another search, until its process ends.
    assert_eq!(count(&guest.scan(CLEAR).known, &sleeping), sleeping.len());
    guest.ask("sleepers 0");
    let left = guest.scan(READ_ONLY).stats.roots;
    assert_eq!(left, awake, "dead tables are walked");
    guest.expect_intact();
}

fn scans_do_not_allocate_memory_that_the_guest_never_touched(guest: &mut Guest) {
    guest.scan(SEARCH_AND_CLEAR);
    // From here on whatever is allocated is not the guest's doing.
    guest.stop();
    let before = allocated(&guest.ram);
    assert!(before < (MEMORY_MIB << 20) / 2, "{before} bytes in use");
    for _ in 0..20 {
        guest.scan(SEARCH_AND_CLEAR);
        guest.scan(SEARCH);
    }
    let after = allocated(&guest.ram);
    println!(
        "{} of {MEMORY_MIB} MiB in use before and after 40 searches",
        before >> 20
    );
    assert_eq!(before, after, "scans allocated memory");
    // The fault: a read of a page that was never touched.
    read_untouched_page(guest);
    assert_eq!(
        allocated(&guest.ram),
        before + 4096,
        "this test cannot fail"
    );
    guest.go_on();
    guest.expect_intact();
}

/// Reads a byte of the first hole of the file as the worker reads tables: by a shared mapping.
fn read_untouched_page(guest: &Guest) {
    let extents = data_extents(guest.ram.as_fd()).unwrap();
    let hole = extents[0].start + extents[0].len;
    let mapping = SharedMapping::new(guest.ram.as_fd(), hole, 4096).unwrap();
    // SAFETY: the mapping is a page long, lives through the read, and any byte is a `u8`.
    let byte = unsafe { mapping.as_ptr().read_volatile() };
    assert_eq!(byte, 0);
}

/// By the guest's word: every frame in any process's page map is known, and no other.
fn pages_that_no_process_maps_are_not_known_and_not_touched(guest: &mut Guest) {
    guest.ask("idle");
    guest.frames("sleepers 4");
    let cached = guest.frames("cache 2048");
    let mapped = guest.scan(SEARCH_AND_CLEAR);
    assert_eq!(
        count(&mapped.known, &cached),
        cached.len(),
        "pages of a mapped file"
    );
    guest.ask("uncache");
    let said = guest.frames("mapped");
    guest.stop();
    let picture = Picture::of(&guest.ram);
    let answer = guest.scan(SEARCH_AND_CLEAR);
    let changes = picture.changes(&guest.ram);
    guest.go_on();
    // The guest's program runs for a moment after each scan, with its answer to write.
    let later = guest.frames("mapped");
    let unsaid: Vec<u64> = {
        let known = answer.known.iter();
        known
            .filter(|p| !said.contains(p) && !later.contains(p))
            .collect()
    };
    let unknown = said.iter().filter(|p| !answer.known.get(**p)).count();
    println!(
        "{} pages known, {} mapped by the guest's word; {} known alone, {unknown} said alone; of {} pages \
         in the page cache alone {} are known",
        answer.known.count(),
        said.len(),
        unsaid.len(),
        cached.len(),
        count(&answer.known, &cached)
    );
    assert_eq!(count(&answer.known, &cached), 0, "page cache is known");
    // The guest's program runs for a moment after the scan, with its answer to write.
    assert!(
        unsaid.len() <= 128,
        "known, but mapped nowhere: {unsaid:x?}"
    );
    assert!(unknown <= 16, "{unknown} pages are mapped and not known");
    let touched = changes.iter().filter_map(|c| guest.frame_at(c.offset));
    assert_eq!(touched.filter(|frame| cached.contains(frame)).count(), 0);
    guest.ask("sleepers 0");
    guest.ask("run");
    guest.expect_intact();
}

/// Nothing is claimed of this: what an emulated processor keeps in its TLB is not seen, and that is said
/// in the documentation. Without a flush it is what rule 5 is about.
fn ten_page_hot_set_without_flushes_is_stated(guest: &mut Guest) {
    guest.ask("hot 10");
    let heat = measure(guest, false);
    println!("without page-table isolation: {heat}");
    assert!(heat.found <= heat.hot);
    guest.expect_intact();
}
