//! The ways to place pages that are compared.

use anyhow::Result;

use terrace_lab_programs::vm::RamPolicy;

use crate::control::daemon::{Setup, VM};
use crate::control::damos;
use crate::control::lab::Lab;

/// Commands that make NUMA balancing scan every second. It scans a task's memory once in a period of the task's
/// CPU time; by default the period grows to 60 s if few hint faults are counted, as they are in this mode.
const SCAN_EVERY_SECOND: &str = "mount -t debugfs debugfs /sys/kernel/debug
    echo 1000 >/sys/kernel/debug/sched/numa_balancing/scan_period_max_ms";

/// A method: who decides which page lies where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Nothing,
    NumaBalancing,
    Damos,
    Terrace,
}

impl Method {
    /// All methods, in the order of the table.
    pub const ALL: [Self; 4] = [
        Self::Nothing,
        Self::NumaBalancing,
        Self::Damos,
        Self::Terrace,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::NumaBalancing => "numa_balancing=2 + demotion",
            Self::Damos => "DAMOS migrate_hot/migrate_cold",
            Self::Terrace => "terrace",
        }
    }

    /// The policy of the RAM, which is a file on tmpfs: whether NUMA balancing may move its pages.
    pub fn ram_policy(self) -> RamPolicy {
        match self {
            Self::NumaBalancing => RamPolicy::Balanced,
            Self::Nothing | Self::Damos | Self::Terrace => RamPolicy::None,
        }
    }

    /// The kernel's settings, before the guest starts.
    pub fn knobs(self) -> String {
        let (balancing, demotion) = match self {
            Self::NumaBalancing => (2, 1),
            Self::Nothing | Self::Damos | Self::Terrace => (0, 0),
        };
        let scan = match self {
            Self::NumaBalancing => SCAN_EVERY_SECOND,
            Self::Nothing | Self::Damos | Self::Terrace => "",
        };
        format!(
            "echo {balancing} >/proc/sys/kernel/numa_balancing\n\
             echo {demotion} >/sys/kernel/mm/numa/demotion_enabled\n{scan}"
        )
    }

    /// Brings the method up without letting it move anything.
    pub fn prepare(self, lab: &mut Lab) -> Result<()> {
        match self {
            Self::Nothing | Self::NumaBalancing => Ok(()),
            Self::Damos => lab
                .check(&damos::prepare(&[damos::HOT, damos::COLD]))
                .map(drop),
            Self::Terrace => lab.start_daemon(Setup {
                moves: false,
                ..Setup::VTMM
            }),
        }
    }

    /// Lets the method move pages.
    pub fn begin(self, lab: &mut Lab) -> Result<()> {
        match self {
            Self::Nothing | Self::NumaBalancing => Ok(()),
            Self::Damos => {
                for index in [0, 1] {
                    lab.check(&damos::state(index, "on"))?;
                }
                Ok(())
            }
            Self::Terrace => lab.check(&format!("terrace set {VM} moves=on")).map(drop),
        }
    }
}
