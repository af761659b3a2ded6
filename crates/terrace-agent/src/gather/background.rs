//! Rounds beside `terrace-agent run`, as a process of their own: it may take much memory, it is the first that ends if memory
//! is short, and it keeps capabilities that the agent drops.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use terrace_sys::HostRoot;

use super::damos::Damos;
use super::round::Round;
use super::state::GatherStatus;

/// Longest line that the process prints, bytes.
const MAX_LINE: u64 = 1 << 20;

/// The process, and its latest status.
#[derive(Debug)]
pub struct Background {
    child: Mutex<Child>,
    latest: Arc<Mutex<GatherStatus>>,
    /// Rounds that were taken by [`Self::take_round`], or passed over.
    rounds: u64,
    /// Whether its end was seen.
    seen_ended: AtomicBool,
}

impl Background {
    /// Starts `terrace-agent gather`. To be called by the main thread: the process ends with it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(config: Option<&Path>) -> Result<Self> {
        if let Some(config) = config {
            // The process reads it, too: what comes by a pipe is read once.
            anyhow::ensure!(
                config.is_file(),
                "{}: gather.rounds takes a file",
                config.display()
            );
        }
        let mut command = Command::new("/proc/self/exe");
        command.args(["gather", "--report"]);
        command.arg(std::process::id().to_string());
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        Self::of(&mut command)
    }

    fn of(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting terrace-agent gather")?;
        let latest = Arc::new(Mutex::new(GatherStatus::default()));
        lock(&latest).enter("starting", String::new());
        if let Some(output) = child.stdout.take() {
            let latest = Arc::clone(&latest);
            std::thread::Builder::new()
                .name("gather".into())
                .spawn(move || listen(output, &latest))?;
        }
        Ok(Self {
            child: Mutex::new(child),
            latest,
            rounds: 0,
            seen_ended: AtomicBool::new(false),
        })
    }

    /// Gathering as it is now.
    #[must_use]
    pub fn status(&self) -> GatherStatus {
        let mut status = lock(&self.latest).clone();
        if let Ok(Some(ended)) = lock(&self.child).try_wait() {
            if !self.seen_ended.swap(true, Ordering::Relaxed) {
                // If it was killed, the kernel would go on to move pages. Once: later they may be another one's.
                Damos::stop_leftovers(&HostRoot::default());
            }
            let detail = format!(
                "{ended}; it begins again with the agent. Its reason is in the agent's log"
            );
            status.enter("ended", detail);
        }
        status
    }

    /// The last round that ended, if one did since the last call.
    #[must_use]
    pub fn take_round(&mut self) -> Option<Round> {
        let status = lock(&self.latest).clone();
        let before = std::mem::replace(&mut self.rounds, status.rounds);
        status.last.filter(|_| status.rounds > before)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        // The next round goes on with whatever is there.
        let runs = matches!(child.try_wait(), Ok(None));
        let _ = child.kill();
        let _ = child.wait();
        if runs {
            Damos::stop_leftovers(&HostRoot::default());
        }
    }
}

fn listen(output: ChildStdout, latest: &Mutex<GatherStatus>) {
    let mut lines = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = std::io::Read::take(&mut lines, MAX_LINE);
        match limited.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        match serde_json::from_slice(&line) {
            Ok(status) => *lock(latest) = status,
            Err(error) => tracing::debug!("a line of gathering's that is none: {error}"),
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn until(background: &Background, holds: impl Fn(&GatherStatus) -> bool) -> GatherStatus {
        let start = Instant::now();
        loop {
            let status = background.status();
            if holds(&status) {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{status:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn shell(script: &str) -> Background {
        Background::of(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn what_it_tells_last_is_its_status() {
        let background = shell(
            r#"echo 'not JSON'; echo '{"state":"watching","rounds":3,"other":1}'; exec sleep 600"#,
        );
        let status = until(&background, |status| status.rounds > 0);
        assert_eq!((status.state.as_str(), status.rounds), ("watching", 3));
    }

    #[test]
    fn its_end_is_seen() {
        let background = shell(r#"echo '{"state":"resting","rounds":7}'; exit 3"#);
        let status = until(&background, |status| {
            status.state == "ended" && status.rounds > 0
        });
        assert!(
            status.detail.contains("exit status: 3"),
            "{}",
            status.detail
        );
    }

    #[test]
    fn lines_without_an_end_take_no_memory() {
        let background = shell("head -c 5000000 /dev/zero; echo; echo '{\"rounds\":1}'");
        until(&background, |status| status.rounds == 1);
    }
}
