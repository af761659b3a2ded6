//! The committed corpus of the agent channel's fuzz targets, on stable Rust.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use terrace_proto::agent::{AgentMessage, Decoder, HEADER};
use terrace_testkit::fuzz::changed;
use terrace_testkit::fuzz::frames::{
    agent_seeds, check, fuzz_agent_bytes, fuzz_host_bytes, host_seeds,
};

fn corpus(target: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("fuzz/corpus").join(target)
}

/// The committed corpus equals the bytes that this code sends: the format does not change by accident. With
/// `TERRACE_WRITE_CORPUS=1` the files are written instead.
#[test]
fn the_committed_corpus_is_what_this_version_sends() {
    for (target, seeds) in [("agent_bytes", agent_seeds()), ("host_bytes", host_seeds())] {
        for (name, bytes) in seeds {
            let file = corpus(target).join(name);
            if std::env::var_os("TERRACE_WRITE_CORPUS").is_some() {
                fs::create_dir_all(corpus(target)).unwrap();
                fs::write(&file, &bytes).unwrap();
            }
            assert_eq!(fs::read(&file).unwrap(), bytes, "{}", file.display());
        }
    }
}

#[test]
fn the_corpus_and_its_changes_break_no_promise() {
    for (target, fuzz) in [
        ("agent_bytes", fuzz_agent_bytes as fn(&[u8])),
        ("host_bytes", fuzz_host_bytes),
    ] {
        let files: Vec<_> = fs::read_dir(corpus(target)).unwrap().collect();
        assert!(files.len() >= 4, "{target}: {} files", files.len());
        for file in files {
            let bytes = fs::read(file.unwrap().path()).unwrap();
            fuzz(&bytes);
            for number in 0..400 {
                fuzz(&changed(&bytes, number));
            }
        }
    }
}

/// The same search over a decoder without the bound of length finds that.
#[test]
fn the_search_finds_a_decoder_without_the_length_bound() {
    let unbounded = || Decoder::<AgentMessage>::bounded(usize::MAX - HEADER);
    let finds = |data: &[u8]| catch_unwind(AssertUnwindSafe(|| check(data, unbounded))).is_err();
    let silent = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let seeds: Vec<Vec<u8>> = agent_seeds()
        .into_iter()
        .filter(|(name, _)| *name != "too-long")
        .map(|(_, seed)| seed)
        .collect();
    let by_itself = seeds.iter().any(|seed| finds(seed));
    let changed = seeds
        .iter()
        .any(|seed| (0..400).any(|number| finds(&changed(seed, number))));
    std::panic::set_hook(silent);
    assert!(!by_itself, "what is well-formed does not show it");
    assert!(changed, "400 changes of each seed do");
}

proptest! {
    #[test]
    fn random_bytes_break_no_promise(data in proptest::collection::vec(any::<u8>(), 0..2048)) {
        fuzz_agent_bytes(&data);
        fuzz_host_bytes(&data);
    }

    #[test]
    fn changed_talk_breaks_no_promise(number in any::<u64>(), seed in 0_usize..8) {
        let (_, seed) = agent_seeds().swap_remove(seed);
        fuzz_agent_bytes(&changed(&changed(&seed, number), !number));
    }
}
