//! Child processes that must not outlive the task.

use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

type Shared = Arc<Mutex<Child>>;

static CHILDREN: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

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
        let mut children = lock(&CHILDREN);
        let program = command.get_program().to_owned();
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let child = Arc::new(Mutex::new(child));
        children.push(Arc::clone(&child));
        Ok(Self {
            child,
            released: false,
        })
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        lock(&self.child).id()
    }

    /// The read end of the child's output, once, if it is a pipe.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        lock(&self.child).stdout.take()
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
        Ok(lock(&self.child).try_wait()?)
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
    let mut child = lock(child);
    // It may have ended by itself already.
    child.kill().ok();
    child.wait().ok();
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic elsewhere must not keep the children alive.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
