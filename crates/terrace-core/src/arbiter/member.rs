//! A VM that takes part: what it may have, what it has, and what its guest says.

use std::sync::Arc;

use terrace_proto::{MemoryNeed, MemoryRights, MemoryTiers, ResizeId, SpeedRights, Tick, TierId};

use super::cache::Cache;
use super::changes::Change;
use super::exchange::Exchanges;
use super::guest::Guest;
use super::hold::Hold;
use super::peaks::Peaks;
use super::percent;
use super::phase::Phase;
use super::relief::Relief;
use super::standing::Standing;
use super::steps::Step;
use super::trials::NOISE_NS;
use crate::config::ArbiterConfig;
use crate::demand::{Aged, Curve, Swap};
use crate::provision::{STUCK, Sizes, TierSize};
use crate::share::{Heat, Want};

/// Least time between two values of used swap that count, ns: they are meant for one a second.
const NEED_EVERY: u64 = 900_000_000;

/// Time for which a guest's words count, ns: two cycles by default. A guest that says no more may use by now what it called
/// free, and may swap no more.
pub(super) const NEED_LASTS: u64 = 10_000_000_000;

/// Doublings of the pause after a refusal: from one cycle to eight, 40 s by default.
const MOST_DOUBLINGS: u32 = 3;

/// Seconds over which lost time is a rate: one cycle by default.
const RATE_S: usize = 5;

/// Lost time from which on a guest with used swap lacks memory, ns a second: a hundredth of a vCPU.
pub(super) const WAITS_NS: u64 = 10_000_000;

/// A guest with less of its memory free is short, percent (HPMBS §4.1).
const SHORT_PERCENT: u8 = 5;

/// Share of huge pages from which on a working set of huge pages is believed, percent (HPMBS §4.2).
const HUGE_PERCENT: u8 = 90;

/// The demand of a VM as the engine knows it, in bytes that its provider sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownDemand {
    /// The working set, if it was seen while the guest did not swap.
    pub working_set: Option<u64>,
    /// Whether its phase lasts.
    pub is_stable: bool,
    /// Misses of each size.
    pub curve: Option<Curve>,
    /// The VM's memory by heat, the hottest first; empty: not known.
    pub heat: Arc<[Heat]>,
    /// The VM's hot set, bytes; 0: not known.
    pub hot: u64,
    /// The ages of its memory.
    pub aged: Option<Aged>,
}

/// A direction in which a size changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To less memory.
    Down,
    /// To more memory.
    Up,
}

/// The counters of a guest at a time.
#[derive(Clone, Copy, Debug)]
struct Count {
    at: Tick,
    lost_ns: u64,
    faults: u64,
}

/// Rates of a guest's faults, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Lost time, ns.
    pub lost_ns: u64,
    /// Major faults.
    pub faults: u64,
}

/// Memory that a VM came with: what it has less than that, others borrowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loan {
    /// Memory of each tier that it was to have when it came, bytes; `None` until its sizes are known.
    pub brought: Option<Vec<u64>>,
    /// Whether memory beyond that is called back, because a VM has less than it brought that swaps, or is to get back what did
    /// harm.
    pub returns: bool,
    /// Whether no lender swaps: it comes back as fast as own memory may be taken.
    pub is_paced: bool,
}

/// The use of each tier, and the VM's right to speed, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// The last words about its tiers.
    pub tiers: Option<MemoryTiers>,
    /// The measure of the VM's slowdown.
    pub speed: Option<SpeedRights>,
    /// The size that `fair` found for it while it swapped, bytes.
    pub fair_bytes: Option<u64>,
}

/// The way of a VM's requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The request that is not answered yet, and the sizes that it names.
    pub pending: Option<(ResizeId, Vec<u64>)>,
    /// The size at which the VM stands on its way up, and since when.
    pub stands: Option<(Tick, u64)>,
    /// Refusals in a row, and the time until which nothing is asked of its provider for them.
    pub refused: (u32, Option<Tick>),
    /// The most that is asked for since a larger size was refused, bytes, and until when.
    pub bound: Option<(Tick, u64)>,
    /// See [`Exchanges`].
    pub exchanges: Exchanges,
}

/// The last while of a guest.
#[derive(Clone, Debug, Default)]
pub struct Past {
    relief: Relief,
    /// The most memory that it used in the last while.
    pub peaks: Peaks,
    /// The counts of the last seconds, oldest first.
    counts: Vec<Count>,
    /// Its last changes, oldest first.
    pub(super) changes: Vec<Change>,
    /// The rate of its faults before it shrank last.
    pub before_shrink: Option<Rate>,
    /// The state at the last decision; `None` if it took part in none.
    decided_by: Option<State>,
}

/// The part of what a guest says by which sizes are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    /// Free memory, and what of it was free for long, bytes.
    free: [u64; 2],
    used_swap: u64,
    swaps: bool,
    rate: Rate,
    is_huge: bool,
}

/// The facts of a live VM.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Whether it is left alone.
    pub standing: Standing,
    /// The statistics of its guest.
    pub guest: Guest,
    /// The guest's page cache.
    pub cache: Cache,
    /// The phase of its use of memory.
    pub phase: Phase,
    /// The sizes that were said instead of ordered, if nothing is ordered.
    pub proposed: Option<Vec<u64>>,
}

/// A VM that takes part.
#[derive(Clone, Debug)]
pub struct Member {
    /// The bounds of its memory, and its weight.
    pub rights: MemoryRights,
    /// The present sizes; `None` before its provider reported.
    pub sizes: Option<Sizes>,
    /// The guest's last words, and their time.
    pub need: Option<(Tick, MemoryNeed)>,
    /// The last values of used swap.
    pub swap: Swap,
    /// See [`Past`].
    pub past: Past,
    /// The last change of each tier, and when it was ordered.
    pub turned: [Option<(Tick, Direction)>; TierId::MAX],
    /// See [`Asked`].
    pub asked: Asked,
    /// See [`Hold`].
    pub hold: Option<Hold>,
    /// See [`Loan`].
    pub loan: Loan,
    /// See [`Use`].
    pub uses: Use,
    /// See [`Facts`].
    pub facts: Facts,
    /// The demand at the last decision.
    pub demand: KnownDemand,
}

impl Member {
    /// A VM of which nothing is known yet.
    #[must_use]
    pub fn new(rights: MemoryRights) -> Self {
        Self {
            rights,
            sizes: None,
            need: None,
            swap: Swap::default(),
            past: Past::default(),
            turned: [None; TierId::MAX],
            asked: Asked::default(),
            hold: None,
            loan: Loan::default(),
            uses: Use::default(),
            facts: Facts::default(),
            demand: KnownDemand::default(),
        }
    }

    /// Takes in what the guest says; `false`: it said something less than a second ago.
    pub fn need(&mut self, now: Tick, need: MemoryNeed) -> bool {
        if let Some((at, before)) = &self.need {
            if now.0.saturating_sub(at.0) < NEED_EVERY {
                return false;
            }
            // The guest started anew: what it counted before says nothing.
            if need.lost_ns < before.lost_ns || need.major_faults < before.major_faults {
                self.past.counts.clear();
                self.swap = Swap::default();
                self.past.before_shrink = None;
            }
        }
        self.swap.add(need.used_swap_bytes);
        self.past.counts.push(Count {
            at: now,
            lost_ns: need.lost_ns,
            faults: need.major_faults,
        });
        if self.past.counts.len() > RATE_S + 1 {
            self.past.counts.remove(0);
        }
        self.need = Some((now, need));
        self.past.relief.add(self.is_swapping());
        true
    }

    fn state(&self, config: &ArbiterConfig) -> State {
        let need = self.need.map(|(_, need)| need);
        State {
            free: [self.spare(config), self.idle(config)],
            used_swap: need.map_or(0, |need| need.used_swap_bytes),
            swaps: self.is_swapping(),
            rate: self.rate(),
            is_huge: need.is_some_and(|need| need.huge_percent >= HUGE_PERCENT),
        }
    }

    /// Notes that sizes are decided by what its guest says now.
    pub fn is_decided(&mut self, config: &ArbiterConfig) {
        self.past.decided_by = self.need.is_some().then(|| self.state(config));
    }

    /// Whether its guest is no more as it was at the last decision. Free memory may differ by the dead band.
    #[must_use]
    pub fn differs(&self, config: &ArbiterConfig) -> bool {
        let Some(before) = self.past.decided_by else {
            return true;
        };
        let now = self.state(config);
        let band = percent(self.size(), config.dead_band_percent);
        let mut free = before.free.iter().zip(now.free);
        let is_free = free.all(|(before, now)| before.abs_diff(now) <= band);
        State {
            free: now.free,
            ..before
        } != now
            || !is_free
    }

    /// The next time after this one at which it may be resized again though nothing is heard of it.
    #[must_use]
    pub fn wakes(&self, now: Tick, config: &ArbiterConfig) -> Option<Tick> {
        let after = |at: Tick, ms: u64| Tick(at.0.saturating_add(ArbiterConfig::ns(ms)));
        let turned = self.turned.iter().flatten();
        // A while later what was not given is no more asked for.
        let ways = [config.turn_ms, config.review_ms];
        let turned = turned.flat_map(|(at, _)| ways.map(|ms| after(*at, ms)));
        let stands = self.asked.stands.map(|(at, _)| after(at, config.review_ms));
        let held = self.hold.map(|hold| hold.until);
        let times = turned.chain(stands).chain(held);
        let times = times.chain(self.asked.refused.1);
        let times = times.chain(self.asked.exchanges.pause);
        let times = times.chain(self.undone_at(config));
        times.filter(|at| *at > now).min()
    }

    /// Takes in the answer to its request: after each refusal the next request waits longer.
    pub fn answered(&mut self, now: Tick, is_taken: bool, config: &ArbiterConfig) {
        let pending = self.asked.pending.take();
        if is_taken {
            self.asked.refused = (0, None);
            return;
        }
        let wanted = pending.map_or(0, |(_, sizes)| super::sum(&sizes));
        self.bound(now, wanted, config);
        // Nothing changed: it did not turn.
        self.turned = [None; TierId::MAX];
        let (times, _) = self.asked.refused;
        let pause = config
            .cycle_ms
            .saturating_mul(1 << times.min(MOST_DOUBLINGS));
        let until = now.0.saturating_add(ArbiterConfig::ns(pause));
        self.asked.refused = (times.saturating_add(1), Some(Tick(until)));
    }

    /// A size that was refused is a bound: half as much more is asked for next, as the host may have less for it than was
    /// known.
    fn bound(&mut self, now: Tick, wanted: u64, config: &ArbiterConfig) {
        let size = self.size();
        if wanted > size {
            let until = Tick(now.0.saturating_add(config.pause_ns()));
            self.asked.bound = Some((until, size + (wanted - size) / 2));
        }
    }

    /// Notes whether it gets on with its way up.
    pub fn watch(&mut self, now: Tick) {
        let (size, target) = (self.size(), self.sizes.as_ref().map_or(0, Sizes::target));
        let stood = self.asked.stands.filter(|(_, at)| *at == size);
        self.asked.stands = (size < target).then_some(stood.unwrap_or((now, size)));
    }

    /// Whether memory that it was given waits for it in vain: it stands as long as it takes to judge a change.
    #[must_use]
    pub fn is_stalled(&self, now: Tick, config: &ArbiterConfig) -> bool {
        let last = self.turned.iter().flatten().max_by_key(|(at, _)| *at);
        let is_ours = last.is_some_and(|(_, way)| *way == Direction::Up);
        let review = ArbiterConfig::ns(config.review_ms);
        let stood = |at: Tick| now.0.saturating_sub(at.0) >= review;
        is_ours
            && self.facts.standing.alone.is_none()
            && self.asked.pending.is_none()
            && self.asked.stands.is_some_and(|(at, _)| stood(at))
    }

    /// Whether it has given for long what it can, and less than was ordered: its guest cannot reach its target.
    #[must_use]
    pub fn gave_less(&self, now: Tick, config: &ArbiterConfig) -> bool {
        let last = self.turned.iter().flatten().max_by_key(|(at, _)| *at);
        let review = ArbiterConfig::ns(config.review_ms);
        let is_old = |at: Tick| now.0.saturating_sub(at.0) >= review;
        let is_ours = last.is_some_and(|(at, way)| *way == Direction::Down && is_old(*at));
        let is_stuck = |sizes: &Sizes| sizes.still == Some(STUCK) && sizes.size() > sizes.target();
        let is_alone = self.facts.standing.alone.is_some();
        is_ours
            && !is_alone
            && self.asked.pending.is_none()
            && self.sizes.as_ref().is_some_and(is_stuck)
    }

    /// Takes in that so much is taken of it: what its guest called free before is so much less now.
    pub fn give(&mut self, bytes: u64) {
        if let Some((_, need)) = &mut self.need {
            need.free_bytes = need.free_bytes.saturating_sub(bytes);
        }
    }

    /// Forgets what a guest said that fell silent, and refusals that are long ago.
    pub fn forget(&mut self, now: Tick) {
        self.asked.refused.1 = self.asked.refused.1.filter(|until| *until > now);
        self.asked.bound = self.asked.bound.filter(|(until, _)| *until > now);
        let is_old = |at: Tick| now.0.saturating_sub(at.0) > NEED_LASTS;
        if self.need.is_some_and(|(at, _)| is_old(at)) {
            self.silence();
        }
    }

    /// Forgets what a guest said.
    pub fn silence(&mut self) {
        self.need = None;
        self.uses.tiers = None;
        self.past.counts.clear();
        self.swap = Swap::default();
        self.past.before_shrink = None;
    }

    /// Rates over the last seconds.
    #[must_use]
    pub fn rate(&self) -> Rate {
        let (Some(first), Some(last)) = (self.past.counts.first(), self.past.counts.last()) else {
            return Rate::default();
        };
        let ns = u128::from(last.at.0.saturating_sub(first.at.0));
        let per_s = |more: u64| {
            let rate = (u128::from(more) * 1_000_000_000).checked_div(ns);
            u64::try_from(rate.unwrap_or(0)).unwrap_or(u64::MAX)
        };
        Rate {
            lost_ns: per_s(last.lost_ns - first.lost_ns),
            faults: per_s(last.faults - first.faults),
        }
    }

    /// When its guest spoke last, and its major faults so far.
    #[must_use]
    pub fn counted(&self, now: Tick) -> (Tick, u64) {
        self.need
            .map_or((now, 0), |(at, need)| (at, need.major_faults))
    }

    /// Time of one of its major faults, ns: as its guest says, up to the configured one. A guest may make its faults cheaper,
    /// never dearer: by the price of a fault its curve takes memory from others.
    #[must_use]
    pub fn fault_ns(&self, config: &ArbiterConfig) -> u64 {
        let rate = self.rate();
        let said = rate.lost_ns.checked_div(rate.faults);
        said.map_or(config.fault_ns, |said| said.min(config.fault_ns))
            .max(1)
    }

    /// Lost time a second, by the VM's weight, ns.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let lost = u128::from(self.rate().lost_ns) * u128::from(self.rights.weight) / 1000;
        u64::try_from(lost).unwrap_or(u64::MAX)
    }

    /// Whether the guest swaps: its used swap grows (HPMBS §2.6), or it has some, waits for pages all the time and has
    /// nearly nothing free. A guest whose program is larger than its memory has as much in swap one second as the next.
    #[must_use]
    pub fn is_swapping(&self) -> bool {
        let free = self.need.map_or(0, |(_, need)| need.free_bytes);
        let is_short = free < percent(self.size(), SHORT_PERCENT);
        let waits = self.swap.used_bytes() > 0 && self.rate().lost_ns >= WAITS_NS;
        self.swap.is_swapping() || waits && is_short
    }

    /// The VM's memory, bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.sizes.as_ref().map_or(0, Sizes::size)
    }

    /// The present size of each tier, bytes.
    #[must_use]
    pub fn sizes_each(&self) -> Vec<u64> {
        self.each(|tier| tier.size)
    }

    /// The memory of each tier that counts as the VM's, bytes.
    #[must_use]
    pub fn most_each(&self) -> Vec<u64> {
        let mut most = self.each(|tier| tier.most);
        // What is asked for may be ordered at any time.
        let asked = self.asked.pending.iter().flat_map(|(_, sizes)| sizes);
        for (most, asked) in most.iter_mut().zip(asked) {
            *most = (*most).max(*asked);
        }
        most
    }

    fn each(&self, of: impl Fn(&TierSize) -> u64) -> Vec<u64> {
        self.sizes
            .as_ref()
            .map_or_else(Vec::new, |sizes| sizes.each(of))
    }

    /// The memory that counts as the VM's, bytes.
    #[must_use]
    pub fn most(&self) -> u64 {
        super::sum(&self.most_each())
    }

    /// The number of tiers that its device sizes.
    #[must_use]
    pub fn tiers(&self) -> usize {
        self.sizes.as_ref().map_or(0, |sizes| sizes.tiers.len())
    }

    /// Memory that it brought, all tiers together, bytes.
    #[must_use]
    pub fn all_brought(&self) -> Option<u64> {
        Some(super::sum(self.loan.brought.as_ref()?))
    }

    /// Memory that is called back from it, bytes: others lent it, and one of them swaps or lost by that.
    #[must_use]
    pub fn lent(&self) -> u64 {
        match self.all_brought() {
            Some(brought) if self.loan.returns => self.size().saturating_sub(brought),
            _ => 0,
        }
    }

    /// The most that it may grow to: while lent memory is called back, no more than it brought.
    #[must_use]
    pub fn may_have(&self) -> u64 {
        let bound = self.asked.bound.map_or(u64::MAX, |(_, bytes)| bytes);
        let most = self.ceiling().min(bound.max(self.size()));
        match self.all_brought() {
            Some(brought) if self.loan.returns => most.min(brought),
            _ => most,
        }
    }

    /// Whether it swaps with less memory than it brought, by more than the dead band.
    #[must_use]
    pub fn calls_back(&self, config: &ArbiterConfig) -> bool {
        let Some(brought) = self.all_brought() else {
            return false;
        };
        let near = brought - percent(brought, config.dead_band_percent);
        self.is_swapping() && self.most() < near || self.misses_cache(brought)
    }

    /// Whether it may have of the reserve: it swaps, and did not for long or did not have as much already beyond what it
    /// brought. One that swaps for ever would leave none for those that begin to. One that is held at more than it has gave it
    /// to the reserve, and gets that back.
    #[must_use]
    pub fn draws_on(&self, now: Tick, reserve: u64, config: &ArbiterConfig) -> bool {
        let is_new = self.past.relief.is_new(config);
        let most = self
            .all_brought()
            .map(|brought| brought.saturating_add(reserve));
        let swaps = self.is_swapping() && (is_new || most.is_none_or(|most| self.size() < most));
        swaps || self.size() < self.held(now)
    }

    /// Whether it can be resized now. Of one whose guest says nothing only lent memory can be called back.
    #[must_use]
    pub fn can_act(&self) -> bool {
        let moves = |sizes: &Sizes| sizes.still.is_none() && sizes.size() == sizes.most();
        let speaks = self.need.is_some() || self.lent() > 0;
        let is_free = self.asked.pending.is_none() && self.asked.refused.1.is_none();
        let is_alone = self.facts.standing.alone.is_some();
        !is_alone && is_free && speaks && self.sizes.as_ref().is_some_and(moves)
    }

    /// The least that the VM may have, with what was found to do harm below.
    #[must_use]
    pub fn floor(&self, now: Tick) -> u64 {
        self.own_floor().max(self.held(now))
    }

    /// The same without what holds for some time alone.
    #[must_use]
    pub fn own_floor(&self) -> u64 {
        let bounds = self.sizes.as_ref();
        // A provider may name any least size: the VM's part of the host it has in any case is its present size.
        let (least, whole) = bounds.map_or((0, 0), |sizes| {
            (sizes.least().min(sizes.size()), sizes.whole())
        });
        self.rights.floor_bytes.max(least).min(whole)
    }

    /// The most that the VM may have. A ceiling below the floor counts as the floor.
    #[must_use]
    pub fn ceiling(&self) -> u64 {
        let whole = self.sizes.as_ref().map_or(0, Sizes::whole);
        self.rights.ceiling_bytes.max(self.own_floor()).min(whole)
    }

    /// Memory that the guest calls free and can do without, bytes. It keeps a little, so that the next allocation does
    /// not begin with reclaim.
    #[must_use]
    pub fn spare(&self, config: &ArbiterConfig) -> u64 {
        let size = self.size();
        let free = self.need.map_or(0, |(_, need)| need.free_bytes).min(size);
        free.saturating_sub(percent(size, config.dead_band_percent.max(1)))
    }

    /// Memory of a tier that nobody uses, bytes; 0: nothing is known of it.
    #[must_use]
    pub fn free_of(&self, tier: usize) -> u64 {
        let free = self.uses.tiers.map(|seen| seen.free_bytes);
        let free = free.and_then(|free| free.get(tier).copied()).unwrap_or(0);
        free.min(self.sizes_each().get(tier).copied().unwrap_or(0))
    }

    /// The most of a VM's memory that may go at once whatever else allows more, bytes: pages in use of memory that is unplugged
    /// move to what the guest's nodes have free. Of what others lent the guest makes so much free as may be taken at once.
    #[must_use]
    pub fn most_taken(&self, now: Tick, config: &ArbiterConfig) -> u64 {
        let unplugs = self.sizes.as_ref().is_some_and(|sizes| sizes.unplugs);
        match self.need.filter(|_| unplugs) {
            Some((_, need)) => {
                let called = self.called_back(now, config);
                need.free_bytes.max(called.min(self.pace(config)))
            }
            None => u64::MAX,
        }
    }

    /// Page cache that may be taken of it now, bytes.
    #[must_use]
    pub fn cache(&self, now: Tick, config: &ArbiterConfig) -> u64 {
        if self.is_swapping() || self.suffers() {
            return 0;
        }
        let tiers = self.sizes.iter().flat_map(|sizes| &sizes.tiers);
        let block = tiers.map(|tier| tier.block.max(1)).max().unwrap_or(1);
        self.facts.cache.gives(now, self.size(), block, config)
    }

    /// Memory that its guest's programs have and do not use, by its curve, bytes: known for as long as memory must be free before
    /// others have it. A guest without swap could not do without it, and one of which that is not known is taken for one.
    #[must_use]
    pub fn unused(&self, config: &ArbiterConfig) -> u64 {
        let is_long = |aged: &Aged| aged.span_ns >= ArbiterConfig::ns(config.valley_ms);
        let Some(aged) = self.demand.aged.filter(is_long) else {
            return 0;
        };
        if self.is_swapping() || self.suffers() {
            return 0;
        }
        // Linux may give a balloon files instead: whether they are missed nobody would see.
        if self.facts.cache.quiet_read(config).is_none() {
            return 0;
        }
        // By what was heard last: silence is judged before it.
        let heard = self.need.map_or(Tick(0), |(at, _)| at);
        aged.unused_bytes.min(self.facts.guest.free_swap(heard))
    }

    /// Whether a step takes page cache of it: more than its guest calls free, and no more than a step of its cache beyond
    /// that. A VM that shrinks since all have more than they may is not watched for it, as it would not get it back.
    #[must_use]
    pub fn is_cache(&self, now: Tick, step: &Step, config: &ArbiterConfig) -> bool {
        let less = self.size().saturating_sub(super::sum(&step.to));
        let beyond = less.saturating_sub(self.spare(config));
        self.lent() == 0
            && self.unused(config) == 0
            && beyond > 0
            && beyond <= self.cache(now, config)
    }

    /// Notes that it is ordered to have less, if that is or may be page cache.
    pub fn gives_cache(&mut self, now: Tick, step: &Step, config: &ArbiterConfig) {
        let sizes = (self.size(), super::sum(&step.to));
        if self.is_cache(now, step, config) {
            self.facts.cache.give(sizes, config);
        } else if self.lent() == 0 && self.unused(config) > 0 {
            self.facts.cache.give_by_age(sizes.0, config);
        }
    }

    /// Whether it loses more time than before it shrank last: it may lose that because it shrank.
    #[must_use]
    pub fn suffers(&self) -> bool {
        let rate = self.rate();
        let before = self.past.before_shrink;
        before.is_some_and(|before| rate.lost_ns > before.lost_ns.saturating_add(NOISE_NS))
    }

    /// Memory that may be taken at once beyond what its guest calls free, bytes.
    #[must_use]
    pub fn pace(&self, config: &ArbiterConfig) -> u64 {
        percent(self.size(), config.shrink_percent).max(config.least_shrink_bytes)
    }

    /// Spare memory that was so for long, bytes: what others and the reserve may have. A guest that asks for it again in its
    /// next burst would have to wait for those who got it. Of a new VM what was so since it was heard first: the reserve is to be
    /// there within seconds.
    #[must_use]
    pub fn idle(&self, config: &ArbiterConfig) -> u64 {
        let little = percent(self.size(), config.dead_band_percent.max(1));
        let idle = self.size().saturating_sub(self.past.peaks.most());
        idle.saturating_sub(little).min(self.spare(config))
    }

    /// Memory that a guest which swaps lacks, bytes: its used swap while that grows (HPMBS §4.2). Otherwise a part of it
    /// may be pages that nobody asks for: then a step, so large that a guest whose swap device is slow is not chased for
    /// minutes.
    #[must_use]
    pub fn lacks(&self, config: &ArbiterConfig) -> u64 {
        let step = percent(self.size(), config.shrink_percent);
        match self.swap.is_swapping() {
            true => self.swap.used_bytes().max(step),
            false => step,
        }
    }

    /// The memory that the VM wants (HPMBS §4.2).
    #[must_use]
    pub fn want(&self, config: &ArbiterConfig) -> Want {
        if self.is_swapping() {
            let used_swap_bytes = self.lacks(config);
            return Want::Swapping { used_swap_bytes };
        }
        let huge = self.need.map_or(0, |(_, need)| need.huge_percent);
        match self.demand.working_set {
            Some(bytes) if self.demand.is_stable && huge >= HUGE_PERCENT => {
                Want::WorkingSet { bytes }
            }
            _ => Want::Same,
        }
    }
}
