//! The cost of a VM to its neighbours, and what it was refused on their account.
//!
//! Responsible for: copying that out, and a sentence about a share by weight. It leaves to others: the shares
//! themselves ([`super::pool`], [`super::turns`], [`super::scan_cpu`]).

use terrace_proto::snapshot::Neighbours;

use super::Shared;
use super::pool::size;
use super::vm::Vm;

impl Vm {
    /// The VM's cost to its neighbours.
    pub fn neighbours_view(&self, shared: &Shared) -> Neighbours {
        let right = shared.pool.right(self.id);
        let held = self.fast_bytes();
        let most = right.and_then(|_| shared.pool.most(self.id));
        let wants = self.size.demand_bytes(self.pages.unit_bytes());
        Neighbours {
            fair: shared.config.fair_shares,
            weight: self.size.weight,
            right_bytes: right,
            most_bytes: most,
            held_bytes: held,
            above_right_bytes: right.map_or(0, |right| held.saturating_sub(right)),
            moved_bytes: self.moving.spent.bytes,
            all_moved_bytes: shared.budget.spent,
            scan_cpu_ns: self.rounds.scans.spent_ns,
            all_scan_cpu_ns: shared.scans.spent_ns,
            refused_bytes: most.map_or(0, |most| wants.saturating_sub(most)),
            late_plans: self.moving.spent.held_up,
            late_plans_ns: self.moving.spent.held_up_ns,
            late_scans: self.rounds.scans.held_up,
            late_scans_ns: self.rounds.scans.held_up_ns,
        }
    }

    /// A sentence about the share of a VM without a nominal size; `None` if no VM shares the tier with it.
    pub fn part_text(&self, shared: &Shared) -> Option<String> {
        let right = shared
            .pool
            .right(self.id)
            .filter(|_| self.size.nominal == 0)?;
        let most = shared.pool.most(self.id)?;
        let lent = match most.saturating_sub(right) {
            more if more < self.pages.unit_bytes() => String::new(),
            more => format!(", {} of it lent by others", size(more)),
        };
        Some(format!(
            "may hold {} of fast memory{lent}: its share by weight {} is {}, has {}",
            size(most),
            self.size.weight,
            size(right),
            size(self.fast_bytes()),
        ))
    }
}
