//! The recorder of a run over time.

use terrace_proto::PAGE_SIZE;

use super::timeline::{Sample, Timeline};
use crate::base::number::float;
use crate::host::vm::Vm;

/// Samples the VMs into a timeline.
#[derive(Clone, Debug)]
pub struct Recorder {
    timeline: Timeline,
    /// Time between samples, ns of the full-size machine; 0: none are taken.
    every_ns: u64,
    /// When the next sample is due, ns.
    due_ns: u64,
    /// When the last sample was taken, ns.
    last_ns: u64,
    /// Each VM's counts at the last sample.
    seen: Vec<Counted>,
}

/// A VM's counts at a sample.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    accesses: u64,
    memory_accesses: u64,
    fast: u64,
    promoted: u64,
    demoted: u64,
}

impl Counted {
    fn of(vm: &Vm) -> Self {
        let counts = &vm.space.counts;
        Self {
            accesses: counts.accesses(),
            memory_accesses: counts.memory_accesses(),
            fast: counts.reads[0] + counts.writes[0],
            promoted: vm.account.promoted(),
            demoted: vm.account.demoted(),
        }
    }

    /// The difference to older counts.
    fn since(self, old: Self) -> Self {
        Self {
            accesses: self.accesses - old.accesses,
            memory_accesses: self.memory_accesses - old.memory_accesses,
            fast: self.fast - old.fast,
            promoted: self.promoted - old.promoted,
            demoted: self.demoted - old.demoted,
        }
    }
}

impl Recorder {
    /// A recorder into an empty timeline, with a sample each `every_ns` of the full-size machine.
    #[must_use]
    pub fn new(timeline: Timeline, every_ns: u64) -> Self {
        Self {
            seen: vec![Counted::default(); timeline.vms.len()],
            timeline,
            every_ns,
            due_ns: every_ns,
            last_ns: 0,
        }
    }

    /// The timeline so far.
    #[must_use]
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Takes a sample of each VM, if one is due.
    pub fn sample_if_due(&mut self, now_ns: u64, scale: u64, vms: &mut [Vm]) {
        if self.every_ns == 0 || now_ns < self.due_ns {
            return;
        }
        self.due_ns += self.every_ns;
        // Quanta seldom end where a sample is due.
        let stretch_ns = now_ns - std::mem::replace(&mut self.last_ns, now_ns);
        let tiers = self.timeline.tiers.len();
        for ((vm, seen), timeline) in vms
            .iter_mut()
            .zip(&mut self.seen)
            .zip(&mut self.timeline.vms)
        {
            let counted = Counted::of(vm);
            let new = counted.since(std::mem::replace(seen, counted));
            let ratio = if new.memory_accesses == 0 {
                1.0
            } else {
                float(new.fast) / float(new.memory_accesses)
            };
            let held = vm.pages_in_use();
            let cells = &mut vm.space.heat.cells;
            timeline.samples.push(Sample {
                at_s: float(now_ns) / 1e9,
                ops_per_s: float(new.accesses * scale) * 1e9 / float(stretch_ns),
                fast_hit_ratio: ratio,
                promoted_pages: new.promoted * scale,
                demoted_pages: new.demoted * scale,
                tier_bytes: held
                    .iter()
                    .take(tiers)
                    .map(|p| p * PAGE_SIZE * scale)
                    .collect(),
                heat: cells.clone(),
            });
            cells.fill(0);
        }
    }
}
