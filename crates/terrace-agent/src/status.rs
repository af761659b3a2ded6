//! The agent's status: one JSON object for each client that connects to its socket.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use terrace_sys::listen_at;

use crate::frames::{IndexSize, NotMoved};
use crate::gather::GatherStatus;

/// Time limit of a client, and of waiting for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const MAX_BYTES: u64 = 4 << 20;

/// The agent as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The source of samples; `none` if none works.
    pub sampler: String,
    /// The reason why this source is in use.
    pub sampler_reason: String,
    /// `placing`, `observing` or `paused`; if at the host's instruction, `off` or `coordinated`.
    pub mode: String,
    /// Epochs that ended.
    pub epochs: u32,
    /// Epochs since a page last moved.
    pub quiet_epochs: u32,
    /// 4 KiB pages that came into the first tier.
    pub promoted_pages: u64,
    /// 4 KiB pages that left it.
    pub demoted_pages: u64,
    /// Pages that could not be moved because they were in use.
    pub busy_pages: u64,
    /// Pages that could not be moved for other reasons.
    pub failed_pages: u64,
    /// Pages that were exchanged in place, by the guest's kernel module.
    pub swapped_pages: u64,
    /// The reason why pages cannot be exchanged in place; empty if they can.
    pub no_swaps: String,
    /// Frames that the host named and the agent moved (coordinated mode).
    pub frames_taken: u64,
    /// Frames that the host named and that stay, by the reason.
    pub frames_refused: NotMoved,
    /// Frames that were named last.
    pub frames_last: u64,
    /// Time that looking up and moving those took, and the index with it, ns.
    pub frames_last_ns: u64,
    /// The reason why frames are moved by their pages' addresses, as far as managed processes have them (`move_pages`); empty if by
    /// their numbers first (the guest module's MIGRATE).
    pub no_migrate: String,
    /// The index of the frames of managed processes.
    pub frames_index: IndexSize,
    /// Samples that the kernel dropped.
    pub lost_samples: u64,
    /// Records that made no sense.
    pub malformed_samples: u64,
    /// CPU time of the agent, ns.
    pub cpu_ns: u64,
    /// Resident memory of the agent, bytes.
    pub resident_bytes: u64,
    /// Memory of trees and of what is known about pages, bytes.
    pub state_bytes: u64,
    /// Tiers, fastest first.
    pub tiers: Vec<TierStatus>,
    /// Processes under management.
    pub processes: Vec<ProcessStatus>,
    /// The hottest ranges.
    pub ranges: Vec<RangeStatus>,
    /// The latest events.
    pub events: Vec<EventStatus>,
    /// The channel to the host.
    pub channel: ChannelStatus,
    /// Rounds of gathering beside it.
    pub gather: GatherStatus,
}

/// A tier.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TierStatus {
    /// The tier's name, for people.
    pub name: String,
    /// The tier's nodes.
    pub nodes: Vec<u32>,
    /// Size, bytes.
    pub total_bytes: u64,
    /// Free above the kernel's watermarks, bytes.
    pub free_bytes: u64,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// The process's number.
    pub pid: u32,
    /// The process's name.
    pub name: String,
    /// Ranges into which its memory is divided.
    pub leaves: usize,
    /// Size of its root in 4 KiB pages.
    pub root_pages: u64,
    /// The process's memory in the first tier, bytes.
    pub fast_bytes: u64,
    /// The process's memory elsewhere, bytes.
    pub slow_bytes: u64,
}

/// A range of a process's memory.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RangeStatus {
    /// The process's number.
    pub pid: u32,
    /// First virtual address.
    pub start: u64,
    /// First virtual address behind the range.
    pub end: u64,
    /// Accesses that were seen; the count is halved each epoch.
    pub count: u32,
    /// The range's bytes in the first tier.
    pub fast_bytes: u64,
    /// The range's bytes elsewhere.
    pub slow_bytes: u64,
    /// Whether the range belongs in the first tier.
    pub fits: bool,
}

/// An event, for people.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EventStatus {
    /// The epoch in which it happened.
    pub epoch: u32,
    /// The event in words.
    pub text: String,
}

/// The channel to the host.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ChannelStatus {
    /// `off`, `absent`, `greeting`, `connected`, `refused`, `silent`.
    pub state: String,
    /// The details, for people.
    pub detail: String,
    /// Hot pages that the host named and that were taken, for gathering.
    pub hot_taken: u64,
    /// Hot pages that were refused: outside of memory, named twice, too many, of an old set, or not wanted (`gather.heat`).
    pub hot_refused: u64,
}

/// The current status, served to everybody who connects.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<String>>);

impl Board {
    /// Becomes the one agent of this socket, which only its owner may use, and answers from now on.
    ///
    /// # Errors
    /// If another agent listens there, or if the socket cannot be made.
    pub fn serve(socket: &Path) -> Result<Self> {
        let (listener, file) = listen_at(socket, 0o600)?;
        // The socket stays until the agent ends, and is dead then: the next one replaces it.
        file.leave();
        let board = Self::default();
        let shown = board.clone();
        std::thread::Builder::new()
            .name("status".into())
            .spawn(move || listener.incoming().flatten().for_each(|s| shown.answer(s)))?;
        Ok(board)
    }

    /// Replaces the status that is served.
    pub fn show(&self, status: &Status) {
        // A status is plain data; it always has a JSON form.
        let text = serde_json::to_string(status).unwrap_or_default();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn answer(&self, mut stream: UnixStream) {
        let text = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        // A client that does not read shall not hold the others.
        let _ = stream.set_write_timeout(Some(PATIENCE));
        let _ = stream.write_all(text.as_bytes());
    }
}

/// Asks a running agent for its status.
///
/// # Errors
/// If none runs, or if it does not answer.
pub fn ask(socket: &Path) -> Result<Status> {
    let stream = UnixStream::connect(socket).with_context(|| {
        format!(
            "{}: no agent listens there (start one with `terrace-agent run`; --socket names another place)",
            socket.display()
        )
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream
        .take(MAX_BYTES)
        .read_to_string(&mut text)
        .with_context(|| format!("{}: no answer", socket.display()))?;
    if text.is_empty() {
        bail!("the agent has just started; ask again");
    }
    serde_json::from_str(&text)
        .with_context(|| format!("{}: not an agent's answer", socket.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_get_the_last_status_and_a_second_agent_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("run/agent.sock");
        let board = Board::serve(&socket).unwrap();
        assert!(
            ask(&socket)
                .unwrap_err()
                .to_string()
                .contains("just started")
        );
        let status = Status {
            epochs: 7,
            sampler: "damon".into(),
            ..Status::default()
        };
        board.show(&status);
        assert_eq!(ask(&socket).unwrap(), status);
        let error = Board::serve(&socket).unwrap_err();
        assert!(error.to_string().contains("already listens"), "{error}");
    }

    #[test]
    fn a_file_in_the_place_of_the_agents_socket_is_not_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("notes.txt");
        std::fs::write(&file, "precious").unwrap();
        let error = Board::serve(&file).unwrap_err().to_string();
        assert!(error.contains("a file and no socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    }

    #[test]
    fn a_socket_that_a_killed_agent_left_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        Board::serve(&socket).unwrap();
    }

    #[test]
    fn a_socket_where_nobody_listens_is_named_with_what_to_do() {
        let error = ask(Path::new("/none/agent.sock")).unwrap_err();
        assert!(format!("{error:#}").contains("terrace-agent run"));
    }
}
