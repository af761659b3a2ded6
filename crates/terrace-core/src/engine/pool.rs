//! The pool's mechanism (vTMM §3.5): which VMs share the first tier, and the size that each one has.
//!
//! Responsible for: what every VM with a nominal size holds and wants, the sizes that follow from it,
//! waking VMs whose size changed, and saying so. It leaves to others: the division itself
//! ([`crate::share`]), and the moves: a size works as a ceiling of the VM's own rounds
//! ([`super::check`], [`super::classify`]).
//!
//! The pool is what the tier has free, less what VMs of fixed size have not taken yet, and what the VMs
//! at the pool hold. A VM is at the pool while its pages can be moved and after it was ranked once;
//! otherwise it keeps what it has. What it wants counts until its next ranking, however long that is
//! away: intermittent monitoring may skip periods of an idle VM. So a VM whose size differs from what
//! it holds is looked at in its next period.

use std::collections::BTreeMap;

use terrace_proto::{TierId, VmId};

use super::Shared;
use super::view::ShareView;
use super::vm::{Phase, Vm};
use crate::config::EngineConfig;
use crate::estimate::{Estimator, Histogram};
use crate::policy::Share;
use crate::share::{Claim, FastLimits, HotSet, divide};

/// A VM's part in sharing.
#[derive(Debug)]
pub(crate) struct FastSize {
    /// Nominal size, bytes; 0: it has none and takes no part.
    pub nominal: u64,
    pub weight: u32,
    /// What its last ranking said.
    found: Option<HotSet>,
    /// What it holds. While moves of a round are under way, what it held when they were planned: an
    /// exchange holds a little less for a moment.
    held: u64,
    /// The size that was said last: what the host's free memory does from moment to moment is not.
    said: Option<u64>,
}

impl FastSize {
    pub fn new(weight: u32) -> Self {
        Self {
            nominal: 0,
            weight,
            found: None,
            held: 0,
            said: None,
        }
    }
}

/// A VM with a nominal size, as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// Its size is fixed.
    island: bool,
    limits: FastLimits,
    /// What it claims, while it is at the pool.
    claim: Option<Claim>,
    unit: u64,
}

impl Entry {
    /// Whole units, but not fewer than the lower limit takes: no more than that can be taken, so a VM of
    /// a smaller size would wait for a demotion that never comes.
    fn in_units(&self, size: u64) -> u64 {
        let whole = size / self.unit * self.unit;
        let more = whole.saturating_add(self.unit);
        let (lower, upper) = (self.limits.lower_bytes, self.limits.upper_bytes);
        if whole < lower && lower <= size && more <= upper {
            more
        } else {
            whole
        }
    }
}

#[derive(Debug)]
struct Member {
    entry: Entry,
    /// Bytes of the first tier that it holds now or that are on their way to it.
    holds: u64,
    size: Option<u64>,
}

/// All VMs with a nominal size.
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
        let size = match self.members.get(&vm) {
            Some(old) if old.entry == entry => old.size,
            old => {
                self.stale = true;
                old.and_then(|old| old.size)
            }
        };
        let member = Member { entry, holds, size };
        self.members.insert(vm, member);
    }

    pub fn remove(&mut self, vm: VmId) {
        self.stale |= self.members.remove(&vm).is_some();
    }

    /// The size that a VM has, if it has one.
    fn size(&self, vm: VmId) -> Option<u64> {
        self.members.get(&vm)?.size
    }

    /// What a VM may hold: its size, or while it has none its upper limit.
    pub fn most(&self, vm: VmId) -> Option<u64> {
        let member = self.members.get(&vm)?;
        let upper = member.entry.limits.upper_bytes;
        Some(member.size.unwrap_or(upper).min(upper))
    }

    /// What the pool leaves to a VM; 0 where it has no part in it.
    pub fn lower(&self, vm: VmId) -> u64 {
        let member = self.members.get(&vm).filter(|m| !m.entry.island);
        member.map_or(0, |m| m.entry.limits.lower_bytes)
    }

    /// Free bytes that are set aside for VMs of fixed size, other than this one.
    fn aside(&self, but: Option<VmId>) -> u64 {
        let others = self.members.iter().filter(|(vm, _)| Some(**vm) != but);
        let islands = others.map(|(_, m)| m).filter(|m| m.entry.island);
        islands.fold(0, |sum, m| {
            let lacks = m.entry.limits.nominal_bytes.saturating_sub(m.holds);
            sum.saturating_add(lacks)
        })
    }

    fn divide(&mut self, free: u64, config: &EngineConfig) {
        self.free = free.saturating_sub(self.aside(None));
        let mut claims = Vec::new();
        let mut bytes = self.free;
        for member in self.members.values() {
            if let Some(claim) = member.entry.claim {
                claims.push(claim);
                bytes = bytes.saturating_add(member.holds);
            }
        }
        let mut sizes = divide(bytes, &claims, config.pool_release).into_iter();
        for Member { entry, size, .. } in self.members.values_mut() {
            *size = match &entry.claim {
                Some(_) => sizes.next().map(|size| entry.in_units(size)),
                None => entry.island.then_some(entry.limits.nominal_bytes),
            };
        }
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

    /// The same where something changed since the last time; says whether it did.
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
        if self.size.nominal == 0 {
            shared.pool.remove(self.id);
            return;
        }
        let holds = self.fast_bytes();
        if !matches!(self.phase, Phase::Moving { .. }) {
            self.size.held = holds;
        }
        let island = self.policy.share == Share::Island;
        let config = &shared.config;
        let limits = FastLimits::around(
            self.size.nominal,
            self.limit(TierId::FAST),
            config.share_lower_percent,
            config.share_upper_percent,
        );
        let stands = matches!(self.phase, Phase::Unmanaged | Phase::Unscannable { .. });
        let moves = self.moves_on && !self.paused && self.observes() && !stands;
        let claim = self.size.found.filter(|_| moves && !island);
        let entry = Entry {
            island,
            limits,
            claim: claim.map(|found| self.claim(found, limits)),
            unit: self.pages.unit_bytes(),
        };
        shared.pool.put(self.id, entry, holds);
    }

    fn fast_bytes(&self) -> u64 {
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
        if self.size.nominal == 0 {
            return;
        }
        let config = &shared.config;
        let estimator = Estimator::new(self.policy.estimate, config);
        let histogram = Histogram::tally(&self.pages, estimator, self.round);
        self.size.found = Some(HotSet::find(
            &histogram,
            self.pages.bytes(TierId::FAST) / self.pages.unit_bytes(),
            estimator.base_degree(config.base_degree),
            config.share_hot_percent,
        ));
        self.tell_pool(shared);
        shared.divide();
        // The others are told when this event has been dealt with.
        shared.pool.stale = true;
    }

    /// Its size may have changed: has it looked at in its next period if it should give or can take
    /// memory, and says so.
    pub fn size_changed(&mut self, now: terrace_proto::Tick, shared: &Shared) {
        let size = shared.pool.size(self.id);
        let little = self.pages.unit_bytes().max(self.size.nominal / 32);
        let same = match (size, self.size.said) {
            (Some(size), Some(said)) => size.abs_diff(said) < little,
            (size, said) => size == said,
        };
        if !same {
            self.size.said = size;
            if let Some(view) = self.share_view(shared) {
                self.reasons.say(now, view.words);
            }
        }
        let (Some(size), Phase::Waiting) = (size, &self.phase) else {
            return;
        };
        let entry = shared.pool.members.get(&self.id).map(|m| &m.entry);
        let Some(claim) = entry.and_then(|e| e.claim) else {
            return;
        };
        let (holds, unit) = (self.fast_bytes(), self.pages.unit_bytes());
        let gives = holds >= size.max(claim.unseen).saturating_add(unit);
        let takes = size.min(claim.demand) >= holds.saturating_add(unit);
        if gives || takes {
            self.intermittent.wake();
        }
    }

    /// What it has of the first tier and why; none where it has no nominal size.
    pub fn share_view(&self, shared: &Shared) -> Option<ShareView> {
        let member = shared.pool.members.get(&self.id)?;
        let (entry, unit) = (&member.entry, self.pages.unit_bytes());
        let found = self.size.found;
        let mut view = ShareView {
            pooled: !entry.island,
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
            words: String::new(),
        };
        view.words = self.share_words(&view, &shared.config);
        Some(view)
    }

    fn share_words(&self, view: &ShareView, config: &EngineConfig) -> String {
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
        let estimator = Estimator::new(self.policy.estimate, config);
        let mut why = format!(
            "hot set {}: top {} % of {} pages above degree {}",
            size(found.hot * unit),
            config.share_hot_percent,
            found.above * self.pages.ram().unit().base_pages(),
            estimator.base_degree(config.base_degree)
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
