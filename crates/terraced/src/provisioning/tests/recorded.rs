//! A resize is in the log, and is decided again from it.

use std::time::{Duration, Instant};

use terrace_core::session::replay::replay;
use terrace_proto::Action;
use terrace_proto::log::{LogReader, Record};

use super::GIB;
use super::script::{Scripted, host_with, resize_tier};

#[test]
fn a_resize_of_a_real_daemon_is_replayed_to_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let script = Scripted::settled();
    let config = format!("[log]\nfile = \"{}\"\n", log.display());
    let host = host_with(Duration::from_secs(60), &config, [("vm1", &script)]);
    host.resize("vm1", [Some(GIB), None]).unwrap();
    host.resize("vm1", [Some(100 * GIB), None]).unwrap_err();
    script.see(|status| resize_tier(&mut status.tiers[0], GIB));
    host.event("vm1", "has reached its target: fast 1 GiB, slow 2 GiB");
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let bytes = std::fs::read(&log).unwrap();
        if answers(&bytes) == 2 {
            let replayed = replay(&bytes[..]).unwrap();
            assert!(replayed.events > 6, "{replayed:?}");
            return;
        }
        assert!(Instant::now() < until, "the log lacks the answers");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Answers in a log that may end in the middle of a record.
fn answers(log: &[u8]) -> usize {
    let Ok(mut reader) = LogReader::new(log) else {
        return 0;
    };
    let records = std::iter::from_fn(|| reader.next_record().unwrap());
    let answers = records.filter(|(_, r)| matches!(r, Record::Action(Action::Answer(_))));
    answers.count()
}
