//! Starting worker processes.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;

use terrace_sys::{ProcessId, inherit_nothing, start_time};

/// The command that starts a worker: a program whose main calls [`super::run`] when it gets these arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The program; usually `/proc/self/exe`, so that an update on disk does not mix versions.
    pub program: PathBuf,
    /// The program's arguments; usually `worker`.
    pub args: Vec<OsString>,
}

impl WorkerCommand {
    /// This program, with these arguments.
    #[must_use]
    pub fn this_program(args: &[&str]) -> Self {
        Self {
            program: "/proc/self/exe".into(),
            args: args.iter().map(OsString::from).collect(),
        }
    }
}

type SpawnRequest = (Command, mpsc::SyncSender<io::Result<Child>>);

/// A worker asks to be killed when the *thread* that started it ends, so all are started by one thread
/// that never does.
static SPAWNER: OnceLock<Mutex<mpsc::Sender<SpawnRequest>>> = OnceLock::new();

/// Workers that ended are remembered up to so many: a census that saw one may be judged later.
const MAX_STARTED: usize = 1024;

/// Workers that this process started, those that ended since among them.
static STARTED: Mutex<Vec<ProcessId>> = Mutex::new(Vec::new());

/// Number of times that a worker could not be started.
static FAILED: AtomicU64 = AtomicU64::new(0);

/// Number of times that a worker could not be started: it had what this process has open for a moment, and it is not
/// known which it was.
#[must_use]
pub fn failed_starts() -> u64 {
    FAILED.load(Ordering::SeqCst)
}

/// The workers of this process, once none is just being started: that one has, for a moment, what this process has
/// open. While this is held, no worker can be started.
pub fn started() -> MutexGuard<'static, Vec<ProcessId>> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a worker and notes it as ours, before it is given anything.
fn spawn(command: &mut Command) -> io::Result<Child> {
    let proc = Path::new("/proc");
    let mut started = started();
    if started.len() >= MAX_STARTED {
        started.retain(|process| process.exists(proc));
    }
    let child = command.spawn().inspect_err(|_| {
        FAILED.fetch_add(1, Ordering::SeqCst);
    })?;
    let pid = child.id();
    // It has not been waited for, so its number is its own.
    started.extend(start_time(proc, pid).map(|start_time| ProcessId { start_time, pid }));
    Ok(child)
}

/// Starts a worker: its standard input is the socket, its standard error a pipe, its environment
/// empty.
pub(super) fn start(command: &WorkerCommand) -> io::Result<(Child, UnixStream)> {
    let (here, there) = UnixStream::pair()?;
    let mut process = Command::new(&command.program);
    process
        .args(&command.args)
        .env_clear()
        .current_dir("/")
        .stdin(OwnedFd::from(there))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    inherit_nothing(&mut process);
    let (answer, answered) = mpsc::sync_channel(1);
    let gone = |_| io::Error::other("the thread that starts workers is gone");
    let spawner = SPAWNER.get_or_init(spawner);
    let sender = spawner.lock().unwrap_or_else(|e| e.into_inner()).clone();
    sender
        .send((process, answer))
        .map_err(|_| io::Error::other("the thread that starts workers is gone"))?;
    let child = answered.recv().map_err(gone)??;
    Ok((child, here))
}

/// Starts the threads that start workers and collect those that ended, with the rights of the calling thread. If
/// this is not called, the first worker does it, with those of the thread that wants it.
pub fn start_threads() {
    SPAWNER.get_or_init(spawner);
    super::process::start_collector();
}

fn spawner() -> Mutex<mpsc::Sender<SpawnRequest>> {
    let (sender, requests) = mpsc::channel::<SpawnRequest>();
    let body = move || {
        for (mut command, answer) in requests {
            // Who asked may have given up; the child then ends with its socket.
            let _ = answer.send(spawn(&mut command));
        }
    };
    // Without the thread the orders' end is gone, and the sender gets an error.
    let _ = thread::Builder::new()
        .name("worker-start".into())
        .spawn(body);
    Mutex::new(sender)
}
