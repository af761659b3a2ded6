//! The ways to place pages that are compared.

use anyhow::Result;

use super::damos;
use crate::lab::Lab;
use crate::lab::daemon::{Setup, VM};

/// Who decides which page lies where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Nothing,
    NumaBalancing,
    Damos,
    Terrace,
}

impl Method {
    /// In the order of the table.
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

    /// The kernel's settings, before the guest starts.
    pub fn knobs(self) -> String {
        let (balancing, demotion) = match self {
            Self::NumaBalancing => (2, 1),
            Self::Nothing | Self::Damos | Self::Terrace => (0, 0),
        };
        format!(
            "echo {balancing} >/proc/sys/kernel/numa_balancing\n\
             echo {demotion} >/sys/kernel/mm/numa/demotion_enabled"
        )
    }

    /// Brings it up without letting it move anything.
    pub fn prepare(self, lab: &mut Lab) -> Result<()> {
        match self {
            Self::Nothing | Self::NumaBalancing => Ok(()),
            Self::Damos => lab.check(&damos::prepare()).map(drop),
            Self::Terrace => lab.start_daemon(Setup {
                moves: false,
                ..Setup::VTMM
            }),
        }
    }

    /// Lets it move pages.
    pub fn begin(self, lab: &mut Lab) -> Result<()> {
        match self {
            Self::Nothing | Self::NumaBalancing => Ok(()),
            Self::Damos => lab.check(damos::BEGIN).map(drop),
            Self::Terrace => lab.check(&format!("terrace set {VM} moves=on")).map(drop),
        }
    }
}
