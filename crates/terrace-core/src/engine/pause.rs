//! The pause after a round of a policy that scans all the time, and how much of the next one it makes.
//!
//! Responsible for: what a round costs beside what its moves save. It leaves to others: that sum ([`crate::place`]), and the CPU
//! budget of scans ([`super::scan_cpu`]).

use std::time::Duration;

use terrace_proto::Tick;
use terrace_proto::snapshot::Round;

use super::rounds::RoundsWorth;
use super::vm::Vm;
use crate::config::EngineConfig;

/// A round whose moves are expected to save a hundred times its cost: places are far from what they should be.
const REPAYS_MUCH: u64 = 100;
/// So many rounds in a row come at once at most. What scans do not cost, ranking and finding pages' places, has no other bound, and a guest can look for ever
/// as if moves saved much.
const MOST_AT_ONCE: u32 = 8;
/// Time that it takes the VM to set a bit again that a scan cleared, ns: a prior.
const SET_BIT_NS: u64 = 100;
/// A sample takes so long, ns: a prior.
const SAMPLE_NS: u64 = 300;
/// A page's part of a round's end, ns: an estimate. Averages and ranking are 8 to 9 of it by `terrace bench`.
const RANK_NS: u64 = 15;
/// Usually rounds begin no sooner than this after each other, ns.
const USUAL_NS: u64 = 1_000_000_000;
/// Never sooner than this, ns.
const SOONEST_NS: u64 = 100_000_000;
/// So many rounds in a row are usual ones because the load fell. Averages of a VM that nobody uses fall for hours.
const MOST_FALLEN: u32 = 60;
/// The pause after rounds that do not repay their cost is doubled so often at most, because a new hot set is to be found within seconds.
const MOST_DOUBLINGS: u32 = 3;
/// Pauses grow no longer than this by that, ns.
const RAREST_NS: u64 = 8_000_000_000;
/// Samples that do not repay theirs are halved so often at most.
const MOST_HALVINGS: u32 = 4;
/// The longest pause.
const MOST_REST: Duration = Duration::from_secs(60);

impl Vm {
    /// The pause after a round, of a policy that scans all the time. Scans, ranking, and finding pages' places take one percent of the VM's processors'
    /// time at most. What the round saves decides, too, if that is configured.
    pub fn rest(&mut self, now: Tick, round: &Round, config: &EngineConfig) -> Duration {
        if !self.has_rates() || round.planned.is_some() {
            return Duration::ZERO;
        }
        let units = self.pages.units() as u64;
        let other_ns = std::mem::take(&mut self.rounds.times.places.unpaid_ns);
        let other_ns = other_ns.saturating_add(units * RANK_NS);
        let cost_ns = round.scan.cpu_ns.saturating_add(other_ns);
        let (least_ns, apart) = match config.terrace.pace {
            true => self.apart(round, cost_ns),
            false => (USUAL_NS, 1),
        };
        let paid = self.rounds.scans.one_percent_ns(cost_ns, config);
        let paid = paid.max(least_ns);
        let rare = paid.saturating_mul(apart);
        let paid = paid.max(rare.min(RAREST_NS));
        let took = now.0.saturating_sub(round.started_at.0);
        // A worker's word for what it cost ends no VM's rounds.
        Duration::from_nanos(paid.saturating_sub(took)).min(MOST_REST)
    }

    /// By what the round saves beside what it cost: the least time between rounds, ns, and how many times as far apart they are as their work wants.
    fn apart(&mut self, round: &Round, work_ns: u64) -> (u64, u64) {
        let bits_ns = round.scan.cleared.saturating_mul(SET_BIT_NS);
        let cost_ns = work_ns.saturating_add(bits_ns);
        let (samples, apart) = match &mut self.observer.sampled {
            Some(sampled) => (sampled.take_heard(), sampled.rounds_apart()),
            None => (0, 1),
        };
        let has_fallen = self.place.useful().is_some_and(|useful| useful.fallen > 0);
        let worth = &mut self.rounds.worth;
        worth.judge(cost_ns, samples.saturating_mul(SAMPLE_NS));
        if worth.follows(has_fallen) {
            worth.doublings = 0;
        }
        let moved = round.promoted_pages + round.demoted_pages > 0;
        match worth.is_urgent(cost_ns, moved) {
            true => (SOONEST_NS, 1),
            // Where samples say more, scans may be rare.
            false => (USUAL_NS, apart.max(1 << worth.doublings)),
        }
    }
}

impl RoundsWorth {
    /// Whether the round's moves save so many times a cost.
    fn repays(&self, cost_ns: u64, times: u64) -> bool {
        self.saves_ns > cost_ns.saturating_mul(times)
    }

    /// Whether the next round comes at once: pages moved, and that saves much.
    fn is_urgent(&mut self, cost_ns: u64, moved: bool) -> bool {
        self.at_once = match moved && self.repays(cost_ns, REPAYS_MUCH) {
            true => self.at_once.saturating_add(1),
            false => 0,
        };
        (1..=MOST_AT_ONCE).contains(&self.at_once)
    }

    /// Whether the round is one of those by which averages follow a load that fell: what is known of the pages is of another one until then.
    fn follows(&mut self, has_fallen: bool) -> bool {
        self.fallen = match has_fallen {
            true => self.fallen.saturating_add(1),
            false => 0,
        };
        (1..=MOST_FALLEN).contains(&self.fallen)
    }

    /// Makes rounds rarer whose scans are not repaid, and samples that are not.
    fn judge(&mut self, cost_ns: u64, samples_ns: u64) {
        self.doublings = match self.repays(cost_ns, 1) {
            true => 0,
            false => MOST_DOUBLINGS.min(self.doublings + 1),
        };
        self.halvings = match self.repays(samples_ns, 1) {
            true => self.halvings.saturating_sub(1),
            false => MOST_HALVINGS.min(self.halvings + 1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_do_not_repay_become_rarer_and_shorter() {
        let mut worth = RoundsWorth::default();
        for doublings in [1, 2, 3, 3, 3] {
            worth.saves_ns = 1_000;
            worth.judge(1_000, 0);
            assert_eq!(worth.doublings, doublings);
        }
        worth.fewer = worth.doublings;
        assert_eq!(
            [1, 2, 8, 30].map(|usual| worth.windows(usual)),
            [1, 2, 4, 4]
        );
        worth.saves_ns = 1_001;
        worth.judge(1_000, 0);
        worth.fewer = worth.doublings;
        assert_eq!((worth.doublings, worth.windows(8)), (0, 8));
    }

    #[test]
    fn samples_that_do_not_repay_are_halved_step_by_step() {
        let mut worth = RoundsWorth::default();
        let mut after = |saves_ns| {
            worth.saves_ns = saves_ns;
            worth.judge(0, 1_000);
            worth.halvings
        };
        assert_eq!([0; 6].map(&mut after), [1, 2, 3, 4, 4, 4]);
        assert_eq!([5_000; 5].map(&mut after), [3, 2, 1, 0, 0]);
    }

    #[test]
    fn rounds_that_always_save_much_come_at_once_eight_times() {
        let mut worth = RoundsWorth {
            saves_ns: 1_000_000,
            ..RoundsWorth::default()
        };
        let at_once = (0..100).filter(|_| worth.is_urgent(1, true)).count();
        assert_eq!(at_once, 8);
        assert!(!worth.is_urgent(1_000_000, true) && worth.is_urgent(1, true));
        // Nothing moves where moves are off or refused.
        assert!(!worth.is_urgent(1, false));
    }

    #[test]
    fn a_load_that_fell_is_followed_for_so_many_rounds() {
        let mut worth = RoundsWorth::default();
        let followed = (0..1000).filter(|_| worth.follows(true)).count();
        assert_eq!(followed, 60);
        assert!(!worth.follows(false) && worth.follows(true));
    }

    #[test]
    fn costs_that_a_worker_makes_up_overflow_nothing() {
        let mut worth = RoundsWorth {
            saves_ns: u64::MAX,
            ..RoundsWorth::default()
        };
        worth.judge(u64::MAX, u64::MAX);
        assert_eq!((worth.doublings, worth.halvings), (1, 1));
    }
}
