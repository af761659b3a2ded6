//! Huge pages behind memory that a balloon gave back to its guest.
//!
//! A balloon of 4 KiB pages splits huge pages of the host as it fills, and when it empties the host backs what the guest
//! touches by single pages. Responsible for: when blocks of a VM's memory are collapsed to huge pages again, how many at
//! a time, and when that ends. It leaves to others: finding blocks whose pages are all there, and collapsing them
//! (`terrace_host::huge`).
//!
//! A pass goes once through the VM's memory, in steps. A guest touches its memory little by little, so passes are
//! repeated, less and less often, until none has found anything for a while.

mod obstacle;

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_proto::provision::{
    BlockOutcome, BlockStatus, CollapseReport, CollapseRequest, Collapsed, HugeBacking, HugeStatus,
    HugeSteps, NotCollapsed, OrderState, ProviderKind,
};
use terrace_proto::{Action, OrderId, ProviderId, Tick, VmId};

use super::Provision;
use super::order::Order;
use super::pins::Pins;
use super::provider::Provider;
use super::text::size as size_text;
use obstacle::Obstacle;

/// Size of a block, bytes.
const BLOCK: u64 = 2 << 20;
/// Time for which a VM's size must have stood still.
const STILL: Duration = Duration::from_secs(3);
/// Time between two steps: blocks of one second are tried in each.
const STEP: Duration = Duration::from_secs(1);
/// The part of the time that steps take at most: one in so many.
const SELDOM: u32 = 20;
/// Time until it is a VM's turn again if it was another one's.
const TURN: Duration = Duration::from_secs(5);
/// Time between two passes at first. It doubles with each pass that made no huge page.
const AGAIN: Duration = Duration::from_secs(10);
/// Passes in a row that were not worth their while before it is over: the last pause is 10 min, all take 20.
const IDLE_PASSES: u32 = 7;
/// The part of a VM's memory of which a pass must make huge pages to be worth its while: one in so many. A guest that
/// touches a block now and then would have all of its memory searched for ever.
const WORTHWHILE: u64 = 256;
/// Passes since the VM grew before it is over, whatever they made.
const MAX_PASSES: u32 = 32;
/// Greatest time between two steps.
const LONG: Duration = Duration::from_secs(60);
/// Times that a block is tried.
const TRIES: u8 = 3;
/// The most blocks that are left as they are; if there are more, something is wrong with all.
const MAX_LEFT: usize = 1024;
/// The reason if the host cannot make huge pages of anything now.
const NO_HUGE_PAGE: &str = "the host has no free huge page where its memory lies";

/// Huge pages of one VM: the state of its passes.
#[derive(Debug, Default)]
pub(super) struct Huge {
    /// The VM's last size, and since when it has it.
    size: Option<(u64, Tick)>,
    /// Whether the VM grew, and its memory was not searched to the end since.
    has_grown: bool,
    /// The order that an earlier report showed as met: what grows later grows by others.
    met: Option<OrderId>,
    next: Next,
    passes: Passes,
    /// How often each block was tried in vain.
    failed: BTreeMap<u64, u8>,
    obstacle: Obstacle,
    shown: Shown,
    totals: Totals,
}

/// The next step.
#[derive(Debug, Default)]
struct Next {
    /// When it is due.
    due: Option<Tick>,
    /// Whether the last request has no answer yet.
    is_asked: bool,
    /// Number of the last request.
    number: u64,
    /// Whether it was put off until plans under way are reported, while no other ones go out.
    awaits_plans: bool,
}

/// The passes since the VM grew.
#[derive(Debug, Default)]
struct Passes {
    current: Pass,
    /// Passes that ended.
    ended: u32,
    /// Passes that ended since one was worth its while.
    idle: u32,
}

/// One pass through a VM's memory.
#[derive(Debug, Default)]
struct Pass {
    /// The block from which the next step searches.
    from: u64,
    /// The memory before.
    before: Option<HugeBacking>,
    /// Memory that huge pages were made of, bytes.
    bytes: u64,
}

/// The figures that people see.
#[derive(Debug, Default)]
struct Shown {
    before: Option<HugeBacking>,
    after: Option<HugeBacking>,
    bytes: u64,
    why_not: Option<String>,
}

/// Counts over all times that the VM grew.
#[derive(Debug, Default)]
struct Totals {
    bytes: u64,
    steps: HugeSteps,
}

impl Huge {
    /// Takes in the VM's size by a report of its provider. `is_ours`: an order of Terrace's let it grow to that; what others
    /// let grow is theirs.
    pub fn seen(&mut self, now: Tick, size: u64, is_ours: bool) {
        let Some((before, since)) = self.size else {
            self.size = Some((size, now));
            return;
        };
        if before == size {
            // A step that is due or asked for has its own time.
            let is_idle = self.next.due.is_none() && !self.next.is_asked;
            if self.has_grown && is_idle && now.since(since) >= STILL {
                let until = self.obstacle.lasts_until();
                self.next.due = Some(until.map_or(now, |until| until.max(now)));
            }
            return;
        }
        self.size = Some((size, now));
        // Pages come and go: a step now would race with the balloon.
        self.next.due = None;
        self.passes.current = Pass::default();
        // Of a VM that shrinks no block is collapsed: the balloon may be about to take it.
        self.has_grown &= size > before;
        if size > before && is_ours {
            self.grow();
        }
    }

    /// Takes in that the VM's size is not known: it has not stood still.
    pub fn lost_sight(&mut self) {
        self.size = None;
        self.next.due = None;
    }

    fn grow(&mut self) {
        // An arbiter lets a VM grow step by step: the share before is that before the first.
        if !self.has_grown {
            let lasting = self.obstacle.lasts_until().and(self.shown.why_not.take());
            self.shown = Shown {
                why_not: lasting,
                ..Shown::default()
            };
        }
        self.has_grown = true;
        self.obstacle.begin_again();
        (self.passes.ended, self.passes.idle) = (0, 0);
        // Its pages may be in use no more.
        self.failed.clear();
    }

    /// When the next step is due.
    pub fn due(&self) -> Option<Tick> {
        self.next.due
    }

    /// Puts a step off, as it is another VM's turn.
    pub fn wait_for_turn(&mut self, now: Tick) {
        self.next.due = Some(now.after(TURN));
        self.shown.why_not = Some("it is another VM's turn".into());
    }

    /// Puts a step off until the plans that move pages of the VM are reported. Returns whether no other ones are to go out
    /// meanwhile: not time and again, for a report that does not come.
    pub fn wait_for_plans(&mut self, now: Tick) -> bool {
        const WHY: &str = "pages of it are on their way between tiers";
        if std::mem::take(&mut self.next.awaits_plans) {
            self.wait(now, WHY);
            return false;
        }
        (self.next.due, self.next.awaits_plans) = (Some(now.after(STEP)), true);
        self.shown.why_not = Some(WHY.into());
        true
    }

    /// Puts a step off, as something is in the way.
    pub fn wait(&mut self, now: Tick, why: &str) {
        self.next.due = Some(now);
        self.put_off(now, why);
    }

    /// Puts the step that is due off, or ends it all if something has been in the way for too long.
    fn put_off(&mut self, now: Tick, why: &str) {
        if let Some(at) = self.obstacle.wait(now) {
            self.next.due = self.next.due.map(|due| due.max(at));
            self.shown.why_not = Some(why.into());
            return;
        }
        (self.has_grown, self.next.due) = (false, None);
        let ended = "it is not tried again until Terrace lets the VM grow";
        self.shown.why_not = Some(format!("{why}, for an hour by now: {ended}"));
    }

    /// Begins a step: the request for it. `budget`: bytes a second.
    pub fn step(&mut self, id: ProviderId, budget: u64, reserve_percent: u8) -> CollapseRequest {
        // One at a time: the next one follows from its answer.
        let next = &mut self.next;
        (next.due, next.is_asked) = (None, true);
        next.awaits_plans = false;
        next.number += 1;
        let given_up = self.failed.iter().filter(|(_, tries)| **tries >= TRIES);
        let pass = &self.passes.current;
        CollapseRequest {
            provider: id,
            number: next.number,
            from: pass.from,
            blocks: u32::try_from((budget / BLOCK).max(1)).unwrap_or(u32::MAX),
            leave: given_up.map(|(block, _)| *block).collect(),
            host_reserve_percent: reserve_percent,
            is_first: pass.before.is_none(),
        }
    }

    /// Takes in the outcome of a step, and returns the sentence that is due.
    pub fn report(&mut self, now: Tick, report: &CollapseReport) -> Option<String> {
        let next = &mut self.next;
        if report.number != next.number || !std::mem::take(&mut next.is_asked) {
            return None;
        }
        self.totals.count(report);
        match &report.result {
            Ok(done) => self.took(now, done, report.elapsed_ns),
            Err(NotCollapsed::NotNow(why)) => {
                // A VM that is out of sight is taken up again when it was seen to stand still.
                if self.has_grown && self.size.is_some() {
                    self.wait(now, why);
                }
                None
            }
            Err(NotCollapsed::Never(why)) => {
                let (until, is_news) = self.obstacle.last(now);
                self.next.due = (self.has_grown && self.size.is_some()).then_some(until);
                self.shown.why_not = Some(why.clone());
                is_news.then(|| format!("its memory gets no huge pages back: {why}"))
            }
        }
    }

    fn took(&mut self, now: Tick, done: &Collapsed, elapsed_ns: u64) -> Option<String> {
        let bytes = self.count(&done.blocks);
        self.show(done, bytes);
        let lacks = lacks_huge_pages(done);
        // What was collapsed before the host had no more shows that waiting helps.
        if bytes > 0 || !lacks {
            self.obstacle.pass();
        }
        // The size may have changed since the step began: then it has to stand still again.
        let (size, since) = self.size.filter(|_| self.has_grown)?;
        let may_continue = now.since(since) >= STILL;
        // Each would be asked for again and again, and named in each request.
        let is_too_many = self.failed.len() > MAX_LEFT;
        let (pause, said) = match done.next.filter(|_| !is_too_many) {
            Some(next) => {
                self.passes.current.from = next;
                // Looking for blocks costs time by the size of the VM, whether there are any or not.
                let took = Duration::from_nanos(elapsed_ns).saturating_mul(SELDOM);
                (took.clamp(STEP, LONG), None)
            }
            None => self.end_pass(size, done.after, is_too_many),
        };
        self.next.due = (self.has_grown && may_continue).then(|| now.after(pause));
        if self.has_grown && lacks {
            self.put_off(now, NO_HUGE_PAGE);
        }
        said
    }

    /// Takes in the figures of a step.
    fn show(&mut self, done: &Collapsed, bytes: u64) {
        let (shown, pass) = (&mut self.shown, &mut self.passes.current);
        shown.why_not = None;
        // Within a pass nothing is measured: the last figures stay.
        shown.before = shown.before.or(done.before);
        shown.after = done.after.or(shown.after);
        shown.bytes = shown.bytes.saturating_add(bytes);
        pass.before = pass.before.or(done.before);
        pass.bytes = pass.bytes.saturating_add(bytes);
    }

    /// Ends a pass: returns the time until the next one, and the sentence that is due.
    fn end_pass(
        &mut self,
        size: u64,
        after: Option<HugeBacking>,
        is_too_many: bool,
    ) -> (Duration, Option<String>) {
        let passes = &mut self.passes;
        let pass = std::mem::take(&mut passes.current);
        let is_said = pass.bytes > 0 || passes.ended == 0;
        let said = is_said.then(|| ended(pass.before, after, pass.bytes));
        passes.ended += 1;
        // A guest that just touched memory goes on with it.
        let is_worthwhile = pass.bytes > 0 && pass.bytes.saturating_mul(WORTHWHILE) >= size;
        passes.idle = if is_worthwhile { 0 } else { passes.idle + 1 };
        let over = match () {
            () if is_too_many => Some("too many blocks could not be made huge pages"),
            () if passes.ended >= MAX_PASSES => {
                Some("its memory was searched 32 times since it grew")
            }
            () => None,
        };
        if let Some(why) = over {
            self.shown.why_not = Some(why.into());
        }
        self.has_grown &= over.is_none() && passes.idle < IDLE_PASSES;
        let pause = AGAIN.saturating_mul(1 << passes.idle.min(IDLE_PASSES));
        (pause, said)
    }

    /// Bytes of the blocks that are huge pages now; what failed is counted.
    fn count(&mut self, blocks: &[BlockOutcome]) -> u64 {
        for outcome in blocks {
            match outcome.status {
                BlockStatus::Collapsed => {
                    self.failed.remove(&outcome.block);
                }
                BlockStatus::Busy | BlockStatus::Failed(_) => {
                    let tries = self.failed.entry(outcome.block).or_default();
                    *tries = tries.saturating_add(1);
                }
                // The host's fault, not the block's.
                BlockStatus::NoHugePage => {}
            }
        }
        collapsed_bytes(blocks)
    }

    /// The view for people; `None` if the VM never grew.
    pub fn view(&self) -> Option<HugeStatus> {
        let shown = &self.shown;
        let has_tried = shown.after.is_some() || shown.why_not.is_some();
        (self.has_grown || has_tried).then(|| HugeStatus {
            before_percent: shown.before.and_then(|before| before.percent()),
            after_percent: shown.after.and_then(|after| after.percent()),
            collapsed_bytes: shown.bytes,
            is_under_way: self.has_grown && self.obstacle.lasts_until().is_none(),
            why_not: shown.why_not.clone(),
            total_bytes: self.totals.bytes,
            steps: self.totals.steps,
        })
    }
}

impl Totals {
    fn count(&mut self, report: &CollapseReport) {
        let bytes = report.result.as_ref();
        let bytes = bytes.map_or(0, |done| collapsed_bytes(&done.blocks));
        self.bytes = self.bytes.saturating_add(bytes);
        let steps = &mut self.steps;
        *match &report.result {
            Ok(_) if bytes > 0 => &mut steps.collapsed,
            Ok(done) if lacks_huge_pages(done) => &mut steps.no_huge_page,
            Ok(_) => &mut steps.idle,
            Err(NotCollapsed::NotNow(_)) => &mut steps.not_now,
            Err(NotCollapsed::Never(_)) => &mut steps.never,
        } += 1;
    }
}

fn collapsed_bytes(blocks: &[BlockOutcome]) -> u64 {
    let huge = blocks.iter();
    let huge = huge.filter(|outcome| outcome.status == BlockStatus::Collapsed);
    huge.fold(0, |bytes: u64, _| bytes.saturating_add(BLOCK))
}

fn lacks_huge_pages(done: &Collapsed) -> bool {
    let mut blocks = done.blocks.iter();
    blocks.any(|outcome| outcome.status == BlockStatus::NoHugePage)
}

impl Provision {
    /// Takes in a VM's size for its huge pages.
    pub(super) fn size_seen(&mut self, now: Tick, id: ProviderId) {
        let Some(provider) = self.providers.get(&id) else {
            return;
        };
        let is_balloon = provider.kind() == ProviderKind::Balloon;
        if self.config.collapse_bytes_per_s == 0 || !is_balloon {
            return;
        }
        let huge = self.huge.entry(id).or_default();
        // Its size may change and change back unseen.
        if provider.trouble.is_some() {
            huge.lost_sight();
            return;
        }
        let status = provider.status();
        let tiers = status.into_iter().flat_map(|status| &status.tiers);
        let sizes = tiers.map(|tier| tier.size_bytes);
        let size = sizes.fold(0, u64::saturating_add);
        // What another program has resized, or the guest itself, is in its own care.
        let order = provider.orders.last();
        let is_new = |order: &&Order| huge.met != Some(order.number);
        let is_ours = order.filter(is_new);
        let is_ours = is_ours.is_some_and(|order| order.lets_grow(size, BLOCK));
        let met = order.filter(|order| order.state == OrderState::Met);
        huge.met = met.map(|order| order.number);
        huge.seen(now, size, is_ours);
    }

    /// Begins a step that is due, and returns the VMs whose pages are to stay where they are meanwhile. `in_the_way`: why a
    /// VM's memory is left as it is for now, as others know it; `has_plans`: whether pages of it are on their way.
    pub(crate) fn collapse(
        &mut self,
        now: Tick,
        reserve_percent: u8,
        in_the_way: impl Fn(ProviderId) -> Option<String>,
        has_plans: impl Fn(VmId) -> bool,
    ) -> Vec<VmId> {
        let budget = self.config.collapse_bytes_per_s;
        let mut held = Vec::new();
        // The budget is the host's: one VM at a time.
        let mut is_busy = self.huge.values().any(|huge| huge.next.is_asked);
        for (id, huge) in &mut self.huge {
            if huge.due().is_none_or(|due| due > now) {
                continue;
            }
            let (provider, vm) = (self.providers.get(id), self.vms.get(id).copied());
            // Before its turn: a VM that something is in the way of needs none.
            let own = provider.and_then(Provider::keeps_single_pages);
            match own.map(str::to_owned).or_else(|| in_the_way(*id)) {
                Some(why) => huge.wait(now, &why),
                None if is_busy => huge.wait_for_turn(now),
                None if vm.is_some_and(&has_plans) => {
                    let is_held = huge.wait_for_plans(now);
                    held.extend(vm.filter(|_| is_held));
                }
                None => {
                    is_busy = true;
                    held.extend(vm);
                    let request = huge.step(*id, budget, reserve_percent);
                    self.actions.push_back(Action::Collapse(request));
                }
            }
        }
        held
    }

    /// Takes in the outcome of a step.
    pub(crate) fn collapsed(&mut self, now: Tick, report: &CollapseReport) {
        let huge = self.huge.get_mut(&report.provider);
        if let Some(said) = huge.and_then(|huge| huge.report(now, report)) {
            self.say(now, report.provider, said);
        }
    }
}

impl Provider {
    /// The reason why its memory is left as it is for now, by its own reports.
    fn keeps_single_pages(&self) -> Option<&'static str> {
        let tiers = self.status().into_iter().flat_map(|status| &status.tiers);
        let has_pool = tiers.clone().any(|tier| tier.pool() > 0);
        // Of a VM on its way to less, the balloon may take any page next.
        let mut tiers = tiers;
        let moves = tiers.any(|tier| tier.size_bytes != tier.target_bytes);
        let is_met = |order: &Order| order.state == OrderState::Met;
        let Pins { device, sharer } = &self.pins;
        // In doubt single pages stay: they cost speed, not data.
        match () {
            () if self.trouble.is_some() => Some("its provider fails"),
            () if moves || !self.orders.last().is_some_and(is_met) => {
                Some("its size is on its way")
            }
            () if device.by().is_some() => Some("a device pins its memory"),
            () if device.unknown().is_some() => {
                Some("it is not known whether a device pins its memory")
            }
            () if sharer.by().is_some() => Some("another process has its memory"),
            () if sharer.unknown().is_some() => {
                Some("it is not known whether another process has its memory")
            }
            () if has_pool => Some("its RAM comes from a pool of huge pages (hugetlbfs)"),
            () => None,
        }
    }
}

/// The sentence at the end of a pass.
fn ended(before: Option<HugeBacking>, after: Option<HugeBacking>, bytes: u64) -> String {
    let share = |of: Option<HugeBacking>| {
        of.and_then(|of| of.whole_percent())
            .map_or_else(|| "none".into(), |p| format!("{p} %"))
    };
    format!(
        "huge pages were made of {}: {} of its memory had them before, {} has them now",
        size_text(bytes),
        share(before),
        share(after)
    )
}

#[cfg(test)]
mod tests;
