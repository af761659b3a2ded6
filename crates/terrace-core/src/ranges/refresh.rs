//! Surveys of where pages are, within a share of the CPU: each process in turn, those with pages that were never
//! surveyed first.

use super::pick::{Programs, RangeQuery};

/// While pages were never surveyed, surveys may take so many times its share of the CPU.
const UNSEEN_FACTOR: u64 = 4;

/// The surveys of an epoch.
#[derive(Clone, Debug)]
pub struct Refresh {
    processes: Vec<u32>,
    /// Whose turn it is.
    turn: usize,
    /// Only what was never surveyed.
    first: bool,
    /// An answer came in this turn.
    answered: bool,
    /// CPU time that is left, ns.
    left_ns: u64,
    /// Surveys so far.
    pub surveys: u64,
}

impl Refresh {
    /// Begins, with so much CPU time.
    #[must_use]
    pub fn new(programs: &Programs, epoch: u32, share_ns: u64) -> Self {
        let first = programs
            .values()
            .any(|program| program.extents.any_unseen());
        let mut processes: Vec<u32> = programs.keys().copied().collect();
        if !processes.is_empty() {
            let begin = usize::try_from(epoch).unwrap_or(0) % processes.len();
            processes.rotate_left(begin);
        }
        Self {
            turn: processes.len(),
            processes,
            first,
            answered: true,
            left_ns: share_ns.saturating_mul(if first { UNSEEN_FACTOR } else { 1 }),
            surveys: 0,
        }
    }

    /// The next question; none if time is over, or all was surveyed.
    pub fn next(&mut self, programs: &mut Programs, epoch: u32) -> Option<RangeQuery> {
        loop {
            if self.turn >= self.processes.len() {
                if !std::mem::take(&mut self.answered) || self.left_ns == 0 {
                    return None;
                }
                self.turn = 0;
            }
            let process = self.processes.get(self.turn).copied();
            self.turn += 1;
            let Some(program) = process.and_then(|process| programs.get_mut(&process)) else {
                continue;
            };
            if self.first && !program.extents.any_unseen() {
                continue;
            }
            let stale = program.extents.stale(epoch);
            if let Some(extent) = stale.and_then(|at| program.extents.get(at)) {
                return Some(RangeQuery {
                    process: process?,
                    range: extent.range(),
                    is_extent: true,
                });
            }
        }
    }

    /// The last question was answered, if it was; that took so long.
    pub fn surveyed(&mut self, answered: bool, cpu_ns: u64) {
        self.left_ns = self.left_ns.saturating_sub(cpu_ns);
        self.answered |= answered;
        self.surveys += u64::from(answered);
    }
}
