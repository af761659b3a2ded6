//! The committed corpus of the agent channel's fuzz targets, on stable Rust.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

use terrace_proto::agent::fuzz::{
    agent_seeds, changed, fuzz_agent_bytes, fuzz_host_bytes, host_seeds,
};

fn corpus(target: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("fuzz/corpus").join(target)
}

/// What was committed is what this code sends: the format does not change by accident. With
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
