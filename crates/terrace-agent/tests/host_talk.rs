//! The bytes of a hostile host, whatever they are: the fuzz body on stable Rust.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use terrace_testkit::fuzz::{changed, frames::host_seeds, fuzz_host_talk};

#[test]
fn the_corpus_and_its_changes_break_no_promise_of_the_agent() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/host_bytes");
    let files: Vec<_> = fs::read_dir(folder).unwrap().collect();
    assert!(files.len() >= host_seeds().len());
    for file in files {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        fuzz_host_talk(&bytes);
        for number in 0..300 {
            fuzz_host_talk(&changed(&bytes, number));
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_break_no_promise_of_the_agent(data in proptest::collection::vec(any::<u8>(), 0..2048)) {
        fuzz_host_talk(&data);
    }
}
