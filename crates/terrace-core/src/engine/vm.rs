//! One VM's mechanism state.
//!
//! Responsible for: what a VM is made of, and its arrival. It leaves to others: the round ([`super::round`]),
//! moves ([`super::moves`]), views ([`super::show`]).

use terrace_proto::{Tick, TierId, VmId, VmSpec};

use super::ages::AgeScans;
use super::demand::Demand;
use super::history::History;
use super::hot_pages::CoarseBlocks;
use super::migration::Pace;
use super::moves::Moving;
use super::pool::FastSize;
use super::rhythm::Rhythm;
use super::rounds::Rounds;
use super::settings::Settings;
use super::tables::TableRanks;
use super::tiers::Tiers;
use crate::config::EngineConfig;
use crate::estimate::{Estimator, Sampled};
use crate::pages::Pages;
use crate::place::{BenefitPlace, ExchangeRule, PlaceStage, RankedPlace, TopListsPlace};
use crate::policy::{self, Observe, Policy};
use crate::ram::Ram;
use crate::track::Tracker;

/// A VM under management.
pub(crate) struct Vm {
    pub id: VmId,
    pub name: String,
    pub policy: Policy,
    pub observer: Observer,
    pub place: Box<dyn PlaceStage>,
    pub pages: Pages,
    /// The location of its RAM is unknown for now.
    pub unmapped: bool,
    pub settings: Settings,
    pub size: FastSize,
    pub rounds: Rounds,
    pub moving: Moving,
    pub history: History,
}

/// The ways in which a VM's accesses are observed.
pub(crate) struct Observer {
    /// Of scans.
    pub tracker: Tracker,
    /// Of protection faults, if the policy lives on them.
    pub demand: Option<Box<Demand>>,
    /// Of scans between rounds, while they are wanted.
    pub ages: Option<Box<AgeScans>>,
    /// Blocks whose pages the round's scans do not distinguish.
    pub coarse: CoarseBlocks,
    /// The guest's page tables, if they are placed.
    pub tables: TableRanks,
    /// Samples since the last round, and what they have shown, if some come.
    pub sampled: Option<Box<Sampled>>,
    /// When samples last came.
    pub sampled_at: Option<Tick>,
}

impl Observer {
    /// A VM with this RAM that was not seen yet.
    pub fn new(observe: Observe, ram: &Ram, config: &EngineConfig) -> Self {
        Self {
            tracker: Tracker::new(observe, config.max_level),
            demand: Demand::new(observe, ram, config),
            ages: None,
            coarse: CoarseBlocks::default(),
            tables: TableRanks::default(),
            sampled: None,
            sampled_at: None,
        }
    }
}

impl Vm {
    /// Takes a VM under management.
    ///
    /// # Errors
    /// If its description is wrong; the error has the reason.
    pub fn arrive(
        now: Tick,
        spec: &VmSpec,
        config: &EngineConfig,
        place: Option<Box<dyn PlaceStage>>,
    ) -> Result<Self, String> {
        let ram = Ram::new(spec)?;
        let settings = Settings::new(spec, config.tiers.len())?;
        let choice = config.vm_policies.get(&spec.name).unwrap_or(&config.policy);
        let policy = choice.resolve("policy").map_err(|e| e.to_string())?;
        let tiers = u8::try_from(config.tiers.len()).unwrap_or(u8::MAX);
        let stays = policy.observe == Observe::ProtectionFaults
            || (policy.place == policy::Place::Stay && place.is_none());
        let rhythm = Rhythm::new(policy, spec.unit, config);
        let own = named_place(policy, config);
        let mut vm = Self {
            id: spec.vm,
            name: spec.name.clone(),
            policy,
            observer: Observer::new(policy.observe, &ram, config),
            place: place.unwrap_or(own),
            pages: Pages::new(ram, tiers),
            unmapped: false,
            settings,
            size: FastSize::new(spec.weight),
            rounds: Rounds::new(now, stays, rhythm, config),
            moving: Moving::default(),
            history: History::new(config.max_reasons),
        };
        vm.moving.pace = vm.pace(config);
        if policy.estimate == policy::Estimate::Rates {
            vm.pages.have_rates();
        }
        Ok(vm)
    }

    /// The pace of its moves, if its policy has one.
    pub fn pace(&self, config: &EngineConfig) -> Option<Pace> {
        let unit = self.pages.unit_bytes();
        self.has_lists()
            .then(|| Pace::new(config.list_bytes_per_s, unit))
    }

    /// Whether its policy observes pages at all.
    pub fn observes(&self) -> bool {
        self.policy.observe != Observe::None
    }

    pub fn tiers(&self) -> impl Iterator<Item = TierId> + use<> {
        (0..self.pages.tiers()).map(TierId)
    }

    /// Bytes held per tier.
    pub fn held(&self) -> [u64; TierId::MAX] {
        let mut held = [0; TierId::MAX];
        for tier in self.tiers() {
            held[tier.index()] = self.pages.bytes(tier);
        }
        held
    }

    /// Reports to the tiers what changed since `before` by what was found out, not by a move.
    pub fn found_since(&self, before: [u64; TierId::MAX], tiers: &mut Tiers) {
        for (tier, (before, after)) in self.tiers().zip(before.into_iter().zip(self.held())) {
            tiers.found(tier, before, after);
        }
    }
}

fn named_place(policy: Policy, config: &EngineConfig) -> Box<dyn PlaceStage> {
    let estimator = Estimator::new(policy.estimate, config);
    if policy.place == policy::Place::TopLists {
        return Box::new(TopListsPlace::new(policy.lists, estimator));
    }
    if policy.place == policy::Place::Benefit {
        return Box::new(BenefitPlace::configured(config));
    }
    Box::new(RankedPlace {
        estimator,
        rule: ExchangeRule {
            min_hot_degree: config.min_hot_degree,
            hysteresis: config.hysteresis,
        },
        slowest: policy.place == policy::Place::Slowest,
    })
}
