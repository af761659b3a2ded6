//! Rule 13: a CR3 is a claim. The registers of a nested guest's virtual CPU are handed to the scanner here:
//! frames of the guest that are no top-level tables, though they resemble some.

use std::fs;

use terrace_proto::PagingRegisters;

use crate::forged::{Damage, Forgery, Half, Page};
use crate::guest::{CLEAR, Guest, SEARCH_AND_CLEAR};
use crate::picture::Picture;

/// Pages of an ordinary file, last pages of files of numbers, and data that these numbers may name.
const FILE_PAGES: usize = 2_000;
const LAST_PAGES: usize = 100;
const BYSTANDERS: usize = 2_000;
/// Requests with each page: on the second one a page was once believed.
const REQUESTS: usize = 3;
/// Pages of data that each forged table leads to.
const DATA: usize = 16;

/// Present, 1 GiB, the kernel's: a leaf of a direct map, without anything that a true one has beside.
const LEAF: u64 = 0x81;
/// A leaf that a process may use.
const USER_LEAF: u64 = 0x87;
/// Present, writable, accessed, dirty: an entry of the kernel's.
const KERNEL: u64 = 0x63;
const GIB_FRAMES: u64 = 1 << 18;

/// Pages as a nested guest's CR3 may name them: of files, which know nothing of tables.
pub fn registers_that_name_pages_of_files_change_no_byte(guest: &mut Guest) {
    let mut forgery = Forgery::hold(guest, FILE_PAGES + LAST_PAGES + BYSTANDERS);
    let mut pages = pages_of_a_file();
    pages.extend(last_pages(forgery.first() << 12));
    let frames = forgery.take_all(pages.len());
    for (frame, page) in frames.iter().zip(pages) {
        forgery.write(guest, *frame, &page);
    }
    nothing_changes(guest, &mut forgery, &frames);
}

/// Pages that were made to resemble top-level tables, each with something that a kernel's direct map cannot
/// have: if it is wrong, nothing is proven.
pub fn an_unproven_kernel_half_changes_no_byte(guest: &mut Guest) {
    let mut forgery = Forgery::hold(guest, 200);
    let mut tops = Vec::new();
    for flaw in FLAWS {
        let data = forgery.take_all(DATA);
        let users = forgery.tree(guest, 2, &data);
        let half = flawed(&mut forgery, guest, flaw);
        let top = forgery.top(guest, users, &half);
        let base = top / GIB_FRAMES;
        assert!(
            base > 0,
            "the process's pages are in the first GiB: no flaw is one"
        );
        tops.push(top);
    }
    nothing_changes(guest, &mut forgery, &tops);
}

/// The flaw of a forged kernel half.
#[derive(Clone, Copy, Debug)]
enum Flaw {
    /// Only tables, no leaf anywhere.
    NoLeaf,
    /// One leaf, over the first GiB, where neither the root nor the tables are.
    LeafElsewhere,
    /// One leaf over root and table, and another table that no leaf covers.
    OneTableUncovered,
    /// Leaves over all, of two bases.
    TwoBases,
    /// The leaf over all is for users.
    ForUsers,
    /// The leaf over all has an address bit that no leaf of 1 GiB may have.
    Reserved,
}

const FLAWS: [Flaw; 6] = [
    Flaw::NoLeaf,
    Flaw::LeafElsewhere,
    Flaw::OneTableUncovered,
    Flaw::TwoBases,
    Flaw::ForUsers,
    Flaw::Reserved,
];

/// A table in the first GiB of RAM: some page of the kernel's.
const LOW_TABLE: u64 = 0x1100;

fn flawed(forgery: &mut Forgery, guest: &Guest, flaw: Flaw) -> Half {
    let table = forgery.take();
    let gib = table / GIB_FRAMES;
    let leaf = |gib: u64, flags: u64| gib << 30 | flags;
    let (mut below, mut half): (Page, Half) = ([0; 512], [0; 256]);
    half[17] = table << 12 | KERNEL;
    let at = usize::try_from(gib).unwrap() + 3;
    match flaw {
        Flaw::NoLeaf => below[at] = LOW_TABLE << 12 | KERNEL,
        Flaw::LeafElsewhere => below[at] = LEAF,
        Flaw::OneTableUncovered => {
            below[at] = leaf(gib, LEAF);
            half[200] = LOW_TABLE << 12 | KERNEL;
        }
        Flaw::TwoBases => {
            below[at] = leaf(gib, LEAF);
            below[at + 1] = LEAF;
            half[200] = LOW_TABLE << 12 | KERNEL;
        }
        Flaw::ForUsers => below[at] = leaf(gib, USER_LEAF),
        Flaw::Reserved => below[at] = leaf(gib, LEAF) | 1 << 13,
    }
    forgery.write(guest, table, &below);
    half
}

/// Hands these frames to the scanner as CR3, alone and beside the true ones, of a guest that stands still:
/// whatever changes is a scan's doing, and of what registers name alone no bit may.
fn nothing_changes(guest: &mut Guest, forgery: &mut Forgery, tops: &[u64]) {
    forgery.seal(guest);
    guest.forget();
    guest.stop();
    let truth = guest.registers()[0];
    let claim = |top: &u64| PagingRegisters {
        cr3: top << 12,
        ..truth
    };
    let picture = Picture::of(&guest.ram);
    let mut believed = 0;
    for top in tops {
        let scans = (0..REQUESTS).filter_map(|_| guest.try_scan_from(CLEAR, vec![claim(top)]).ok());
        believed += usize::from(scans.map(|answer| answer.stats.roots).sum::<u64>() > 0);
    }
    let alone = picture.changes_of_what_was_there(&guest.ram).len();
    println!(
        "{} frames named by registers alone, {believed} of them believed: {alone} words changed in all RAM",
        tops.len()
    );
    assert_eq!(
        (believed, alone),
        (0, 0),
        "frames believed, words changed in RAM"
    );
    for some in tops.chunks(50) {
        let claims: Vec<_> = [truth].into_iter().chain(some.iter().map(claim)).collect();
        for pass in [CLEAR, CLEAR, SEARCH_AND_CLEAR] {
            // One that is refused changes nothing either.
            let _ = guest.try_scan_from(pass, claims.clone());
        }
    }
    guest.go_on();
    guest.forget();
    let Damage { words, pages } = forgery.damage(guest);
    println!("and beside a true one: {words} words in {pages} pages of the process changed");
    forgery.expect_untouched(guest);
    assert_eq!(
        (believed, alone),
        (0, 0),
        "frames believed, words changed in RAM"
    );
    guest.expect_intact();
}

/// Every so many pages of this program, which is code, tables of addresses, names and debug information.
fn pages_of_a_file() -> Vec<Box<Page>> {
    let bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
    let pages = bytes.as_chunks::<4096>().0;
    let words = |page: &[u8; 4096]| -> Box<Page> {
        let words = page.as_chunks::<8>().0;
        Box::new(std::array::from_fn(|at| u64::from_le_bytes(words[at])))
    };
    assert!(
        pages.len() >= FILE_PAGES,
        "this program has {} pages",
        pages.len()
    );
    let step = pages.len() / FILE_PAGES;
    let pages = pages.iter().step_by(step).take(FILE_PAGES);
    pages.map(words).collect()
}

/// The last pages of files of numbers, which end shortly after the middle of a page; the numbers are random
/// and a little above `least`.
fn last_pages(least: u64) -> Vec<Box<Page>> {
    let mut state = 1_u64;
    let mut number = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        least + (state >> 32) % (BYSTANDERS as u64 * 4096)
    };
    let mut page = || {
        Box::new(std::array::from_fn(
            |at| if at < 259 { number() } else { 0 },
        ))
    };
    (0..LAST_PAGES).map(|_| page()).collect()
}
