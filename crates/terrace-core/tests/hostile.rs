//! The mechanism under a hostile policy: whatever is proposed, and however moves and answers fail, its
//! invariants hold after every event.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use terrace_core::pages::Pages;
use terrace_core::place::{Flow, Place, Proposal, Room};
use terrace_core::{Engine, EngineConfig, PhaseView};
use terrace_proto::{
    Action, BackingChange, Command, Event, Gfn, MovePlan, MoveReport, MoveStatus, PAGE_SIZE,
    PageBitmap, PageCode, PageResult, PageSize, PlacementReport, PlanId, RamRange, RequestId,
    ScanAnswer, ScanFailure, ScanStats, Tick, TierId, TierLimit, TierMemory, VmId, VmSpec,
};

/// Repeatable random numbers (SplitMix64).
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
    }
}

/// Proposes anything.
struct Chaos {
    dice: Dice,
    /// Claims that every demotion is forced, so that floors are strict.
    all_forced: bool,
}

impl Place for Chaos {
    fn propose(&mut self, _: u64, pages: &Pages, _: &Room) -> Proposal {
        let d = &mut self.dice;
        let flows = (0..1 + d.below(4))
            .map(|_| {
                let mut units: Vec<u32> = (0..d.below(400))
                    .map(|_| match d.below(20) {
                        0 => u32::MAX,
                        1 => u32::try_from(pages.units() as u64 + d.below(9)).unwrap(),
                        _ => u32::try_from(d.below(pages.units() as u64)).unwrap(),
                    })
                    .collect();
                units.extend(units.clone().iter().take(20));
                Flow {
                    to: TierId(u8::try_from(d.below(5) % 4).unwrap()),
                    forced: if self.all_forced {
                        usize::MAX
                    } else {
                        usize::try_from(d.below(200)).unwrap()
                    },
                    units,
                }
            })
            .collect();
        Proposal {
            flows,
            ..Proposal::default()
        }
    }

    fn degree(&self, _: u64, _: &Pages, _: u32) -> Option<u8> {
        None
    }
}

/// The truth about one VM.
struct Guest {
    spec: VmSpec,
    tier: Vec<u8>,
    /// The engine was told where all pages are.
    placed: bool,
    /// The newest question of where they are.
    asked: RequestId,
}

impl Guest {
    fn units(&self) -> u64 {
        self.tier.len() as u64
    }

    fn unit_pages(&self) -> u64 {
        self.spec.unit.base_pages()
    }

    /// Base pages of RAM of a unit.
    fn ram(&self, unit: u64) -> u64 {
        let (start, end) = (unit * self.unit_pages(), (unit + 1) * self.unit_pages());
        let inside = |r: &RamRange| {
            (r.start.0 + r.pages)
                .min(end)
                .saturating_sub(r.start.0.max(start))
        };
        self.spec.ram.iter().map(inside).sum()
    }

    fn bytes(&self, tier: usize) -> u64 {
        (0..self.units())
            .zip(&self.tier)
            .filter(|(_, t)| usize::from(**t) == tier)
            .map(|(unit, _)| self.ram(unit) * PAGE_SIZE)
            .sum()
    }
}

struct World {
    engine: Engine,
    dice: Dice,
    now: u64,
    tiers: usize,
    capacity: Vec<u64>,
    guests: BTreeMap<VmId, Guest>,
    open: Vec<Action>,
    last_report: Option<MoveReport>,
    next_vm: u32,
    all_forced: bool,
    plan_bytes: u64,
}

impl World {
    fn new(seed: u64, tiers: usize, all_forced: bool) -> Self {
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

    fn free(&self, tier: usize) -> u64 {
        let used: u64 = self.guests.values().map(|g| g.bytes(tier)).sum();
        self.capacity[tier] - used
    }

    fn coming(&self, tier: usize) -> u64 {
        self.guests.keys().map(|vm| self.flows(*vm, tier).0).sum()
    }

    fn feed(&mut self, event: Event) {
        self.engine.handle(Tick(self.now), event);
        while let Some(action) = self.engine.poll_action() {
            self.check_action(&action);
        }
        assert!(self.engine.poll_action().is_none());
        self.check_accounts();
    }

    fn check_action(&mut self, action: &Action) {
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

    fn some_vm(&mut self) -> VmId {
        let n = u64::from(self.next_vm) + 1;
        VmId(u32::try_from(self.dice.below(n)).unwrap())
    }

    fn step(&mut self, op: u8) {
        match op {
            0..=3 => self.arrive(),
            4 => {
                let vm = self.some_vm();
                self.open
                    .retain(|a| !matches!(a, Action::Move(p) if p.vm == vm));
                self.guests.remove(&vm);
                self.feed(Event::VmDeparted(vm));
            }
            5..=9 => self.memory(),
            10..=39 => self.pass_time(),
            40..=44 => self.command(),
            45..=49 => self.forge(),
            50 => {
                // A question that is never answered, unless it is a move: those stay under way.
                let at = self.dice.below(self.open.len() as u64);
                if let Some(Action::Scan(_) | Action::QueryPlacement(_)) =
                    self.open.get(usize::try_from(at).unwrap())
                {
                    self.open.remove(usize::try_from(at).unwrap());
                }
            }
            _ => self.answer(),
        }
    }

    fn arrive(&mut self) {
        if self.guests.len() >= 3 {
            return;
        }
        let d = &mut self.dice;
        let unit = if d.below(4) == 0 {
            PageSize::Huge
        } else {
            PageSize::Base
        };
        let (first, hole, second) = (1 + d.below(100), d.below(20), 1 + d.below(200));
        let scale = if unit == PageSize::Huge { 2 } else { 1 };
        let ram = vec![
            RamRange {
                start: Gfn(0),
                pages: first * scale,
            },
            RamRange {
                start: Gfn((first + hole) * scale),
                pages: second * scale,
            },
        ];
        let limits = (0..self.tiers)
            .map(|_| TierLimit {
                floor_bytes: d.below(60) * PAGE_SIZE,
                ceiling_bytes: (60 + d.below(300)) * PAGE_SIZE,
            })
            .collect();
        let spec = VmSpec {
            vm: VmId(self.next_vm),
            name: "vm".into(),
            ram,
            unit,
            limits,
            weight: 1000,
            moves: true,
        };
        let units = spec.span_pages().div_ceil(unit.base_pages());
        let mut guest = Guest {
            tier: vec![7; usize::try_from(units).unwrap()],
            spec: spec.clone(),
            placed: false,
            asked: RequestId(0),
        };
        self.next_vm += 1;
        for unit in 0..units {
            let tier = usize::try_from(self.dice.below(self.tiers as u64 + 1)).unwrap();
            let bytes = guest.ram(unit) * PAGE_SIZE;
            let fits = |t: usize| guest.bytes(t) + bytes + self.coming(t) <= self.free(t);
            if tier < self.tiers && bytes > 0 && fits(tier) {
                guest.tier[usize::try_from(unit).unwrap()] = u8::try_from(tier).unwrap();
            }
        }
        self.guests.insert(spec.vm, guest);
        // What a VM brings is known before the engine decides anything.
        let report = self.memory_report();
        self.engine.handle(Tick(self.now), Event::Memory(report));
        let mut early = Vec::new();
        early.extend(std::iter::from_fn(|| self.engine.poll_action()));
        early.iter().for_each(|a| self.check_action(a));
        self.feed(Event::VmArrived(spec));
    }

    fn memory_report(&self) -> Vec<TierMemory> {
        (0..self.tiers)
            .map(|tier| TierMemory {
                tier: TierId(u8::try_from(tier).unwrap()),
                total_bytes: self.capacity[tier],
                free_bytes: self.free(tier),
            })
            .collect()
    }

    fn memory(&mut self) {
        let report = self.memory_report();
        self.feed(Event::Memory(report));
    }

    fn pass_time(&mut self) {
        let wait = self.dice.below(40_000_000);
        self.now += wait;
        if let Some(at) = self.engine.poll_timeout()
            && self.dice.below(2) == 0
        {
            self.now = self.now.max(at.0);
        }
        self.feed(Event::Timer);
    }

    fn command(&mut self) {
        let vm = self.some_vm();
        let which = (self.dice.below(2) == 0).then_some(vm);
        let command = match self.dice.below(8) {
            0 => Command::Pause(which),
            1..=3 => Command::Resume(which),
            4 => Command::Moves(vm, self.dice.below(4) > 0),
            5 => Command::RoundNow(vm),
            _ => {
                let d = &mut self.dice;
                let limits: Vec<_> = (0..self.tiers as u64 + d.below(2))
                    .map(|_| TierLimit {
                        floor_bytes: d.below(80) * PAGE_SIZE,
                        ceiling_bytes: d.below(300) * PAGE_SIZE,
                    })
                    .collect();
                let valid = limits.len() == self.tiers
                    && limits.iter().all(|l| l.floor_bytes <= l.ceiling_bytes);
                if let Some(guest) = self.guests.get_mut(&vm).filter(|_| valid) {
                    guest.spec.limits.clone_from(&limits);
                }
                Command::Limits(vm, limits)
            }
        };
        self.feed(Event::Command(command));
    }

    /// Reports that nobody asked for, or asked for before.
    fn forge(&mut self) {
        let (vm, id) = (self.some_vm(), self.dice.below(40));
        let event = match self.dice.below(6) {
            0 => Event::Moved(MoveReport {
                id: PlanId(1_000_000 + id),
                vm,
                results: vec![PageResult {
                    gfn: Gfn(id),
                    status: MoveStatus::Moved,
                    now: PageCode(0),
                }],
                elapsed_ns: 0,
            }),
            1 => match self.last_report.clone() {
                Some(report) => Event::Moved(report),
                None => Event::Timer,
            },
            2 => Event::Placement(PlacementReport {
                id: RequestId(1_000_000 + id),
                vm,
                start: Gfn(0),
                codes: vec![PageCode(0); 50],
                last: true,
            }),
            3 => Event::ScanFailed(ScanFailure {
                id: RequestId(1_000_000 + id),
                vm,
                reason: "forged".into(),
                fatal: false,
            }),
            4 => Event::Moved(MoveReport {
                // Right plan, wrong VM.
                id: self
                    .open
                    .iter()
                    .find_map(|a| match a {
                        Action::Move(p) if p.vm != vm => Some(p.id),
                        _ => None,
                    })
                    .unwrap_or(PlanId(0)),
                vm,
                results: Vec::new(),
                elapsed_ns: 0,
            }),
            _ => Event::BackingChanged(BackingChange {
                vm,
                block: u64::MAX - id,
                huge: true,
            }),
        };
        self.feed(event);
    }

    fn answer(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = usize::try_from(self.dice.below(self.open.len() as u64)).unwrap();
        let action = self.open.remove(at);
        match action {
            Action::Move(plan) => {
                let report = self.migrate(&plan);
                self.last_report = Some(report.clone());
                self.feed(Event::Moved(report));
            }
            Action::QueryPlacement(query) => {
                let Some(guest) = self.guests.get_mut(&query.vm) else {
                    return;
                };
                let waits = self.engine.vm(query.vm).unwrap().phase == PhaseView::Placing;
                guest.placed |= waits && guest.asked == query.id;
                let size = guest.unit_pages();
                let codes = (0..guest.spec.span_pages())
                    .map(|p| PageCode(guest.tier[usize::try_from(p / size).unwrap()]))
                    .collect();
                self.feed(Event::Placement(PlacementReport {
                    id: query.id,
                    vm: query.vm,
                    start: Gfn(0),
                    codes,
                    last: true,
                }));
            }
            Action::Scan(request) => {
                let Some(guest) = self.guests.get(&request.space.vm()) else {
                    return;
                };
                let bad = u64::from(self.dice.below(20) == 0);
                let span = guest.spec.span_pages() + bad;
                let mut known = PageBitmap::full(span);
                (0..span / 5).for_each(|_| known.put(self.dice.below(span), false));
                self.feed(Event::Scanned(Box::new(ScanAnswer {
                    id: request.id,
                    space: request.space,
                    known,
                    accessed: PageBitmap::new(span),
                    written: None,
                    huge_leaf: PageBitmap::new(1),
                    stats: ScanStats::default(),
                })));
            }
        }
    }

    fn migrate(&mut self, plan: &MovePlan) -> MoveReport {
        let cut = self.dice.below(4) == 0;
        let mut results = Vec::new();
        for m in &plan.moves {
            if cut && self.dice.below(10) == 0 {
                break;
            }
            let free = self.free(m.to.index());
            let status = match self.dice.below(12) {
                0 => MoveStatus::Busy,
                1 => MoveStatus::NoMemory,
                2 => MoveStatus::NotTried,
                3 => MoveStatus::Failed(-22),
                4 => MoveStatus::Absent,
                _ => MoveStatus::Moved,
            };
            let guest = self.guests.get_mut(&plan.vm).unwrap();
            let unit = usize::try_from(m.gfn.0 / guest.unit_pages()).unwrap();
            if status == MoveStatus::Moved {
                assert!(guest.ram(unit as u64) * PAGE_SIZE <= free, "a tier is full");
                guest.tier[unit] = m.to.0;
            }
            results.push(PageResult {
                gfn: m.gfn,
                status,
                now: PageCode(guest.tier[unit]),
            });
        }
        MoveReport {
            id: plan.id,
            vm: plan.vm,
            results,
            elapsed_ns: 1,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 150 } else { 600 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn the_mechanism_holds_its_invariants_after_every_event(
        seed in 0_u64..1_000_000,
        tiers in 2_usize..=3,
        all_forced in any::<bool>(),
        ops in prop::collection::vec(0_u8..120, 50..400),
    ) {
        let mut world = World::new(seed, tiers, all_forced);
        world.memory();
        world.arrive();
        for op in ops {
            world.step(op);
        }
    }
}

#[test]
fn the_hostile_policy_really_has_pages_moved_and_proposals_refused() {
    let mut world = World::new(7, 2, false);
    world.memory();
    world.arrive();
    let mut dice = Dice(1);
    for _ in 0..4000 {
        let op = 5 + dice.below(115);
        world.step(u8::try_from(op).unwrap());
    }
    let counters: Vec<_> = world
        .guests
        .keys()
        .map(|vm| world.engine.vm(*vm).unwrap().counters)
        .collect();
    assert!(
        counters
            .iter()
            .any(|c| c.promoted_pages > 20 && c.demoted_pages > 20)
    );
    let mut kinds = BTreeSet::new();
    counters
        .iter()
        .for_each(|c| kinds.extend(c.refused.iter().map(|(r, _)| *r)));
    assert!(kinds.len() >= 10, "refused for {kinds:?}");
}
