//! What the agent tells about itself: one JSON object to whoever connects to its socket.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use terrace_proto::PAGE_SIZE;
use terrace_proto::agent::Mode;
use terrace_sys::topology::NodeId;
use terrace_sys::{listen_at, process_cpu_time};

use crate::agent::Agent;
use crate::managed::Managed;

/// Sentences that are remembered.
const KEPT: usize = 64;
/// Ranges that are told, hottest first.
const RANGES: usize = 64;
/// How long somebody who asks may take, and how long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const MOST_BYTES: u64 = 4 << 20;

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Pages that came into the first tier.
    pub promoted_pages: u64,
    /// Pages that left it.
    pub demoted_pages: u64,
    /// Pages that were in use.
    pub busy_pages: u64,
    /// Pages that could not be moved.
    pub failed_pages: u64,
    /// Samples that the kernel dropped.
    pub lost_samples: u64,
    /// Records that made no sense.
    pub malformed_samples: u64,
    /// Epochs since anything moved.
    pub quiet_epochs: u32,
    /// Frames that the host named and that were left where they are.
    pub frames_refused: u64,
}

/// What happened lately, in words.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    lines: VecDeque<(u32, String)>,
}

impl Journal {
    /// Remembers a sentence, and logs it.
    pub fn tell(&mut self, epoch: u32, words: String) {
        tracing::info!("epoch {epoch}: {words}");
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back((epoch, words));
    }

    /// The same, unless it is remembered already.
    pub fn tell_once(&mut self, epoch: u32, words: String) {
        if !self.lines.iter().any(|(_, told)| *told == words) {
            self.tell(epoch, words);
        }
    }
}

/// The agent as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The source of samples; `none` where no one works.
    pub sampler: String,
    /// Why it is this one.
    pub sampler_reason: String,
    /// `placing`, `observing`, `paused`; as the host wishes `off` or `coordinated`.
    pub mode: String,
    /// Epochs that ended.
    pub epochs: u32,
    /// Epochs since anything moved.
    pub quiet_epochs: u32,
    /// 4 KiB pages that came into the first tier.
    pub promoted_pages: u64,
    /// 4 KiB pages that left it.
    pub demoted_pages: u64,
    /// Pages that were in use when they should move.
    pub busy_pages: u64,
    /// Pages that could not be moved.
    pub failed_pages: u64,
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
    /// What happened lately.
    pub events: Vec<EventStatus>,
    /// The channel to the host.
    pub channel: ChannelStatus,
}

/// A tier.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TierStatus {
    /// For people.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<u32>,
    /// Size, bytes.
    pub total_bytes: u64,
    /// Free above the kernel's watermarks, bytes.
    pub free_bytes: u64,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Ranges that it is divided into.
    pub leaves: usize,
    /// Pages of its root, 4 KiB.
    pub root_pages: u64,
    /// Its memory in the first tier, bytes.
    pub fast_bytes: u64,
    /// Its memory elsewhere, bytes.
    pub slow_bytes: u64,
}

/// A range of a process.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RangeStatus {
    /// Whose.
    pub pid: u32,
    /// First virtual address.
    pub start: u64,
    /// First virtual address behind it.
    pub end: u64,
    /// Accesses that were seen, halved each epoch.
    pub count: u32,
    /// Bytes of it in the first tier.
    pub fast_bytes: u64,
    /// Bytes of it elsewhere.
    pub slow_bytes: u64,
    /// Whether it belongs into the first tier.
    pub fits: bool,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EventStatus {
    /// When.
    pub epoch: u32,
    /// What.
    pub text: String,
}

/// The channel to the host.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ChannelStatus {
    /// `off`, `absent`, `greeting`, `connected`, `refused`, `silent`.
    pub state: String,
    /// More, for people.
    pub detail: String,
}

impl Agent {
    /// The agent as it is now.
    #[must_use]
    pub fn status(&self) -> Status {
        let totals = self.totals;
        let cpu = process_cpu_time().as_nanos();
        Status {
            sampler: self.samplers.name().unwrap_or("none").into(),
            sampler_reason: self.samplers.reason().into(),
            mode: self.mode().into(),
            epochs: self.ranges().epoch(),
            quiet_epochs: totals.quiet_epochs,
            promoted_pages: totals.promoted_pages,
            demoted_pages: totals.demoted_pages,
            busy_pages: totals.busy_pages,
            failed_pages: totals.failed_pages,
            lost_samples: totals.lost_samples,
            malformed_samples: totals.malformed_samples,
            cpu_ns: u64::try_from(cpu).unwrap_or(u64::MAX),
            resident_bytes: resident_bytes(),
            state_bytes: self.ranges().heap_bytes() as u64,
            tiers: self.tier_status(),
            processes: self.process_status(),
            ranges: self.range_status(),
            events: self.journal.lines.iter().map(event).collect(),
            channel: self.channel.clone(),
        }
    }

    fn mode(&self) -> &'static str {
        if self.wishes.paused {
            "paused"
        } else if self.wishes.mode == Mode::Off {
            "off"
        } else if self.wishes.mode == Mode::Coordinated {
            "coordinated"
        } else if self.config.moves && self.room.topology().tiers.len() > 1 {
            "placing"
        } else {
            "observing"
        }
    }

    fn tier_status(&self) -> Vec<TierStatus> {
        let free = self.room.free();
        let tiers = self.room.topology().tiers.iter();
        tiers
            .map(|tier| TierStatus {
                name: tier.name.clone(),
                nodes: tier.nodes.iter().map(|node| node.0).collect(),
                total_bytes: tier.total_bytes,
                free_bytes: free
                    .iter()
                    .filter(|free| tier.nodes.contains(&NodeId(free.node)))
                    .map(|free| free.pages * PAGE_SIZE)
                    .sum(),
            })
            .collect()
    }

    fn process_status(&self) -> Vec<ProcessStatus> {
        let status = |(pid, managed): (&u32, &Managed)| {
            let program = self.ranges().programs().get(pid)?;
            let (tree, held) = (program.tree(), program.total());
            Some(ProcessStatus {
                pid: *pid,
                name: managed.name.clone(),
                leaves: tree.len(),
                root_pages: tree.leaves().map(|leaf| leaf.range.pages()).sum(),
                fast_bytes: held.fast * PAGE_SIZE,
                slow_bytes: held.slow * PAGE_SIZE,
            })
        };
        self.managed.iter().filter_map(status).collect()
    }

    fn range_status(&self) -> Vec<RangeStatus> {
        let (ranked, fits) = self.ranges().ranked();
        let hottest = ranked.iter().take(RANGES).enumerate();
        hottest
            .map(|(rank, ranked)| RangeStatus {
                pid: ranked.process,
                start: ranked.leaf.range.start * PAGE_SIZE,
                end: ranked.leaf.range.end * PAGE_SIZE,
                count: ranked.leaf.count,
                fast_bytes: ranked.held.fast * PAGE_SIZE,
                slow_bytes: ranked.held.slow * PAGE_SIZE,
                fits: rank < fits,
            })
            .collect()
    }
}

fn event((epoch, text): &(u32, String)) -> EventStatus {
    EventStatus {
        epoch: *epoch,
        text: text.clone(),
    }
}

/// Of this process; 0 where `/proc` does not say.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    pages.unwrap_or(0_u64).saturating_mul(PAGE_SIZE)
}

/// Answers everybody who connects with what the agent last said.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<String>>);

impl Board {
    /// Becomes the one agent of this socket, which only its owner may use, and answers from now on.
    ///
    /// # Errors
    /// Where another agent listens there, or the socket cannot be made.
    pub fn serve(socket: &Path) -> Result<Self> {
        let (listener, file) = listen_at(socket, 0o600)?;
        // It is there until the agent ends, and dead then: the next one replaces it.
        file.leave();
        let board = Self::default();
        let shown = board.clone();
        std::thread::Builder::new()
            .name("status".into())
            .spawn(move || listener.incoming().flatten().for_each(|s| shown.answer(s)))?;
        Ok(board)
    }

    /// Shows something from now on.
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
        // Somebody who does not read shall not hold the others.
        let _ = stream.set_write_timeout(Some(PATIENCE));
        let _ = stream.write_all(text.as_bytes());
    }
}

/// Asks a running agent.
///
/// # Errors
/// Where none runs, or it does not answer.
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
        .take(MOST_BYTES)
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
    fn whoever_asks_is_told_what_was_last_shown_and_a_second_agent_is_refused() {
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

    #[test]
    fn the_journal_keeps_the_newest() {
        let mut journal = Journal::default();
        (0..100).for_each(|epoch| journal.tell(epoch, epoch.to_string()));
        assert_eq!(journal.lines.len(), KEPT);
        assert_eq!(journal.lines.back().unwrap().0, 99);
        journal.tell_once(101, "99".into());
        assert_eq!(journal.lines.back().unwrap().0, 99);
    }
}
