//! The pool's mechanism (vTMM §3.5): which VMs share the first tier, and the size that each one has.
//!
//! Responsible for: what every VM holds and wants, the sizes that follow from it, waking VMs whose size
//! changed, and saying so. It leaves to others: the division itself ([`crate::share`]), and the moves: a
//! size works as a ceiling of the VM's own rounds ([`super::check`], [`super::classify`]).
//!
//! A VM without a nominal size has a right by weight instead, of what floors and the others' nominal sizes
//! leave ([`parts`]), whatever anybody's guest shows; alone on the host it has no bound but its ceiling.
//!
//! The pool is what the tier has free, less what VMs of fixed size have not taken yet, and what the VMs
//! at the pool hold. A VM is at the pool while its pages can be moved and after it was ranked once;
//! otherwise it keeps what it has. What it wants counts until its next ranking, however long that is
//! away: intermittent monitoring may skip periods of an idle VM. So a VM whose size differs from what
//! it holds is scanned in its next period.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_proto::{MemoryTraffic, PAGE_SIZE, Tick, TierId, TierLimit, VmId, snapshot};

use super::Shared;
use super::explain::thousandths;
use super::fast_heat::Traffic;
use super::rounds::Phase;
use super::vm::Vm;
use crate::config::{EngineConfig, Rule};
use crate::estimate::{Estimator, Histogram};
use crate::policy::{Place, Share};
use crate::share::{Claim, FastLimits, Heat, HotSet, Part, divide, divide_by_gain, parts};

/// A VM's part in sharing.
#[derive(Debug)]
pub(crate) struct FastSize {
    /// Nominal size, bytes; 0: it has none.
    pub nominal: u64,
    pub weight: u32,
    /// The hot set that the last ranking found.
    found: Option<HotSet>,
    /// The VM's memory by heat at that ranking, if the tier is divided by gain.
    heat: Arc<[Heat]>,
    traffic: Traffic,
    /// Bytes held. While moves of a round are in flight, the bytes held when they were planned: an exchange holds a
    /// little less for a moment.
    held: u64,
    /// Whether hot and cold pages change places in equal numbers, as its memory is traded and its demand is stable.
    pub exchanges: bool,
    /// The size that was said last: what the host's free memory does from moment to moment is not.
    said: Option<u64>,
}

impl FastSize {
    pub fn new(weight: u32) -> Self {
        Self {
            nominal: 0,
            weight,
            found: None,
            heat: Arc::default(),
            traffic: Traffic::default(),
            held: 0,
            exchanges: false,
            said: None,
        }
    }

    /// Takes in how often the VM accesses memory.
    pub fn traffic(&mut self, now: Tick, seen: MemoryTraffic) {
        self.traffic.seen(now, seen);
    }

    /// The VM's memory by heat at the last ranking, the hottest first; empty: not known.
    pub fn heat(&self) -> &[Heat] {
        &self.heat
    }

    /// The hot set that the last ranking found, bytes; `unit`: bytes of one unit.
    pub fn hot_bytes(&self, unit: u64) -> u64 {
        self.found.map_or(0, |found| found.hot * unit)
    }

    /// The demand that the last ranking found, bytes; `unit`: bytes of one unit.
    pub fn demand_bytes(&self, unit: u64) -> u64 {
        self.found.map_or(0, |f| (f.hot + f.unseen) * unit)
    }
}

/// How a VM comes to its size.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ShareKind {
    /// A fixed size.
    Island,
    /// Around its nominal size.
    Pooled,
    /// Around its right by weight: it has no nominal size.
    ByWeight(Part, TierLimit),
}

/// A VM as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    kind: ShareKind,
    /// The band around its nominal size, if it has one.
    limits: FastLimits,
    /// The claim, while the VM takes part in the pool. Its limits are those of the member.
    claim: Option<Claim>,
    /// The VM's memory by heat, the hottest first, if the tier is divided by gain.
    heat: Arc<[Heat]>,
    unit: u64,
}

#[derive(Debug)]
struct Member {
    entry: Entry,
    /// Around what it has a right to.
    limits: FastLimits,
    /// Bytes of the first tier that it holds now or that are on their way to it.
    holds: u64,
    size: Option<u64>,
}

impl Member {
    fn is_island(&self) -> bool {
        self.entry.kind == ShareKind::Island
    }

    /// The claim, within the member's limits.
    fn claim(&self) -> Option<Claim> {
        self.entry.claim.map(|claim| Claim {
            lower: self.limits.lower_bytes,
            nominal: self.limits.nominal_bytes,
            upper: self.limits.upper_bytes,
            ..claim
        })
    }

    /// Most bytes that the member may hold.
    fn most(&self) -> u64 {
        let upper = self.limits.upper_bytes;
        match (self.size, &self.entry.kind) {
            (Some(size), _) => size.min(upper),
            (None, ShareKind::ByWeight(..)) => self.limits.nominal_bytes,
            (None, ShareKind::Island | ShareKind::Pooled) => upper,
        }
    }

    /// Whole units, but not fewer than the lower limit takes: no more than that can be taken, so a VM of
    /// a smaller size would wait for a demotion that never comes.
    fn in_units(&self, size: u64) -> u64 {
        let unit = self.entry.unit;
        let whole = size / unit * unit;
        let more = whole.saturating_add(unit);
        let (lower, upper) = (self.limits.lower_bytes, self.limits.upper_bytes);
        if whole < lower && lower <= size && more <= upper {
            more
        } else {
            whole
        }
    }
}

/// All VMs that have a nominal size, or share by weight.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    members: BTreeMap<VmId, Member>,
    /// Free bytes when it was divided last.
    free: u64,
    /// Something changed since.
    stale: bool,
}

impl Pool {
    fn put(&mut self, vm: VmId, entry: Entry, holds: u64) {
        let (size, limits) = match self.members.get(&vm) {
            Some(old) if old.entry == entry => (old.size, old.limits),
            old => {
                self.stale = true;
                (old.and_then(|old| old.size), entry.limits)
            }
        };
        let member = Member {
            entry,
            limits,
            holds,
            size,
        };
        self.members.insert(vm, member);
    }

    pub fn remove(&mut self, vm: VmId) {
        self.stale |= self.members.remove(&vm).is_some();
    }

    /// The size that a VM has, if it has one.
    fn size(&self, vm: VmId) -> Option<u64> {
        self.members.get(&vm)?.size
    }

    /// The claim of a VM, while it takes part in the pool.
    fn claim(&self, vm: VmId) -> Option<Claim> {
        self.members.get(&vm)?.entry.claim
    }

    /// Most bytes that a VM may hold: its size or, while it has none, its upper limit.
    pub fn most(&self, vm: VmId) -> Option<u64> {
        Some(self.members.get(&vm)?.most())
    }

    /// Bytes that the pool always leaves to a VM; 0 if it takes no part in it.
    pub fn lower(&self, vm: VmId) -> u64 {
        let member = self.members.get(&vm).filter(|m| !m.is_island());
        member.map_or(0, |m| m.limits.lower_bytes)
    }

    /// Bytes that a VM is entitled to, whatever any guest shows: its nominal size, or its part by weight. `None` if
    /// no VM shares the tier with it.
    pub fn right(&self, vm: VmId) -> Option<u64> {
        let member = self.members.get(&vm)?;
        (self.members.len() > 1 || member.entry.limits.nominal_bytes > 0)
            .then_some(member.limits.nominal_bytes)
    }

    /// Free bytes that are set aside for VMs of fixed size, other than this one.
    fn aside(&self, but: Option<VmId>) -> u64 {
        let others = self.members.iter().filter(|(vm, _)| Some(**vm) != but);
        let islands = others.map(|(_, m)| m).filter(|m| m.is_island());
        islands.fold(0, |sum, m| {
            let lacks = m.entry.limits.nominal_bytes.saturating_sub(m.holds);
            sum.saturating_add(lacks)
        })
    }

    /// Divides the tier, less floors and nominal sizes, by weight among the VMs without a nominal size.
    fn set_rights(&mut self, free: u64, config: &EngineConfig) {
        let alone = self.members.len() == 1;
        let (mut left, mut rights) = (free, Vec::new());
        for member in self.members.values() {
            left = left.saturating_add(member.holds);
            if let ShareKind::ByWeight(part, _) = &member.entry.kind {
                rights.push(*part);
            }
        }
        for member in self.members.values() {
            left = left.saturating_sub(member.entry.limits.nominal_bytes);
        }
        let mut rights = parts(left, &rights).into_iter();
        for member in self.members.values_mut() {
            let ShareKind::ByWeight(part, set) = &member.entry.kind else {
                continue;
            };
            let right = rights.next().unwrap_or(0);
            let (percent, _) = config.fast_percents();
            member.limits = match alone {
                true => unshared_limits(set.ceiling_bytes),
                false => FastLimits::of_share(right, *set, percent, part.most),
            };
        }
    }

    fn divide(&mut self, free: u64, config: &EngineConfig) {
        self.set_rights(free, config);
        self.free = free.saturating_sub(self.aside(None));
        let (mut claims, mut heats) = (Vec::new(), Vec::new());
        let mut bytes = self.free;
        for member in self.members.values() {
            if let Some(claim) = member.claim() {
                claims.push(claim);
                heats.push(&member.entry.heat[..]);
                bytes = bytes.saturating_add(member.holds);
            }
        }
        let sizes = match config.arbiter.divides_fast_by_gain() {
            true => divide_by_gain(bytes, &claims, &heats, config.pool_release),
            false => divide(bytes, &claims, config.pool_release),
        };
        let mut sizes = sizes.into_iter();
        let alone = self.members.len() == 1;
        for member in self.members.values_mut() {
            let size = member.entry.claim.and_then(|_| sizes.next());
            member.size = match &member.entry.kind {
                ShareKind::Island => Some(member.limits.nominal_bytes),
                ShareKind::ByWeight(..) if alone => None,
                ShareKind::Pooled | ShareKind::ByWeight(..) => {
                    size.map(|size| member.in_units(size))
                }
            };
        }
    }
}

/// Limits of a VM that shares with no other.
fn unshared_limits(ceiling: u64) -> FastLimits {
    FastLimits {
        lower_bytes: 0,
        nominal_bytes: ceiling,
        upper_bytes: ceiling,
    }
}

impl Shared {
    /// Bytes that may still be brought into a tier for a VM.
    pub fn free_for(&self, vm: VmId, tier: TierId) -> u64 {
        let aside = match tier {
            TierId::FAST => self.pool.aside(Some(vm)),
            _ => 0,
        };
        self.tiers.free(tier).saturating_sub(aside)
    }

    /// Divides the pool anew.
    fn divide(&mut self) {
        let free = self.tiers.soon_free(TierId::FAST);
        self.pool.divide(free, &self.config);
    }

    /// The same if something changed since the last time; returns whether it did.
    pub fn divide_if_stale(&mut self) -> bool {
        let stale = std::mem::take(&mut self.pool.stale);
        if stale {
            self.divide();
        }
        stale
    }
}

impl Vm {
    /// Brings the pool's picture of this VM up to date.
    pub fn tell_pool(&mut self, shared: &mut Shared) {
        if self.size.nominal == 0 && !shared.config.fair_shares {
            shared.pool.remove(self.id);
            return;
        }
        let holds = self.fast_bytes();
        if !matches!(self.rounds.phase, Phase::Moving { .. }) {
            self.size.held = holds;
        }
        let kind = self.share_kind();
        let (lower, upper) = shared.config.fast_percents();
        let limits = match &kind {
            ShareKind::ByWeight(..) => FastLimits::default(),
            ShareKind::Island | ShareKind::Pooled => FastLimits::around(
                self.size.nominal,
                self.settings.limit(TierId::FAST),
                lower,
                upper,
            ),
        };
        let ranks = self.observes() || matches!(kind, ShareKind::ByWeight(..));
        let moves = self.settings.moves_on && !self.settings.paused && ranks;
        let moves = moves && self.rounds.is_scheduled();
        let claim = self
            .size
            .found
            .filter(|_| moves && kind != ShareKind::Island);
        let entry = Entry {
            kind,
            limits,
            claim: claim.map(|found| self.claim(found, limits)),
            heat: Arc::clone(&self.size.heat),
            unit: self.pages.unit_bytes(),
        };
        shared.pool.put(self.id, entry, holds);
    }

    fn share_kind(&self) -> ShareKind {
        let set = self.settings.limit(TierId::FAST);
        match (self.size.nominal, self.policy.share) {
            (0, _) => {
                let memory = self.pages.ram().pages().saturating_mul(PAGE_SIZE);
                let part = Part {
                    weight: self.size.weight,
                    floor: set.floor_bytes,
                    most: set.ceiling_bytes.min(memory.max(set.floor_bytes)),
                };
                ShareKind::ByWeight(part, set)
            }
            (_, Share::Island) => ShareKind::Island,
            (_, Share::Pool) => ShareKind::Pooled,
        }
    }

    /// Bytes of the first tier that it holds, and that are on their way to it.
    pub fn fast_bytes(&self) -> u64 {
        let fast = TierId::FAST;
        self.pages.bytes(fast) + self.moving.coming[fast.index()]
    }

    fn claim(&self, found: HotSet, limits: FastLimits) -> Claim {
        Claim {
            held: self.size.held,
            demand: (found.hot + found.unseen) * self.pages.unit_bytes(),
            unseen: found.unseen * self.pages.unit_bytes(),
            lower: limits.lower_bytes,
            nominal: limits.nominal_bytes,
            upper: limits.upper_bytes,
            weight: self.size.weight,
        }
    }

    /// Before its pages are ranked: what it wants by the counts of this round, and which size that
    /// gives it.
    pub fn want(&mut self, shared: &mut Shared) {
        let arbiter = &shared.config.arbiter;
        let by_gain = arbiter.divides_fast_by_gain();
        let shares = self.size.nominal > 0 || shared.config.fair_shares;
        if !shares && (arbiter.rule == Rule::Off || arbiter.live) {
            return;
        }
        let estimator = Estimator::new(self.policy.estimate, &shared.config);
        let histogram = Histogram::tally(&self.pages, estimator, self.rounds.number);
        self.size.found = Some(self.hot_set(&histogram, &shared.config));
        if by_gain {
            let unit = self.pages.unit_bytes();
            self.size.heat = self.size.traffic.heat(&histogram, unit);
        }
        if !shares {
            return;
        }
        self.tell_pool(shared);
        shared.divide();
        // The others are notified when this event has been dealt with.
        shared.pool.stale = true;
    }

    /// The units that the VM could use. With a nominal size that is the paper's hot set; without one it is all that a
    /// ranking would take, since its entitlement bounds it.
    fn hot_set(&self, histogram: &Histogram, config: &EngineConfig) -> HotSet {
        let estimator = Estimator::new(self.policy.estimate, config);
        let useful = self.place.useful();
        let least = useful.map_or(config.min_hot_degree, |useful| useful.least);
        let (base, percent) = match self.size.nominal {
            0 => (least.saturating_sub(1), 100),
            _ => (
                estimator.base_degree(config.base_degree),
                config.share_hot_percent,
            ),
        };
        let base = base.saturating_add(useful.map_or(0, |useful| useful.fallen));
        let held = self.pages.bytes(TierId::FAST) / self.pages.unit_bytes();
        let found = HotSet::find(histogram, held, base, percent);
        match self.policy.place {
            Place::Slowest if self.size.nominal == 0 => HotSet { hot: 0, ..found },
            _ => found,
        }
    }

    /// Reacts to a new size: the VM is scanned in its next period if it should give or can take memory, and the
    /// reason is recorded.
    pub fn size_changed(&mut self, now: Tick, shared: &Shared) {
        let size = shared.pool.size(self.id);
        let right = shared.pool.right(self.id).unwrap_or(0);
        let nominal = match self.size.nominal {
            0 => right,
            nominal => nominal,
        };
        let little = self.pages.unit_bytes().max(nominal / 32);
        let same = match (size, self.size.said) {
            (Some(size), Some(said)) => size.abs_diff(said) < little,
            (size, said) => size == said,
        };
        if !same {
            self.size.said = size;
            if let Some(view) = self.share_view(shared) {
                self.history.say(now, view.why);
            } else if let Some(text) = self.part_text(shared) {
                self.history.say(now, text);
            }
        }
        let gives = self.gives(shared);
        let window = self.rhythm(&shared.config).window;
        if let Phase::Window { ends_at, .. } = &mut self.rounds.phase
            && gives
        {
            // Others' rights do not wait until this VM's scans are paid for.
            *ends_at = (*ends_at).min(now.after(window));
        }
        let (Some(size), Phase::Waiting) = (size, &self.rounds.phase) else {
            return;
        };
        let Some(claim) = shared.pool.claim(self.id) else {
            return;
        };
        let (holds, unit) = (self.fast_bytes(), self.pages.unit_bytes());
        let takes = size.min(claim.demand) >= holds.saturating_add(unit);
        if gives || takes {
            self.rounds.schedule.wake();
        }
        if gives {
            // As above.
            self.rounds.scans.due = Tick(0);
        }
    }

    /// Whether it holds what others have a right to, and it can be moved.
    pub fn gives(&self, shared: &Shared) -> bool {
        let size = shared.pool.size(self.id);
        let Some((size, claim)) = size.zip(shared.pool.claim(self.id)) else {
            return false;
        };
        let least = size.max(claim.unseen);
        self.fast_bytes() >= least.saturating_add(self.pages.unit_bytes())
    }

    /// The VM's share of the first tier and the reason; `None` without a nominal size ([`Self::part_text`]).
    pub fn share_view(&self, shared: &Shared) -> Option<snapshot::Share> {
        let member = shared.pool.members.get(&self.id)?;
        if self.size.nominal == 0 {
            return None;
        }
        let (entry, unit) = (&member.entry, self.pages.unit_bytes());
        let found = self.size.found;
        let mut view = snapshot::Share {
            pooled: !member.is_island(),
            weight: self.size.weight,
            nominal_bytes: self.size.nominal,
            lower_bytes: entry.limits.lower_bytes,
            upper_bytes: entry.limits.upper_bytes,
            held_bytes: self.fast_bytes(),
            hot_bytes: found.map(|f| f.hot * unit),
            unseen_bytes: found.map(|f| f.unseen * unit),
            want_bytes: found.map(|f| self.claim(f, entry.limits).want()),
            target_bytes: member.size,
            pool_free_bytes: shared.pool.free,
            why: String::new(),
        };
        view.why = self.share_text(&view, &shared.config);
        Some(view)
    }

    fn share_text(&self, view: &snapshot::Share, config: &EngineConfig) -> String {
        let held = size(view.held_bytes);
        let (Some(found), Some(want)) = (self.size.found.filter(|_| view.pooled), view.want_bytes)
        else {
            return match view.pooled {
                true => format!(
                    "nominal {} of fast memory, has {held}; it takes part in the pool after its first ranking",
                    size(view.nominal_bytes)
                ),
                false => format!(
                    "fixed size of {} of fast memory, has {held}",
                    size(view.target_bytes.unwrap_or(view.nominal_bytes))
                ),
            };
        };
        let unit = self.pages.unit_bytes();
        let above = match self.has_rates() {
            true => format!(
                "touched more than {} times a second",
                thousandths(found.base)
            ),
            false => format!("above degree {}", found.base),
        };
        let mut why = format!(
            "hot set {}: top {} % of {} pages {above}",
            size(found.hot * unit),
            config.share_hot_percent,
            found.above * self.pages.ram().unit().base_pages(),
        );
        if found.unseen > 0 {
            why += &format!("; {} are of unknown heat", size(found.unseen * unit));
        }
        let target = match view.target_bytes {
            Some(target) => format!("target {}", size(target)),
            None => "out of the pool while its pages cannot be moved".into(),
        };
        format!(
            "wants {} of fast memory ({why}), has {held}, nominal {}, limits {} to {}, pool free {}: {target}",
            size(want),
            size(view.nominal_bytes),
            size(view.lower_bytes),
            size(view.upper_bytes),
            size(view.pool_free_bytes),
        )
    }
}

/// A size in the largest unit that shows two digits.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..0xa0_0000 => format!("{} KiB", bytes >> 10),
        0xa0_0000..0x2_8000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}
