//! The bound: the most costly pages of each coming window are in the fastest tier, and moves are free.
//!
//! The oracle reads ahead with copies of the load's own sources, for as many accesses as each vCPU made in the window
//! before.

use super::vm::Vm;
use crate::base::access::Access;
use crate::base::number::{float, index, low, to_usize, whole};
use crate::base::tier::Tier;
use crate::machine::second_stage::SecondStage;

/// Accesses read together.
const BATCH: usize = 256;

/// The oracle's state of one VM.
pub struct Oracle {
    /// Cost of the coming window's accesses by unit, in the weights' unit.
    costs: Vec<u32>,
    /// Number of units that fit into each tier.
    fit: Vec<u64>,
    read_weight: u32,
    write_weight: u32,
    window_ps: u64,
    next: u64,
    /// Number of windows placed so far.
    windows: u64,
    /// Accesses that each vCPU had left when the last window began.
    left: Vec<u64>,
}

impl Oracle {
    /// An oracle for a VM with room for `fit` units in the tiers.
    #[must_use]
    pub fn new(units: u32, fit: Vec<u64>, tiers: &[Tier], window_ps: u64) -> Self {
        let (read_weight, write_weight) = weights(tiers);
        Self {
            costs: vec![0; index(units)],
            fit,
            read_weight,
            write_weight,
            window_ps,
            next: 0,
            windows: 0,
            left: Vec::new(),
        }
    }

    /// Number of windows placed so far.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Bytes on the heap: the costs, and the ranking while it is made.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.costs.capacity() * 8
    }
}

/// The extra cost of one read and one write in the last tier over the first, in tenths of a ns: latency, and for a
/// write the time of the medium that it takes.
fn weights(tiers: &[Tier]) -> (u32, u32) {
    let (Some(first), Some(last)) = (tiers.first(), tiers.last()) else {
        return (1, 1);
    };
    let way_back = |tier: &Tier| float(tier.line) / tier.write_gb_s;
    let read = last.read_ns - first.read_ns;
    let write = read + way_back(last) - way_back(first);
    let tenths = |ns: f64| low(whole(ns * 10.0).clamp(1, 1 << 20));
    (tenths(read), tenths(write))
}

/// Places the pages of the window that begins now, if one does. `now` is in ps as simulated, `now_ns` in ns of the
/// full-size machine.
pub fn place_window(vm: &mut Vm, now: u64, now_ns: u64) {
    let Some(mut oracle) = vm.oracle.take() else {
        return;
    };
    if now >= oracle.next && vm.ended().is_none() {
        oracle.next = now + oracle.window_ps;
        oracle.count_ahead(vm, now_ns);
        oracle.place(&mut vm.space.second);
        oracle.windows += 1;
        let (guest, second) = (&vm.space.guest, &vm.space.second);
        let shift = if guest.huge() && second.huge() { 9 } else { 0 };
        let tier = |key: u32| {
            let frame = guest.frame(key << shift);
            let unit = frame.map(|frame| second.unit_of(frame));
            unit.and_then(|unit| second.tier(unit)).unwrap_or(0)
        };
        for vcpu in &mut vm.vcpus {
            vcpu.mmu().retier(tier);
        }
    }
    vm.oracle = Some(oracle);
}

impl Oracle {
    fn count_ahead(&mut self, vm: &Vm, now_ns: u64) {
        self.costs.fill(0);
        let before = std::mem::take(&mut self.left);
        for (at, vcpu) in vm.vcpus.iter().enumerate() {
            let made = before.get(at).map(|left| left - vcpu.progress().left());
            // Of the first window nothing is known: an access each 100 ns, a guess on the high side.
            let coming = made
                .unwrap_or(self.window_ps / 100_000)
                .min(vcpu.progress().left());
            let (at_hand, mut source) = vcpu.ahead();
            let mut seen = 0;
            for access in at_hand.iter().take(to_usize(coming)) {
                self.count(vm, *access);
                seen += 1;
            }
            let mut batch = [Access::default(); BATCH];
            while seen < coming {
                let wanted = to_usize(coming - seen).min(BATCH);
                let got = source.fill(now_ns, &mut batch[..wanted]);
                if got == 0 {
                    break;
                }
                batch[..got]
                    .iter()
                    .for_each(|access| self.count(vm, *access));
                seen += got as u64;
            }
            self.left.push(vcpu.progress().left());
        }
    }

    fn count(&mut self, vm: &Vm, access: Access) {
        let weight = if access.is_write() {
            self.write_weight
        } else {
            self.read_weight
        };
        if let Some(frame) = vm.space.guest.frame(low(access.page())) {
            let cost = &mut self.costs[index(vm.space.second.unit_of(frame))];
            *cost = cost.saturating_add(weight);
        }
    }

    /// Puts the most costly units into the first tier, the next ones into the second, and so on.
    fn place(&self, second: &mut SecondStage) {
        for unit in 0..second.tables() {
            second.put(unit, Some(0));
        }
        let mut rest: Vec<u32> = (second.first_data()..second.len())
            .filter(|unit| second.tier(*unit).is_some())
            .collect();
        let mut tiers = (0_u8..).zip(&self.fit).peekable();
        while let Some((tier, fit)) = tiers.next() {
            let last = tiers.peek().is_none();
            let count = if last {
                rest.len()
            } else {
                to_usize(*fit).min(rest.len())
            };
            if count > 0 && count < rest.len() {
                let key = |unit: &u32| {
                    let stays = second.tier(*unit) == Some(tier);
                    (std::cmp::Reverse(self.costs[index(*unit)]), !stays, *unit)
                };
                rest.select_nth_unstable_by_key(count, key);
            }
            let after = rest.split_off(count);
            for unit in std::mem::replace(&mut rest, after) {
                if second.tier(unit) != Some(tier) {
                    second.put(unit, Some(tier));
                }
            }
        }
    }
}
