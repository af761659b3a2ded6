//! The time of a simulation.

use terrace_proto::Tick;

use crate::machine::PS;

/// Length of a quantum, ps: 10 µs.
const QUANTUM: u64 = 10_000 * PS;

/// The clock of a simulation: it advances in quanta, and the full-size machine's time advances faster by the scale.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Time as simulated, ps.
    now: u64,
    quantum: u64,
    scale: u64,
}

impl Clock {
    /// A clock at the start; a quantum is divided by `divisor`.
    #[must_use]
    pub fn new(divisor: u64, scale: u64) -> Self {
        Self {
            now: 0,
            quantum: QUANTUM / divisor.max(1),
            scale,
        }
    }

    /// Time of the full-size machine.
    #[must_use]
    pub fn now(&self) -> Tick {
        Tick(self.now / PS * self.scale)
    }

    /// Time as simulated, ps.
    #[must_use]
    pub fn ps(&self) -> u64 {
        self.now
    }

    /// Length of a quantum, ps.
    #[must_use]
    pub fn quantum(&self) -> u64 {
        self.quantum
    }

    /// End of the present quantum, ps.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.now + self.quantum
    }

    /// Ends the present quantum.
    pub fn advance(&mut self) {
        self.now = self.end();
    }
}
