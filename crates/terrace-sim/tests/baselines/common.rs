//! A small VM under one policy, for all baselines.

use std::path::Path;

use terrace_sim::{Options, Scenario, Simulation, VmResult};

/// A VM of 16 MiB fast and 48 MiB slow memory as simulated, at any scale. At full size it has no last-level cache, which
/// would hold most of a load. Periods of mechanisms last seconds of
/// machine time, so loads end by the clock.
pub struct Small {
    pub policy: &'static str,
    /// Further keys of the VM's table, a line each.
    pub more: &'static str,
    pub workload: &'static str,
    pub scale: u64,
}

impl Small {
    pub fn scenario(&self) -> Scenario {
        let cache = if self.scale == 1 {
            "cache = \"none\""
        } else {
            ""
        };
        let text = format!(
            "[machine]\ntiers = [\"dram\", \"pmem\"]\nvcpus_per_vm = 2\nscale = {scale}\n{cache}\n\
             [[vm]]\nname = \"a\"\nfast = \"{fast}MiB\"\nslow = \"{slow}MiB\"\npolicy = {policy}\n{more}\n\
             workload = {{ {workload} }}\n",
            scale = self.scale,
            fast = 16 * self.scale,
            slow = 48 * self.scale,
            policy = self.policy,
            more = self.more,
            workload = self.workload,
        );
        Scenario::parse(&text, "small", Path::new("/s")).expect("valid")
    }

    pub fn run(&self) -> VmResult {
        let scenario = self.scenario();
        let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
        while simulation.advance(u64::MAX) {}
        simulation.result().vms.remove(0)
    }
}
