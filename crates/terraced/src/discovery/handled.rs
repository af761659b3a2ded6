//! The outcome of the inspection of each monitor, and the time of the next one.

use std::time::{Duration, Instant};

use terrace_host::qemu::{Candidate, Hypervisor};
use terrace_sys::ProcessId;

/// Time after which a VM that could not be managed is tried again.
const RETRY: Duration = Duration::from_secs(60);
/// Time after which a VM whose monitor is not ready is tried again, as long as it may be starting.
pub const SOON: Duration = Duration::from_secs(1);
/// Time for which a VM may be starting.
const STARTING: Duration = Duration::from_secs(60);
/// Factor of the pause after an inspection to the time that the inspection took, if that is the longer pause: a monitor
/// that hangs keeps no thread busy for most of the time.
const REST: u32 = 4;

/// The state of a monitor's socket.
#[derive(Clone, Debug)]
pub struct Handled {
    /// The process that listens there, or is to.
    pub process: Option<ProcessId>,
    /// The only process that named the socket at the inspection.
    pub claimed: Option<ProcessId>,
    /// Whether the socket is being inspected, or waits for that.
    pub is_pending: bool,
    /// The time of the next inspection; `None` while the VM is managed or being inspected.
    pub again: Option<Instant>,
    /// The process that has the VM's name; the next inspection comes as soon as it ended.
    pub waits_for: Option<ProcessId>,
    /// The time since which the socket is known for this process.
    pub since: Instant,
    /// Name of a VM that an agent is to manage, and whether it was inspected for the host; `None` for other VMs.
    pub agent: Option<(String, bool)>,
}

/// The outcome of an inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The VM is managed, or left to its agent.
    Done,
    /// The VM's monitor is not there, or does not answer.
    NotReady,
    /// Another process has the VM's name.
    NameTaken(ProcessId),
    /// The process is no VM, or one that cannot be managed.
    Refused,
}

impl Handled {
    /// The state of a socket that waits for inspection.
    pub fn pending(process: Option<ProcessId>, now: Instant) -> Self {
        Self {
            process,
            claimed: process,
            is_pending: true,
            again: None,
            waits_for: None,
            since: now,
            agent: None,
        }
    }

    /// The state of a candidate that waits for another inspection, after its state before.
    pub fn pending_again(candidate: &Candidate, before: Option<&Self>, now: Instant) -> Self {
        let claimed = candidate.sole_claim().map(Hypervisor::process);
        let pending = Self::pending(claimed, now);
        let since = before.filter(|before| before.claimed == claimed);
        Self {
            since: since.map_or(pending.since, |before| before.since),
            ..pending
        }
    }

    /// Takes in the outcome of an inspection that took this long.
    pub fn inspected(&mut self, ended: Ended, took: Duration, now: Instant) {
        let known_for = now.saturating_duration_since(self.since);
        self.is_pending = false;
        self.again = pause(ended, known_for, took).map(|pause| now + pause);
        self.waits_for = match ended {
            Ended::NameTaken(holder) => Some(holder),
            Ended::Done | Ended::NotReady | Ended::Refused => None,
        };
    }

    /// Whether the time of the next inspection has come.
    pub fn is_due(&self, now: Instant, lives: impl Fn(ProcessId) -> bool) -> bool {
        let passed = self.again.is_some_and(|at| now >= at);
        let free = |holder| !lives(holder);
        !self.is_pending && (passed || self.waits_for.is_some_and(free))
    }

    /// Whether the only process that names the socket is another one than at the inspection. A socket that needs no
    /// further inspection is never claimed anew: its connection showed which process it belongs to.
    pub fn is_claimed_anew(&self, candidate: &Candidate) -> bool {
        let claimed = candidate.sole_claim().map(Hypervisor::process);
        self.again.is_some() && claimed.is_some() && claimed != self.claimed
    }
}

/// The pause before the next inspection; `None`: until something else happens.
fn pause(ended: Ended, known_for: Duration, took: Duration) -> Option<Duration> {
    match ended {
        Ended::Done => None,
        Ended::NotReady if known_for < STARTING => Some(SOON.max(took * REST)),
        Ended::NotReady | Ended::NameTaken(_) | Ended::Refused => Some(RETRY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_starting_monitor_is_tried_each_second_then_less_often() {
        let tried = |known_for, took| {
            let [known_for, took] = [known_for, took].map(Duration::from_secs);
            pause(Ended::NotReady, known_for, took).unwrap().as_secs()
        };
        assert_eq!((tried(0, 0), tried(59, 0), tried(60, 0)), (1, 1, 60));
        assert_eq!(tried(0, 10), 40, "one that hangs");
        assert_eq!(pause(Ended::Done, STARTING, SOON), None);
        assert_eq!(pause(Ended::Refused, SOON, SOON), Some(RETRY));
    }

    #[test]
    fn how_long_a_monitor_is_known_counts_for_one_process() {
        let hypervisor = |pid| Hypervisor {
            pid,
            start_time: 1,
            name: None,
            uuid: None,
        };
        let candidate = |pid| Candidate {
            socket: "/s".into(),
            claims: vec![hypervisor(pid)],
        };
        let begun = Instant::now();
        let mut old = Handled::pending_again(&candidate(7), None, begun);
        old.inspected(Ended::NotReady, SOON, begun + STARTING);
        assert!(!old.is_claimed_anew(&candidate(7)) && old.is_claimed_anew(&candidate(8)));
        let same = Handled::pending_again(&candidate(7), Some(&old), begun + SOON);
        assert_eq!(same.since, begun);
        let other = Handled::pending_again(&candidate(8), Some(&old), begun + SOON);
        assert_eq!(other.since, begun + SOON);
    }
}
