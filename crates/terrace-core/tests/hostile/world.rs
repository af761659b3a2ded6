//! The truth beside the engine, and what must hold of each action and after each event.

use std::collections::BTreeMap;

use terrace_core::place::PlaceStage;
use terrace_core::policy::{HotnessThreshold, PolicyStages};
use terrace_core::{Engine, EngineConfig, PolicyChoice, PolicyName, PoolRelease, TerraceConfig};
use terrace_proto::{
    Action, Event, MovePlan, PAGE_SIZE, PageMove, PageSize, RamRange, RequestId, Tick, VmId, VmSpec,
};

use crate::mover::{Flight, Mover};
use crate::rules::Rules;
use crate::{Chaos, Dice};

/// One VM.
pub struct Guest {
    pub spec: VmSpec,
    /// The VM's nominal size of the first tier; 0: it is not at the pool.
    pub nominal: u64,
    /// The tier of each unit.
    pub real: Vec<u8>,
    /// The same as far as it was reported to the engine.
    pub reported: Vec<u8>,
    /// The last round in which each unit was reported to have moved.
    pub moved_in: Vec<u64>,
    /// Whether the places of all pages were reported to the engine.
    pub placed: bool,
    /// The newest query of where the pages are.
    pub asked: RequestId,
}

impl Guest {
    pub fn units(&self) -> u64 {
        self.real.len() as u64
    }

    pub fn unit_pages(&self) -> u64 {
        self.spec.unit.base_pages()
    }

    /// Bytes of RAM of a unit.
    pub fn ram(&self, unit: u64) -> u64 {
        let (start, end) = (unit * self.unit_pages(), (unit + 1) * self.unit_pages());
        let inside = |r: &RamRange| {
            (r.start.0 + r.pages)
                .min(end)
                .saturating_sub(r.start.0.max(start))
        };
        self.spec.ram.iter().map(inside).sum::<u64>() * PAGE_SIZE
    }

    /// The least size that the pool leaves to the VM, and the most that it may give to it; `None` if the VM has no
    /// part.
    pub fn pool_limits(&self) -> Option<(u64, u64)> {
        let set = self.spec.limits[0];
        if self.nominal == 0 {
            return None;
        }
        let (lower, upper) = (self.nominal * 75 / 100, self.nominal * 125 / 100);
        Some(match (set.floor_bytes, set.ceiling_bytes) {
            (0, u64::MAX) => (lower, upper),
            (0, ceiling) => (lower.min(ceiling), ceiling),
            (floor, u64::MAX) => (floor, upper.max(floor)),
            (floor, ceiling) => (floor, ceiling),
        })
    }

    /// Bytes in a tier by one of the two lists.
    pub fn bytes(&self, list: &[u8], tier: usize) -> u64 {
        (0..self.units())
            .zip(list)
            .filter(|(_, t)| usize::from(**t) == tier)
            .map(|(unit, _)| self.ram(unit))
            .sum()
    }
}

pub struct World {
    pub engine: Engine,
    pub dice: Dice,
    pub now: u64,
    /// Bytes of each tier.
    pub capacity: Vec<u64>,
    /// The unit by which all VMs of this world are ranked.
    pub unit: PageSize,
    pub guests: BTreeMap<VmId, Guest>,
    /// Questions and plans that were not taken up yet.
    pub open: Vec<Action>,
    pub mover: Mover,
    pub next_vm: u32,
    rules: Rules,
}

impl World {
    pub fn new(seed: u64, tiers: usize, all_forced: bool) -> Self {
        let mut config = EngineConfig {
            windows: 1,
            window_ms: 20,
            period_ms: 100,
            huge_period_ms: 100,
            fixed_threshold: 1,
            answer_timeout_ms: 500,
            plan_max_pages: 64,
            plans_in_flight: 3,
            move_budget_bytes_per_s: (16 << 20) << (seed % 12),
            cool_down_rounds: u8::try_from(seed % 3).unwrap(),
            scan_parts: [1, 1, 2, 4][usize::try_from(seed / 3 % 4).unwrap()],
            ..EngineConfig::default()
        };
        if seed % 3 == 1 {
            config.policy = PolicyChoice::Composed(PolicyStages {
                base: "hmvisor".into(),
                // The rules of this world are those of the pool.
                share: Some("pool".into()),
                sub_epoch: Some("20ms".into()),
                sub_epochs: Some(1),
                ..PolicyStages::default()
            });
        }
        config.tiers.resize(tiers, config.tiers[1].clone());
        let reserve = seed / 5 % 3 * 4 * PAGE_SIZE;
        config
            .tiers
            .iter_mut()
            .for_each(|t| t.reserve_bytes = reserve);
        if seed % 7 < 2 {
            config.pool_release = PoolRelease::Always;
        }
        let place = move |spec: &VmSpec| -> Box<dyn PlaceStage> {
            Box::new(Chaos {
                dice: Dice(seed ^ u64::from(spec.vm.0) << 20),
                all_forced,
            })
        };
        Self::of(seed, config, all_forced, |config| {
            Engine::with_place(config, Box::new(place)).unwrap()
        })
    }

    /// A world whose pages are placed by hot lists, as `hmvisor` does.
    pub fn with_lists(seed: u64, tiers: usize) -> Self {
        let mut config = EngineConfig {
            answer_timeout_ms: 500,
            plan_max_pages: 64,
            plans_in_flight: 3,
            list_bytes_per_s: (64 << 10) << (seed % 8),
            policy: PolicyChoice::Composed(PolicyStages {
                base: "hmvisor".into(),
                share: Some("pool".into()),
                lists: Some(1),
                sub_epoch: Some("20ms".into()),
                sub_epochs: Some(3),
                hotness_threshold: Some(HotnessThreshold::Above(1)),
                ..PolicyStages::default()
            }),
            ..EngineConfig::default()
        };
        config.tiers.resize(tiers, config.tiers[1].clone());
        Self::of(seed, config, false, |config| Engine::new(config).unwrap())
    }

    /// A world whose pages are placed by rates and benefit, as `terrace` does.
    pub fn with_rates(seed: u64, tiers: usize) -> Self {
        let mut config = EngineConfig {
            answer_timeout_ms: 500,
            plan_max_pages: 64,
            plans_in_flight: 3,
            scan_parts: [1, 4][usize::from(seed.is_multiple_of(2))],
            policy: PolicyName::Terrace.into(),
            terrace: TerraceConfig {
                fit_windows: !seed.is_multiple_of(3),
                pace: !seed.is_multiple_of(5),
                likely: !seed.is_multiple_of(7),
                begin_anew: !seed.is_multiple_of(11),
                samples: !seed.is_multiple_of(13),
                ..TerraceConfig::default()
            },
            ..EngineConfig::default()
        };
        config.tiers.resize(tiers, config.tiers[1].clone());
        Self::of(seed, config, false, |config| Engine::new(config).unwrap())
    }

    pub fn of(
        seed: u64,
        config: EngineConfig,
        all_forced: bool,
        engine: impl FnOnce(EngineConfig) -> Engine,
    ) -> Self {
        let tiers = config.tiers.len();
        let rules = Rules::new(&config, all_forced);
        let unit = match seed % 4 {
            0 => PageSize::Huge,
            _ => PageSize::Base,
        };
        Self {
            engine: engine(config),
            dice: Dice(seed << 30),
            now: 0,
            capacity: (0..tiers as u64)
                .map(|tier| match unit {
                    PageSize::Base => (150 + 100 * tier) * PAGE_SIZE,
                    PageSize::Huge => (5 + 3 * tier) * unit.bytes() + 3 * PAGE_SIZE,
                })
                .collect(),
            unit,
            guests: BTreeMap::new(),
            open: Vec::new(),
            mover: Mover::default(),
            next_vm: 1,
            rules,
        }
    }

    pub fn tiers(&self) -> usize {
        self.capacity.len()
    }

    /// Bytes of a VM on their way into and out of a tier; `all`: also those that went, unreported.
    fn flows(&self, vm: VmId, tier: usize, all: bool) -> (u64, u64) {
        let guest = &self.guests[&vm];
        let mut sums = (0, 0);
        for flight in self.mover.flights(vm).filter(|f| all || !f.done) {
            let bytes = guest.ram(flight.unit);
            let is = |t: u8| u64::from(usize::from(t) == tier);
            sums.0 += is(flight.to) * bytes;
            sums.1 += is(flight.from) * bytes;
        }
        sums
    }

    /// Bytes of a tier that no VM has.
    pub fn free(&self, tier: usize) -> u64 {
        let used: u64 = self.guests.values().map(|g| g.bytes(&g.real, tier)).sum();
        self.capacity[tier] - used
    }

    /// Bytes that plans will still bring into a tier.
    pub fn coming(&self, tier: usize) -> u64 {
        let vms = self.guests.keys();
        vms.map(|vm| self.flows(*vm, tier, false).0).sum()
    }

    pub fn feed(&mut self, event: Event) {
        self.engine.handle(Tick(self.now), event);
        while let Some(action) = self.engine.poll_action() {
            self.check_action(&action);
        }
        assert!(self.engine.poll_action().is_none());
        self.check_accounts();
        self.check_demand();
    }

    pub fn check_action(&mut self, action: &Action) {
        let vm = action.vm().expect("there is no provider");
        assert!(self.guests.contains_key(&vm), "an action for no VM");
        if let (Action::QueryPlacement(query), Some(guest)) = (action, self.guests.get_mut(&vm)) {
            guest.asked = query.id;
        }
        if let Action::Protect(protection) = action {
            self.check_protection(protection);
        }
        if let Action::Move(plan) = action {
            assert!(!plan.moves.is_empty() && plan.moves.len() <= 64);
            self.mover.begin(plan.id, vm);
            plan.moves.iter().for_each(|m| self.check_move(plan, *m));
        }
        self.open.push(action.clone());
    }

    /// One of a plan's moves, on top of those before it.
    fn check_move(&mut self, plan: &MovePlan, m: PageMove) {
        let guest = &self.guests[&plan.vm];
        let (unit, to) = (m.gfn.0 / guest.unit_pages(), m.to.index());
        assert!(to < self.tiers() && unit < guest.units());
        assert!(m.gfn.0.is_multiple_of(guest.unit_pages()));
        assert_eq!(guest.ram(unit), guest.unit_pages() * PAGE_SIZE, "a hole");
        let reported = guest.reported[usize::try_from(unit).unwrap()];
        let from = usize::from(reported);
        assert!(from < self.tiers() && from != to, "no way");
        assert!(!self.mover.carries(plan.vm, unit), "in flight twice");
        let round = self.engine.vm(plan.vm).unwrap().round;
        let moved_in = guest.moved_in[usize::try_from(unit).unwrap()];
        let may = self.rules.may_move_again(moved_in, round);
        assert!(may, "moved lately");
        let flight = Flight {
            unit,
            from: reported,
            to: m.to.0,
            done: false,
        };
        self.mover.board(plan.id, flight);

        let guest = &self.guests[&plan.vm];
        let limits = &guest.spec.limits;
        let (coming, _) = self.flows(plan.vm, to, false);
        let holds = guest.bytes(&guest.real, to) + coming;
        assert!(holds <= limits[to].ceiling_bytes, "over the ceiling");
        let room = self.rules.room(self.free(to));
        assert!(self.coming(to) <= room, "over the tier");
        let pool = guest.pool_limits();
        if let Some((_, upper)) = pool.filter(|_| to == 0) {
            assert!(holds <= upper, "over its upper limit at the pool");
        }
        let dip = if to < from {
            0
        } else {
            let held = guest.bytes(&guest.reported, from);
            self.rules.dip(held, guest.ram(unit))
        };
        let (_, leaving) = self.flows(plan.vm, from, false);
        if let Some((lower, _)) = pool.filter(|_| from == 0 && self.rules.are_strict()) {
            let keeps = guest.bytes(&guest.real, from);
            assert!(keeps >= lower + leaving, "under its lower limit");
        }
        let floor = limits[from].floor_bytes.saturating_sub(dip);
        let keeps = guest.bytes(&guest.real, from);
        assert!(keeps >= floor + leaving, "under the floor");
    }

    fn check_accounts(&self) {
        let vms: Vec<_> = self.guests.keys().copied().collect();
        assert_eq!(self.engine.vms(), vms);
        for (vm, guest) in self.guests.iter().filter(|(_, g)| g.placed) {
            for (tier, view) in self.engine.vm(*vm).unwrap().tiers.iter().enumerate() {
                let (coming, leaving) = self.flows(*vm, tier, true);
                let bytes = guest.bytes(&guest.reported, tier);
                assert_eq!(view.bytes, bytes, "bytes in tier {tier}");
                assert_eq!(view.coming_bytes, coming, "bytes coming to tier {tier}");
                assert_eq!(view.leaving_bytes, leaving, "bytes leaving tier {tier}");
            }
            let share = self.engine.vm(*vm).unwrap().share;
            assert_eq!(share.is_some(), guest.nominal > 0);
            if let (Some(share), Some((lower, upper))) = (share, guest.pool_limits()) {
                assert_eq!((share.lower_bytes, share.upper_bytes), (lower, upper));
                let most = upper.max(share.unseen_bytes.unwrap_or(0));
                assert!(share.target_bytes.is_none_or(|size| size <= most));
            }
        }
    }
}
