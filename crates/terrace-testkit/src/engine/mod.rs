//! A tiny simulated host: guests with heat, accessed bits and pages in tiers, and an engine that is
//! driven by its own timeouts. No real time passes.

pub mod scattered;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_core::engine::report_of_count;
use terrace_core::{Engine, EngineConfig, Session};
use terrace_proto::log::{Record, Start};
use terrace_proto::{
    Action, Event, Gfn, MovePlan, MoveReport, MoveStatus, PAGE_SIZE, PageBitmap, PageCode,
    PageResult, PageSize, PartAnswer, PartCell, PartRequest, PlacementReport, RamRange, Rearm,
    RequestId, ScanAnswer, ScanRequest, ScanStats, Space, TableFrame, TablesAnswer, Tick, TierId,
    TierLimit, TierMemory, VmId, VmSpec,
};

/// One second in ticks.
pub const SECOND: u64 = 1_000_000_000;

/// A load: whether a page (first argument) is accessed, and whether it is written, before a scan (second argument,
/// its number).
pub type Heat = Box<dyn Fn(u64, u64) -> (bool, bool)>;

/// A guest's answer to named frames that is not what it does, or is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// All are counted as moved, none is.
    MovesNone,
    /// All are counted as moved, others are.
    MovesOthers,
    /// Nothing is counted.
    Silent,
    /// All are left, and counted so: no lie.
    Refuses,
}

/// A guest.
pub struct Guest {
    /// Tier of each page.
    pub tier: Vec<u8>,
    /// Accessed bit of each page.
    pub accessed: Vec<bool>,
    /// The load.
    pub heat: Heat,
    scans: u64,
    /// Whether scans tell which pages were written.
    pub writes: bool,
    /// CPU time that scans take by their answers, ns.
    pub cpu_ns: u64,
    /// 2 MiB blocks that the host backs with one huge page.
    pub huge: BTreeSet<u64>,
    /// Pages that other processes map too.
    pub others: BTreeSet<u64>,
    /// 2 MiB blocks that the guest maps by one leaf.
    pub leaves: BTreeSet<u64>,
    /// The data in each frame, by the number of the page that the load knows; none in a free one. If set, the guest moves what is
    /// named, and a frame stays in its tier.
    pub data: Option<Vec<Option<u64>>>,
    /// How the guest lies, if it does.
    pub lie: Option<Lie>,
    /// Page tables, by their frames.
    pub tables: BTreeMap<u32, NamedTable>,
}

/// A page table as scans name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedTable {
    /// Level of the table.
    pub level: u8,
    /// Accessed leaves that each pass finds below it.
    pub accessed: u16,
    /// Whether user tables map its page, too.
    pub mapped: bool,
}

/// The machine and the engine on it.
pub struct Host {
    /// The engine, with all events and actions.
    pub session: Session<Vec<(Tick, Record)>>,
    /// The time.
    pub now: Tick,
    /// The same for loads that go by it, ns.
    pub clock: Arc<AtomicU64>,
    /// The VMs.
    pub guests: BTreeMap<VmId, Guest>,
    /// Pages of each tier.
    pub capacity: Vec<u64>,
    /// Number of moves of which one finds its page busy; 0: none does.
    pub busy_every: u64,
    /// Plans that the kernel did not begin yet; `None`: it carries each out at once.
    pub slow: Option<Vec<MovePlan>>,
    /// The VM whose next pass names page tables.
    tables_of: Option<VmId>,
    moves: u64,
    queue: BTreeMap<(Tick, u64), Event>,
    queued: u64,
}

/// A repeatable draw of 0 to 255.
pub fn draw(a: u64, b: u64) -> u8 {
    let mut z = (a ^ b.rotate_left(32)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()[0]
}

/// A VM of `pages` 4 KiB pages without holes that may hold at most `fast` of them in the first tier.
pub fn spec(vm: u32, pages: u64, fast: u64) -> VmSpec {
    VmSpec {
        vm: VmId(vm),
        name: format!("vm{vm}"),
        ram: vec![RamRange {
            start: Gfn(0),
            pages,
        }],
        unit: PageSize::Base,
        limits: vec![
            TierLimit {
                floor_bytes: 0,
                ceiling_bytes: fast * PAGE_SIZE,
            },
            TierLimit {
                floor_bytes: 0,
                ceiling_bytes: u64::MAX,
            },
        ],
        weight: 1000,
        moves: true,
    }
}

impl Host {
    /// A host with so many pages per tier and no VM.
    pub fn new(config: EngineConfig, capacity: &[u64]) -> Self {
        let start = Start {
            version: "test".into(),
            config: serde_json::to_string(&config).unwrap(),
        };
        Self {
            session: Session::new(
                Engine::new(config).unwrap(),
                vec![(Tick(0), Record::Start(start))],
            ),
            now: Tick(0),
            clock: Arc::default(),
            guests: BTreeMap::new(),
            capacity: capacity.to_vec(),
            busy_every: 0,
            slow: None,
            tables_of: None,
            moves: 0,
            queue: BTreeMap::new(),
            queued: 0,
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        self.session.engine()
    }

    /// All events and actions.
    pub fn log(&self) -> &[(Tick, Record)] {
        self.session.log()
    }

    /// Lets a VM arrive now; its first pages are in the first tier, as many as its ceiling allows.
    pub fn arrive(&mut self, spec: VmSpec, heat: Heat) {
        let fast = spec.limits[0].ceiling_bytes / PAGE_SIZE;
        let pages = spec.span_pages();
        self.guests.insert(
            spec.vm,
            Guest {
                tier: (0..pages).map(|p| u8::from(p >= fast)).collect(),
                accessed: vec![false; usize::try_from(pages).unwrap()],
                heat,
                scans: 0,
                writes: true,
                cpu_ns: 3_000_000,
                huge: BTreeSet::new(),
                others: BTreeSet::new(),
                leaves: BTreeSet::new(),
                data: None,
                lie: None,
                tables: BTreeMap::new(),
            },
        );
        self.memory();
        self.after(0, Event::VmArrived(spec));
    }

    /// Reports the tiers' memory now.
    pub fn memory(&mut self) {
        let report = (0..self.capacity.len())
            .map(|tier| TierMemory {
                tier: TierId(u8::try_from(tier).unwrap()),
                total_bytes: self.capacity[tier] * PAGE_SIZE,
                free_bytes: (self.capacity[tier] - self.used(tier)) * PAGE_SIZE,
            })
            .collect();
        self.after(0, Event::Memory(report));
    }

    /// Pages in a tier.
    pub fn used(&self, tier: usize) -> u64 {
        let here = |g: &Guest| g.tier.iter().filter(|t| usize::from(**t) == tier).count() as u64;
        self.guests.values().map(here).sum()
    }

    /// Pages of a VM that are in the first tier, of those for which `which` holds.
    pub fn on_fast(&self, vm: u32, which: impl Fn(u64) -> bool) -> u64 {
        (0_u64..)
            .zip(&self.guests[&VmId(vm)].tier)
            .filter(|(page, tier)| **tier == 0 && which(*page))
            .count() as u64
    }

    /// Queues an event.
    pub fn after(&mut self, ns: u64, event: Event) {
        self.queued += 1;
        self.queue
            .insert((Tick(self.now.0 + ns), self.queued), event);
    }

    /// Runs until a tick.
    pub fn run_until(&mut self, end: Tick) {
        while self.step(end) {}
    }

    /// Lets one event happen; `false` if there is none until a tick, which has come then.
    pub fn step(&mut self, end: Tick) -> bool {
        let event = self.queue.first_key_value().map(|((at, _), _)| *at);
        let timer = self.engine().poll_timeout();
        let Some(next) = event.into_iter().chain(timer).min().filter(|t| *t <= end) else {
            self.now = end;
            return false;
        };
        self.now = self.now.max(next);
        self.clock.store(self.now.0, Ordering::Relaxed);
        let event = if event == Some(next) {
            self.queue.pop_first().unwrap().1
        } else {
            Event::Timer
        };
        for action in self.session.hear(self.now, event) {
            self.act(action);
        }
        true
    }

    fn act(&mut self, action: Action) {
        match action {
            // Of no page.
            Action::QueryProvider(_)
            | Action::Resize(_)
            | Action::Withdraw(..)
            | Action::Answer(_)
            | Action::LetGo(_)
            | Action::Collapse(_)
            // Of a simulated VM alone.
            | Action::Protect(_)
            | Action::Unprotect(_) => {}
            Action::QueryPlacement(query) => {
                let guest = &self.guests[&query.vm];
                let codes: Vec<_> = (0..guest.tier.len()).map(|p| guest.code(p)).collect();
                let half = codes.len() / 2;
                for (start, part, last) in [(0, &codes[..half], false), (half, &codes[half..], true)] {
                    let report = PlacementReport {
                        id: query.id,
                        vm: query.vm,
                        start: Gfn(start as u64),
                        codes: part.to_vec(),
                        last,
                    };
                    self.after(1_000_000, Event::Placement(report));
                }
            }
            Action::NameTables(space) => self.tables_of = Some(space.vm()),
            Action::Scan(request) => {
                self.name_tables(request.id, request.space, 5_000_000);
                let answer = self
                    .guests
                    .get_mut(&request.space.vm())
                    .unwrap()
                    .scan(&request);
                self.after(5_000_000, Event::Scanned(Box::new(answer)));
            }
            Action::ScanPart(request) => {
                self.name_tables(request.id, request.space, 500_000);
                let guest = self.guests.get_mut(&request.space.vm()).unwrap();
                let answer = guest.scan_part(&request);
                self.after(500_000, Event::ScannedPart(Box::new(answer)));
            }
            Action::Move(plan) if self.slow.is_some() => self.slow.iter_mut().for_each(|slow| slow.push(plan.clone())),
            Action::Move(plan) => {
                let report = self.migrate(&plan);
                self.after(10_000_000, Event::Moved(report));
            }
        }
    }

    /// Names the page tables that a pass finds, if it was asked to.
    fn name_tables(&mut self, id: RequestId, space: Space, ns: u64) {
        if self.tables_of.take_if(|vm| *vm == space.vm()).is_none() {
            return;
        }
        let tables = &self.guests[&space.vm()].tables;
        let named = tables.iter().filter(|(_, table)| table.accessed > 0);
        let frames = named.map(|(frame, table)| TableFrame {
            frame: *frame,
            level: table.level,
            accessed: table.accessed,
        });
        let mut frames: Vec<TableFrame> = frames.collect();
        TableFrame::bound(
            &mut frames,
            TableFrame::most(self.guests[&space.vm()].tier.len() as u64),
        );
        self.after(
            ns,
            Event::Tables(Box::new(TablesAnswer { id, space, frames })),
        );
    }

    /// Carries out the plans that the kernel did not begin yet, and all later ones at once.
    pub fn begin_slow(&mut self) {
        for plan in self.slow.take().unwrap_or_default() {
            let report = self.migrate(&plan);
            self.after(10_000_000, Event::Moved(report));
        }
    }

    fn migrate(&mut self, plan: &MovePlan) -> MoveReport {
        if self.session.engine().is_for_guest(plan.vm, plan.id) {
            let guest = self.guests.get_mut(&plan.vm).unwrap();
            let (moved, left) = guest.answer(plan);
            return report_of_count(plan, moved, left, 9_000_000);
        }
        let mut results = Vec::new();
        for m in &plan.moves {
            self.moves += 1;
            let page = usize::try_from(m.gfn.0).unwrap();
            let free = self.capacity[m.to.index()] - self.used(m.to.index());
            let guest = self.guests.get_mut(&plan.vm).unwrap();
            let extent = guest.extent(page);
            let status = if guest.others.contains(&m.gfn.0) {
                MoveStatus::MappedByOthers
            } else if self.busy_every > 0 && self.moves.is_multiple_of(self.busy_every) {
                MoveStatus::Busy
            } else if free < extent.len() as u64 {
                MoveStatus::NoMemory
            } else {
                guest.tier[extent].fill(m.to.0);
                MoveStatus::Moved
            };
            results.push(PageResult {
                gfn: m.gfn,
                status,
                now: guest.code(page),
            });
        }
        MoveReport {
            id: plan.id,
            vm: plan.vm,
            results,
            elapsed_ns: 9_000_000,
        }
    }
}

impl Guest {
    fn is_huge(&self, page: usize) -> bool {
        self.huge.contains(&(page as u64 / 512))
    }

    fn code(&self, page: usize) -> PageCode {
        PageCode::new(TierId(self.tier[page]), self.is_huge(page))
    }

    /// The pages that the kernel moves with this one.
    fn extent(&self, page: usize) -> Range<usize> {
        if self.is_huge(page) {
            page / 512 * 512..(page / 512 + 1) * 512
        } else {
            page..page + 1
        }
    }

    /// Does what the host names, or lies; counts of frames moved and left.
    fn answer(&mut self, plan: &MovePlan) -> (u64, u64) {
        let all = plan.moves.len() as u64;
        let last = self.tier.len() as u64 - 1;
        let mut moved = 0;
        for page in &plan.moves {
            let frame = match self.lie {
                Some(Lie::MovesNone | Lie::Silent | Lie::Refuses) => continue,
                Some(Lie::MovesOthers) => last - page.gfn.0,
                None => page.gfn.0,
            };
            moved += u64::from(self.move_data(frame, page.to.0));
        }
        match self.lie {
            Some(Lie::MovesNone | Lie::MovesOthers) => (all, 0),
            Some(Lie::Silent) => (0, 0),
            Some(Lie::Refuses) => (0, all),
            None => (moved, all - moved),
        }
    }

    /// Moves what lies in a frame to a free frame of a tier, as a guest does; returns whether there was one.
    fn move_data(&mut self, frame: u64, tier: u8) -> bool {
        let (tiers, data) = (&self.tier, self.data.as_mut().unwrap());
        let free = (0..data.len()).find(|at| data[*at].is_none() && tiers[*at] == tier);
        let from = usize::try_from(frame).unwrap();
        let Some(free) = free.filter(|_| data[from].is_some()) else {
            return false;
        };
        data.swap(from, free);
        true
    }

    /// Free frames of a tier.
    pub fn free_frames(&self, tier: u8) -> u64 {
        let data = self.data.as_deref().unwrap_or_default();
        let free = data.iter().zip(&self.tier);
        free.filter(|(data, at)| data.is_none() && **at == tier)
            .count() as u64
    }

    /// Frames of the first tier in which data is for which `which` holds.
    pub fn data_on_fast(&self, which: impl Fn(u64) -> bool) -> u64 {
        let data = self.data.as_deref().unwrap_or_default();
        let there = data.iter().zip(&self.tier);
        let here = there.filter(|(data, tier)| **tier == 0 && data.is_some_and(&which));
        here.count() as u64
    }

    /// A part's leaf tables each map 512 pages in order.
    fn scan_part(&mut self, request: &PartRequest) -> PartAnswer {
        self.scans += 1;
        let mut cells = Vec::new();
        for (at, bits) in (0_u32..).zip(self.accessed.chunks_mut(64)) {
            if !request.part.has(Gfn(u64::from(at / 8))) {
                continue;
            }
            let (mut mapped, mut accessed) = (0, 0);
            for (i, bit) in bits.iter_mut().enumerate() {
                let page = u64::from(at) * 64 + i as u64;
                let data = match &self.data {
                    Some(data) => data[usize::try_from(page).unwrap()],
                    None => Some(page),
                };
                mapped |= u64::from(data.is_some()) << i;
                *bit |= data.is_some_and(|data| (self.heat)(data, self.scans).0);
                accessed |= u64::from(*bit && data.is_some()) << i;
                *bit &= !request.clear;
            }
            cells.push(PartCell {
                at,
                mapped,
                accessed,
            });
        }
        PartAnswer {
            id: request.id,
            space: request.space,
            part: request.part,
            stats: ScanStats {
                leaves: cells.len() as u64 * 64,
                elapsed_ns: 400_000,
                cpu_ns: self.cpu_ns / u64::from(request.part.count()),
                ..ScanStats::default()
            },
            cells,
            huge: Vec::new(),
            written: None,
        }
    }

    fn scan(&mut self, request: &ScanRequest) -> ScanAnswer {
        self.scans += 1;
        let pages = self.accessed.len() as u64;
        let mut answer = ScanAnswer {
            id: request.id,
            space: request.space,
            known: PageBitmap::full(pages),
            accessed: PageBitmap::new(pages),
            written: self.writes.then(|| PageBitmap::new(pages)),
            huge_leaf: PageBitmap::new(pages.div_ceil(512)),
            stats: ScanStats {
                leaves: pages,
                elapsed_ns: 4_000_000,
                cpu_ns: self.cpu_ns,
                ..ScanStats::default()
            },
        };
        for (page, bit) in (0_u64..).zip(&mut self.accessed) {
            let data = match &self.data {
                Some(data) => data[usize::try_from(page).unwrap()],
                None => Some(page),
            };
            let table = u32::try_from(page)
                .ok()
                .and_then(|page| self.tables.get(&page));
            let data = data.filter(|_| table.is_none_or(|table| table.mapped));
            answer.known.put(page, data.is_some());
            let load = |data| (self.heat)(data, self.scans);
            let (accessed, written) = data.map_or((false, false), load);
            *bit |= accessed;
            answer.accessed.put(page, *bit);
            if let Some(map) = &mut answer.written {
                map.put(page, written);
            }
            let rearmed = match &request.rearm {
                Rearm::None => false,
                Rearm::All => true,
                Rearm::Only(map) => map.get(page),
            };
            *bit &= !rearmed;
        }
        for leaf in &self.leaves {
            answer.huge_leaf.put(*leaf, true);
            let mut parts = *leaf * 512..(*leaf + 1) * 512;
            if parts.any(|page| answer.accessed.get(page)) {
                answer.accessed.set_range(*leaf * 512, 512);
            }
        }
        answer
    }
}
