//! One VM's mechanism state.
//!
//! Responsible for: what a VM is made of, its arrival and its limits. It leaves to others: the round
//! ([`super::round`]), moves ([`super::moves`]), views ([`super::show`]).

use std::collections::VecDeque;
use std::time::Duration;

use terrace_proto::snapshot::Round;
use terrace_proto::{MoveStatus, PageSize, RequestId, Tick, TierId, TierLimit, VmId, VmSpec};

use super::intermittent::Intermittent;
use super::moves::Moving;
use super::pool::FastSize;
use super::refusal::Refusals;
use super::scan_cpu::ScanAccount;
use super::tiers::Tiers;
use super::turns::Spent;
use super::view::Counters;
use crate::config::EngineConfig;
use crate::estimate::Estimator;
use crate::pages::Pages;
use crate::place::{ExchangeRule, Place, RankedPlace};
use crate::policy::{self, Observe, Policy};
use crate::ram::Ram;
use crate::reasons::Reasons;
use crate::track::Tracker;

/// Where a VM's round stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Unmanaged,
    Waiting,
    Placing {
        request: RequestId,
        since: Tick,
        /// Pages before this one were reported.
        next_page: u64,
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

/// Outcomes of single moves that are remembered, for people who ask about a page.
const OUTCOMES_KEPT: usize = 1024;

pub(crate) struct Vm {
    pub id: VmId,
    pub name: String,
    pub policy: Policy,
    pub tracker: Tracker,
    pub place: Box<dyn Place>,
    pub pages: Pages,
    pub ram_pages: u64,
    pub limits: Vec<TierLimit>,
    pub size: FastSize,
    pub moves_on: bool,
    pub paused: bool,
    /// Where its RAM is is not known now.
    pub unmapped: bool,
    pub phase: Phase,
    pub round: u64,
    pub intermittent: Intermittent,
    /// Window of this round in which a source of writes spoke last; 0: the clearing pass, which arms it.
    pub writes_told: u8,
    pub moving: Moving,
    /// What its scans cost.
    pub scans: ScanAccount,
    /// What its moves took of the budget.
    pub spent: Spent,
    /// The round under way.
    pub current: Option<Round>,
    pub last: Option<Round>,
    /// Refusals of the round under way.
    pub refused: Refusals,
    pub refused_ever: Refusals,
    pub counters: Counters,
    pub reasons: Reasons,
    pub outcomes: VecDeque<(u32, LastMove)>,
}

/// What became of a unit's newest move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastMove {
    /// When it was reported.
    pub at: Tick,
    /// Where to.
    pub to: TierId,
    /// How it ended.
    pub status: MoveStatus,
}

impl Vm {
    /// Takes a VM under management.
    ///
    /// # Errors
    /// Says what is wrong with its description.
    pub fn arrive(
        now: Tick,
        spec: &VmSpec,
        config: &EngineConfig,
        place: Option<Box<dyn Place>>,
    ) -> Result<Self, String> {
        let ram = Ram::new(spec)?;
        check_limits(&spec.limits, config.tiers.len())?;
        let choice = config.vm_policies.get(&spec.name).unwrap_or(&config.policy);
        let policy = choice.resolve("policy").map_err(|e| e.to_string())?;
        let tiers = u8::try_from(config.tiers.len()).unwrap_or(u8::MAX);
        let stays = policy.place == policy::Place::Stay && place.is_none();
        Ok(Self {
            id: spec.vm,
            name: spec.name.clone(),
            policy,
            tracker: Tracker::new(policy.observe, config.max_level),
            place: place.unwrap_or_else(|| Box::new(named_place(policy, config))),
            pages: Pages::new(ram, tiers),
            ram_pages: spec.ram_pages(),
            limits: spec.limits.clone(),
            size: FastSize::new(spec.weight),
            moves_on: spec.moves,
            paused: false,
            unmapped: false,
            phase: if stays {
                Phase::Unmanaged
            } else {
                Phase::Waiting
            },
            round: 0,
            intermittent: rounds_from(now, spec.unit, config),
            writes_told: 0,
            moving: Moving::default(),
            scans: ScanAccount::default(),
            spent: Spent::default(),
            current: None,
            last: None,
            refused: Refusals::default(),
            refused_ever: Refusals::default(),
            counters: Counters::default(),
            reasons: Reasons::new(config.reasons_kept),
            outcomes: VecDeque::new(),
        })
    }

    /// Whether its policy looks at pages at all.
    pub fn observes(&self) -> bool {
        self.policy.observe != Observe::None
    }

    pub fn tiers(&self) -> impl Iterator<Item = TierId> + use<> {
        (0..self.pages.tiers()).map(TierId)
    }

    pub fn limit(&self, tier: TierId) -> TierLimit {
        self.limits.get(tier.index()).copied().unwrap_or(TierLimit {
            floor_bytes: 0,
            ceiling_bytes: 0,
        })
    }

    /// Bytes held per tier.
    pub fn held(&self) -> [u64; TierId::MAX] {
        let mut held = [0; TierId::MAX];
        for tier in self.tiers() {
            held[tier.index()] = self.pages.bytes(tier);
        }
        held
    }

    /// Tells the tiers what changed since `before` by what was found out, not by a move.
    pub fn found_since(&self, before: [u64; TierId::MAX], tiers: &mut Tiers) {
        for (tier, (before, after)) in self.tiers().zip(before.into_iter().zip(self.held())) {
            tiers.found(tier, before, after);
        }
    }

    pub fn remember(&mut self, unit: u32, outcome: LastMove) {
        if self.outcomes.len() == OUTCOMES_KEPT {
            self.outcomes.pop_front();
        }
        self.outcomes.push_back((unit, outcome));
    }

    /// The newest outcome of a unit that is still remembered.
    pub fn remembered(&self, unit: u32) -> Option<LastMove> {
        let mut newest_first = self.outcomes.iter().rev();
        newest_first.find(|(u, _)| *u == unit).map(|(_, o)| *o)
    }
}

/// When rounds come, the first one soon.
pub(crate) fn rounds_from(now: Tick, unit: PageSize, config: &EngineConfig) -> Intermittent {
    let period = match unit {
        PageSize::Base => config.period_ms,
        PageSize::Huge => config.huge_period_ms,
    };
    let first = now.after(Duration::from_millis(config.first_round_after_ms));
    Intermittent::new(
        first,
        Duration::from_millis(period),
        config.quiet_counter_max,
    )
}

/// Limits must name every tier, floors at or below ceilings.
pub(crate) fn check_limits(limits: &[TierLimit], tiers: usize) -> Result<(), String> {
    if limits.len() != tiers {
        return Err(format!(
            "limits for {} tiers were given, the machine has {tiers}",
            limits.len()
        ));
    }
    match limits.iter().position(|l| l.floor_bytes > l.ceiling_bytes) {
        Some(tier) => Err(format!(
            "the floor of tier {tier}, {} bytes, is above its ceiling, {} bytes",
            limits[tier].floor_bytes, limits[tier].ceiling_bytes
        )),
        None => Ok(()),
    }
}

fn named_place(policy: Policy, config: &EngineConfig) -> RankedPlace {
    RankedPlace {
        estimator: Estimator::new(policy.estimate, config),
        rule: ExchangeRule {
            min_hot_degree: config.min_hot_degree,
            hysteresis: config.hysteresis,
        },
        slowest: policy.place == policy::Place::Slowest,
    }
}
