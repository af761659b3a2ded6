//! Who places a guest's pages.

use anyhow::Result;

use terrace_lab_programs::vm::VmSpec;

use crate::control::daemon::{FAST, Setup, VM};
use crate::control::lab::Lab;
use crate::machine::blueprint::Blueprint;
use crate::measure::compare::{self, Method};

/// A way to place the guest's pages, all of which begin in slow memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    AllSlow,
    AllFast,
    /// By L1's kernel.
    Kernel(Method),
    MovesOff,
    WrongRanking,
    Vtmm,
    Terrace,
}

impl Way {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 8] = [
        Self::AllSlow,
        Self::AllFast,
        Self::MovesOff,
        Self::WrongRanking,
        Self::Vtmm,
        Self::Terrace,
        Self::Kernel(Method::NumaBalancing),
        Self::Kernel(Method::Damos),
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::AllSlow => "all slow",
            Self::AllFast => "all fast",
            Self::Kernel(method) => method.name(),
            Self::MovesOff => "terrace, moves off",
            Self::WrongRanking => "terrace, policy random",
            Self::Vtmm => "terrace, policy vtmm",
            Self::Terrace => "terrace, policy terrace",
        }
    }

    /// Whether it is a policy by which Terrace is to be used.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Vtmm | Self::Terrace)
    }

    /// Whether the daemon runs.
    pub fn has_daemon(self) -> bool {
        self.policy().is_some()
    }

    /// Whether it moves pages over time.
    pub fn places(self) -> bool {
        match self {
            Self::Kernel(_) => true,
            _ => self.policy().is_some_and(|(_, moves)| moves),
        }
    }

    /// The daemon's policy, and whether it moves pages; none without a daemon.
    fn policy(self) -> Option<(&'static str, bool)> {
        match self {
            Self::AllSlow | Self::AllFast | Self::Kernel(_) => None,
            Self::MovesOff => Some(("vtmm", false)),
            Self::WrongRanking => Some(("random", true)),
            Self::Vtmm => Some(("vtmm", true)),
            Self::Terrace => Some(("terrace", true)),
        }
    }

    /// The lab that it needs.
    ///
    /// # Errors
    /// As [`Blueprint::prepare`].
    pub fn blueprint(self) -> Result<Blueprint> {
        match self {
            Self::Kernel(method) => compare::blueprint(method),
            _ => Blueprint::prepare(&VmSpec::default(), false),
        }
    }

    /// Puts the pages where they are to be, or lets the daemon begin.
    ///
    /// # Errors
    /// If L1 or the daemon fails.
    pub fn begin(self, lab: &mut Lab) -> Result<()> {
        match self {
            Self::AllFast => {
                let all = lab.frames_on(VM, i32::try_from(super::SLOW)?)?;
                lab.move_pages(VM, &all, FAST)?;
            }
            Self::Kernel(method) => {
                lab.guest("idle")?;
                method.prepare(lab)?;
                compare::start_on_the_slow_node(lab)?;
                method.begin(lab)?;
                lab.guest("run")?;
            }
            _ => {}
        }
        match self.policy() {
            Some((policy, moves)) => lab.start_daemon(Setup {
                policy,
                moves,
                ..Setup::VTMM
            }),
            None => Ok(()),
        }
    }
}
