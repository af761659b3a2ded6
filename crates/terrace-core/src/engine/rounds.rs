//! The state of a VM's rounds: the phase, the schedule, and the summaries of the current round and the last one.
//!
//! Responsible for: what begins and ends with a round. It leaves to others: what follows what within one
//! ([`super::round`]), and what a round finds.

use std::time::Duration;

use terrace_proto::snapshot::Round;
use terrace_proto::{RequestId, Tick};

use super::intermittent::Intermittent;
use super::known_places::KnownPlaces;
use super::parts::Parts;
use super::refusal::Refusals;
use super::rhythm::Rhythm;
use super::scan_cpu::ScanAccount;
use crate::config::EngineConfig;

/// The phase of a VM's round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Unmanaged,
    Waiting,
    Placing {
        request: RequestId,
        since: Tick,
        /// Pages before this one were reported.
        next_page: u64,
        /// The time of the question.
        asked: Tick,
    },
    Clearing {
        request: RequestId,
        since: Tick,
    },
    Window {
        window: u8,
        ends_at: Tick,
    },
    Scanning {
        window: u8,
        request: RequestId,
        since: Tick,
    },
    Moving {
        /// Last progress.
        since: Tick,
    },
    Unscannable {
        reason: String,
    },
}

/// Windows that a round has at least, if rounds usually have so many.
const FEWEST_WINDOWS: u8 = 4;

/// The times of a VM's windows, as they were.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// The beginning of the clearing pass before the round's first window.
    pub cleared_at: Tick,
    /// Mean length of the round's windows, ns.
    pub window_ns: u64,
    /// The time of the last ranking.
    pub ranked_at: Option<Tick>,
    /// For how long pages' places are known.
    pub places: KnownPlaces,
}

/// The worth of a VM's rounds, under a policy that scans all the time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundsWorth {
    /// Rounds in a row that found the load fallen.
    pub fallen: u32,
    /// The time that the moves of the round under way are expected to save, ns.
    pub saves_ns: u64,
    /// The pause after a round is doubled so often, because rounds save little.
    pub doublings: u32,
    /// The windows of the round under way or, between rounds, of the last one are halved so often, for the same reason.
    pub fewer: u32,
    /// Rounds in a row that saved much.
    pub at_once: u32,
    /// Samples are halved so often, because moves save less than samples take.
    pub halvings: u32,
}

impl RoundsWorth {
    /// Windows of a round that usually has so many.
    pub fn windows(self, usual: u8) -> u8 {
        (usual >> self.fewer.min(7)).max(FEWEST_WINDOWS).min(usual)
    }
}

/// A VM's rounds.
#[derive(Debug)]
pub(crate) struct Rounds {
    pub phase: Phase,
    /// Number of the round under way or, between rounds, the last one; 0 before the first.
    pub number: u64,
    pub schedule: Intermittent,
    /// A round begins when the last one ended, not by the schedule; after one that was given up the schedule counts.
    pub back_to_back: bool,
    /// The cost of scans, and the time from which the next round is paid for.
    pub scans: ScanAccount,
    /// The parts of memory that the round under way looks at in turn, if it does.
    pub parts: Option<Box<Parts>>,
    /// Window of this round in which a source of writes spoke last; 0: the clearing pass, which arms it.
    pub writes_seen_in: u8,
    /// The times of its windows.
    pub times: Times,
    pub worth: RoundsWorth,
    /// The round under way.
    pub current: Option<Round>,
    /// The last round that ended.
    pub last: Option<Round>,
    /// Refusals of the round under way.
    pub refused: Refusals,
}

impl Rounds {
    /// None yet; none ever if the policy leaves pages where they are.
    pub fn new(now: Tick, stays: bool, rhythm: Rhythm, config: &EngineConfig) -> Self {
        Self {
            phase: if stays {
                Phase::Unmanaged
            } else {
                Phase::Waiting
            },
            number: 0,
            schedule: schedule_from(now, rhythm, config),
            back_to_back: rhythm.back_to_back,
            scans: ScanAccount::default(),
            parts: None,
            writes_seen_in: 0,
            times: Times::default(),
            worth: RoundsWorth::default(),
            current: None,
            last: None,
            refused: Refusals::default(),
        }
    }

    /// Starts the schedule anew, by another rhythm.
    pub fn restart(&mut self, now: Tick, rhythm: Rhythm, config: &EngineConfig) {
        self.schedule = schedule_from(now, rhythm, config);
        self.times.places = KnownPlaces::default();
        if self.phase != Phase::Unmanaged {
            self.phase = Phase::Waiting;
        }
    }

    /// Opens the summary of the next round.
    pub fn begin(&mut self, now: Tick, plan_only: bool) {
        self.number += 1;
        self.current = Some(Round {
            number: self.number,
            started_at: now,
            writes_seen: true,
            planned: plan_only.then(Vec::new),
            ..Round::default()
        });
        self.refused = Refusals::default();
        self.writes_seen_in = 0;
        // Who asks for a plan wants all that a round can tell.
        self.worth.fewer = match plan_only {
            true => 0,
            false => self.worth.doublings,
        };
    }

    /// Gives the round under way up; gives its number, if there is one.
    pub fn abandon(&mut self, now: Tick, why: &str) -> Option<u64> {
        if !self.is_scheduled() {
            return None;
        }
        self.phase = Phase::Waiting;
        self.parts = None;
        self.schedule.skip_ticks(now);
        let mut round = self.current.take()?;
        round.ended_at = Some(now);
        round.abandoned = Some(why.into());
        round.refused = self.refused.shown();
        let number = round.number;
        self.last = Some(round);
        Some(number)
    }

    /// Closes a round's summary. A round that only planned does not count for the schedule.
    pub fn complete(&mut self, now: Tick, round: Round, quiet: bool, rest: Duration) {
        if round.planned.is_none() {
            self.schedule.round_done(quiet);
        }
        if self.back_to_back {
            self.schedule.set_next(now.after(rest));
        } else {
            self.schedule.skip_ticks(now);
        }
        self.last = Some(round);
    }

    /// Rounds come by the schedule.
    pub fn is_scheduled(&self) -> bool {
        !matches!(self.phase, Phase::Unmanaged | Phase::Unscannable { .. })
    }

    /// Between the clearing pass and the last window.
    pub fn is_scanning(&self) -> bool {
        matches!(
            self.phase,
            Phase::Clearing { .. } | Phase::Window { .. } | Phase::Scanning { .. }
        )
    }

    /// The round under way must not move anything.
    pub fn plans_only(&self) -> bool {
        let planned = self.current.as_ref().map(|round| &round.planned);
        planned.is_some_and(Option::is_some)
    }

    /// The summary of the round under way, if it is that one: late reports count for no round.
    pub fn under_way(&mut self, number: u64) -> Option<&mut Round> {
        self.current.as_mut().filter(|r| r.number == number)
    }

    /// The newest round that has ranked the VM's pages.
    pub fn ranked(&self) -> Option<&Round> {
        let mut rounds = self.current.iter().chain(&self.last);
        rounds.find(|round| round.classified_at.is_some())
    }

    /// The newest round that has ranked them by more than one scan.
    pub fn measured(&self) -> Option<&Round> {
        let mut rounds = self.current.iter().chain(&self.last);
        rounds.find(|round| round.classified_at.is_some() && round.scan.scans > 1)
    }

    /// The round under way as it stands.
    pub fn current_view(&self) -> Option<Round> {
        self.current.clone().map(|round| Round {
            refused: self.refused.shown(),
            ..round
        })
    }

    /// When something is due, or late. `next_plan`: when the budget allows what waits to be moved.
    pub fn timeout(&self, next_plan: Option<Tick>, config: &EngineConfig) -> Option<Tick> {
        let timeout = Duration::from_millis(config.answer_timeout_ms);
        match self.phase {
            Phase::Unmanaged | Phase::Unscannable { .. } => None,
            Phase::Waiting => Some(self.schedule.next().max(self.scans.due)),
            Phase::Window { ends_at, .. } => Some(ends_at),
            Phase::Placing { since, .. }
            | Phase::Clearing { since, .. }
            | Phase::Scanning { since, .. } => Some(since.after(timeout)),
            // While moves wait for the budget, nothing is late.
            Phase::Moving { since } => Some(next_plan.unwrap_or(since.after(timeout))),
        }
    }
}

/// When rounds come, the first one soon.
fn schedule_from(now: Tick, rhythm: Rhythm, config: &EngineConfig) -> Intermittent {
    let first = now.after(Duration::from_millis(config.first_round_after_ms));
    Intermittent::new(first, rhythm.period, rhythm.skips)
}
