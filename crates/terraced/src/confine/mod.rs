//! The confinement of the daemon's threads: the rights of each.
//!
//! Responsible for: the rights of each kind of thread ([`role`]), starting threads with theirs, and the threads that
//! open other users' files ([`opener`]). The work of the threads is left to others.
//!
//! A thread begins with all that the daemon has and drops the rights that its work does not need, before its first
//! line: capabilities, system calls ([`calls`]), files ([`files`]). So each is started by one thread, which does
//! nothing else. Threads share their memory: docs/threat-model.md has the risks that remain.

mod calls;
mod files;
mod opener;
mod role;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use terrace_host::{Finding, worker};
use terrace_sys::opener::{Opener, open_by};
use terrace_sys::{keep_none_at_work, keep_only};

pub use role::Role;
use role::{CAPABILITIES, Opens};

/// Name of the thread that starts the others.
const STARTER: &str = "start";

/// A thread to be started.
struct Start {
    role: Role,
    body: Box<dyn FnOnce() + Send>,
    /// The answer to the caller: whether the thread runs, with its rights.
    reply: SyncSender<io::Result<()>>,
}

/// The state that all threads share; unset if nothing is confined: in tests, and before a simulated host.
static CONFINED: OnceLock<Confined> = OnceLock::new();

struct Confined {
    starts: Sender<Start>,
    opener: Arc<dyn Opener>,
    filtered: bool,
    gaps: Mutex<BTreeSet<String>>,
}

/// Confines the process and its calling thread, and starts the threads that others need. Called while there is one
/// thread. `filtered`: whether system calls are filtered.
///
/// # Errors
/// If a right is left that should be gone.
pub fn start(filtered: bool) -> Result<()> {
    keep_only(&CAPABILITIES).context("cannot drop capabilities")?;
    if filtered {
        calls::filter_process().context(
            "cannot filter system calls (`seccomp = false` under [security] leaves them unfiltered)",
        )?;
    } else {
        tracing::warn!(
            "SYSTEM CALLS ARE NOT FILTERED: seccomp = false under [security]. Use this setting only for debugging, \
             not beside production guests"
        );
    }
    let (asks, opener) = opener::pair();
    let (starts, queue) = channel();
    let (ready, is_ready) = sync_channel(1);
    thread::Builder::new()
        .name(STARTER.into())
        .spawn(move || start_threads(&queue, &ready))?;
    is_ready
        .recv()
        .context("the thread that starts threads ended")?
        .context("cannot drop capabilities")?;
    let confined = Confined {
        starts,
        opener,
        filtered,
        gaps: Mutex::default(),
    };
    CONFINED
        .set(confined)
        .map_err(|_| anyhow!("a process is confined once"))?;
    let asks = Arc::new(Mutex::new(asks));
    for _ in 0..opener::THREADS {
        let asks = Arc::clone(&asks);
        spawn(Role::Opener, move || opener::run(&asks))?;
    }
    spawn(Role::Workers, worker::start_threads)?;
    enter(Role::Daemon)?;
    Ok(())
}

fn start_threads(queue: &Receiver<Start>, ready: &SyncSender<io::Result<()>>) {
    // Nobody waits any more if the daemon ends.
    let _ = ready.send(keep_none_at_work().map_err(io::Error::other));
    for Start { role, body, reply } in queue {
        let failed = reply.clone();
        let begin = move || {
            let entered = enter(role);
            let is_confined = entered.is_ok();
            let _ = reply.send(entered);
            drop(reply);
            if is_confined {
                body();
            }
        };
        if let Err(error) = thread::Builder::new().name(role.name().into()).spawn(begin) {
            let _ = failed.send(Err(error));
        }
    }
}

/// Starts a thread that has the rights of its role and no others.
///
/// # Errors
/// If the thread cannot be started, or cannot give up the rights that it should; then nothing of `body` ran.
pub fn spawn(role: Role, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let Some(confined) = CONFINED.get() else {
        let thread = thread::Builder::new().name(role.name().into());
        return thread.spawn(body).map(drop);
    };
    let (reply, answer) = sync_channel(1);
    let body = Box::new(body);
    let gone = || io::Error::other("the thread that starts threads is gone");
    let sent = confined.starts.send(Start { role, body, reply });
    sent.map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

/// Does a job on a thread of this role and waits for it.
///
/// # Errors
/// As [`spawn`], or if the job panicked.
pub fn run<T: Send + 'static>(
    role: Role,
    job: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (done, result) = sync_channel(1);
    spawn(role, move || drop(done.send(job())))?;
    let panicked = |_| io::Error::other("a defect of terraced: the thread ended before its job");
    result.recv().map_err(panicked)
}

/// Gives up, for good, the rights that the calling thread's role does not need.
fn enter(role: Role) -> io::Result<()> {
    let Some(confined) = CONFINED.get() else {
        return Ok(());
    };
    if role.opens() == Opens::ByOpener {
        open_by(Arc::clone(&confined.opener));
    }
    if let Some(gap) = restrict(role, confined.filtered)? {
        confined.tell(gap);
    }
    Ok(())
}

/// Takes from the calling thread the rights that its role does not need; returns the lesser restrictions that this
/// kernel could not apply.
fn restrict(role: Role, filtered: bool) -> io::Result<Option<String>> {
    let gap = files::restrict(role.files());
    keep_only(role.capabilities()).map_err(io::Error::other)?;
    if filtered && let Some(calls) = role.calls() {
        calls::filter_thread(calls)?;
    }
    Ok(gap)
}

impl Confined {
    /// Logs, once, a restriction that this kernel lacks.
    fn tell(&self, gap: String) {
        let mut gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        if gaps.insert(gap.clone()) {
            tracing::warn!("threads are confined less than they could be: {gap}");
        }
    }
}

/// The finding if the host could not be inspected.
pub fn host_not_inspected(error: &io::Error) -> Finding {
    Finding::missing(
        "host",
        format!("the host could not be read: {error}"),
        "raise the limit of the daemon's threads (TasksMax of its unit)",
    )
}

/// The findings about the confinement, for `doctor`; empty if nothing is confined.
pub fn findings() -> Vec<Finding> {
    let Some(confined) = CONFINED.get() else {
        return Vec::new();
    };
    let seccomp = if confined.filtered {
        Finding::ok("seccomp", "each thread's system calls are filtered")
    } else {
        Finding::degraded(
            "seccomp",
            "the daemon's system calls are not filtered: seccomp = false under [security]",
            "remove it from the configuration and restart terraced",
        )
    };
    let gaps = confined.gaps.lock().unwrap_or_else(PoisonError::into_inner);
    let landlock = if gaps.is_empty() {
        Finding::ok(
            "landlock",
            "threads that read untrusted input cannot open files",
        )
    } else {
        let gaps: Vec<&str> = gaps.iter().map(String::as_str).collect();
        Finding::degraded(
            "landlock",
            gaps.join("; "),
            "run a kernel with Landlock (CONFIG_SECURITY_LANDLOCK, and landlock among lsm= of its command line)",
        )
    };
    vec![seccomp, landlock]
}
