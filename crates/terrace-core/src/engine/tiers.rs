//! Free memory of the tiers, by a pessimistic account.
//!
//! Responsible for: the machine's free memory between two reports of it, what all VMs hold, and what is
//! on its way. It leaves to others: limits of single VMs.
//!
//! Free memory is what the machine reported last, less what our moves put there since, plus what they
//! took away if the report cannot have seen it yet. A plan that was already under way when the
//! report came may or may not be in it: what it freed is not counted until the next report.

use terrace_proto::{TierId, TierMemory};

use crate::config::EngineConfig;

#[derive(Debug, Default)]
struct Tier {
    capacity: Option<u64>,
    reserve: u64,
    total: Option<u64>,
    free: Option<u64>,
    /// Bytes that all VMs hold.
    held: u64,
    /// Bytes that plans under way bring.
    coming: u64,
    /// Bytes freed by our moves that `free` leaves out.
    uncredited: u64,
}

#[derive(Debug)]
pub(crate) struct Tiers {
    tiers: Vec<Tier>,
    /// Number of reports so far.
    reports: u64,
}

impl Tiers {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let tier = |c: &crate::TierConfig| Tier {
            capacity: c.capacity_bytes,
            reserve: c.reserve_bytes,
            ..Tier::default()
        };
        Self {
            tiers: config.tiers.iter().map(tier).collect(),
            reports: 0,
        }
    }

    pub(crate) fn reports(&self) -> u64 {
        self.reports
    }

    /// Takes over a report; tiers that the engine does not have are left out.
    pub(crate) fn report(&mut self, memory: &[TierMemory]) {
        self.reports += 1;
        for m in memory {
            if let Some(tier) = self.tiers.get_mut(m.tier.index()) {
                tier.total = Some(m.total_bytes);
                tier.free = Some(m.free_bytes);
                tier.uncredited = 0;
            }
        }
    }

    /// Bytes that may still be brought into a tier; 0 if nothing was reported about it.
    pub(crate) fn free(&self, id: TierId) -> u64 {
        self.free_with(id, |_| 0)
    }

    /// The same after the next report, as far as our moves change it.
    pub(crate) fn soon_free(&self, id: TierId) -> u64 {
        self.free_with(id, |tier| tier.uncredited)
    }

    fn free_with(&self, id: TierId, more: impl Fn(&Tier) -> u64) -> u64 {
        let Some(tier) = self.tiers.get(id.index()) else {
            return 0;
        };
        let reported = tier.free.map(|f| f.saturating_add(more(tier)));
        let reported = reported.map(|f| f.saturating_sub(tier.reserve));
        let configured = tier.capacity.map(|c| c.saturating_sub(tier.held));
        let free = match (reported, configured) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b).unwrap_or(0),
        };
        free.saturating_sub(tier.coming)
    }

    /// Whether moves freed memory there that the next report will show.
    pub(crate) fn awaits_report(&self, id: TierId) -> bool {
        self.tiers
            .get(id.index())
            .is_some_and(|t| t.free.is_some() && t.uncredited > 0)
    }

    /// As reported: all bytes of the tier, and those free.
    pub(crate) fn reported(&self, id: TierId) -> (Option<u64>, Option<u64>) {
        self.tiers
            .get(id.index())
            .map_or((None, None), |t| (t.total, t.free))
    }

    /// A VM holds so many bytes more or less, by what was found, not by a move.
    pub(crate) fn found(&mut self, id: TierId, before: u64, after: u64) {
        if let Some(tier) = self.tiers.get_mut(id.index()) {
            tier.held = (tier.held + after).saturating_sub(before);
        }
    }

    /// A VM holds so many bytes more or less after a plan that was issued after `reports` reports.
    pub(crate) fn moved(&mut self, id: TierId, before: u64, after: u64, reports: u64) {
        self.found(id, before, after);
        let seen_all = reports == self.reports;
        let Some(tier) = self.tiers.get_mut(id.index()) else {
            return;
        };
        if after > before {
            tier.free = tier.free.map(|f| f.saturating_sub(after - before));
        } else if seen_all {
            tier.free = tier.free.map(|f| f.saturating_add(before - after));
        } else {
            tier.uncredited += before - after;
        }
    }

    /// A plan brings so many bytes.
    pub(crate) fn expect(&mut self, id: TierId, bytes: u64) {
        if let Some(tier) = self.tiers.get_mut(id.index()) {
            tier.coming += bytes;
        }
    }

    /// Ends the wait for them: they came, or will not come.
    pub(crate) fn settle(&mut self, id: TierId, bytes: u64) {
        if let Some(tier) = self.tiers.get_mut(id.index()) {
            tier.coming = tier.coming.saturating_sub(bytes);
        }
    }

    /// The VM of a plan under way is gone: its bytes may still come, unreported.
    pub(crate) fn orphan(&mut self, id: TierId, bytes: u64) {
        self.settle(id, bytes);
        if let Some(tier) = self.tiers.get_mut(id.index()) {
            tier.free = tier.free.map(|f| f.saturating_sub(bytes));
        }
    }

    /// The kernel found no free page there: nothing more until the next report.
    pub(crate) fn exhausted(&mut self, id: TierId) {
        if let Some(tier) = self.tiers.get_mut(id.index()) {
            tier.free = tier.free.map(|_| 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: TierId = TierId::FAST;

    fn tiers(capacity: Option<u64>, reserve: u64) -> Tiers {
        let mut config = EngineConfig::default();
        config.tiers[0].capacity_bytes = capacity;
        config.tiers[0].reserve_bytes = reserve;
        Tiers::new(&config)
    }

    fn report(tiers: &mut Tiers, free_bytes: u64) {
        tiers.report(&[TierMemory {
            tier: FAST,
            total_bytes: 1000,
            free_bytes,
        }]);
    }

    #[test]
    fn nothing_is_free_before_anybody_said_so() {
        assert_eq!(tiers(None, 0).free(FAST), 0);
        assert_eq!(tiers(Some(50), 0).free(FAST), 50);
    }

    #[test]
    fn capacity_is_the_lesser_of_limit_and_report_less_reserve() {
        let mut t = tiers(Some(500), 10);
        report(&mut t, 400);
        t.found(FAST, 0, 200);
        assert_eq!(t.free(FAST), 300);
        report(&mut t, 100);
        t.expect(FAST, 40);
        assert_eq!(t.free(FAST), 50);
    }

    #[test]
    fn what_a_departed_vm_had_under_way_may_still_come() {
        let mut t = tiers(None, 0);
        report(&mut t, 100);
        t.expect(FAST, 30);
        t.orphan(FAST, 30);
        assert_eq!(t.free(FAST), 70);
        report(&mut t, 100);
        assert_eq!(t.free(FAST), 100);
    }

    #[test]
    fn what_a_plan_freed_before_a_report_is_not_counted_twice() {
        let mut t = tiers(None, 0);
        report(&mut t, 100);
        let issued = t.reports();
        report(&mut t, 130);
        t.moved(FAST, 80, 50, issued);
        assert_eq!((t.free(FAST), t.soon_free(FAST)), (130, 160));
        assert!(t.awaits_report(FAST));
        report(&mut t, 130);
        assert!(!t.awaits_report(FAST));
        t.moved(FAST, 50, 20, t.reports());
        assert_eq!(t.free(FAST), 160);
    }
}
