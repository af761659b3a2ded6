//! The events of the hostile world: arrivals, departures, commands, answers of every kind, forgeries.

use terrace_core::PhaseView;
use terrace_proto::{
    Action, BackingChange, Command, Event, Gfn, MovePlan, MoveReport, MoveStatus, PAGE_SIZE,
    PageBitmap, PageCode, PageResult, PageSamples, PageSize, Part, PartAnswer, PartCell,
    PartRequest, PlacementReport, PlanId, Processors, RamRange, RequestId, Samples, ScanAnswer,
    ScanFailure, ScanRequest, ScanStats, TableFrame, TablesAnswer, Tick, TierId, TierLimit,
    TierMemory, VmId, VmSpec,
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
                self.mover.forget(vm);
                self.guests.remove(&vm);
                self.feed(Event::VmDeparted(vm));
            }
            5..=9 => self.memory(),
            10..=39 => self.pass_time(),
            40..=42 => self.command(),
            43..=48 => self.forge(),
            49 => {
                // A question that is never answered, unless it is a move: those stay under way.
                let at = self.dice.below(self.open.len() as u64);
                if let Some(Action::Scan(_) | Action::ScanPart(_) | Action::QueryPlacement(_)) =
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
            real: vec![7; usize::try_from(units).unwrap()],
            reported: vec![7; usize::try_from(units).unwrap()],
            moved_in: vec![0; usize::try_from(units).unwrap()],
            spec: spec.clone(),
            nominal: 0,
            placed: false,
            asked: RequestId(0),
        };
        self.next_vm += 1;
        for unit in 0..units {
            let tier = usize::try_from(self.dice.below(self.tiers() as u64 + 1)).unwrap();
            let bytes = guest.ram(unit);
            let takes = |t| guest.bytes(&guest.real, t) + bytes + self.coming(t);
            if tier < self.tiers() && bytes > 0 && takes(tier) <= self.free(tier) {
                guest.real[usize::try_from(unit).unwrap()] = u8::try_from(tier).unwrap();
            }
        }
        self.guests.insert(spec.vm, guest);
        // The RAM that a VM brings is known before the engine decides anything.
        let report = self.memory_report();
        self.engine.handle(Tick(self.now), Event::Memory(report));
        let mut early = Vec::new();
        early.extend(std::iter::from_fn(|| self.engine.poll_action()));
        early.iter().for_each(|a| self.check_action(a));
        let (vm, nominal) = (spec.vm, self.dice.below(2) * 100 * self.unit.bytes() / 30);
        let nominal = nominal * if self.unit == PageSize::Base { 30 } else { 1 };
        self.feed(Event::VmArrived(spec));
        if let Some(guest) = self.guests.get_mut(&vm) {
            guest.nominal = nominal;
        }
        self.feed(Event::Command(Command::FastSize(vm, nominal)));
    }

    fn some_spec(&mut self) -> VmSpec {
        let (unit, tiers) = (self.unit, self.tiers());
        let d = &mut self.dice;
        let [first, hole, second] = match unit {
            PageSize::Base => [1 + d.below(100), d.below(20), 1 + d.below(200)],
            PageSize::Huge => [1 + d.below(1500), d.below(700), 1 + d.below(3000)],
        };
        let range = |start, pages| RamRange {
            start: Gfn(start),
            pages,
        };
        let ram = vec![range(0, first), range(first + hole, second)];
        let size = unit.bytes();
        let (low, high) = match unit {
            PageSize::Base => (60, 200),
            PageSize::Huge => (3, 5),
        };
        let limits = (0..tiers)
            .map(|_| TierLimit {
                floor_bytes: d.below(low / 2) * size,
                ceiling_bytes: match d.below(3) {
                    0 => u64::MAX,
                    _ => (low + d.below(high)) * size,
                },
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
        (0..self.tiers())
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
        let command = match self.dice.below(12) {
            8..=10 => {
                let nominal = self.dice.below(60) * self.unit.bytes() / 10;
                let nominal = nominal * if self.unit == PageSize::Base { 20 } else { 1 };
                if let Some(guest) = self.guests.get_mut(&vm) {
                    guest.nominal = nominal;
                }
                Command::FastSize(vm, nominal)
            }
            11 => Command::Weight(vm, u32::try_from(self.dice.below(3000)).unwrap()),
            0 => Command::Pause(which),
            1..=3 => Command::Resume(which),
            4 => Command::Moves(vm, self.dice.below(8) > 0),
            5 if self.dice.below(2) == 0 => Command::RoundNow(vm),
            5 => Command::PlanRound(vm),
            _ => {
                let tiers = self.tiers();
                let d = &mut self.dice;
                let (size, most) = match self.unit {
                    PageSize::Base => (PAGE_SIZE, 80),
                    PageSize::Huge => (self.unit.bytes(), 4),
                };
                let limits: Vec<_> = (0..tiers as u64 + d.below(2))
                    .map(|_| TierLimit {
                        floor_bytes: d.below(most / 2) * size,
                        ceiling_bytes: d.below(4 * most) * size,
                    })
                    .collect();
                let valid = limits.len() == tiers
                    && limits.iter().all(|l| l.floor_bytes <= l.ceiling_bytes);
                if let Some(guest) = self.guests.get_mut(&vm).filter(|_| valid) {
                    guest.spec.limits.clone_from(&limits);
                }
                Command::Limits(vm, limits)
            }
        };
        self.feed(Event::Command(command));
    }

    /// Reports that were not asked for, or asked for before.
    fn forge(&mut self) {
        let (vm, id) = (self.some_vm(), self.dice.below(40));
        let event = match self.dice.below(8) {
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
            1 => match self.mover.last() {
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
            3 if id % 2 == 0 => Event::ScannedPart(Box::new(self.part_nobody_asked_for(vm, id))),
            3 => Event::ScanFailed(ScanFailure {
                id: RequestId(1_000_000 + id),
                vm,
                reason: "forged".into(),
                fatal: false,
            }),
            4 => Event::Moved(self.report_by_another(vm)),
            5 => self.some_faults(vm),
            6 => self.some_statistics(vm),
            7 if id % 2 == 0 => self.some_samples(vm),
            7 if id % 3 == 0 => Event::Processors(Processors {
                vm,
                vcpus: u32::MAX - u32::try_from(id % 7).unwrap(),
            }),
            _ => Event::BackingChanged(BackingChange {
                vm,
                block: u64::MAX - id,
                huge: true,
            }),
        };
        self.feed(event);
    }

    /// An answer about a part, of anything.
    fn part_nobody_asked_for(&mut self, vm: VmId, id: u64) -> PartAnswer {
        let d = &mut self.dice;
        let mut number = || u32::try_from(d.below(1 << 32)).unwrap();
        let cells = (0..number() % 5).map(|_| PartCell {
            at: number() % 9,
            mapped: u64::from(number()),
            accessed: u64::from(number()),
        });
        PartAnswer {
            id: RequestId(1_000_000 + id),
            space: terrace_proto::Space::Guest(vm),
            part: Part::new(id, 2, 1).unwrap(),
            cells: cells.collect(),
            huge: vec![number()],
            written: Some(vec![u64::MAX]),
            stats: most_of_all(),
        }
    }

    /// Samples of anything, in any number.
    fn some_samples(&self, vm: VmId) -> Event {
        // Its own dice: what else happens stays the same.
        let mut d = self.dice.clone();
        let mut number = |most: u64| match d.below(8) {
            0 => most,
            1 => 0,
            _ => d.below(400),
        };
        let small = |n: u64| u32::try_from(n).unwrap();
        let pages = (0..number(3000) % 3001).map(|_| PageSamples {
            gfn: Gfn(number(u64::MAX)),
            reads: small(number(u64::from(u32::MAX))),
            writes: small(number(u64::from(u32::MAX))),
        });
        let pages = pages.collect();
        Event::Samples(Samples {
            vm,
            period: small(number(u64::from(u32::MAX))),
            over_ns: number(u64::MAX).saturating_mul(1_000_000),
            pages,
        })
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

    /// Takes up a question or a plan, or hands in the report of a plan that is done.
    fn answer(&mut self) {
        if let Some(report) = self.mover.draw(&mut self.dice) {
            self.hand_in(report);
        }
        if self.open.is_empty() {
            return;
        }
        let at = usize::try_from(self.dice.below(self.open.len() as u64)).unwrap();
        match self.open.remove(at) {
            // There is no provider.
            Action::QueryProvider(_)
            | Action::Resize(_)
            | Action::Withdraw(..)
            | Action::Answer(_)
            | Action::LetGo(_)
            | Action::Collapse(_)
            // Tables are named with an answer, or not.
            | Action::NameTables(_)
            // Of a simulated VM alone.
            | Action::Protect(_)
            | Action::Unprotect(_) => {}
            Action::Move(plan) => {
                let report = self.migrate(&plan);
                if self.dice.below(3) == 0 {
                    self.hand_in(report);
                } else {
                    self.mover.put_off(report);
                }
            }
            Action::QueryPlacement(query) => self.say_where(query.id, query.vm),
            Action::Scan(request) => self.say_known(&request),
            Action::ScanPart(request) => self.say_known_part(&request),
        }
    }

    fn hand_in(&mut self, report: MoveReport) {
        let flights = self.mover.hand_in(&report);
        let round = self.engine.vm(report.vm).map_or(0, |vm| vm.round);
        if let (Some(guest), Some(flights)) = (self.guests.get_mut(&report.vm), flights) {
            for (flight, result) in flights.iter().zip(&report.results) {
                let unit = usize::try_from(flight.unit).unwrap();
                let named = result.gfn.0 == flight.unit * guest.unit_pages();
                if named && result.status != MoveStatus::NotTried {
                    if guest.reported[unit] != result.now.0 {
                        guest.moved_in[unit] = round;
                    }
                    guest.reported[unit] = result.now.0;
                }
            }
        }
        self.feed(Event::Moved(report));
    }

    fn say_where(&mut self, id: RequestId, vm: VmId) {
        let Some(guest) = self.guests.get_mut(&vm) else {
            return;
        };
        if self.engine.vm(vm).unwrap().phase == PhaseView::Placing && guest.asked == id {
            guest.placed = true;
            // The place of a page in flight shows only in its plan's report.
            for (unit, real) in (0_u64..).zip(&guest.real) {
                if !self.mover.carries(vm, unit) {
                    guest.reported[usize::try_from(unit).unwrap()] = *real;
                }
            }
        }
        let size = guest.unit_pages();
        let codes = (0..guest.spec.span_pages())
            .map(|p| PageCode(guest.real[usize::try_from(p / size).unwrap()]))
            .collect();
        self.feed(Event::Placement(PlacementReport {
            id,
            vm,
            start: Gfn(0),
            codes,
            last: true,
        }));
    }

    fn say_known(&mut self, request: &ScanRequest) {
        self.say_tables(request);
        let Some(guest) = self.guests.get(&request.space.vm()) else {
            return;
        };
        let bad = u64::from(self.dice.below(20) == 0);
        let span = guest.spec.span_pages() + bad;
        let mut known = PageBitmap::full(span);
        (0..span / 5).for_each(|_| known.put(self.dice.below(span), false));
        // The same pages each time, so that hot lists have something to find.
        let mut accessed = PageBitmap::new(span);
        (0..span)
            .step_by(3)
            .for_each(|page| accessed.put(page, true));
        self.feed(Event::Scanned(Box::new(ScanAnswer {
            id: request.id,
            space: request.space,
            known,
            accessed,
            written: None,
            huge_leaf: PageBitmap::new(1),
            stats: ScanStats::default(),
        })));
    }

    /// Names any pages as page tables, asked or not, of any heat and level; at times more than there may be.
    fn say_tables(&mut self, request: &ScanRequest) {
        let Some(guest) = self.guests.get(&request.space.vm()) else {
            return;
        };
        let span = u32::try_from(guest.spec.span_pages()).unwrap();
        let d = &mut self.dice;
        let bad = u32::from(d.below(20) == 0);
        let mut number = |most: u64| d.below(most + 1);
        let every = number(64).max(1);
        let frames = (0..span + bad).filter(|_| number(every) == 0);
        let frames: Vec<u32> = frames.collect();
        let frames = frames.into_iter().map(|frame| TableFrame {
            frame,
            accessed: u16::try_from(number(65_535)).unwrap(),
            level: u8::try_from(number(255)).unwrap(),
        });
        let frames = frames.collect();
        self.feed(Event::Tables(Box::new(TablesAnswer {
            id: request.id,
            space: request.space,
            frames,
        })));
    }

    /// The same about a part: in order or not, of the part that was asked for or of another one.
    fn say_known_part(&mut self, request: &PartRequest) {
        let Some(guest) = self.guests.get(&request.space.vm()) else {
            return;
        };
        let lie = self.dice.below(40);
        let cells = u32::try_from(guest.spec.span_pages() / 64).unwrap();
        let word = |at: u32| PartCell {
            at: at + if lie == 0 { cells } else { 0 },
            mapped: u64::MAX,
            accessed: 0x4924_9249_2492_4924 >> (at % 3),
        };
        let mut cells: Vec<PartCell> = (0..cells)
            .filter(|at| request.part.has(Gfn((at / 8).into())))
            .map(word)
            .collect();
        if lie == 1 {
            cells.reverse();
        }
        if lie == 6 {
            cells.push(PartCell {
                at: u32::MAX,
                mapped: 0,
                accessed: 0,
            });
        }
        let part = match request.part.next() {
            Some(next) if lie == 2 => next,
            _ => request.part,
        };
        self.feed(Event::ScannedPart(Box::new(PartAnswer {
            id: request.id,
            space: request.space,
            part,
            cells,
            huge: vec![u32::from(lie == 3)],
            written: (lie == 4).then(Vec::new),
            stats: if lie == 5 {
                most_of_all()
            } else {
                ScanStats::default()
            },
        })));
    }

    /// Carries a plan out, more or less. The report may be cut short, or name another page.
    fn migrate(&mut self, plan: &MovePlan) -> MoveReport {
        self.mover.land(plan.id);
        let cut = self.dice.below(4) == 0;
        let mut results = Vec::new();
        for m in &plan.moves {
            if cut && self.dice.below(10) == 0 {
                break;
            }
            let (mut gfn, mut status) = (m.gfn, MoveStatus::Moved);
            match self.dice.below(20) {
                0 => status = MoveStatus::Busy,
                1 => status = MoveStatus::NoMemory,
                2 => status = MoveStatus::NotTried,
                3 => status = MoveStatus::Failed(-22),
                4 => status = MoveStatus::Absent,
                5 => gfn.0 += 1,
                6 => status = MoveStatus::MappedByOthers,
                _ => {}
            }
            let free = self.free(m.to.index());
            let guest = self.guests.get_mut(&plan.vm).unwrap();
            let unit = m.gfn.0 / guest.unit_pages();
            let bytes = guest.ram(unit);
            let real = &mut guest.real[usize::try_from(unit).unwrap()];
            let mut now = PageCode(*real);
            if status == MoveStatus::Moved {
                now = PageCode(m.to.0);
                if gfn == m.gfn {
                    assert!(bytes <= free, "a tier is full");
                    *real = m.to.0;
                }
            }
            results.push(PageResult { gfn, status, now });
        }
        MoveReport {
            id: plan.id,
            vm: plan.vm,
            results,
            elapsed_ns: 1,
        }
    }
}

/// Counts that no pass has.
fn most_of_all() -> ScanStats {
    const MOST: u64 = u64::MAX;
    ScanStats {
        tables: MOST,
        leaves: MOST,
        accessed: MOST,
        cleared: MOST,
        lost_races: MOST,
        pruned: MOST,
        elapsed_ns: MOST,
        cpu_ns: MOST,
        ..ScanStats::default()
    }
}
