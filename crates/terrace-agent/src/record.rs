//! The log of a run: all that the controller of ranges heard and decided, for `terrace sim replay`.
//!
//! The loop itself writes the log, an epoch at a time. A log that cannot be written, or has reached its limit, ends
//! and reports so; the agent continues without it.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, ensure};
use terrace_core::ranges::Config;
use terrace_core::session::Log;
use terrace_proto::Tick;
use terrace_proto::log::{RangesRecord, Record, Start, end_frame, frame, header};
use terrace_proto::ranges::RangesAction;
use terrace_sys::new_log_file;

/// Most bytes of a log.
const LIMIT: u64 = 1 << 30;

/// A log in a file.
#[derive(Debug)]
pub struct FileLog {
    /// The open file; `None` once the log ended.
    out: Option<BufWriter<File>>,
    written: u64,
    limit: u64,
}

impl FileLog {
    /// Starts a log in a new file of mode 0600, of a controller that has received nothing yet. A log of ours that is
    /// there already is moved beside it, with `previous` as its ending.
    ///
    /// # Errors
    /// If others can change the folder's contents, or if the name is taken by something that is no file of ours,
    /// which then stays as it is.
    pub fn start(path: &Path, config: &Config) -> Result<Self> {
        Self::limited(path, config, LIMIT)
    }

    fn limited(path: &Path, config: &Config, limit: u64) -> Result<Self> {
        let file = new_log_file(path);
        let file =
            file.map_err(|why| anyhow!("cannot create the log {}: {why}", path.display()))?;
        let start = Record::Ranges(RangesRecord::Start(Start {
            version: env!("CARGO_PKG_VERSION").into(),
            config: serde_json::to_string(config)?,
        }));
        let first = [header(), frame(Tick(0), &start)?].concat();
        let mut out = BufWriter::new(file);
        out.write_all(&first)?;
        out.flush()?;
        Ok(Self {
            out: Some(out),
            written: first.len() as u64,
            limit,
        })
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// If it could not be written.
    pub fn finish(&mut self) -> Result<()> {
        match &mut self.out {
            Some(out) => out.flush().context("the log's last part is lost"),
            None => Ok(()),
        }
    }

    fn put(&mut self, at: Tick, record: &Record) -> Result<()> {
        let Some(out) = &mut self.out else {
            return Ok(());
        };
        let record_bytes = frame(at, record)?;
        let bytes = record_bytes.len() as u64;
        let limit = self.limit;
        ensure!(
            self.written.saturating_add(bytes) <= limit,
            "it reached its size limit of {limit} bytes"
        );
        out.write_all(&record_bytes)?;
        self.written += bytes;
        if matches!(
            record,
            Record::Ranges(RangesRecord::Action(RangesAction::EpochOver(_)))
        ) {
            out.flush()?;
        }
        Ok(())
    }
}

impl Log for FileLog {
    fn is_on(&self) -> bool {
        self.out.is_some()
    }

    fn append(&mut self, at: Tick, record: Record) {
        let Err(why) = self.put(at, &record) else {
            return;
        };
        let text = format!("the log ended: {why:#}");
        tracing::warn!("{text}");
        if let Some(mut out) = self.out.take()
            && let Ok(end) = end_frame(at, &text)
        {
            // On a full disk even this fails; a reader sees that the log is cut off then.
            let _ = out.write_all(&end).and_then(|()| out.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use terrace_core::ranges::{Params, Ranges};
    use terrace_core::session::Session;
    use terrace_core::session::replay::replay;
    use terrace_proto::ranges::{RangesBudget, RangesEvent};

    use super::*;

    fn config() -> Config {
        let budget = RangesBudget {
            bytes_per_s: 1 << 20,
            cpu_percent: 5,
        };
        Config::new(Params::paper(1), vec![vec![0], vec![1]], budget)
    }

    #[test]
    fn a_log_is_its_owners_alone_and_the_last_one_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.trlog");
        FileLog::start(&path, &config()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        FileLog::start(&path, &config()).unwrap();
        assert!(dir.path().join("agent.previous").exists());
    }

    #[test]
    fn a_link_or_folder_in_place_of_the_log_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (precious, path) = (dir.path().join("precious"), dir.path().join("agent.trlog"));
        fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        let error = format!("{:#}", FileLog::start(&path, &config()).unwrap_err());
        assert!(error.contains("of another kind or owner"), "{error}");
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert!(FileLog::start(dir.path(), &config()).is_err());
    }

    #[test]
    fn a_log_ends_at_its_limit_and_what_it_has_is_replayed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.trlog");
        let log = FileLog::limited(&path, &config(), 600).unwrap();
        let mut session = Session::new(Ranges::new(config()), log);
        for epoch in 0..50 {
            let _ = session.hear(Tick(epoch), RangesEvent::EpochEnded);
            let _ = session.hear(Tick(epoch), RangesEvent::Free(Vec::new()));
        }
        assert!(!session.log().is_on());
        assert_eq!(session.controller().epoch(), 50, "it goes on without");
        let replayed = replay(File::open(&path).unwrap()).unwrap();
        let why = replayed.given_up.unwrap();
        assert!(why.contains("its size limit of 600 bytes"), "{why}");
        assert!(replayed.events > 2, "{}", replayed.events);
    }
}
