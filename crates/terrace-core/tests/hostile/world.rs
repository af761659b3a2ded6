//! The truth beside the engine, and what must hold of each action and after each event.

use std::collections::{BTreeMap, BTreeSet};

use terrace_core::place::Place;
use terrace_core::{Engine, EngineConfig};
use terrace_proto::{
    Action, Event, MovePlan, MoveReport, PAGE_SIZE, RamRange, RequestId, Tick, TierId, VmId, VmSpec,
};

use crate::{Chaos, Dice};

/// The truth about one VM.
pub struct Guest {
    pub spec: VmSpec,
    pub tier: Vec<u8>,
    /// The engine was told where all pages are.
    pub placed: bool,
    /// The newest question of where they are.
    pub asked: RequestId,
}

impl Guest {
    pub fn units(&self) -> u64 {
        self.tier.len() as u64
    }

    pub fn unit_pages(&self) -> u64 {
        self.spec.unit.base_pages()
    }

    /// Base pages of RAM of a unit.
    pub fn ram(&self, unit: u64) -> u64 {
        let (start, end) = (unit * self.unit_pages(), (unit + 1) * self.unit_pages());
        let inside = |r: &RamRange| {
            (r.start.0 + r.pages)
                .min(end)
                .saturating_sub(r.start.0.max(start))
        };
        self.spec.ram.iter().map(inside).sum()
    }

    pub fn bytes(&self, tier: usize) -> u64 {
        (0..self.units())
            .zip(&self.tier)
            .filter(|(_, t)| usize::from(**t) == tier)
            .map(|(unit, _)| self.ram(unit) * PAGE_SIZE)
            .sum()
    }
}

pub struct World {
    pub engine: Engine,
    pub dice: Dice,
    pub now: u64,
    pub tiers: usize,
    pub capacity: Vec<u64>,
    pub guests: BTreeMap<VmId, Guest>,
    pub open: Vec<Action>,
    pub last_report: Option<MoveReport>,
    pub next_vm: u32,
    pub all_forced: bool,
    pub plan_bytes: u64,
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
            move_budget_bytes_per_s: 64 << 20,
            cool_down_rounds: u8::try_from(seed % 2).unwrap(),
            ..EngineConfig::default()
        };
        config.tiers.resize(tiers, config.tiers[1].clone());
        let plan_bytes = config.plan_max_bytes;
        let place = move |spec: &VmSpec| -> Box<dyn Place> {
            Box::new(Chaos {
                dice: Dice(seed ^ u64::from(spec.vm.0) << 20),
                all_forced,
            })
        };
        Self {
            engine: Engine::with_place(config, Box::new(place)).unwrap(),
            dice: Dice(seed << 30),
            now: 0,
            tiers,
            capacity: vec![6 << 20; tiers],
            guests: BTreeMap::new(),
            open: Vec::new(),
            last_report: None,
            next_vm: 1,
            all_forced,
            plan_bytes,
        }
    }

    fn in_flight(&self, vm: VmId) -> impl Iterator<Item = (u64, TierId)> + '_ {
        self.open
            .iter()
            .flat_map(move |action| match action {
                Action::Move(plan) if plan.vm == vm => plan.moves.as_slice(),
                _ => &[],
            })
            .map(|m| (m.gfn.0, m.to))
    }

    /// Bytes on their way into and out of a tier.
    fn flows(&self, vm: VmId, tier: usize) -> (u64, u64) {
        let guest = &self.guests[&vm];
        let mut sums = (0, 0);
        for (gfn, to) in self.in_flight(vm) {
            let unit = gfn / guest.unit_pages();
            let bytes = guest.ram(unit) * PAGE_SIZE;
            sums.0 += if to.index() == tier { bytes } else { 0 };
            let from = usize::from(guest.tier[usize::try_from(unit).unwrap()]);
            sums.1 += if from == tier { bytes } else { 0 };
        }
        sums
    }

    pub fn free(&self, tier: usize) -> u64 {
        let used: u64 = self.guests.values().map(|g| g.bytes(tier)).sum();
        self.capacity[tier] - used
    }

    pub fn coming(&self, tier: usize) -> u64 {
        self.guests.keys().map(|vm| self.flows(*vm, tier).0).sum()
    }

    pub fn feed(&mut self, event: Event) {
        self.engine.handle(Tick(self.now), event);
        while let Some(action) = self.engine.poll_action() {
            self.check_action(&action);
        }
        assert!(self.engine.poll_action().is_none());
        self.check_accounts();
    }

    pub fn check_action(&mut self, action: &Action) {
        let vm = match action {
            Action::Scan(request) => request.space.vm(),
            Action::QueryPlacement(query) => query.vm,
            Action::Move(plan) => plan.vm,
        };
        assert!(self.guests.contains_key(&vm), "an action for no VM");
        if let (Action::QueryPlacement(query), Some(guest)) = (action, self.guests.get_mut(&vm)) {
            guest.asked = query.id;
        }
        if let Action::Move(plan) = action {
            assert!(!plan.moves.is_empty() && plan.moves.len() <= 64);
            for i in 0..plan.moves.len() {
                self.check_move(plan, i);
            }
        }
        self.open.push(action.clone());
    }

    /// A plan's moves in order, each on top of those before it.
    fn check_move(&self, plan: &MovePlan, i: usize) {
        let (guest, m) = (&self.guests[&plan.vm], plan.moves[i]);
        let unit = m.gfn.0 / guest.unit_pages();
        assert!(m.to.index() < self.tiers && unit < guest.units());
        assert!(m.gfn.0.is_multiple_of(guest.unit_pages()));
        assert_eq!(guest.ram(unit), guest.unit_pages(), "a hole");
        let from = usize::from(guest.tier[usize::try_from(unit).unwrap()]);
        assert!(from < self.tiers && from != m.to.index());
        let mut busy: BTreeSet<_> = self.in_flight(plan.vm).map(|(gfn, _)| gfn).collect();
        busy.extend(plan.moves[..i].iter().map(|m| m.gfn.0));
        assert!(!busy.contains(&m.gfn.0), "in flight twice");

        let bytes = guest.ram(unit) * PAGE_SIZE;
        let before = plan.moves[..i].iter();
        let ahead = before.clone().filter(|p| p.to == m.to).count() as u64;
        let coming = self.flows(plan.vm, m.to.index()).0 + (ahead + 1) * bytes;
        let holds = guest.bytes(m.to.index()) + coming;
        let limits = &guest.spec.limits;
        assert!(
            holds <= limits[m.to.index()].ceiling_bytes,
            "over the ceiling"
        );
        let coming = self.coming(m.to.index()) + (ahead + 1) * bytes;
        assert!(coming <= self.free(m.to.index()), "over the tier");

        let tier_of = |gfn: u64| guest.tier[usize::try_from(gfn / guest.unit_pages()).unwrap()];
        let left = before
            .filter(|p| usize::from(tier_of(p.gfn.0)) == from)
            .count() as u64;
        let leaving = self.flows(plan.vm, from).1 + (left + 1) * bytes;
        let dip = if self.all_forced || m.to.index() < from {
            0
        } else {
            self.plan_bytes.min(guest.bytes(from) / 8).max(bytes)
        };
        let floor = limits[from].floor_bytes.saturating_sub(dip);
        assert!(guest.bytes(from) >= floor + leaving, "under the floor");
    }

    fn check_accounts(&self) {
        assert_eq!(
            self.engine.vms(),
            self.guests.keys().copied().collect::<Vec<_>>()
        );
        for (vm, guest) in self.guests.iter().filter(|(_, g)| g.placed) {
            for (tier, view) in self.engine.vm(*vm).unwrap().tiers.iter().enumerate() {
                let (coming, leaving) = self.flows(*vm, tier);
                assert_eq!(view.bytes, guest.bytes(tier), "bytes in tier {tier}");
                assert_eq!(view.coming_bytes, coming, "bytes coming to tier {tier}");
                assert_eq!(view.leaving_bytes, leaving, "bytes leaving tier {tier}");
            }
        }
    }
}
