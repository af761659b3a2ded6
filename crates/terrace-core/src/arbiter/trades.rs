//! Trades under way: each VM's fast memory for slow at its price, or back (HMvisor §3.3).
//!
//! Responsible for: telling each VM's [`Trade`] what happened in a window, giving its steps as orders, and telling it
//! what became of them. A trade begins only where the host has the memory and neither tier turned a short while ago, and
//! is no larger than what may be taken at once of the tier that it is paid with: then each of its steps is one order,
//! and what a VM holds above its price until it has paid is bounded. A step that takes more, because a guest did not pay,
//! goes in parts, one a cycle. Pages change their tier as a guest's balloon takes them, or in the engine's rounds.

use std::collections::{BTreeMap, BTreeSet};

use terrace_proto::{ProviderId, Tick};

use super::kinds::kind;
use super::member::{Direction, Member, WAITS_NS};
use super::purchases::Purchases;
use super::steps::{Host, Step, turns};
use super::trials::NOISE_NS;
use super::{percent, text};
use crate::config::ArbiterConfig;
use crate::provision::{ON_ITS_WAY, STUCK};
use crate::share::{self, Terms, Trade, TradeWindow};

/// Bytes of a page that a guest brings in by one major fault.
const PAGE_BYTES: u64 = 4096;
/// A price of one, thousandths.
const THOUSAND: u64 = 1000;
/// Least time of a window, ms: a guest says something once a second.
const SHORTEST_MS: u64 = 900;
/// Unused memory that a VM does not sell, percent of what it has; of what it had when it had to buy, too.
const SPARE_PERCENT: u8 = 5;
/// Steps of a trade that may end without an order, one after the other.
const MOST_IDLE_STEPS: usize = 6;

/// The trades of all VMs.
#[derive(Clone, Debug, Default)]
pub(super) struct Trades {
    each: BTreeMap<ProviderId, Trading>,
    /// VMs with an order of which something was heard since.
    heard: BTreeSet<ProviderId>,
}

/// The trades of one VM.
#[derive(Clone, Debug)]
struct Trading {
    trade: Trade,
    /// When the window began.
    window: Tick,
    /// When its guest spoke last before that, and the major faults that it had counted.
    counted: (Tick, u64),
    /// The window by which the last trade began.
    seen: TradeWindow,
    /// The VM's memory when that trade began, bytes.
    began: u64,
    /// Its slow memory then.
    slow: u64,
    /// The order for the present step.
    order: Option<Order>,
    /// Since when the present step waits for something that would let it be ordered.
    waits: Option<Tick>,
    /// Whether a window ended for its sake since it began to swap.
    is_relieved: bool,
    /// See [`Pauses`].
    pauses: Pauses,
}

/// What is not tried again for long because it did harm. Slow memory that was sold for fast leaves a VM less in all, so that is
/// judged as all that is taken. It is not taken back: a VM that faults by it buys.
#[derive(Clone, Copy, Debug, Default)]
struct Pauses {
    /// When the last sale began, and the lost time then.
    on_trial: Option<(Tick, u64)>,
    /// Until when there is no sale, because one did harm.
    sale: Option<Tick>,
    /// Until when there is no purchase, because one was not paid for or some did not help.
    purchase: Option<Tick>,
    /// Until when no sale leaves less memory than this: with less it had to buy.
    least: Option<(Tick, u64)>,
    /// Purchases since demand changed.
    purchases: Purchases,
}

impl Pauses {
    /// Judges the sale whose time has come.
    fn judge(&mut self, now: Tick, member: &Member, config: &ArbiterConfig) {
        let review = ArbiterConfig::ns(config.review_ms);
        let ended = |at: Tick| now.0.saturating_sub(at.0) >= review;
        let Some((_, before)) = self.on_trial.filter(|(at, _)| ended(*at)) else {
            return;
        };
        self.on_trial = None;
        if member.lost() > before.saturating_add(NOISE_NS) {
            self.sale = Some(again(now, config));
        }
    }

    /// Notes that a purchase begins: what the VM has is too little, whatever its guest calls free later.
    fn buys(&mut self, now: Tick, member: &Member, config: &ArbiterConfig) {
        let margin = percent(member.size(), SPARE_PERCENT);
        let least = member.size().saturating_add(margin);
        self.least = Some((again(now, config), least));
    }

    /// Takes in the major faults of a cycle. Nothing is bought for one whose demand what it bought does not end.
    fn faults(&mut self, now: Tick, faults: u64, member: &Member, config: &ArbiterConfig) {
        if faults == 0 || self.purchase.is_some_and(|until| until > now) {
            return;
        }
        let of = (member.size(), member.swap.used_bytes());
        if let Some(until) = self.purchases.judge(now, faults, of, config) {
            self.purchase = Some(until);
        }
    }

    /// The bytes that a sale may take of a VM.
    fn sellable(&self, now: Tick, member: &Member) -> u64 {
        let least = self.least.filter(|(until, _)| *until > now);
        let least = least.map_or(0, |(_, least)| least);
        member.size().saturating_sub(least.max(member.floor(now)))
    }

    /// Notes that slow memory is ordered to go: sold, or not paid for.
    fn gives(&mut self, now: Tick, member: &Member, owes: bool, config: &ArbiterConfig) {
        match owes {
            true => self.purchase = Some(again(now, config)),
            false => self.on_trial = Some((now, member.lost())),
        }
    }
}

/// When something is tried again that did harm.
fn again(now: Tick, config: &ArbiterConfig) -> Tick {
    Tick(now.0.saturating_add(config.pause_ns()))
}

/// An order for a step of a trade, or for a part of it.
#[derive(Clone, Copy, Debug)]
struct Order {
    at: Tick,
    tier: usize,
    size: u64,
    was_refused: bool,
}

/// The next action of a step.
enum May {
    Order(u64),
    Wait,
    Never,
}

type Members = BTreeMap<ProviderId, Member>;

impl Trades {
    /// Takes in that a VM's provider said something.
    pub fn look(&mut self, provider: ProviderId) {
        let trading = self.each.get(&provider);
        if trading.is_some_and(|trading| trading.order.is_some()) {
            self.heard.insert(provider);
        }
    }

    /// Takes in that a VM's order was refused.
    pub fn refused(&mut self, provider: ProviderId) {
        let trading = self.each.get_mut(&provider);
        if let Some(order) = trading.and_then(|trading| trading.order.as_mut()) {
            order.was_refused = true;
        }
    }

    /// Whether hot and cold pages of a VM are to change places in equal numbers.
    pub fn is_double_sided(&self, provider: ProviderId) -> bool {
        let trading = self.each.get(&provider);
        trading.is_some_and(|trading| trading.trade.is_double_sided())
    }

    /// Whether an order for a step of a VM's trade has not ended.
    pub fn has_order(&self, provider: ProviderId) -> bool {
        let trading = self.each.get(&provider);
        trading.is_some_and(|trading| trading.order.is_some())
    }

    /// Whether an order may have ended.
    pub fn is_due(&self) -> bool {
        !self.heard.is_empty()
    }

    /// The orders that are to be given now.
    pub fn advance(
        &mut self,
        now: Tick,
        members: &Members,
        host: &Host,
        config: &ArbiterConfig,
    ) -> Vec<(Step, String)> {
        self.heard.clear();
        self.each.retain(|id, _| members.contains_key(id));
        let mut room = host.room(members);
        // Fast memory that is paid for with slow memory and still to come.
        let awaits = self.each.values().map(Trading::awaits);
        let mut awaited = awaits.fold(0, u64::saturating_add);
        let mut steps = Vec::new();
        for (id, member) in members {
            if member.tiers() < 2 || member.asked.pending.is_some() {
                continue;
            }
            // What it faulted before anything was heard of it is of no window.
            if member.need.is_none() && !self.each.contains_key(id) {
                continue;
            }
            let trading = self.each.entry(*id);
            let trading = trading.or_insert_with(|| Trading::new(now, member, config));
            let (first, last) = (kind(2, 0), kind(member.tiers(), member.tiers() - 1));
            let draws = member.draws_on(now, host.reserve_for(member.tiers()), config);
            let there = |kind: usize| match draws {
                true => room[kind],
                false => room[kind].saturating_sub(host.reserve[kind]),
            };
            awaited = awaited.saturating_sub(trading.awaits());
            let there = share::Sizes {
                fast_bytes: there(first).saturating_sub(awaited),
                slow_bytes: there(last),
            };
            let step = trading.advance(now, member, there, config);
            awaited = awaited.saturating_add(trading.awaits());
            let Some((step, why)) = step else {
                continue;
            };
            for (tier, (to, from)) in step.to.iter().zip(&step.from).enumerate() {
                room.take(kind(step.to.len(), tier), to.saturating_sub(*from));
            }
            steps.push((
                Step {
                    provider: *id,
                    ..step
                },
                why,
            ));
        }
        steps
    }
}

impl Trading {
    fn new(now: Tick, member: &Member, config: &ArbiterConfig) -> Self {
        let tiers = member.sizes.iter().flat_map(|sizes| &sizes.tiers);
        let limits = |of: fn(&crate::provision::TierSize) -> u64| {
            let each: Vec<u64> = tiers.clone().map(of).collect();
            ends(&each)
        };
        let granule = tiers.clone().map(|tier| tier.block).max().unwrap_or(1);
        let terms = Terms {
            ratio: config.price_ratio_milli,
            page_bytes: PAGE_BYTES,
            granule_bytes: granule,
            floors: limits(|tier| tier.least),
            ceilings: limits(|tier| tier.whole),
        };
        let brought = member.loan.brought.as_deref().unwrap_or_default();
        Self {
            trade: Trade::new(terms, ends(brought)),
            window: now,
            counted: member.counted(now),
            seen: TradeWindow::default(),
            began: member.size(),
            slow: 0,
            order: None,
            waits: None,
            is_relieved: false,
            pauses: Pauses::default(),
        }
    }

    fn advance(
        &mut self,
        now: Tick,
        member: &Member,
        room: share::Sizes,
        config: &ArbiterConfig,
    ) -> Option<(Step, String)> {
        let have = ends(&member.sizes_each());
        self.pauses.judge(now, member, config);
        self.is_relieved &= member.is_swapping();
        if let Some(order) = self.order {
            if !self.is_over(now, &order, member, config) {
                return None;
            }
            let step = self.trade.step().and_then(|step| sized(step, member));
            let is_part = step.is_some_and(|(_, size)| size != order.size);
            let is_done = member.sizes_each().get(order.tier) == Some(&order.size);
            // The next part, or what follows from an order that a guest did not carry out: it might never carry out any.
            let next = Tick(
                order
                    .at
                    .0
                    .saturating_add(ArbiterConfig::ns(config.cycle_ms)),
            );
            if (is_part || !is_done) && now < next {
                return None;
            }
            if !is_part || !is_done {
                if matches!(self.trade.step(), Some(share::Step::DeflateSlow(_))) {
                    // What came, not what was ordered.
                    let bytes = have.slow_bytes.saturating_sub(self.slow);
                    self.pauses.purchases.buys(now, bytes);
                }
                self.trade.end_step(have);
            }
            self.order = None;
        } else if self.trade.step().is_none() {
            if !member.can_act() || !self.is_window_over(now, member, config) {
                return None;
            }
            self.is_relieved = member.is_swapping();
            self.seen = self.end_window(now, member, config);
            (self.began, self.slow) = (member.size(), have.slow_bytes);
            let room = self.room(now, member, room, config);
            let step = self.trade.end_window(&self.seen, have, room)?;
            if matches!(step, share::Step::DeflateSlow(_)) {
                self.pauses.buys(now, member, config);
            }
        }
        self.next(now, member, room, config)
    }

    /// Fast memory that a sale under way is to bring, bytes; what is ordered is counted where it goes.
    fn awaits(&self) -> u64 {
        let is_ordered = self.order.is_some_and(|order| order.tier == 0);
        match is_ordered {
            true => 0,
            false => self.trade.awaits(),
        }
    }

    /// Whether the order came to its end, for good or not.
    fn is_over(&self, now: Tick, order: &Order, member: &Member, config: &ArbiterConfig) -> bool {
        let Some(sizes) = &member.sizes else {
            return false;
        };
        let passed = now.0.saturating_sub(order.at.0);
        let knows = |tier: &crate::provision::TierSize| tier.target == order.size;
        let is_known = sizes.tiers.get(order.tier).is_some_and(knows);
        let is_there = is_known && (member.can_act() || sizes.still == Some(STUCK));
        is_there
            || order.was_refused && passed >= ArbiterConfig::ns(config.cycle_ms)
            || passed >= ArbiterConfig::ns(config.review_ms)
    }

    /// Whether the window ends now: for a VM that begins to swap as soon as there is a rate.
    fn is_window_over(&self, now: Tick, member: &Member, config: &ArbiterConfig) -> bool {
        let at_once = member.is_swapping() && !self.is_relieved;
        let length = match at_once {
            true => config.cycle_ms.min(SHORTEST_MS),
            false => config.cycle_ms,
        };
        now.0.saturating_sub(self.window.0) >= ArbiterConfig::ns(length)
    }

    /// The window since the last one: no window ends while a trade lasts, so it has the faults of as much time as others.
    fn end_window(&mut self, now: Tick, member: &Member, config: &ArbiterConfig) -> TradeWindow {
        self.window = now;
        let (at, before) = std::mem::replace(&mut self.counted, member.counted(now));
        let faults = self.counted.1.saturating_sub(before);
        let passed = self.counted.0.0.saturating_sub(at.0);
        let a_cycle = scaled(faults, ArbiterConfig::ns(config.cycle_ms), passed);
        // A few faults are noise, and would let the base grow without end.
        let band = percent(member.size(), config.dead_band_percent);
        let is_noise =
            a_cycle.saturating_mul(PAGE_BYTES) < band && member.rate().lost_ns < WAITS_NS;
        let major_faults = match is_noise {
            true => 0,
            false => a_cycle.max(faults.min(1)),
        };
        let keeps = percent(member.size(), SPARE_PERCENT);
        let last = member.tiers().saturating_sub(1);
        let unused = match member.is_swapping() || member.suffers() {
            true => 0,
            false => member.free_of(last).saturating_sub(keeps),
        };
        let said = member.uses.tiers.map_or(0, |seen| seen.waiting_hot_bytes);
        let fast = member.sizes_each().first().copied().unwrap_or(0);
        // The engine's own ranking, or what is said.
        let waiting = said.max(member.demand.hot.saturating_sub(fast));
        self.pauses.faults(now, major_faults, member, config);
        TradeWindow {
            major_faults,
            least_bytes: band,
            unused_slow_bytes: unused.min(self.pauses.sellable(now, member)),
            waiting_hot_bytes: waiting,
        }
    }

    /// Room of each tier for a trade that begins now.
    fn room(
        &self,
        now: Tick,
        member: &Member,
        there: share::Sizes,
        config: &ArbiterConfig,
    ) -> share::Sizes {
        let last = member.tiers() - 1;
        let turned = |grows: usize, shrinks: usize| {
            turns(now, member, grows, Direction::Up, config)
                || turns(now, member, shrinks, Direction::Down, config)
        };
        let ratio = u64::from(config.price_ratio_milli);
        let may = member.ceiling().saturating_sub(member.size());
        // Memory of the same price as fast memory is not more of it. What a guest calls free counts for nothing here: one
        // that did not pay would hold as much more.
        let rests = |until: Option<Tick>| until.is_some_and(|until| until > now);
        let slow = match ratio <= THOUSAND || turned(last, 0) || rests(self.pauses.purchase) {
            true => 0,
            false => scaled(member.pace(config), ratio, THOUSAND).min(may),
        };
        let sells = member.pace(config).max(member.free_of(last));
        let fast = match turned(0, last) || rests(self.pauses.sale) {
            true => 0,
            false => scaled(sells, THOUSAND, ratio).min(there.fast_bytes),
        };
        // One with free memory lacks none: it reads back what it swapped out before. A block of fast memory that may not be taken
        // at once could not pay.
        let spare = percent(member.size(), SPARE_PERCENT);
        let free = member.need.map_or(0, |(_, need)| need.free_bytes);
        let tiers = member.sizes.as_ref().and_then(|sizes| sizes.tiers.first());
        // Nor could one that has less than its floor.
        let pays = tiers.is_some_and(|fast| fast.block <= member.pace(config))
            && member.size() >= member.floor(now);
        let slow = match free <= spare && pays {
            true => slow,
            false => 0,
        };
        // A little memory that is unused for a moment is noise.
        let band = percent(member.size(), config.dead_band_percent);
        let gains = fast.min(self.seen.waiting_hot_bytes);
        let sells = scaled(gains, ratio, THOUSAND).min(self.seen.unused_slow_bytes);
        let is_noise = sells < band;
        share::Sizes {
            fast_bytes: if is_noise { 0 } else { fast },
            slow_bytes: there.slow_bytes.min(slow),
        }
    }

    /// The next order. Steps for which there is nothing to order are over at once.
    fn next(
        &mut self,
        now: Tick,
        member: &Member,
        room: share::Sizes,
        config: &ArbiterConfig,
    ) -> Option<(Step, String)> {
        let has = member.sizes_each();
        for _ in 0..MOST_IDLE_STEPS {
            let step = self.trade.step()?;
            let may = self.may(now, member, step, room, config);
            match (may, sized(step, member)) {
                (May::Order(size), Some((tier, _))) => {
                    self.waits = None;
                    self.order = Some(Order {
                        at: now,
                        tier,
                        size,
                        was_refused: false,
                    });
                    // What a guest did not do is not waited for.
                    let from = member.sizes.as_ref()?.each(|tier| tier.target);
                    let mut to = has.clone();
                    to[tier] = size;
                    if from == to {
                        // It has that order already.
                        return None;
                    }
                    let owes = self.trade.cost(ends(&has)) > self.trade.first_cost();
                    if matches!(step, share::Step::InflateSlow(_)) {
                        self.pauses.gives(now, member, owes, config);
                    }
                    let why = text::trade(step, &self.seen, owes, config);
                    let provider = member.rights.provider;
                    return Some((Step::new(provider, from, to), why));
                }
                (May::Wait, _) if !self.has_waited(now, config) => return None,
                _ => {
                    self.waits = None;
                    self.trade.end_step(ends(&has));
                }
            }
        }
        None
    }

    /// Whether the present step, which cannot be ordered now, has waited for so long that it is given up.
    fn has_waited(&mut self, now: Tick, config: &ArbiterConfig) -> bool {
        let since = *self.waits.get_or_insert(now);
        now.0.saturating_sub(since.0) >= ArbiterConfig::ns(config.review_ms)
    }

    /// The size that a tier may be ordered to have now on its way to this one.
    fn may(
        &self,
        now: Tick,
        member: &Member,
        step: share::Step,
        room: share::Sizes,
        config: &ArbiterConfig,
    ) -> May {
        let Some((tier, size)) = sized(step, member) else {
            return May::Never;
        };
        let Some(sizes) = &member.sizes else {
            return May::Wait;
        };
        let (of, total) = (sizes.tiers[tier], member.size());
        let moves = sizes
            .still
            .is_none_or(|why| why == STUCK || why == ON_ITS_WAY);
        let grows = matches!(
            step,
            share::Step::DeflateSlow(_) | share::Step::DeflateFast(_)
        );
        let way = match grows {
            true => Direction::Up,
            false => Direction::Down,
        };
        let is_there = if grows {
            size <= of.size
        } else {
            size >= of.size
        };
        if is_there && of.size == of.target {
            return May::Never;
        }
        let is_alone = member.facts.standing.alone.is_some();
        if !moves || is_alone || turns(now, member, tier, way, config) {
            return May::Wait;
        }
        let block = of.block.max(1);
        if grows && !is_there {
            let room = if tier == 0 {
                room.fast_bytes
            } else {
                room.slow_bytes
            };
            let most = of.whole.saturating_sub(of.size).min(room);
            let more = most
                .min(member.ceiling().saturating_sub(total))
                .min(size - of.size);
            return match of.up_by(more) {
                size if size > of.size => May::Order(size),
                _ => May::Never,
            };
        }
        let most = member.pace(config).max(member.free_of(tier));
        let most = most.min(total.saturating_sub(member.floor(now)));
        let most = most.min(member.most_taken(now, config));
        let less = of.size - of.down_by(most.min(of.size.saturating_sub(size)));
        // What it bought it may have to give back, but no more while it lacks memory.
        let is_short = total.saturating_sub(less).saturating_add(block) < self.began;
        if less == 0 && of.target == of.size
            || is_short && (member.is_swapping() || member.suffers())
        {
            // What it owes goes as soon as it may. A sale that is not possible now is none.
            let owes = self.trade.cost(ends(&member.sizes_each())) > self.trade.first_cost();
            return if owes { May::Wait } else { May::Never };
        }
        May::Order(of.size - less)
    }
}

/// The sizes of the first and the last tier.
fn ends(each: &[u64]) -> share::Sizes {
    share::Sizes {
        fast_bytes: each.first().copied().unwrap_or(0),
        slow_bytes: each.last().copied().unwrap_or(0),
    }
}

/// The tier that a step sizes, and its size; `None`: pages move, as the guest's balloon takes them or in the engine's
/// rounds.
fn sized(step: share::Step, member: &Member) -> Option<(usize, u64)> {
    let last = member.tiers().checked_sub(1)?;
    match step {
        share::Step::DeflateSlow(size) | share::Step::InflateSlow(size) => Some((last, size)),
        share::Step::DeflateFast(size) | share::Step::InflateFast(size) => Some((0, size)),
        share::Step::MigrateDown(_) | share::Step::MigrateUp(_) => None,
    }
}

fn scaled(bytes: u64, by: u64, of: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(by) / u128::from(of.max(1))).unwrap_or(u64::MAX)
}
