//! Rule 15: nothing is read that the guest never touched or gave back, whatever its tables name.

use std::os::fd::AsFd;

use terrace_proto::{PAGE_SIZE, PagingRegisters};
use terrace_sys::{data_extents, punch_hole};

use crate::forged::{Forgery, Page, true_half};
use crate::guest::{CLEAR, Guest, Pass, READ_ONLY, SEARCH_AND_CLEAR};
use crate::picture::allocated;

/// Pages that were never touched and that forged entries name as tables: 64 MiB, by 128 KiB of tables.
const UNTOUCHED: usize = 16_384;
/// Virtual CPUs whose CR3 names such a page.
const NAMED: usize = 64;
/// Present, writable, accessed, dirty: an entry of the kernel's.
const KERNEL: u64 = 0x63;
/// Forged top-level tables and leaf tables that are given back.
const GIVEN_BACK: usize = 64;
/// The most that may be allocated by scans, for what is decided between two checks: pages.
const FEW: u64 = 8;

const PASSES: [Pass; 4] = [
    CLEAR,
    Pass {
        prune: true,
        ..CLEAR
    },
    SEARCH_AND_CLEAR,
    READ_ONLY,
];

pub fn tables_that_name_untouched_memory_do_not_allocate_it(guest: &mut Guest) {
    let mut forgery = Forgery::hold(guest, UNTOUCHED / 512 + 16);
    let half = true_half(guest);
    let untouched = holes(guest, UNTOUCHED);
    let users = forgery.tree(guest, 2, &untouched);
    guest.forget();
    guest.stop();
    let truth = guest.registers()[0];
    let claim = |top: u64| PagingRegisters {
        cr3: top << 12,
        ..truth
    };
    let before = allocated(&guest.ram);
    let by = |guest: &mut Guest, registers: &[PagingRegisters]| {
        let before = allocated(&guest.ram);
        scan_all(guest, &[&[truth], registers].concat());
        scan_all(guest, registers);
        grown(guest, before)
    };
    let named: Vec<_> = untouched[..NAMED].iter().map(|top| claim(*top)).collect();
    let named = by(guest, &named);
    let kernel = forgery.take();
    forgery.write(guest, kernel, &maps_no_user(&untouched));
    let kernel = by(guest, &[claim(kernel)]);
    // A search finds this one as well, for its kernel half is the true one. (Its own tables may lose accessed bits:
    // a guest that makes a processor use such a table has these walked.)
    let walked = forgery.top(guest, users, &half);
    let walked = by(guest, &[claim(walked)]);
    let all = grown(guest, before);
    guest.go_on();
    guest.forget();
    println!(
        "{UNTOUCHED} pages that were never touched: {NAMED} registers that name one each cost {named} pages, a kernel \
         half whose tables they are {kernel}, a user half whose tables they are {walked}; all {all}"
    );
    assert!(all <= FEW, "scans allocated {all} pages");
    guest.expect_intact();
}

/// A top-level table that names these frames as tables of the kernel's.
fn maps_no_user(named: &[u64]) -> Page {
    std::array::from_fn(|entry| match entry {
        0..256 => 0,
        _ => named[entry] << 12 | KERNEL,
    })
}

/// As a balloon gives pages back: the file has nothing there any more, while what named them still does.
pub fn pages_that_were_given_back_are_not_allocated_again(guest: &mut Guest) {
    let mut forgery = Forgery::hold(guest, 3 * GIVEN_BACK + 16);
    let half = true_half(guest);
    let leaf_tables = forgery.take_all(GIVEN_BACK);
    let users = forgery.tree(guest, 2, &leaf_tables);
    let tops: Vec<u64> = (0..GIVEN_BACK)
        .map(|_| forgery.top(guest, users, &half))
        .collect();
    guest.forget();
    guest.stop();
    let truth = guest.registers();
    let claim = PagingRegisters {
        cr3: tops[0] << 12,
        ..truth[0]
    };
    // Found by a search, walked through, and then given back.
    scan_all(guest, &[truth[0], claim]);
    for frame in tops[1..].iter().chain(&leaf_tables) {
        punch_hole(guest.ram.as_fd(), guest.offset(*frame), PAGE_SIZE).unwrap();
    }
    let before = allocated(&guest.ram);
    for _ in 0..3 {
        scan_all(guest, &[truth[0], claim]);
    }
    let all = grown(guest, before);
    guest.go_on();
    guest.forget();
    println!(
        "{} pages given back, {all} allocated again by scans",
        2 * GIVEN_BACK - 1
    );
    assert!(
        all <= FEW,
        "scans allocated {all} pages that were given back"
    );
    guest.expect_intact();
}

/// Passes of all kinds, some of which may be refused.
fn scan_all(guest: &mut Guest, registers: &[PagingRegisters]) {
    for pass in PASSES {
        for _ in 0..2 {
            let _ = guest.try_scan_from(pass.clone(), registers.to_vec());
        }
    }
}

/// Pages that were allocated since.
fn grown(guest: &Guest, before: u64) -> u64 {
    allocated(&guest.ram).saturating_sub(before) / PAGE_SIZE
}

/// Frames of RAM that the guest never touched.
fn holes(guest: &Guest, count: usize) -> Vec<u64> {
    let extents = data_extents(guest.ram.as_fd()).unwrap();
    let size = guest.ram.metadata().unwrap().len();
    let ends = extents.iter().map(|extent| extent.start + extent.len);
    let starts = extents.iter().skip(1).map(|extent| extent.start);
    let pages = ends
        .zip(starts.chain([size]))
        .flat_map(|(from, to)| (from..to).step_by(PAGE_SIZE as usize));
    let holes: Vec<u64> = pages
        .filter_map(|at| guest.frame_at(at))
        .take(count)
        .collect();
    assert_eq!(
        holes.len(),
        count,
        "the guest touched nearly all of its memory"
    );
    holes
}
