//! What happens to the engine: arrivals, departures, commands, answers of every kind, forgeries.

use terrace_core::PhaseView;
use terrace_proto::{
    Action, BackingChange, Command, Event, Gfn, MovePlan, MoveReport, MoveStatus, PAGE_SIZE,
    PageBitmap, PageCode, PageResult, PageSize, PlacementReport, PlanId, RamRange, RequestId,
    ScanAnswer, ScanFailure, ScanStats, Tick, TierId, TierLimit, TierMemory, VmId, VmSpec,
};

use crate::world::{Guest, World};

impl World {
    fn some_vm(&mut self) -> VmId {
        let n = u64::from(self.next_vm) + 1;
        VmId(u32::try_from(self.dice.below(n)).unwrap())
    }

    pub fn step(&mut self, op: u8) {
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

    pub fn arrive(&mut self) {
        if self.guests.len() >= 3 {
            return;
        }
        let spec = self.some_spec();
        let units = spec.span_pages().div_ceil(spec.unit.base_pages());
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

    fn some_spec(&mut self) -> VmSpec {
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
        VmSpec {
            vm: VmId(self.next_vm),
            name: "vm".into(),
            ram,
            unit,
            limits,
            weight: 1000,
            moves: true,
        }
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

    pub fn memory(&mut self) {
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
            4 => Event::Moved(self.report_by_another(vm)),
            _ => Event::BackingChanged(BackingChange {
                vm,
                block: u64::MAX - id,
                huge: true,
            }),
        };
        self.feed(event);
    }

    /// Right plan, wrong VM.
    fn report_by_another(&self, vm: VmId) -> MoveReport {
        let foreign = self.open.iter().find_map(|a| match a {
            Action::Move(p) if p.vm != vm => Some(p.id),
            _ => None,
        });
        MoveReport {
            id: foreign.unwrap_or(PlanId(0)),
            vm,
            results: Vec::new(),
            elapsed_ns: 0,
        }
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
