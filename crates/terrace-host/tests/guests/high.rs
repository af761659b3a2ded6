//! Rule 7: guest RAM is at the addresses of QEMU's memory tree.

use std::os::unix::fs::FileExt;

use crate::guest::Guest;
use crate::heat::{expect_found, measure};

const GIB: u64 = 1 << 30;

/// The tag that the guest's program writes into the first word of each page of its region.
const MAGIC: u64 = 0x7E22_ACE0_0000_0000;

pub fn ram_above_4_gib_is_scanned_at_its_place_in_the_file(guest: &mut Guest) {
    let above = guest.frames("truth");
    assert!(
        above.iter().all(|frame| frame * 4096 >= 4 * GIB),
        "the guest's region is not above 4 GiB: {:?}",
        above.first()
    );
    let word_at = |guest: &Guest, offset: u64| {
        let mut word = [0; 8];
        guest.ram.read_exact_at(&mut word, offset).unwrap();
        u64::from_le_bytes(word)
    };
    let is_tagged = |word: u64| word & !0xffff_ffff == MAGIC;
    let size = guest.ram.metadata().unwrap().len();
    for frame in &above {
        let offset = guest.offset(*frame);
        assert!(is_tagged(word_at(guest, offset)), "page {frame:#x}");
        // The fault: the file's offset taken for the guest's address.
        let wrong = frame * 4096;
        assert!(wrong >= size || !is_tagged(word_at(guest, wrong)));
    }
    // Other processes on both processors make them forget translations.
    guest.ask("churn 4");
    let heat = measure(guest, false);
    guest.ask("churn 0");
    println!(
        "hot pages from {:#x} on: {heat}",
        above.first().unwrap() * 4096
    );
    expect_found(&heat);
    guest.expect_intact();
}
