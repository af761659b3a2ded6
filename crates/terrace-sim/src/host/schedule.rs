//! The time in which a VM's load runs.

use crate::machine::vcpu::Environment;

/// The start of a VM's load: after a resize that is made before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Begins {
    /// Time as simulated, ps.
    pub ps: u64,
    /// Time of the full-size machine, ns.
    pub ns: u64,
}

/// The start of a VM's load, and its end by the clock.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    begins: Begins,
    /// The end by the clock, ps as simulated.
    ends: Option<u64>,
}

impl Schedule {
    /// A load that runs from `begins` on, for so many ps or until all is done.
    #[must_use]
    pub fn new(begins: Begins, duration_ps: Option<u64>) -> Self {
        let ends = duration_ps.map(|ps| begins.ps + ps);
        Self { begins, ends }
    }

    /// Whether the load begins in this quantum or began before.
    #[must_use]
    pub fn has_begun(&self, env: &Environment) -> bool {
        self.begins.ps < env.end_ps
    }

    /// The machine as the VM's load and mechanism see it: their time begins with the load.
    #[must_use]
    pub fn own_time(&self, env: &Environment) -> Environment {
        Environment {
            now_ns: env.now_ns.saturating_sub(self.begins.ns),
            ..env.clone()
        }
    }

    /// The time up to which the load runs in this quantum, ps, and whether it ends there by the clock.
    #[must_use]
    pub fn until(&self, env: &Environment) -> (u64, bool) {
        let end = self.ends.map_or(env.end_ps, |ends| ends.min(env.end_ps));
        (end, self.ends == Some(end))
    }
}
