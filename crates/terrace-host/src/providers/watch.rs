//! Telling a guest that is at it from one that is stuck.

use std::fmt;
use std::time::{Duration, Instant};

use super::Bytes;

/// Time for which a size may stand still before it is called stuck: a guest under load unplugs in bursts.
const PATIENCE: Duration = Duration::from_secs(10);

/// A size that the guest is to change, as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The memory that the guest has, bytes.
    pub size: u64,
    /// The target size, bytes.
    pub target: u64,
}

/// Watches one size: a tier's, or that of a whole VM with a balloon.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    last: Option<Seen>,
    since: Option<Instant>,
    /// Whether the size has changed since the target was set.
    has_moved: bool,
}

/// A guest that does not follow its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The newest observation.
    pub seen: Seen,
    /// For how long nothing has changed.
    pub idle: Duration,
    /// Whether it did a part.
    pub has_moved: bool,
}

impl Watch {
    /// Takes in how it stands now, and returns since when it is stuck, if it is.
    pub fn update(&mut self, seen: Seen, now: Instant) -> Option<Stuck> {
        let last = self.last.replace(seen);
        let is_new = last.is_none_or(|last| last.target != seen.target);
        let moved = last.is_some_and(|last| last.size != seen.size);
        self.has_moved = !is_new && (self.has_moved || moved);
        if is_new || moved || self.since.is_none() {
            self.since = Some(now);
        }
        let since = self.since.unwrap_or(now);
        let idle = now.saturating_duration_since(since);
        let stuck = Stuck {
            seen,
            idle,
            has_moved: self.has_moved,
        };
        (seen.size != seen.target && idle >= PATIENCE).then_some(stuck)
    }
}

impl Stuck {
    /// In words, for a tier with virtio-mem.
    #[must_use]
    pub fn by_virtio_mem(&self) -> String {
        let missing_driver = "it has no virtio_mem driver (modprobe virtio_mem)";
        let why = match (self.seen.size > self.seen.target, self.has_moved) {
            (true, false) => format!(
                "{missing_driver}, or what is plugged is in use and cannot be moved (boot the guest with \
                 memhp_default_state=online_movable) or has nowhere to go"
            ),
            (true, true) => "the rest of the plugged memory is in use and cannot be moved (boot the guest with \
                             memhp_default_state=online_movable) or has no free target; it keeps trying"
                .into(),
            (false, false) => missing_driver.into(),
            (false, true) => "its kernel takes no more: dmesg in the guest has the reason".into(),
        };
        format!("{self}: {why}")
    }

    /// In words, for a VM with a balloon.
    #[must_use]
    pub fn by_balloon(&self) -> String {
        let why = match (self.seen.size > self.seen.target, self.has_moved) {
            (_, false) => "it has no balloon driver (modprobe virtio_balloon)",
            (true, true) => "it has no more to spare; it keeps trying",
            (false, true) => "its driver does not take the rest",
        };
        format!("{self}: {why}")
    }
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seen { size, target } = self.seen;
        let seconds = self.idle.as_secs();
        let (what, left) = if size > target {
            ("given back", size - target)
        } else {
            ("taken", target - size)
        };
        let left = Bytes(left);
        write!(
            f,
            "the guest has {what} nothing for {seconds} s, {left} to go"
        )
    }
}
