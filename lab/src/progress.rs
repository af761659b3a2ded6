//! Progress lines on standard error, with the seconds since the task began.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Time between two lines of a long wait.
const REMINDER: Duration = Duration::from_secs(15);

/// Prints a progress line.
pub fn say(what: &str) {
    eprintln!("[{:6.1} s] {what}", BEGIN.elapsed().as_secs_f64());
}

/// A wait with an end, which reminds the reader that it is not over yet.
pub struct Wait {
    what: String,
    begin: Instant,
    deadline: Instant,
    next_reminder: Instant,
}

impl Wait {
    /// Announces the wait.
    pub fn begin(what: &str, timeout: Duration) -> Self {
        say(&format!("{what} …"));
        Self::begin_silently(what, timeout)
    }

    /// A wait that is mentioned only when it gets long.
    pub fn begin_silently(what: &str, timeout: Duration) -> Self {
        let begin = Instant::now();
        Self {
            what: what.to_owned(),
            begin,
            deadline: begin + timeout,
            next_reminder: begin + REMINDER,
        }
    }

    /// Reminds the reader; to be called between two checks of the condition.
    ///
    /// # Errors
    /// If the time is up.
    pub fn go_on(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        let seconds = self.begin.elapsed().as_secs();
        if now >= self.deadline {
            anyhow::bail!("{}: no success within {seconds} s", self.what);
        }
        if now >= self.next_reminder {
            say(&format!("still {} ({seconds} s)", self.what));
            self.next_reminder = now + REMINDER;
        }
        Ok(())
    }
}
