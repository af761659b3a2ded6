//! Huge pages behind memory that a balloon gave back to its guest.
//!
//! A balloon of 4 KiB pages splits huge pages of the host as it fills, and when it empties the host backs what the guest
//! touches by single pages. Responsible for: when blocks of a VM's memory are collapsed to huge pages again, how many at
//! a time, and when that ends. It leaves to others: finding blocks whose pages are all there, and collapsing them
//! (`terrace_host::huge`).
//!
//! A pass goes once through the VM's memory, in steps. A guest touches its memory little by little, so passes are
//! repeated, less and less often, until none has found anything for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_proto::provision::{
    BlockOutcome, BlockStatus, CollapseReport, CollapseRequest, Collapsed, HugeBacking, HugeStatus,
    NotCollapsed, OrderState, ProviderKind,
};
use terrace_proto::{Action, ProviderId, Tick};

use super::Provision;
use super::order::Order;
use super::pins::Pins;
use super::provider::Provider;
use super::text::size as size_text;

/// Size of a block, bytes.
const BLOCK: u64 = 2 << 20;
/// Time for which a VM's size must have stood still.
const STILL: Duration = Duration::from_secs(3);
/// Time between two steps: blocks of one second are tried in each.
const STEP: Duration = Duration::from_secs(1);
/// The part of the time that steps take at most: one in so many.
const SELDOM: u32 = 20;
/// Time until it is tried again if something was in the way.
const WAIT: Duration = Duration::from_secs(5);
/// Time between two passes at first. It doubles with each pass that made no huge page.
const AGAIN: Duration = Duration::from_secs(10);
/// Passes in a row that make no huge page before it is over: the last pause is 10 min, all take 20.
const IDLE_PASSES: u32 = 7;
/// Greatest time between two steps.
const LONG: Duration = Duration::from_secs(60);
/// Times that a block is tried.
const TRIES: u8 = 3;
/// The most blocks that are left as they are; if there are more, something is wrong with all.
const MAX_LEFT: usize = 1024;

/// Huge pages of one VM: the state of its passes.
#[derive(Debug, Default)]
pub(super) struct Huge {
    /// The VM's last size, and since when it has it.
    size: Option<(u64, Tick)>,
    /// Whether the VM grew, and its memory was not searched to the end since.
    has_grown: bool,
    /// When the next step is due.
    due: Option<Tick>,
    /// Whether a request has no answer yet.
    is_asked: bool,
    /// Number of the last request.
    number: u64,
    pass: Pass,
    /// Passes since one made a huge page.
    idle_passes: u32,
    /// How often each block was tried in vain.
    failed: BTreeMap<u64, u8>,
    shown: Shown,
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
    /// Whether the reason holds for good.
    is_never: bool,
}

impl Huge {
    /// Takes in the VM's size by a report of its provider. `is_ours`: Terrace resized the VM before; what others let grow is
    /// theirs.
    pub fn seen(&mut self, now: Tick, size: u64, is_ours: bool) {
        let Some((before, since)) = self.size else {
            self.size = Some((size, now));
            return;
        };
        if before == size {
            // A step that is due or asked for has its own time.
            let is_idle = self.due.is_none() && !self.is_asked;
            if self.has_grown && is_idle && now.since(since) >= STILL {
                self.due = Some(now);
            }
            return;
        }
        self.size = Some((size, now));
        // Pages come and go: a step now would race with the balloon.
        self.due = None;
        self.pass = Pass::default();
        // Of a VM that shrinks no block is collapsed: the balloon may be about to take it.
        self.has_grown &= size > before;
        if size > before && is_ours && !self.shown.is_never {
            self.grow();
        }
    }

    /// Takes in that the VM's size is not known: it has not stood still.
    pub fn lost_sight(&mut self) {
        self.size = None;
        self.due = None;
    }

    fn grow(&mut self) {
        // An arbiter lets a VM grow step by step: the share before is that before the first.
        if !self.has_grown {
            self.shown = Shown::default();
        }
        self.has_grown = true;
        self.idle_passes = 0;
        // Its pages may be in use no more.
        self.failed.clear();
    }

    /// When the next step is due.
    pub fn due(&self) -> Option<Tick> {
        self.due
    }

    /// Puts a step off, as something is in the way.
    pub fn wait(&mut self, now: Tick, why: String) {
        self.due = Some(now.after(WAIT));
        self.shown.why_not = Some(why);
    }

    /// Begins a step: the request for it. `budget`: bytes a second.
    pub fn step(&mut self, id: ProviderId, budget: u64, reserve_percent: u8) -> CollapseRequest {
        // One at a time: the next one follows from its answer.
        self.due = None;
        self.is_asked = true;
        self.number += 1;
        let given_up = self.failed.iter().filter(|(_, tries)| **tries >= TRIES);
        CollapseRequest {
            provider: id,
            number: self.number,
            from: self.pass.from,
            blocks: u32::try_from((budget / BLOCK).max(1)).unwrap_or(u32::MAX),
            leave: given_up.map(|(block, _)| *block).collect(),
            host_reserve_percent: reserve_percent,
        }
    }

    /// Takes in the outcome of a step, and returns the sentence that is due.
    pub fn report(&mut self, now: Tick, report: &CollapseReport) -> Option<String> {
        if report.number != self.number || !std::mem::take(&mut self.is_asked) {
            return None;
        }
        match &report.result {
            Ok(done) => self.took(now, done, report.elapsed_ns),
            Err(NotCollapsed::NotNow(why)) => {
                // A VM that is out of sight is taken up again when it was seen to stand still.
                if self.has_grown && self.size.is_some() {
                    self.wait(now, why.clone());
                }
                None
            }
            Err(NotCollapsed::Never(why)) => {
                // The kernel or the VM's own setup: neither changes while it runs.
                (self.has_grown, self.due) = (false, None);
                self.shown.why_not = Some(why.clone());
                let is_said = std::mem::replace(&mut self.shown.is_never, true);
                (!is_said).then(|| format!("its memory gets no huge pages back: {why}"))
            }
        }
    }

    fn took(&mut self, now: Tick, done: &Collapsed, elapsed_ns: u64) -> Option<String> {
        let bytes = self.count(&done.blocks);
        let shown = &mut self.shown;
        shown.why_not = None;
        shown.before.get_or_insert(done.before);
        shown.after = Some(done.after);
        shown.bytes = shown.bytes.saturating_add(bytes);
        let before = *self.pass.before.get_or_insert(done.before);
        self.pass.bytes = self.pass.bytes.saturating_add(bytes);
        // The size may have changed since the step began: then it has to stand still again.
        let (_, since) = self.size.filter(|_| self.has_grown)?;
        let may_continue = now.since(since) >= STILL;
        // Each would be asked for again and again, and named in each request.
        let is_too_many = self.failed.len() > MAX_LEFT;
        if let Some(next) = done.next.filter(|_| !is_too_many) {
            self.pass.from = next;
            // Looking for blocks costs time by the size of the VM, whether there are any or not.
            let took = Duration::from_nanos(elapsed_ns).saturating_mul(SELDOM);
            self.due = may_continue.then(|| now.after(took.clamp(STEP, LONG)));
            return None;
        }
        let pass = std::mem::take(&mut self.pass);
        let is_first = self.idle_passes == 0 && pass.bytes == shown.bytes;
        let said = (pass.bytes > 0 || is_first).then(|| ended(&before, &done.after, pass.bytes));
        // A guest that just touched memory goes on with it.
        self.idle_passes = match pass.bytes {
            0 => self.idle_passes + 1,
            _ => 0,
        };
        if is_too_many {
            self.shown.why_not = Some("too many blocks could not be made huge pages".into());
        }
        if self.idle_passes >= IDLE_PASSES || is_too_many {
            self.has_grown = false;
            return said;
        }
        let pause = AGAIN.saturating_mul(1 << self.idle_passes.min(IDLE_PASSES));
        self.due = may_continue.then(|| now.after(pause));
        said
    }

    /// Bytes of the blocks that are huge pages now; what failed is counted.
    fn count(&mut self, blocks: &[BlockOutcome]) -> u64 {
        let mut bytes = 0_u64;
        for outcome in blocks {
            match outcome.status {
                BlockStatus::Collapsed => {
                    bytes = bytes.saturating_add(BLOCK);
                    self.failed.remove(&outcome.block);
                }
                BlockStatus::Busy | BlockStatus::Failed(_) => {
                    let tries = self.failed.entry(outcome.block).or_default();
                    *tries = tries.saturating_add(1);
                }
            }
        }
        bytes
    }

    /// The view for people; `None` if the VM never grew.
    pub fn view(&self) -> Option<HugeStatus> {
        let shown = &self.shown;
        let has_tried = shown.after.is_some() || shown.why_not.is_some();
        (self.has_grown || has_tried).then(|| HugeStatus {
            before_percent: shown.before.and_then(|before| before.percent()),
            after_percent: shown.after.and_then(|after| after.percent()),
            collapsed_bytes: shown.bytes,
            is_under_way: self.has_grown,
            why_not: shown.why_not.clone(),
        })
    }
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
        // What another program has resized may be in its care.
        let is_ours = provider.orders.last().is_some();
        let status = provider.status();
        let tiers = status.into_iter().flat_map(|status| &status.tiers);
        let sizes = tiers.map(|tier| tier.size_bytes);
        huge.seen(now, sizes.fold(0, u64::saturating_add), is_ours);
    }

    /// Begins the steps that are due. `in_the_way`: why a VM's memory is left as it is for now, as others know it.
    pub(crate) fn collapse(
        &mut self,
        now: Tick,
        reserve_percent: u8,
        in_the_way: impl Fn(ProviderId) -> Option<String>,
    ) {
        let budget = self.config.collapse_bytes_per_s;
        // The budget is the host's: one VM at a time.
        let mut is_busy = self.huge.values().any(|huge| huge.is_asked);
        for (id, huge) in &mut self.huge {
            if huge.due().is_none_or(|due| due > now) {
                continue;
            }
            let provider = self.providers.get(id);
            let own = provider.and_then(Provider::keeps_single_pages);
            let own = own.or(is_busy.then_some("it is another VM's turn"));
            match own.map(str::to_owned).or_else(|| in_the_way(*id)) {
                Some(why) => huge.wait(now, why),
                None => {
                    is_busy = true;
                    let request = huge.step(*id, budget, reserve_percent);
                    self.actions.push_back(Action::Collapse(request));
                }
            }
        }
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
fn ended(before: &HugeBacking, after: &HugeBacking, bytes: u64) -> String {
    let share = |of: &HugeBacking| {
        of.whole_percent()
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
