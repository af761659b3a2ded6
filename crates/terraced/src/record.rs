//! Writes the observation log: all that went into the engine and all that came out.
//!
//! A log that cannot be written (the disk is full, the limit is reached) ends with one event; the
//! daemon goes on without it.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context as _, Result};
use terrace_proto::Tick;
use terrace_proto::log::{LogWriter, Record, Start};

/// The log while it is open.
#[derive(Debug)]
pub struct Recorder {
    log: Option<LogWriter<BufWriter<File>>>,
}

impl Recorder {
    /// A recorder that records nothing.
    pub fn off() -> Self {
        Self { log: None }
    }

    /// Starts a log of at most `limit` bytes; `config` is the engine's as JSON. A log that is there
    /// already stays beside it, with `previous` as its ending.
    pub fn start(path: &Path, limit: u64, config: String) -> Result<Self> {
        if path.is_file() {
            let previous = path.with_extension("previous");
            std::fs::rename(path, &previous)
                .with_context(|| format!("keeping the last log as {}", previous.display()))?;
        }
        let file =
            File::create(path).with_context(|| format!("creating the log {}", path.display()))?;
        let mut log = LogWriter::new(BufWriter::new(file), limit)?;
        let start = Start {
            version: env!("CARGO_PKG_VERSION").into(),
            config,
        };
        log.append(Tick(0), &Record::Start(start))?;
        Ok(Self { log: Some(log) })
    }

    /// Something is being recorded.
    pub fn is_on(&self) -> bool {
        self.log.is_some()
    }

    /// Appends a record. Says why where this was the end of the log.
    pub fn append(&mut self, now: Tick, record: &Record) -> Option<String> {
        let appended = self.log.as_mut()?.append(now, record);
        let ended = match appended {
            Ok(true) => return None,
            Ok(false) => "the log reached its size limit".to_owned(),
            Err(error) => format!("the log could not be written: {error}"),
        };
        match self.log.take().map(LogWriter::finish) {
            Some(Err(error)) => Some(format!("{ended}; its last part is lost: {error}")),
            _ => Some(ended),
        }
    }

    /// Writes out what is buffered.
    pub fn finish(&mut self) -> Result<()> {
        if let Some(log) = self.log.take() {
            log.finish()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::Event;
    use terrace_proto::log::LogReader;

    use super::*;

    fn timer() -> Record {
        Record::Event(Event::Timer)
    }

    #[test]
    fn a_log_at_its_limit_says_so_once_and_stays_readable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut recorder = Recorder::start(&path, 60, "{}".into()).unwrap();
        assert_eq!(recorder.append(Tick(1), &timer()), None);
        let said = recorder.append(Tick(2), &timer());
        assert_eq!(said.as_deref(), Some("the log reached its size limit"));
        assert_eq!(recorder.append(Tick(3), &timer()), None);
        let mut reader = LogReader::new(File::open(&path).unwrap()).unwrap();
        let mut records = 0;
        while reader.next_record().unwrap().is_some() {
            records += 1;
        }
        assert_eq!(records, 2);
    }

    #[test]
    fn a_restart_keeps_the_previous_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("terrace.trlog");
        Recorder::start(&path, 1 << 20, "{\"first\": 1}".into())
            .and_then(|mut log| log.finish())
            .unwrap();
        let first = std::fs::read(&path).unwrap();
        Recorder::start(&path, 1 << 20, "{}".into()).unwrap();
        assert_eq!(
            std::fs::read(dir.path().join("terrace.previous")).unwrap(),
            first
        );
    }

    #[test]
    fn kill_9_leaves_a_log_that_is_read_to_its_last_whole_record_and_a_new_one_starts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("terrace.trlog");
        let mut recorder = Recorder::start(&path, 1 << 20, "{}".into()).unwrap();
        for i in 0..2000 {
            assert_eq!(recorder.append(Tick(i), &timer()), None);
        }
        // What the process had not written out is lost, in the middle of a record.
        std::mem::forget(recorder);
        let mut reader = LogReader::new(File::open(&path).unwrap()).unwrap();
        let mut whole = 0;
        let cut = loop {
            match reader.next_record() {
                Ok(Some(_)) => whole += 1,
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        let length = std::fs::metadata(&path).unwrap().len();
        assert!(
            whole > 10 && whole < 2000,
            "{whole} records in {length} bytes"
        );
        assert!(cut || length > 0);
        let mut next = Recorder::start(&path, 1 << 20, "{}".into()).unwrap();
        assert_eq!(next.append(Tick(1), &timer()), None);
        next.finish().unwrap();
        let previous = dir.path().join("terrace.previous");
        assert_eq!(std::fs::metadata(previous).unwrap().len(), length);
    }

    #[test]
    fn a_full_disk_ends_the_log_and_not_the_daemon() {
        let Ok(mut recorder) = Recorder::start(Path::new("/dev/full"), 1 << 30, "{}".into()) else {
            panic!("/dev/full takes what is buffered");
        };
        let said = (0..10_000).find_map(|i| recorder.append(Tick(i), &timer()));
        let said = said.expect("a full disk is seen");
        assert!(said.contains("No space left on device"), "{said}");
        assert!(!recorder.is_on());
    }
}
