//! The daemon's side of a worker.

use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStderr, ExitStatus};
use std::time::{Duration, Instant};

use terrace_proto::worker::{Request, Response, Withheld};
use terrace_proto::{
    PAGES_PER_HUGE, PageBitmap, PartAnswer, PartRequest, Pass, Passed, Readings, RequestId,
    ScanAnswer, ScanFailure, Space, TableFrame, Tick,
};

use super::cgroup::ChargedTo;
use super::channel::{Channel, ChannelError};
use super::process::{WorkerProcess, WorkerStop};
use super::spawn::{WorkerCommand, start};
use crate::memory_map::GuestMemory;

/// Errors of a worker. After all but `Search` and `Scan`, drop it and start another.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The program cannot be started.
    #[error("cannot start the worker {program}: {source}")]
    Spawn {
        /// The worker's program.
        program: String,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// The worker cannot serve this VM, or not safely.
    #[error("the worker cannot serve the VM: {0}")]
    Refused(String),
    /// The worker's process ended.
    #[error("the worker (process {pid}) ended: {reason}")]
    Died {
        /// The worker's process.
        pid: u32,
        /// The way in which it ended, and its last words.
        reason: String,
    },
    /// The worker does not answer; it was killed.
    #[error("the worker (process {pid}) did not answer within {} ms and was killed", timeout.as_millis())]
    TimedOut {
        /// The worker's process.
        pid: u32,
        /// The time that was waited.
        timeout: Duration,
    },
    /// The worker's answer is impossible; it was killed. The guest may have taken it over.
    #[error("the worker (process {pid}) gave an impossible answer and was killed: {what}")]
    Protocol {
        /// The worker's process.
        pid: u32,
        /// The problem with the answer.
        what: String,
    },
    /// The VM is left alone from now on.
    #[error("the worker was ended with its VM")]
    Stopped,
    /// This search could not be done; the next one may.
    #[error("the search for tables could not be done: {0}")]
    Search(String),
    /// This pass could not be done; the next one may.
    #[error("the scan could not be done: {}", .0.reason)]
    Scan(ScanFailure),
}

/// A running worker. Dropping it ends the process.
#[derive(Debug)]
pub struct WorkerHandle {
    process: WorkerProcess,
    stderr: Option<ChildStderr>,
    channel: Channel,
    /// Pages of the VM, once attached.
    span: u64,
    /// CPU time that it had used when it was asked last.
    cpu: Duration,
}

/// Bytes of a message beside its bitmaps.
const SLACK: usize = 64 << 10;

impl WorkerHandle {
    /// Starts a worker process.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn spawn(command: &WorkerCommand) -> Result<Self, WorkerError> {
        let (mut child, socket) = start(command).map_err(|source| WorkerError::Spawn {
            program: command.program.display().to_string(),
            source,
        })?;
        Ok(Self {
            stderr: child.stderr.take(),
            process: WorkerProcess::new(child),
            channel: Channel::new(socket),
            span: 0,
            cpu: Duration::ZERO,
        })
    }

    /// The worker's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// CPU time that it has used, by the kernel's word; of one that ended, what it had used when it was asked last.
    pub fn cpu_time(&mut self) -> Duration {
        self.cpu = terrace_sys::cpu_time_of(self.pid())
            .unwrap_or_default()
            .max(self.cpu);
        self.cpu
    }

    /// Has it ended by `stop`, too.
    ///
    /// # Errors
    /// If that has been stopped already.
    pub fn end_with(&self, stop: &WorkerStop) -> Result<(), WorkerError> {
        let admitted = stop.admits(&self.process, self.channel.socket());
        admitted.then_some(()).ok_or(WorkerError::Stopped)
    }

    /// Has the memory that the worker maps from now on charged to its VM's hypervisor.
    ///
    /// # Errors
    /// If that cannot be done: the reason, for people; the worker works all the same.
    pub fn charge(&self, to: &ChargedTo) -> Result<(), String> {
        to.take_in(self.pid()).map_err(|why| printable(&why))
    }

    /// Hands over the guest's RAM; once. Returns what its sandbox could not do on this kernel.
    ///
    /// # Errors
    /// If it refuses, dies or does not answer in time.
    pub fn attach(
        &mut self,
        memory: &GuestMemory,
        timeout: Duration,
    ) -> Result<Vec<String>, WorkerError> {
        let files = memory.files();
        let request = Request::Attach {
            ranges: memory.file_ranges(),
            files: u32::try_from(files.len()).unwrap_or(u32::MAX),
        };
        let deadline = Instant::now() + timeout;
        let sent = self.channel.send(&request, &files, Some(deadline));
        sent.map_err(|error| self.failed(error, timeout))?;
        match self.response(SLACK, deadline, timeout)? {
            Response::Attached { sandbox_gaps } => {
                self.span = memory.span_pages();
                Ok(sandbox_gaps.iter().map(|gap| printable(gap)).collect())
            }
            Response::Refused { reason } => Err(WorkerError::Refused(printable(&reason))),
            _ => Err(self.nonsense("a scan before it was attached".into())),
        }
    }

    /// Searches all allocated memory for top-level tables; returns the reason if it does not.
    ///
    /// # Errors
    /// As [`WorkerHandle::scan`]; [`WorkerError::Search`] if it could not be done now.
    pub fn search(
        &mut self,
        readings: Readings,
        timeout: Duration,
    ) -> Result<Option<Withheld>, WorkerError> {
        let deadline = Instant::now() + timeout;
        let message = Request::Search { readings };
        let sent = self.channel.send(&message, &[], Some(deadline));
        sent.map_err(|error| self.failed(error, timeout))?;
        match self.response(SLACK, deadline, timeout)? {
            Response::Searched { withheld } => Ok(withheld),
            Response::SearchFailed { reason } => Err(WorkerError::Search(printable(&reason))),
            _ => Err(self.nonsense("no answer to the question".into())),
        }
    }

    /// One pass; `until`, `writes`, `threads` and `tables` as in [`Request::Scan`]. Gives the page tables that it names, too.
    ///
    /// # Errors
    /// If it fails, dies, does not answer in time, or answers what cannot be.
    pub fn scan(
        &mut self,
        pass: Pass,
        readings: Readings,
        until: Tick,
        (writes, threads, tables): (bool, u8, bool),
        timeout: Duration,
    ) -> Result<(Passed, Vec<TableFrame>), WorkerError> {
        let asked = pass.clone();
        let (id, space) = (pass.id(), pass.space());
        let deadline = Instant::now() + timeout;
        let message = Request::Scan {
            pass,
            readings,
            until,
            writes,
            threads,
            tables,
        };
        let sent = self.channel.send(&message, &[], Some(deadline));
        sent.map_err(|error| self.failed(error, timeout))?;
        match self.response(answer_limit(self.span), deadline, timeout)? {
            Response::Scanned(_, named)
                if !(named.is_empty() || tables && TableFrame::fit(&named, self.span)) =>
            {
                Err(self.nonsense("page tables that are none of this VM".into()))
            }
            Response::Scanned(passed, named) => match check(&passed, &asked, self.span) {
                Ok(()) => Ok((passed, named)),
                Err(what) => Err(self.nonsense(what)),
            },
            Response::ScanFailed(failure) if failure.id == id && failure.vm == space.vm() => {
                Err(WorkerError::Scan(ScanFailure {
                    reason: printable(&failure.reason),
                    ..failure
                }))
            }
            _ => Err(self.nonsense("no answer to the question".into())),
        }
    }

    fn response(
        &mut self,
        limit: usize,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Response, WorkerError> {
        match self.channel.receive(limit, Some(deadline)) {
            Ok(Some(response)) => Ok(response),
            Ok(None) => Err(self.failed(ChannelError::Closed, timeout)),
            Err(error) => Err(self.failed(error, timeout)),
        }
    }

    fn failed(&mut self, error: ChannelError, timeout: Duration) -> WorkerError {
        let pid = self.pid();
        // Before it is collected.
        self.cpu_time();
        match error {
            ChannelError::TimedOut => {
                self.end();
                WorkerError::TimedOut { pid, timeout }
            }
            ChannelError::Closed | ChannelError::Io(_) | ChannelError::Sys(_) => {
                WorkerError::Died {
                    pid,
                    reason: self.last_message(),
                }
            }
            ChannelError::Frame(_) | ChannelError::TooLong { .. } => {
                self.nonsense(error.to_string())
            }
        }
    }

    fn nonsense(&mut self, what: String) -> WorkerError {
        self.cpu_time();
        self.end();
        WorkerError::Protocol {
            pid: self.pid(),
            what,
        }
    }

    /// The way in which the worker ended, in words. It closed its socket, so it is about to; if it lingers it is
    /// killed.
    fn last_message(&mut self) -> String {
        if let Some(status) = self.process.ended_within(Duration::from_millis(100)) {
            return format!("{}{}", cause(status), self.printed());
        }
        let said = self.process.end().map(|_| self.printed());
        format!(
            "it closed its socket but did not exit in time{}",
            said.unwrap_or_default()
        )
    }

    /// Only of one that ended: the pipe of another one may stay open.
    fn printed(&mut self) -> String {
        let mut bytes = Vec::new();
        if let Some(pipe) = self.stderr.take() {
            // Output that cannot be read is left out.
            let _ = pipe.take(2048).read_to_end(&mut bytes);
        }
        match printable(&String::from_utf8_lossy(&bytes)) {
            text if text.is_empty() => text,
            text => format!("; it said: {text}"),
        }
    }

    fn end(&self) {
        self.process.end();
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.end();
    }
}

/// Four bitmaps of the VM, each word in at most ten bytes; an answer about a part has three words, of ten bytes and a number of five,
/// for 64 pages.
fn answer_limit(span: u64) -> usize {
    let words = usize::try_from(span.div_ceil(64)).unwrap_or(usize::MAX / 64);
    // A table takes nine bytes at most.
    let tables = TableFrame::most(span).saturating_mul(9);
    words
        .saturating_mul(40)
        .saturating_add(tables)
        .saturating_add(SLACK)
}

/// Whether an answer is one to this request about this VM. Each bitmap keeps its own invariants.
fn check(passed: &Passed, asked: &Pass, span: u64) -> Result<(), String> {
    match (passed, asked) {
        (Passed::All(answer), Pass::All(asked)) => check_all(answer, asked.id, asked.space, span),
        (Passed::Part(answer), Pass::Part(asked)) => check_part(answer, asked, span),
        _ => Err("an answer about another part than was asked for".into()),
    }
}

fn check_part(answer: &PartAnswer, asked: &PartRequest, span: u64) -> Result<(), String> {
    if (answer.id, answer.space, answer.part) != (asked.id, asked.space, asked.part) {
        return Err(format!(
            "an answer to request {} about {:?} of {:?}",
            answer.id, answer.part, answer.space
        ));
    }
    if answer.fits(span) {
        Ok(())
    } else {
        Err(format!("findings out of order, or beyond {span} pages"))
    }
}

fn check_all(answer: &ScanAnswer, id: RequestId, space: Space, span: u64) -> Result<(), String> {
    if answer.id != id || answer.space != space {
        return Err(format!(
            "an answer to request {} about {:?}",
            answer.id, answer.space
        ));
    }
    let size = |name: &str, map: &PageBitmap, want: u64| {
        if map.pages() == want {
            Ok(())
        } else {
            Err(format!(
                "'{name}' over {} pages instead of {want}",
                map.pages()
            ))
        }
    };
    size("known", &answer.known, span)?;
    size("accessed", &answer.accessed, span)?;
    size(
        "huge_leaf",
        &answer.huge_leaf,
        span.div_ceil(PAGES_PER_HUGE),
    )?;
    answer
        .written
        .as_ref()
        .map_or(Ok(()), |map| size("written", map, span))
}

fn cause(status: ExitStatus) -> String {
    match status.signal() {
        Some(libc::SIGSYS) => "it made a system call that its sandbox forbids".into(),
        Some(libc::SIGBUS) => {
            "guest RAM disappeared while it was read (its file was truncated, or memory failed)"
                .into()
        }
        Some(libc::SIGKILL) => "it was killed (out of memory, or with its VM's cgroup?)".into(),
        _ => status.to_string(),
    }
}

/// At most 1,000 characters of a worker's text, control characters replaced.
fn printable(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.trim().chars().take(1000).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use terrace_proto::{Part, ScanStats, VmId};

    use super::*;

    fn answer(span: u64) -> ScanAnswer {
        ScanAnswer {
            id: RequestId(1),
            space: Space::Guest(VmId(2)),
            known: PageBitmap::new(span),
            accessed: PageBitmap::new(span),
            written: None,
            huge_leaf: PageBitmap::new(span.div_ceil(512)),
            stats: ScanStats::default(),
        }
    }

    #[test]
    fn only_answers_of_the_right_size_to_the_right_question_pass() {
        let (id, space) = (RequestId(1), Space::Guest(VmId(2)));
        let good = answer(1000);
        assert_eq!(check_all(&good, id, space, 1000), Ok(()));
        assert!(check_all(&good, RequestId(2), space, 1000).is_err());
        assert!(check_all(&good, id, Space::Guest(VmId(3)), 1000).is_err());
        assert!(check_all(&good, id, space, 1001).is_err());
        let mut bad = answer(1000);
        bad.written = Some(PageBitmap::new(999));
        assert!(check_all(&bad, id, space, 1000).is_err());
        let mut bad = answer(1000);
        bad.huge_leaf = PageBitmap::new(1);
        assert!(check_all(&bad, id, space, 1000).is_err());
    }

    #[test]
    fn only_an_answer_about_the_part_that_was_asked_for_passes() {
        let part = |index| Part::new(5, 2, index).unwrap();
        let asked = PartRequest {
            id: RequestId(1),
            space: Space::Guest(VmId(2)),
            part: part(3),
            clear: true,
            prune: false,
            discover: false,
        };
        let good = PartAnswer {
            id: asked.id,
            space: asked.space,
            part: asked.part,
            cells: Vec::new(),
            huge: vec![0],
            written: None,
            stats: ScanStats::default(),
        };
        let is_taken = |answer: PartAnswer| {
            check(
                &Passed::Part(Box::new(answer)),
                &Pass::Part(asked.clone()),
                1000,
            )
            .is_ok()
        };
        assert!(is_taken(good.clone()));
        let other = |change: &dyn Fn(&mut PartAnswer)| {
            let mut answer = good.clone();
            change(&mut answer);
            answer
        };
        assert!(!is_taken(other(&|a| a.part = part(2))));
        assert!(!is_taken(other(&|a| a.id = RequestId(2))));
        assert!(!is_taken(other(&|a| a.huge = vec![1])));
        let whole = Passed::All(Box::new(answer(1000)));
        assert!(check(&whole, &Pass::Part(asked.clone()), 1000).is_err());
    }

    #[test]
    fn a_workers_words_are_cut_and_cleaned() {
        assert_eq!(printable("a\x1b[31m\nb\n"), "a [31m b");
        assert_eq!(printable(&"x".repeat(5000)).len(), 1000);
    }

    #[test]
    fn the_limit_holds_every_honest_answer() {
        let mut full = answer(1 << 16);
        full.known = PageBitmap::full(1 << 16);
        full.accessed = full.known.clone();
        full.written = Some(full.known.clone());
        let frame = terrace_proto::worker::encode(&Response::Scanned(
            Passed::All(Box::new(full)),
            vec![
                TableFrame {
                    frame: u32::MAX,
                    accessed: u16::MAX,
                    level: 5
                };
                TableFrame::most(1 << 16)
            ],
        ))
        .unwrap();
        assert!(frame.len() <= answer_limit(1 << 16));
    }
}
