//! The machine that VMs share: its tiers under load, and its caches.

use terrace_proto::TierId;

use crate::base::access::LINE;
use crate::base::number::float;
use crate::base::tier::Tier;
use crate::host::migration::{self, Memory};
use crate::host::moves::free_pages;
use crate::host::vm::Vm;
use crate::machine::caches::Caches;
use crate::machine::costs::Costs;
use crate::machine::tier::{Load, Traffic};
use crate::machine::vcpu::Environment;
use crate::machine::{PS, TIERS};

/// The part of a machine that VMs share.
pub struct Machine {
    costs: Costs,
    loads: Vec<Load>,
    /// Bytes that an access takes from the medium of each tier.
    lines: [u64; TIERS],
    /// 4 KiB pages per tier, as simulated.
    capacity: [u64; TIERS],
    caches: Caches,
}

impl Machine {
    /// An idle machine. `capacity`: 4 KiB pages per tier.
    #[must_use]
    pub fn new(costs: Costs, tiers: &[Tier], capacity: [u64; TIERS], caches: Caches) -> Self {
        let mut lines = [LINE; TIERS];
        for (line, tier) in lines.iter_mut().zip(tiers) {
            *line = tier.line;
        }
        Self {
            costs,
            loads: tiers.iter().map(Load::new).collect(),
            lines,
            capacity,
            caches,
        }
    }

    /// The machine's constants.
    #[must_use]
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Number of tiers.
    #[must_use]
    pub fn tiers(&self) -> usize {
        self.loads.len()
    }

    /// 4 KiB pages per tier, as simulated.
    #[must_use]
    pub fn capacity(&self) -> &[u64; TIERS] {
        &self.capacity
    }

    /// 4 KiB pages per tier that no VM holds, as simulated.
    #[must_use]
    pub fn free(&self, vms: &[Vm]) -> [u64; TIERS] {
        free_pages(&self.capacity, vms)
    }

    /// The state of the machine that all vCPUs see in the quantum that ends at `end_ps`.
    #[must_use]
    pub fn environment(&self, end_ps: u64, now_ns: u64) -> Environment {
        let mut env = Environment {
            costs: self.costs,
            read_ps: [0; TIERS],
            write_ps: [0; TIERS],
            line: self.lines,
            rewrite: [0; TIERS],
            last_tier: u8::try_from(self.loads.len() - 1).unwrap_or(0),
            end_ps,
            now_ns,
            copy_ps: self.copy_ps(),
        };
        for (tier, load) in self.loads.iter().enumerate() {
            env.read_ps[tier] = load.read_ps();
            env.write_ps[tier] = load.write_ps();
            env.rewrite[tier] = load.rewrite_bytes();
        }
        env
    }

    fn copy_ps(&self) -> [[u64; TIERS]; TIERS] {
        let tiers = self.loads.len();
        let mut all = [[0; TIERS]; TIERS];
        for (from, row) in (0_u8..).zip(all.iter_mut().take(tiers)) {
            for (to, ps) in (0_u8..).zip(row.iter_mut().take(tiers)) {
                *ps = migration::page_copy_ps(&self.loads, &self.costs, from, TierId(to));
            }
        }
        all
    }

    /// The caches that VMs share.
    #[must_use]
    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// Runs a VM (by its place) for a quantum; in the caches it finds the lines that others left.
    pub fn run(&mut self, place: usize, vm: &mut Vm, free: &mut [u64; TIERS], env: &Environment) {
        self.caches.serve(place);
        vm.space.caches = std::mem::take(&mut self.caches);
        vm.run_within(free, env);
        self.caches = std::mem::take(&mut vm.space.caches);
    }

    /// The part of the machine that moves use.
    pub fn memory<'a>(
        &'a self,
        traffic: &'a mut [Traffic; TIERS],
        free: &'a mut [u64; TIERS],
    ) -> Memory<'a> {
        Memory {
            loads: &self.loads,
            traffic,
            free,
            costs: &self.costs,
        }
    }

    /// Takes in the tiers' traffic of a quantum: that of moves, and that of VMs for their accesses.
    pub fn load(
        &mut self,
        quantum: u64,
        mut traffic: [Traffic; TIERS],
        vms: &mut [Vm],
        accesses: u64,
    ) {
        let mut running = 0;
        let mut writers = [0; TIERS];
        for vm in vms {
            let vcpus = vm.vcpus.iter().filter(|v| v.is_running()).count() as u64;
            running += vcpus;
            for (tier, (sum, of_vm)) in traffic.iter_mut().zip(&mut vm.space.traffic).enumerate() {
                let of_vm = std::mem::take(of_vm);
                // A processor that wrote no line in this time is none of the writers.
                writers[tier] += vcpus.min(of_vm.written / self.lines[tier]);
                sum.read += of_vm.read;
                sum.written += of_vm.written;
            }
        }
        let ns = float(quantum) / float(PS);
        let access_ns = ns * float(running.max(1)) / float(accesses.max(1));
        for ((load, traffic), writers) in self.loads.iter_mut().zip(traffic).zip(writers) {
            load.add_traffic(ns, traffic, access_ns.min(ns));
            load.add_writers(ns, writers);
        }
    }

    /// Utilization of a tier's bandwidth now, 0 to 1.
    #[must_use]
    pub fn utilization(&self, tier: TierId) -> f64 {
        let load = self.loads.get(usize::from(tier.0));
        load.map_or(0.0, Load::utilization)
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        self.caches.heap_bytes()
    }
}
