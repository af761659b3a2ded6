//! CPU time in L1, by program and by `/proc/PID/stat`.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::control::daemon::VM;
use crate::control::lab::Lab;

/// Names of the kernel's threads that place, move or watch pages.
const KERNEL_THREADS: [&str; 4] = ["kswapd", "kcompactd", "kdamond", "migration/"];

/// Name of the daemon and its workers.
const DAEMON: &str = "terraced";

/// CPU time in hundredths of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// The kernel's threads that place, move or watch pages.
    pub kernel_threads_cs: u64,
    /// The daemon and its workers, in user space and in the kernel.
    pub daemon_cs: u64,
    /// The guest's QEMU in L1's kernel: page faults, hint faults and their migrations are in it.
    pub qemu_system_cs: u64,
}

impl CpuTime {
    /// The time that was spent after `before`.
    pub fn since(self, before: Self) -> Self {
        let minus = u64::saturating_sub;
        Self {
            kernel_threads_cs: minus(self.kernel_threads_cs, before.kernel_threads_cs),
            daemon_cs: minus(self.daemon_cs, before.daemon_cs),
            qemu_system_cs: minus(self.qemu_system_cs, before.qemu_system_cs),
        }
    }
}

/// The time spent up to now.
pub fn read(lab: &mut Lab) -> Result<CpuTime> {
    // Processes come and go while the shell reads.
    let stats = lab.check(&format!(
        "cat /run/lab/{VM}.pid; echo; cat /proc/[0-9]*/stat 2>/dev/null; true"
    ))?;
    let (pid, stats) = stats.split_once('\n').context("no pid of the guest")?;
    let mut total = CpuTime::default();
    for process in stats.lines().filter_map(Process::parse) {
        let is = |prefix: &str| process.name.starts_with(prefix);
        if KERNEL_THREADS.into_iter().any(is) {
            total.kernel_threads_cs += process.user + process.system;
        } else if is(DAEMON) {
            total.daemon_cs += process.user + process.system;
        } else if process.pid == pid.trim() {
            total.qemu_system_cs += process.system;
        }
    }
    Ok(total)
}

struct Process<'a> {
    pid: &'a str,
    name: &'a str,
    user: u64,
    system: u64,
}

impl<'a> Process<'a> {
    /// A line of `/proc/PID/stat`; a name may hold spaces and parentheses.
    fn parse(line: &'a str) -> Option<Self> {
        let (head, tail) = line.rsplit_once(") ")?;
        let (pid, name) = head.split_once(" (")?;
        // After the name comes field 3; user and system time are 14 and 15.
        let mut times = tail.split(' ').skip(11);
        Some(Self {
            pid,
            name,
            user: times.next()?.parse().ok()?,
            system: times.next()?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_fields_14_and_15_whatever_the_name() {
        let line = "169 (a) b (c) S 168 168 168 0 -1 138412416 192991 0 0 0 8261 3168 0 0 20 0";
        let process = Process::parse(line).unwrap();
        assert_eq!((process.pid, process.name), ("169", "a) b (c"));
        assert_eq!((process.user, process.system), (8261, 3168));
        assert!(Process::parse("169 (short) S 1").is_none());
    }
}
