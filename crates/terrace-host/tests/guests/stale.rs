//! Rule 14: tables that a process forged, and tables that a reset left behind.
//!
//! Without KASLR a kernel's tables are the same after each start and known to every program, so neither distinguishes
//! itself from a true one.

use terrace_proto::{Part, Rearm};

use crate::Group;
use crate::forged::{Damage, Forgery, Half, true_half};
use crate::guest::{Guest, Pass};
use crate::machine::Machine;

pub const GROUP: Group = Group {
    machine: Machine {
        cpu: "qemu64",
        vcpus: 2,
        memory_mib: 256,
        options: "region=32 hot=10 pause_ms=5 pti=off nokaslr",
    },
    tests: &[
        (
            "a_top_level_table_that_a_process_forged_leads_nowhere",
            a_top_level_table_that_a_process_forged_leads_nowhere,
        ),
        (
            "a_reset_in_mid_round_of_a_guest_without_kaslr_loses_no_byte",
            a_reset_in_mid_round_of_a_guest_without_kaslr_loses_no_byte,
        ),
    ],
};

/// Forged top-level tables, each of which leads to as many pages of data.
const FORGED: usize = 8;
const LED_TO: usize = 64;
/// Enough for several searches.
const SCANS: usize = 60;

/// A process of the guest knows without asking where the kernel's tables are without KASLR.
fn a_top_level_table_that_a_process_forged_leads_nowhere(guest: &mut Guest) {
    let mut forgery = Forgery::hold(guest, FORGED * (LED_TO + 4));
    let half = true_half(guest);
    for _ in 0..FORGED {
        let data = forgery.take_all(LED_TO);
        let users = forgery.tree(guest, 2, &data);
        forgery.top(guest, users, &half);
    }
    forgery.seal(guest);
    let answered = (0..SCANS).filter(|number| scan(guest, *number)).count();
    let Damage { words, pages } = forgery.damage(guest);
    println!(
        "{FORGED} forged top-level tables, {answered} of {SCANS} scans answered: {words} words in {pages} pages of \
         their process changed"
    );
    forgery.expect_untouched(guest);
    guest.expect_intact();
    assert!(answered > 0, "nothing was scanned at all");
}

/// The moments of the resets: after so many scans, between two passes over parts that start from the same registers.
const MOMENTS: [usize; 2] = [12, 27];
/// Passes over all, then as many over parts, and so on.
const OF_A_KIND: usize = 8;
/// Processes whose tables are left behind.
const SLEEPERS: usize = 100;
/// The steps in which the guest that was started anew fills its RAM, so that of one old table after the other the top
/// is still there while what it leads to is data.
const STEPS: usize = 20;
const PAGES: usize = 1_800;

fn a_reset_in_mid_round_of_a_guest_without_kaslr_loses_no_byte(guest: &mut Guest) {
    let halves = MOMENTS.map(|scans| reset_in_mid_round(guest, scans));
    assert_eq!(
        halves[0], halves[1],
        "tables differ after a start, so this test cannot fail"
    );
}

/// With another kernel half after each start.
pub fn a_reset_in_mid_round_of_a_guest_with_kaslr_loses_no_byte(guest: &mut Guest) {
    reset_in_mid_round(guest, MOMENTS[1]);
}

/// Leaves the memory full of tables, resets the machine after some scans and continues them while the
/// guest starts again and fills its memory with words that resemble entries. Returns the kernel half.
fn reset_in_mid_round(guest: &mut Guest, scans: usize) -> Half {
    // Room for them, if a guest held something before.
    guest.ask("hold 1");
    guest.ask(&format!("sleepers {SLEEPERS}"));
    guest.ask("churn 3");
    let mut number = 0;
    let mut scan_on = |guest: &mut Guest| {
        number += 1;
        scan(guest, number)
    };
    let known = (0..100 * scans).filter(|_| scan_on(guest)).nth(scans);
    assert!(known.is_some(), "the guest's tables are not scanned");
    guest.reset();
    let (mut answered, mut tried) = (0, 0);
    let mut count = |guest: &mut Guest| {
        tried += 1;
        answered += usize::from(scan_on(guest));
    };
    guest.ask_meanwhile("hold 1", &mut count);
    for _ in 0..STEPS {
        guest.ask_meanwhile(&format!("more {PAGES}"), &mut count);
        (0..2).for_each(|_| count(guest));
    }
    let state = guest.ask_meanwhile("held", &mut count);
    println!("reset after {scans} scans, {answered} of {tried} scans answered since then: {state}");
    assert_eq!(
        (&state["changed_words"], &state["changed_pages"]),
        (&0.into(), &0.into()),
        "a reset cost data"
    );
    guest.expect_intact();
    true_half(guest)
}

/// One request of a kind that changes with its number: over parts one after the other for a while, then over all, by one thread or
/// two, every fourth of these with a search; whether it was answered. While a guest starts most are not.
fn scan(guest: &mut Guest, number: usize) -> bool {
    guest.use_threads(if number.is_multiple_of(2) { 2 } else { 1 });
    let answered = if number / OF_A_KIND % 2 == 1 {
        let index = u32::try_from(number % 4).unwrap();
        guest.try_part(Part::new(7, 2, index).unwrap(), true).err()
    } else {
        let pass = Pass {
            rearm: Rearm::All,
            prune: number % 3 == 1,
            discover: number.is_multiple_of(4),
        };
        guest.try_scan(pass).err()
    };
    let fatal = answered.as_ref().filter(|failure| failure.fatal);
    assert!(fatal.is_none(), "{fatal:?}");
    answered.is_none()
}
