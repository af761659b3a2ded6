//! The fuzz target's body on stable Rust: the committed corpus, and 1,000 generated inputs.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may panic, its numbers are small"
)]

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_testkit::fuzz::fuzz_scan;

#[test]
fn every_input_of_the_corpus_keeps_the_scans_promises() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    let mut inputs = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        fuzz_scan(&std::fs::read(file.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs >= 5);
}

#[test]
fn a_thousand_generated_inputs_keep_the_scans_promises() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
    for _ in 0..crate::common::cases() {
        let records = (random.next_u64() % 120) as usize;
        let mut data = vec![0; 3 + 11 * records];
        random.fill_bytes(&mut data);
        // Random words are rarely present, for users and accessed; most records are made so.
        for record in data[3..].chunks_mut(11) {
            if random.next_u64() % 4 > 0 {
                record[2] = 0;
                record[1] %= 40;
                record[3] |= 0x25;
                record[3] &= !(0x80 * u8::from(record[4] > 30));
                record[9] &= 1;
                record[8] = 0;
            }
        }
        fuzz_scan(&data);
    }
}
