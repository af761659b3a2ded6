//! The round's state machine: placement, clearing pass, windows, ranking, moves (vTMM §3.2).
//!
//! Responsible for: what follows what, and when. It leaves to others: what a window's bits mean
//! ([`crate::track`]), ranking and the round's end ([`super::classify`]), moves ([`super::moves`]).
//!
//! **Length of a window.** A scan clears accessed bits as it goes, so a page's window runs from one
//! pass over it to the next. The next scan starts one window after the pass before it *began*: when its
//! answer came less the time that the pass reports, but not before it was asked for. So neither a
//! pass that had to wait nor a late answer shortens the window that follows, and the time that passes
//! take does not lengthen the round.

use std::time::Duration;

use terrace_proto::{
    Action, Gfn, PAGE_SIZE, PlacementReport, Rearm, RequestId, ScanAnswer, ScanFailure,
    ScanRequest, ScanStats, Space, Tick,
};

use terrace_proto::action::PlacementQuery;

use super::Shared;
use super::refusal::MoveRefusal;
use super::rounds::Phase;
use super::vm::Vm;

/// The longest window that a pass's cost makes.
const LONGEST_STRETCHED: Duration = Duration::from_secs(600);

/// Hundredths in words: "50", "0.25".
fn hundredths(n: u64) -> String {
    match n % 100 {
        0 => (n / 100).to_string(),
        part => format!("{}.{part:02}", n / 100),
    }
}

impl Vm {
    /// A round that only plans changes nothing for the ones to come.
    pub fn start_round(&mut self, now: Tick, plan_only: bool, shared: &mut Shared) {
        self.rounds.begin(now, plan_only);
        self.pages.clear_heat(!self.remembers());
        self.pages.split_units = 0;
        if !plan_only {
            self.pages.pass_cool_down();
        }
        if self.knows_tiers() {
            self.place_by_nodes(shared);
            self.begin_scans(now, shared);
            return;
        }
        if self.goes_by_known_places(now, plan_only) {
            self.begin_scans(now, shared);
            return;
        }
        let request = shared.request();
        shared.act(Action::QueryPlacement(PlacementQuery {
            id: request,
            vm: self.id,
        }));
        self.rounds.phase = Phase::Placing {
            request,
            since: now,
            next_page: 0,
            asked: now,
        };
    }

    /// A report of where pages are. Reports come in ascending order; what they leave out is absent.
    pub fn placement(&mut self, now: Tick, report: &PlacementReport, shared: &mut Shared) {
        let Phase::Placing {
            request,
            next_page,
            asked,
            ..
        } = self.rounds.phase
        else {
            self.history.counters.stale_answers += 1;
            return;
        };
        if request != report.id {
            self.history.counters.stale_answers += 1;
            return;
        }
        let before = self.held();
        let start = report.start.0;
        let end = start.saturating_add(report.codes.len() as u64);
        if start > next_page {
            self.pages.place_absent(Gfn(next_page), start - next_page);
        }
        let codes = self.codes_for(&report.codes);
        self.pages.place_run(report.start, &codes);
        let next_page = next_page.max(end);
        if report.last {
            self.pages.place_absent(Gfn(next_page), u64::MAX);
        }
        self.found_since(before, &mut shared.tiers);
        let after = self.held();
        let memory_bytes = self.pages.ram().pages() * PAGE_SIZE;
        let places = &mut self.rounds.times.places;
        places.found(before, after);
        if !report.last {
            self.rounds.phase = Phase::Placing {
                request,
                since: now,
                next_page,
                asked,
            };
            return;
        }
        places.answered(asked, now, memory_bytes);
        if self.put_back(now) {
            self.begin_scans(now, shared);
        }
    }

    /// Begins with the clearing pass, now that pages' places are known.
    fn begin_scans(&mut self, now: Tick, shared: &mut Shared) {
        if self.observes() {
            self.divide_round(&shared.config);
            self.clear(now, shared);
        } else {
            self.pages.set_all_known();
            self.classify(now, shared);
        }
    }

    /// Clears the bits of all pages, or of the part whose turn it is.
    pub fn clear(&mut self, now: Tick, shared: &mut Shared) {
        self.rounds.writes_seen_in = 0;
        let request = self.scan(shared, Rearm::All, false, true);
        self.rounds.phase = Phase::Clearing {
            request,
            since: now,
        };
    }

    fn scan(&self, shared: &mut Shared, rearm: Rearm, prune: bool, discover: bool) -> RequestId {
        let clear = rearm != Rearm::None;
        if let Some(id) = self.scan_part(clear, prune, discover, shared) {
            return id;
        }
        let id = shared.request();
        shared.act(Action::Scan(ScanRequest {
            id,
            space: Space::Guest(self.id),
            rearm,
            prune,
            discover,
        }));
        id
    }

    pub fn scanned(&mut self, now: Tick, answer: &ScanAnswer, shared: &mut Shared) {
        if self.aged(now, answer, shared) {
            return;
        }
        let Some((window, since)) = self.pass_under_way(answer.id) else {
            self.history.counters.stale_answers += 1;
            return;
        };
        if !self.fits(answer) || self.rounds.parts.is_some() {
            self.malformed(now);
            return;
        }
        self.observer.coarse.hear(answer, window == 0);
        if window > 0 {
            let covered = window - self.rounds.writes_seen_in;
            self.observer
                .tracker
                .record(&mut self.pages, window, answer, covered);
        }
        if window == self.rhythm(&shared.config).windows {
            self.pages.set_known(&answer.known);
        }
        self.pass_ended(
            now,
            window,
            since,
            &answer.stats,
            answer.written.is_some(),
            shared,
        );
    }

    /// The window that the pass with that request ends (0: it clears), and when it was asked for; `None` if none is under way.
    pub fn pass_under_way(&self, id: RequestId) -> Option<(u8, Tick)> {
        match self.rounds.phase {
            Phase::Clearing { request, since } if request == id => Some((0, since)),
            Phase::Scanning {
                window,
                request,
                since,
            } if request == id => Some((window, since)),
            _ => None,
        }
    }

    /// Gives the round up over an answer that cannot be about this VM, or about what was asked.
    pub fn malformed(&mut self, now: Tick) {
        self.history.counters.malformed_answers += 1;
        self.abandon(now, "a scan's answer does not fit the VM's memory");
    }

    /// Accounts for a pass that was taken in, and goes on: to the next window, to the next part, or to the ranking.
    pub fn pass_ended(
        &mut self,
        now: Tick,
        window: u8,
        since: Tick,
        stats: &ScanStats,
        tells_writes: bool,
        shared: &mut Shared,
    ) {
        self.add_cost(stats);
        let cost = self.bill_pass(stats.cpu_ns, window == 0, shared);
        if window > 0 {
            if tells_writes {
                self.rounds.writes_seen_in = window;
            }
            if let Some(round) = &mut self.rounds.current {
                round.writes_seen = tells_writes;
            }
        }
        let began = Tick(now.0.saturating_sub(stats.elapsed_ns)).max(since);
        if window == 0 {
            self.rounds.times.cleared_at = began;
        }
        let windows = self.rhythm(&shared.config).windows;
        if window == windows {
            let all = began.0.saturating_sub(self.rounds.times.cleared_at.0);
            self.rounds.times.window_ns = all / u64::from(windows.max(1));
            if self.next_part(now, shared) {
                return;
            }
            if let Some(mapped) = self.mapped_by_parts() {
                self.pages.set_known(&mapped);
            }
            self.age_by_round(now, shared);
            self.classify(now, shared);
        } else {
            let ends_at = self.window_end(began, cost, shared).max(now);
            self.rounds.phase = Phase::Window {
                window: window + 1,
                ends_at,
            };
        }
    }

    /// Whether an answer is about this VM's memory.
    pub fn fits(&self, answer: &ScanAnswer) -> bool {
        let span = self.pages.ram().span_pages();
        let written = answer.written.as_ref().is_none_or(|w| w.pages() == span);
        answer.space == Space::Guest(self.id)
            && answer.known.pages() == span
            && answer.accessed.pages() == span
            && written
    }

    fn add_cost(&mut self, s: &ScanStats) {
        let Some(round) = &mut self.rounds.current else {
            return;
        };
        let cost = &mut round.scan;
        cost.scans += 1;
        for (sum, n) in [
            (&mut cost.elapsed_ns, s.elapsed_ns),
            (&mut cost.cpu_ns, s.cpu_ns),
            (&mut cost.leaves, s.leaves),
            (&mut cost.accessed, s.accessed),
            (&mut cost.cleared, s.cleared),
            (&mut cost.pruned, s.pruned),
        ] {
            *sum = sum.saturating_add(n);
        }
    }

    /// When the window after a pass ends that began then and cost so much CPU time.
    fn window_end(&mut self, began: Tick, cpu_ns: u64, shared: &mut Shared) -> Tick {
        let window = self.rhythm(&shared.config).window;
        let (affordable, part) = self.affordable(cpu_ns, shared);
        // A worker's word for what a pass cost ends no VM's rounds.
        let affordable = affordable.min(LONGEST_STRETCHED);
        if self.gives(shared) {
            return began.after(window);
        }
        let own = u64::from(shared.config.scan_cpu_share_max_percent);
        if affordable > window
            && let Some(round) = &mut self.rounds.current
        {
            round.scan.stretched_windows += 1;
            let is_first = round.scan.stretched_windows == 1;
            let whose = match part < own * 10_000 {
                true => ", its part of what all scans may take",
                false => "",
            };
            if part < own * 10_000 {
                let alone = Duration::from_nanos(cpu_ns.saturating_mul(100) / own).max(window);
                let longer = affordable.saturating_sub(alone).as_nanos();
                let sum = &mut self.rounds.scans.held_up_ns;
                *sum = sum.saturating_add(u64::try_from(longer).unwrap_or(u64::MAX));
                self.rounds.scans.held_up += 1;
            }
            let what = match self.rounds.parts {
                Some(_) => "a scan of a part",
                None => "a scan",
            };
            let after = u64::try_from(affordable.as_nanos()).unwrap_or(u64::MAX);
            let text = format!(
                "{what} took {} ms of CPU time; the next comes after {} ms to stay within {} % of a CPU{whose}",
                hundredths(cpu_ns / 10_000),
                hundredths(after / 10_000),
                hundredths(part / 100),
            );
            // Windows that follow each other all day, or in hundreds, would push every other reason out: one a round speaks
            // for all.
            let many = self.rounds.back_to_back || self.rounds.parts.is_some();
            if !many || is_first {
                self.history.say(shared.now, text);
            }
        }
        began.after(window.max(affordable))
    }

    pub fn scan_failed(&mut self, now: Tick, failure: &ScanFailure, shared: &mut Shared) {
        self.bill_failure(shared);
        let open = match self.rounds.phase {
            // If the query of the placement failed, pages count as where they were last seen.
            Phase::Placing { request, .. }
            | Phase::Clearing { request, .. }
            | Phase::Scanning { request, .. } => Some(request),
            _ => None,
        };
        if open != Some(failure.id) && !failure.fatal {
            self.history.counters.stale_answers += 1;
            return;
        }
        self.history.counters.scan_failures += 1;
        self.abandon(now, &failure.reason);
        if failure.fatal && self.observes() && self.rounds.phase != Phase::Unmanaged {
            self.rounds.phase = Phase::Unscannable {
                reason: failure.reason.clone(),
            };
            let text = format!("only observed from now on: {}", failure.reason);
            self.history.say(now, text);
        }
    }

    /// Gives the round under way up, if there is one; plans under way stay so until reported.
    pub fn abandon(&mut self, now: Tick, why: &str) {
        self.drop_waiting(MoveRefusal::RoundEnded);
        if let Some(round) = self.rounds.abandon(now, why) {
            self.history.counters.rounds_abandoned += 1;
            self.history
                .say(now, format!("round {round} is given up: {why}"));
        }
    }

    /// Does what is due by now.
    pub fn advance(&mut self, now: Tick, shared: &mut Shared) {
        if self.settings.paused {
            return;
        }
        self.migrate(now, shared);
        let timeout = Duration::from_millis(shared.config.answer_timeout_ms);
        match self.rounds.phase {
            Phase::Waiting => self.tick(now, shared),
            Phase::Window { window, ends_at } if ends_at <= now => {
                self.end_window(now, window, shared);
            }
            Phase::Placing { since, .. } if since.after(timeout) <= now => {
                self.abandon(now, "the placement of its pages was not answered in time");
            }
            Phase::Clearing { since, .. } | Phase::Scanning { since, .. }
                if since.after(timeout) <= now =>
            {
                self.abandon(now, "a scan was not answered in time");
            }
            Phase::Moving { since } => self.go_on_moving(now, since.after(timeout), shared),
            _ => {}
        }
        self.advance_ages(now, shared);
    }

    fn tick(&mut self, now: Tick, shared: &mut Shared) {
        let due = self.rounds.scans.due.max(self.rounds.schedule.next());
        if due <= now && self.rounds.schedule.tick(now) {
            self.start_round(now, false, shared);
        }
    }

    fn end_window(&mut self, now: Tick, window: u8, shared: &mut Shared) {
        let every = shared.config.full_pass_every;
        let last = self.rhythm(&shared.config).windows;
        let full = window == last || (every > 0 && window.is_multiple_of(every));
        // What the tracker left out counts as a visit whatever its bits are, so re-arming more of it
        // changes no visit.
        let rearm = if self.rounds.parts.is_some() {
            // The next round clears each part before its windows.
            match window < last {
                true => Rearm::All,
                false => Rearm::None,
            }
        } else if shared.config.rearm_all {
            Rearm::All
        } else {
            self.observer.tracker.rearm(&self.pages, window)
        };
        if window == last {
            self.ask_for_tables(shared);
        }
        let request = self.scan(shared, rearm, !full, false);
        self.rounds.phase = Phase::Scanning {
            window,
            request,
            since: now,
        };
    }

    /// When [`Self::advance`] has something to do.
    pub fn timeout(&self, config: &crate::EngineConfig) -> Option<Tick> {
        if self.settings.paused {
            return None;
        }
        let round = self.rounds.timeout(self.moving.tokens_at, config);
        let ages = self.ages_timeout(config);
        let all = round.into_iter().chain(self.next_migration()).chain(ages);
        all.min()
    }

    /// Starts a round at an operator's word, off the schedule.
    pub fn round_now(&mut self, now: Tick, plan_only: bool, shared: &mut Shared) {
        let obstacle = match &self.rounds.phase {
            _ if self.settings.paused => "it is paused".to_string(),
            _ if self.unmapped => "the location of its RAM is not known".to_string(),
            // An operator who changed something may try a VM again that could not be scanned.
            Phase::Waiting | Phase::Unscannable { .. } => {
                self.start_round(now, plan_only, shared);
                return;
            }
            Phase::Unmanaged => format!("the policy {} has no rounds", self.policy.name.name()),
            _ => format!("round {} is under way", self.rounds.number),
        };
        self.history.say(now, format!("no round now: {obstacle}"));
    }
}
