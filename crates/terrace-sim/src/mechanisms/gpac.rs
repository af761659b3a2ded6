//! GPAC in the guest: scattered hot pages, gathered into few 2 MiB blocks of guest-physical memory, beside whatever the host
//! does.
//!
//! The decisions are `terrace_core::gather`'s, as the agent's are. The guest has memory beyond its load; its blocks take
//! what is gathered. A page gets another frame as by swapping: its bytes are copied, its entry changes, all translations are
//! flushed. The guest's threads do it in the vCPUs' time.

use std::collections::{BTreeSet, VecDeque};

use terrace_core::gather::{Cl, Heat, Limits, Plan, Rounds, Skew, WINDOWS, keep_cold};
use terrace_proto::{PAGE_SIZE, TierId};

use crate::base::number::{index, low};
use crate::base::side::Side;
use crate::host::account::Spent;
use crate::host::migration::{Memory, page_copy_ps};
use crate::host::placer::GuestThread;
use crate::host::vm::Vm;
use crate::machine::second_stage::bits;
use crate::machine::space::Space;
use crate::machine::vcpu::Environment;

/// Length of a window of which it is asked whether a page was accessed, ns of the full-size machine.
const WINDOW_NS: u64 = 10_000_000_000;
/// Frames of a block.
const BLOCK: u32 = 512;

/// The guest's gathering.
#[derive(Clone, Debug)]
pub struct Gatherer {
    /// Of each page of the load.
    heat: Vec<Heat>,
    /// Windows so far.
    windows: u64,
    due_ns: u64,
    /// Blocks beyond the load, which take what is gathered.
    targets: BTreeSet<u32>,
    /// Their free frames, in order.
    room: VecDeque<u32>,
    /// Free frames elsewhere.
    left: Vec<u32>,
    rounds: Rounds,
    /// Hot pages of a block that is emptied.
    cl: Cl,
    /// Blocks with a hot page, as the first and the last round found them.
    hot_blocks: Option<(u64, u64)>,
    /// Pages that were gathered.
    gathered: u64,
}

impl Gatherer {
    /// Of a guest with memory beyond its load, and its limit of hot pages.
    #[must_use]
    pub fn new(space: &Space, cl: Cl) -> Self {
        let spare = space.guest.spare();
        Self {
            heat: vec![Heat::default(); index(low(space.guest.pages()))],
            windows: 0,
            due_ns: WINDOW_NS,
            targets: (spare.start / BLOCK..spare.end / BLOCK).collect(),
            room: spare.collect(),
            left: Vec::new(),
            rounds: Rounds::default(),
            cl,
            hot_blocks: None,
            gathered: 0,
        }
    }

    fn window(&mut self, vm: &mut Vm, memory: &mut Memory, env: &Environment) {
        let track = self.look(vm, env);
        vm.steal(track);
        self.windows += 1;
        let mut spent = Spent {
            track,
            ..Spent::default()
        };
        if self.windows >= u64::from(WINDOWS) {
            spent.classify = env.costs.classify_page * self.heat.len() as u64;
            spent.migrate = self.round(vm, memory, env);
            vm.steal(spent.classify + spent.migrate);
        }
        vm.account.add(spent, 0, 0);
    }

    /// Tests and clears A of each page; returns the time that this takes, ps.
    fn look(&mut self, vm: &mut Vm, env: &Environment) -> u64 {
        let mut ps = 0;
        for (page, heat) in (0..).zip(&mut self.heat) {
            let accessed = vm.space.guest.frame(page).is_some() && vm.space.guest.age(page);
            heat.push(accessed);
            ps += match accessed {
                true => env.costs.scan_accessed,
                false => env.costs.scan_leaf,
            };
        }
        ps + vm.shoot_down_from(Side::Guest, &env.costs)
    }

    /// Chooses blocks and moves their hot pages; returns the time that this takes, ps.
    fn round(&mut self, vm: &mut Vm, memory: &mut Memory, env: &Environment) -> u64 {
        let skew = self.skew(&vm.space);
        let hot = skew.hot_blocks();
        self.hot_blocks = Some((self.hot_blocks.map_or(hot, |(first, _)| first), hot));
        self.rounds.begin(&skew);
        if self.rounds.rests() {
            return 0;
        }
        let granted = vm.grant(memory.free);
        let mut mover = Mover {
            vm,
            memory,
            env,
            ps: 0,
            moved: 0,
        };
        self.send_back(&mut mover);
        let limits = Limits {
            cl: self.cl,
            pages: u64::MAX,
            room: self.room.len() as u64,
        };
        let plan = self.rounds.plan(&skew, limits);
        self.rounds.end(&plan, hot);
        self.gather(&plan, &mut mover);
        let ps = mover.finish();
        vm.settle(granted, memory.free);
        ps
    }

    fn skew(&self, space: &Space) -> Skew {
        let mut skew = Skew::new(space.guest.frames());
        for (page, heat) in (0..).zip(&self.heat) {
            if heat.is_hot()
                && let Some(frame) = space.guest.frame(page)
            {
                skew.count(frame.into(), true);
            }
        }
        for block in &self.targets {
            let first = u64::from(block * BLOCK);
            skew.target(first..first + u64::from(BLOCK));
        }
        skew
    }

    /// Pages in the targets that are not hot any more go to frames that hot ones left.
    fn send_back(&mut self, mover: &mut Mover) {
        let hot: Vec<u64> = (0..)
            .zip(&self.heat)
            .filter(|(_, heat)| heat.is_hot())
            .map(|(page, _)| page)
            .collect();
        let mut cold = self.residents(&mover.vm.space);
        keep_cold(&mut cold, &hot);
        for page in cold.into_iter().map(low) {
            let frame = mover.vm.space.guest.frame(page);
            let (Some(frame), Some(to)) = (frame, self.left.pop()) else {
                break;
            };
            mover.remap(page, frame, to);
            self.room.push_back(frame);
        }
        self.room.make_contiguous().sort_unstable();
    }

    /// Pages in the targets, ascending.
    fn residents(&self, space: &Space) -> Vec<u64> {
        let pages = 0..low(space.guest.pages());
        let inside = |page: &u32| {
            let frame = space.guest.frame(*page);
            frame.is_some_and(|frame| self.targets.contains(&(frame / BLOCK)))
        };
        pages.filter(inside).map(u64::from).collect()
    }

    fn gather(&mut self, plan: &Plan, mover: &mut Mover) {
        let blocks: BTreeSet<u64> = plan.blocks.iter().copied().collect();
        for (page, heat) in (0..).zip(&self.heat) {
            let frame = mover.vm.space.guest.frame(page).filter(|_| heat.is_hot());
            let chosen = frame.filter(|frame| blocks.contains(&u64::from(frame / BLOCK)));
            if let Some(frame) = chosen
                && let Some(to) = self.room.pop_front()
            {
                mover.remap(page, frame, to);
                self.left.push(frame);
                self.gathered += 1;
            }
        }
    }
}

impl GuestThread for Gatherer {
    fn run_quantum(&mut self, vm: &mut Vm, memory: &mut Memory, env: &Environment) {
        if env.now_ns >= self.due_ns {
            self.due_ns += WINDOW_NS;
            self.window(vm, memory, env);
        }
    }

    fn gathered(&self) -> u64 {
        self.gathered
    }

    fn hot_blocks(&self) -> Option<(u64, u64)> {
        self.hot_blocks
    }

    fn heap_bytes(&self) -> usize {
        let frames = self.room.capacity() + self.left.capacity() + self.targets.len();
        self.heat.capacity() + frames * size_of::<u32>()
    }
}

/// Gives pages other frames.
struct Mover<'a, 'b> {
    vm: &'a mut Vm,
    memory: &'a mut Memory<'b>,
    env: &'a Environment,
    /// Time spent, ps.
    ps: u64,
    moved: u64,
}

impl Mover<'_, '_> {
    /// Copies a page from a frame to another and maps it there.
    fn remap(&mut self, page: u32, from: u32, to: u32) {
        let costs = self.memory.costs;
        let read = self.tier_of(from, bits::ACCESSED);
        let written = self.tier_of(to, bits::ACCESSED | bits::DIRTY);
        self.memory.traffic[usize::from(read)].read += PAGE_SIZE;
        self.memory.traffic[usize::from(written)].written += PAGE_SIZE;
        let copy = page_copy_ps(self.memory.loads, costs, read, TierId(written));
        self.ps += costs.move_page + copy;
        self.vm.space.guest.remap(page, to);
        self.moved += 1;
        if self.moved.is_multiple_of(costs.move_batch as u64) {
            self.ps += self.vm.shoot_down_from(Side::Guest, costs);
        }
    }

    /// The tier of a frame that the kernel reads or writes. What the host has not backed yet it backs now.
    fn tier_of(&mut self, frame: u32, marks: u8) -> u8 {
        let space = &mut self.vm.space;
        let unit = space.second.unit_of(frame);
        let tier = space.second.tier(unit).unwrap_or_else(|| {
            let tier = space.quota.take(self.env.last_tier);
            space.second.put(unit, Some(tier));
            space.counts.exits += 1;
            self.ps += self.memory.costs.second_stage_fault;
            tier
        });
        space.second.raise(unit, marks);
        tier
    }

    /// The time that was spent, ps.
    fn finish(self) -> u64 {
        if self.moved == 0 {
            return self.ps;
        }
        self.ps + self.vm.shoot_down_from(Side::Guest, self.memory.costs)
    }
}
