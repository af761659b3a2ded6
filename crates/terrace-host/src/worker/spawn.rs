//! Starting worker processes.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, mpsc};
use std::thread;

use terrace_sys::inherit_nothing;

/// How a worker is started: a program whose main calls [`super::run`] when it gets these arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The program; usually `/proc/self/exe`, so that an update on disk does not mix versions.
    pub program: PathBuf,
    /// Its arguments; usually `worker`.
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

type Order = (Command, mpsc::SyncSender<io::Result<Child>>);

/// A worker asks to be killed when the *thread* that started it ends, so all are started by one thread
/// that never does.
static SPAWNER: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();

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

fn spawner() -> Mutex<mpsc::Sender<Order>> {
    let (sender, orders) = mpsc::channel::<Order>();
    let body = move || {
        for (mut command, answer) in orders {
            // Who asked may have given up; the child then ends with its socket.
            let _ = answer.send(command.spawn());
        }
    };
    // Without the thread the orders' end is gone, and whoever sends one is told so.
    let _ = thread::Builder::new().name("workers".into()).spawn(body);
    Mutex::new(sender)
}
