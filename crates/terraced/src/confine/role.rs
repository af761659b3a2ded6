//! The kinds of threads, and the rights of each.

use terrace_sys::Capability;

use super::calls::Calls;
use super::files::Files;

/// The capabilities that the daemon keeps of those it was started with; threads take their part of them: moving
/// pages; reading the state of other users' processes; listing their files; opening those, and connecting to their
/// sockets; counting page walks.
pub const CAPABILITIES: [Capability; 5] = [
    Capability::CAP_SYS_NICE,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_PERFMON,
];

/// The purpose of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Joins engine, clock and host: the process's first thread.
    Daemon,
    /// Opens other users' files for threads that may not, and reads nothing of them.
    Opener,
    /// Starts workers and collects those that ended.
    Workers,
    /// Looks for hypervisors in /proc.
    Discoverer,
    /// Speaks to a monitor that was found.
    Monitor,
    /// Speaks to one VM's worker and monitor.
    Observe,
    /// Looks whether one VM's memory map still holds.
    Map,
    /// Checks which processes have the RAM of VMs besides their hypervisors.
    Census,
    /// Queries the nodes of a VM's pages.
    Place,
    /// Moves a VM's pages.
    Move,
    /// Makes huge pages of a VM's single ones.
    Collapse,
    /// Opens counters of a VM's virtual CPUs.
    Count,
    /// Speaks to a VM's provider, which resizes it.
    Reconciler,
    /// Speaks to guests' agents.
    Agents,
    /// Answers clients.
    Api,
    /// Looks at the host for `doctor`.
    Doctor,
}

/// The opener of files for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opens {
    /// The thread itself.
    Itself,
    /// The opener's threads.
    ByOpener,
}

impl Role {
    /// Every role.
    #[cfg(test)]
    pub const ALL: [Self; 16] = [
        Self::Daemon,
        Self::Opener,
        Self::Workers,
        Self::Discoverer,
        Self::Monitor,
        Self::Observe,
        Self::Map,
        Self::Census,
        Self::Place,
        Self::Move,
        Self::Collapse,
        Self::Count,
        Self::Reconciler,
        Self::Agents,
        Self::Api,
        Self::Doctor,
    ];

    /// The thread's name, as the kernel shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Daemon => "terraced",
            Self::Opener => "open",
            Self::Workers => "workers",
            Self::Discoverer => "discoverer",
            Self::Monitor => "monitor",
            Self::Observe => "observe",
            Self::Map => "map",
            Self::Census => "census",
            Self::Place => "place",
            Self::Move => "move",
            Self::Collapse => "collapse",
            Self::Count => "count",
            Self::Reconciler => "reconciler",
            Self::Agents => "agents",
            Self::Api => "api",
            Self::Doctor => "doctor",
        }
    }

    /// The capabilities of [`CAPABILITIES`] that the role keeps.
    pub fn capabilities(self) -> &'static [Capability] {
        use Capability::{
            CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_PERFMON, CAP_SYS_NICE, CAP_SYS_PTRACE,
        };
        match self {
            Self::Opener => &[CAP_DAC_OVERRIDE, CAP_SYS_PTRACE],
            Self::Discoverer | Self::Census => &[CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE],
            // The page map's file is the VM's user's.
            Self::Place => &[CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE],
            Self::Move | Self::Collapse => &[CAP_SYS_NICE, CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE],
            // Which threads are the VM's, procfs says to those that may look.
            Self::Count => &[CAP_PERFMON, CAP_SYS_PTRACE],
            _ => &[],
        }
    }

    /// Whether the role reads input of a guest, a hypervisor or a client.
    pub fn is_exposed(self) -> bool {
        matches!(
            self,
            Self::Monitor | Self::Observe | Self::Map | Self::Reconciler | Self::Agents | Self::Api
        )
    }

    /// The opener of files for the role.
    pub fn opens(self) -> Opens {
        if self.is_exposed() {
            Opens::ByOpener
        } else {
            Opens::Itself
        }
    }

    /// The names that Landlock leaves the role. If Landlock is in force, the kernel lets the thread inspect no other
    /// process: only roles that ask others to do that are restricted.
    pub fn files(self) -> Files {
        match self {
            _ if self.is_exposed() => Files::None,
            _ => Files::All,
        }
    }

    /// The groups of system calls that the role needs beside those that each thread needs to live. `None`: all calls
    /// of the process.
    pub fn calls(self) -> Option<&'static [Calls]> {
        use Calls::{
            Accept, ChangeFiles, Collapse, Count, Listen, MovePages, Open, PageMap, Processes, Talk,
        };
        Some(match self {
            // A worker starts with the same calls, and gives up more by itself.
            Self::Workers => return None,
            Self::Daemon => &[Open, ChangeFiles, Talk, Listen, Processes],
            Self::Opener => &[Open, Talk],
            Self::Discoverer | Self::Census => &[Open],
            Self::Monitor | Self::Observe => &[Talk, PageMap, Processes],
            Self::Place | Self::Move => &[Open, PageMap, MovePages],
            Self::Collapse => &[Open, PageMap, MovePages, Collapse],
            Self::Count => &[Open, Count],
            Self::Map | Self::Reconciler => &[Talk, Processes],
            Self::Agents => &[Talk],
            Self::Api => &[Talk, Accept],
            Self::Doctor => &[Open, PageMap, MovePages],
        })
    }
}
