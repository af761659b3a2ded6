//! Child processes that must not outlive the task.

use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

type Shared = Arc<Mutex<Process>>;

static CHILDREN: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

/// Time in which a child that ends its own children does so.
const END: Duration = Duration::from_secs(30);

/// A child process, and how it ends.
struct Process {
    child: Child,
    /// It has children of its own, which it ends if it is asked to end.
    has_children: bool,
}

/// A child that is killed when this value is dropped, and on Ctrl-C.
pub struct Guarded {
    child: Shared,
    released: bool,
}

/// Ends all guarded children and then this process, called `name`, on Ctrl-C, SIGTERM and SIGHUP.
///
/// # Errors
/// If the handler cannot be set.
pub fn end_with_this_process(name: &'static str) -> Result<()> {
    ctrlc::set_handler(move || {
        // Keep the lock until the end, so that no further child is started.
        let children = lock(&CHILDREN);
        children.iter().for_each(kill);
        eprintln!("{name}: interrupted");
        std::process::exit(130);
    })
    .context("cannot set the handler for Ctrl-C")
}

impl Guarded {
    /// Starts the command.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        Self::start(command, false)
    }

    /// Starts a command that is this program: it has children, and ends them.
    pub fn spawn_task(command: &mut Command) -> Result<Self> {
        Self::start(command, true)
    }

    fn start(command: &mut Command, has_children: bool) -> Result<Self> {
        let mut children = lock(&CHILDREN);
        let program = command.get_program().to_owned();
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let child = Arc::new(Mutex::new(Process {
            child,
            has_children,
        }));
        children.push(Arc::clone(&child));
        Ok(Self {
            child,
            released: false,
        })
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        lock(&self.child).child.id()
    }

    /// The read end of the child's output, once, if it is a pipe.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        lock(&self.child).child.stdout.take()
    }

    /// Waits until the child has ended.
    pub fn wait(self) -> Result<ExitStatus> {
        loop {
            // Without the lock in between: Ctrl-C needs it.
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The child's exit status. `None` while it runs.
    pub fn ended(&self) -> Result<Option<ExitStatus>> {
        Ok(lock(&self.child).child.try_wait()?)
    }

    /// Lets the child live on after this process.
    pub fn release(mut self) {
        self.released = true;
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        lock(&CHILDREN).retain(|other| !Arc::ptr_eq(other, &self.child));
        if !self.released {
            kill(&self.child);
        }
    }
}

fn kill(child: &Shared) {
    let mut process = lock(child);
    if process.has_children {
        ask_to_end(&mut process.child);
    }
    // It may have ended by itself already.
    process.child.kill().ok();
    process.child.wait().ok();
}

/// Sends SIGTERM to a child, and waits for its end for a while.
fn ask_to_end(child: &mut Child) {
    if !matches!(child.try_wait(), Ok(None)) {
        return;
    }
    let id = child.id().to_string();
    Command::new("kill").args(["-TERM", &id]).status().ok();
    let begin = Instant::now();
    while begin.elapsed() < END && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic elsewhere must not keep the children alive.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
