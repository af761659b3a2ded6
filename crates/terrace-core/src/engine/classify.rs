//! From counts to proposals, and the end of a round.
//!
//! Responsible for: the room that a VM has, handing the units to the ranking, and summing the round up
//! (also whether it was quiet, vTMM §3.2.3). It leaves to others: the ranking ([`crate::place`]) and
//! the moves ([`super::moves`]).

use terrace_proto::snapshot::Round;
use terrace_proto::{PAGE_SIZE, Tick};

use super::Shared;
use super::refusal::MoveRefusal;
use super::rounds::Phase;
use super::vm::Vm;
use crate::estimate::{DEGREES, Estimator, Histogram, Seen};
use crate::place::{Flow, Room};
use crate::policy::Estimate;

impl Vm {
    /// Ranks the pages and takes over what is proposed.
    pub fn classify(&mut self, now: Tick, shared: &mut Shared) {
        let worth = self.pages.worth();
        if self.judge_guest(now, &worth) {
            return;
        }
        self.want(shared);
        let room = self.room(now, shared);
        // A round that only plans leaves all as it is.
        let ends = !self.rounds.plans_only();
        if ends {
            self.lift_tables();
            let samples = &mut self.observer.sampled;
            self.place.end_round(&mut self.pages, &room, samples);
            self.rounds.times.ranked_at = Some(now);
        }
        self.lay_tables(room.seen, ends);
        let proposal = self.place.propose(self.rounds.number, &self.pages, &room);
        self.rounds.worth.saves_ns = proposal.saves_ns;
        let unit_pages = self.pages.ram().unit().base_pages();
        self.spend_pace(&proposal.flows);
        let (up, down) = self.proposed_pages(&proposal.flows);
        if let Some(round) = &mut self.rounds.current {
            let r = proposal.ranking;
            round.classified_at = Some(now);
            round.known_pages = r.known * unit_pages;
            round.hot_pages = r.hot * unit_pages;
            round.hot_on_fast_before = r.hot_here * unit_pages;
            round.threshold_degree = r.threshold;
            round.degree_histogram = r.histogram.iter().map(|n| n * unit_pages).collect();
            round.proposed_promotions += up;
            round.proposed_demotions += down;
            round.split_units = self.pages.split_units;
            round.worth = worth;
        }
        self.moving.take(proposal.flows, &self.pages);
        self.rounds.phase = Phase::Moving { since: now };
        if self.rounds.plans_only() {
            self.hold_back(shared);
        } else if !self.may_move() {
            self.drop_waiting(MoveRefusal::MovesOff);
        }
    }

    /// The room that the VM has now.
    pub fn room(&mut self, now: Tick, shared: &Shared) -> Room {
        let unit = self.pages.unit_bytes();
        let paced = self.begin_migration(now);
        let pairs = self.pages.units() as u64 / shared.config.plan_share_divisor;
        let mut room = Room {
            // A tiny VM may still exchange a pair.
            most: 2 * pairs.max(1),
            paced: paced / unit,
            double_sided: self.size.exchanges,
            seen: self.seen(now, shared),
            ..Room::default()
        };
        for tier in self.tiers() {
            let (i, limit) = (tier.index(), self.settings.limit(tier));
            let (held, fit) = self.held_by_guest(tier).unwrap_or_else(|| {
                let held = self.pages.bytes(tier);
                let reachable = held.saturating_add(shared.free_for(self.id, tier));
                (held, self.ceiling(tier, shared).min(reachable))
            });
            room.held[i] = held / unit;
            room.fit[i] = fit / unit;
            room.floor[i] = limit.floor_bytes.div_ceil(unit);
        }
        room
    }

    /// Times of the round that ends.
    fn seen(&self, now: Tick, shared: &Shared) -> Seen {
        let begun = self.rounds.current.as_ref().map(|round| round.started_at);
        let since = self.rounds.times.ranked_at.or(begun).unwrap_or(now);
        Seen {
            windows: self.rhythm(&shared.config).windows,
            window_ns: self.rounds.times.window_ns,
            since_ns: now.0.saturating_sub(since.0),
        }
    }

    /// 4 KiB pages that flows take up and down.
    pub fn proposed_pages(&self, flows: &[Flow]) -> (u64, u64) {
        let (mut up, mut down) = (0, 0);
        for flow in flows {
            for &unit in &flow.units {
                let pages = self.moved_pages(unit);
                match self.pages.tier(unit) {
                    Some(from) if flow.to < from => up += pages,
                    Some(from) if flow.to > from => down += pages,
                    _ => {}
                }
            }
        }
        (up, down)
    }

    /// 4 KiB pages that move with a unit.
    pub fn moved_pages(&self, unit: u32) -> u64 {
        self.pages.extent(unit).len() as u64 * self.pages.ram().unit().base_pages()
    }

    /// All moves are reported or refused: the round is over.
    pub fn complete_round(&mut self, now: Tick, shared: &Shared) {
        if self.is_checking() {
            self.complete_put_back(now, shared);
            return;
        }
        self.rounds.phase = Phase::Waiting;
        let Some(mut round) = self.rounds.current.take() else {
            return;
        };
        round.ended_at = Some(now);
        round.hot_on_fast_after = self.hot_in_first_tier(&round, shared);
        round.refused = self.rounds.refused.shown();
        let quiet = !self.rounds.back_to_back && self.is_quiet(&round, shared);
        let rest = self.rest(now, &round, &shared.config);
        self.rounds.complete(now, round, quiet, rest);
        self.history.counters.rounds += 1;
        if let Some(round) = &self.rounds.last {
            let text = self.round_text(round, quiet, shared);
            self.history.say(now, text);
        }
    }

    /// Pages of a round's hot set that are in the first tier now. Among pages of the lowest hot degree,
    /// of which not all may be in the hot set, those in the first tier count as its part.
    fn hot_in_first_tier(&self, round: &Round, shared: &Shared) -> u64 {
        let estimator = Estimator::new(self.policy.estimate, &shared.config);
        let histogram = Histogram::tally(&self.pages, estimator, self.rounds.number);
        let threshold = usize::from(round.threshold_degree);
        let unit_pages = self.pages.ram().unit().base_pages();
        let (mut hotter, mut here) = (0, 0);
        for degree in threshold + 1..DEGREES {
            hotter += histogram.known_with(degree);
            here += histogram.known_in(0, degree);
        }
        let at_threshold = (round.hot_pages / unit_pages).saturating_sub(hotter);
        (here + histogram.known_in(0, threshold).min(at_threshold)) * unit_pages
    }

    /// Fewer bytes moved than are worth another scan soon. If nothing may move, what would have
    /// moved counts.
    fn is_quiet(&self, round: &Round, shared: &Shared) -> bool {
        let memory = self.pages.ram().pages() * PAGE_SIZE;
        let threshold = shared
            .config
            .quiet_bytes
            .min(memory / shared.config.quiet_vm_divisor);
        let bytes = if self.may_move() && round.planned.is_none() {
            round.moved_bytes
        } else {
            (round.proposed_promotions + round.proposed_demotions) * PAGE_SIZE
        };
        bytes < threshold
    }

    /// Pages that were accessed often enough, but for which the first tier has no room.
    fn without_room(&self, round: &Round, shared: &Shared) -> u64 {
        let least = match (self.policy.estimate, self.place.useful()) {
            (Estimate::PageDegree, _) => shared.config.min_hot_degree,
            (_, Some(useful)) => useful.least,
            _ => return 0,
        };
        let least = usize::from(least);
        let hot_enough: u64 = round.degree_histogram.iter().skip(least).sum();
        hot_enough.saturating_sub(round.hot_pages)
    }

    fn round_text(&self, round: &Round, quiet: bool, shared: &Shared) -> String {
        let mut text = format!(
            "round {}: {} of {} known pages are hot (degree {} and up); {} promoted, {} demoted, {} failed",
            round.number,
            round.hot_pages,
            round.known_pages,
            round.threshold_degree,
            round.promoted_pages,
            round.demoted_pages,
            round.failed_pages,
        );
        if round.mapped_by_others_pages > 0 {
            text += &format!(
                "; {} stay because other processes map them too (KSM, a template file)",
                round.mapped_by_others_pages
            );
        }
        let without_room = self.without_room(round, shared);
        if without_room > 0 {
            let are = match self.has_rates() {
                true => "are worth a move",
                false => "were accessed",
            };
            text += &format!("; {without_room} more {are}, but the first tier has no room");
        }
        if round.planned.is_some() {
            text += &format!(
                "; a plan only: {} would be promoted, {} demoted",
                round.proposed_promotions, round.proposed_demotions
            );
        }
        if self.rounds.refused.total() > 0 {
            text += &format!("; pages not moved: {}", self.rounds.refused.text());
        }
        if round.split_units > 0 {
            text += &format!(
                "; {} units of 2 MiB lay in more than one tier; each counts in the tier that held most of it",
                round.split_units
            );
        }
        if quiet {
            let periods = self.rounds.schedule.counter().max(1);
            let s = if periods == 1 { "" } else { "s" };
            text += &format!(
                "; {} KiB moved is little, the next round comes in {periods} period{s}",
                round.moved_bytes >> 10
            );
        }
        text
    }
}
