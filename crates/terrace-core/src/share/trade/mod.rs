//! `trade`: a VM's fast memory for slow memory of the same price, and back (HMvisor §3.3).
//!
//! Responsible for: how much one VM trades, and in which steps. It leaves to others: who carries the steps out, when a
//! direction may turn, and how much a VM may change at once (`room` says what the host has for it).
//!
//! While major faults rise from one window of 5 s to the next, the VM needs memory: `base` doubles, and falls by one in
//! each window in which they fall. The slow memory that it buys is base × major faults × page size, and it pays with
//! fast memory: the slow balloon deflates, pages go down, the fast balloon inflates. If slow memory lies unused, nothing
//! faults and hot pages wait, it is the other way round; there the unused slow memory goes first, because no page must
//! move for it.
//!
//! The price of what the VM is to have is never above that of its first sizes. Between the first and the last step down
//! the VM holds what it bought and what it pays with; a guest that does not pay gives back what it bought, and nothing
//! else happens before it has. The paper does not say what a failed step does; that, and the price left over by
//! rounding, which later trades spend, is ours.

/// The most that `base` doubles to: 2^20 pages a fault, 4 GiB.
const MOST_BASE: u64 = 1 << 20;
/// Thousandths in the price of slow memory.
const SLOW_PRICE: u128 = 1000;
/// Windows in a row without a trade after which demand is stable.
const STABLE_WINDOWS: u32 = 2;

/// Bytes of both tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of the fast tier.
    pub fast_bytes: u64,
    /// Bytes of the slow tier.
    pub slow_bytes: u64,
}

/// Terms of one VM's trades.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Price of fast memory, thousandths of that of slow memory: 4000 is 4 to 1. 0 counts as 1.
    pub ratio: u32,
    /// Bytes of a page that faults.
    pub page_bytes: u64,
    /// Bytes of which sizes change by multiples. 0 counts as 1.
    pub granule_bytes: u64,
    /// The least of each tier.
    pub floors: Sizes,
    /// The most of each tier.
    pub ceilings: Sizes,
}

/// Observations of 5 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TradeWindow {
    /// Major faults of the VM.
    pub major_faults: u64,
    /// Bytes of slow memory that are bought at least, if anything is.
    pub least_bytes: u64,
    /// Bytes of slow memory that the guest does not use.
    pub unused_slow_bytes: u64,
    /// Bytes of hot pages in slow memory.
    pub waiting_hot_bytes: u64,
}

/// A step that is to be carried out, with the size that the tier is to have after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The slow balloon deflates: slow memory grows to so many bytes.
    DeflateSlow(u64),
    /// So many bytes of cold pages go to slow memory.
    MigrateDown(u64),
    /// The fast balloon inflates: fast memory shrinks to so many bytes.
    InflateFast(u64),
    /// The slow balloon inflates: slow memory shrinks to so many bytes.
    InflateSlow(u64),
    /// The fast balloon deflates: fast memory grows to so many bytes.
    DeflateFast(u64),
    /// So many bytes of hot pages go to fast memory.
    MigrateUp(u64),
}

/// The trades of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trade {
    terms: Terms,
    /// Price of the VM's first sizes, in thousandths of a slow byte.
    first_cost: u128,
    base: u64,
    /// Major faults of the window before.
    faults: Option<u64>,
    /// Windows in a row that began no trade.
    quiet: u32,
    /// Sizes before the trade that runs.
    from: Sizes,
    /// Fast memory that the trade that runs is for, bytes; 0 if it is for slow memory.
    gain_bytes: u64,
    step: Option<Step>,
}

impl Trade {
    /// No trade yet; the VM's first sizes set its price. Floors and ceilings that exclude these give way.
    #[must_use]
    pub fn new(terms: Terms, first: Sizes) -> Self {
        let each = |of: fn(u64, u64) -> u64, limit: Sizes| Sizes {
            fast_bytes: of(limit.fast_bytes, first.fast_bytes),
            slow_bytes: of(limit.slow_bytes, first.slow_bytes),
        };
        let terms = Terms {
            ratio: terms.ratio.max(1),
            granule_bytes: terms.granule_bytes.max(1),
            floors: each(u64::min, terms.floors),
            ceilings: each(u64::max, terms.ceilings),
            ..terms
        };
        let mut trade = Self {
            terms,
            first_cost: 0,
            base: 1,
            faults: None,
            quiet: 0,
            from: first,
            gain_bytes: 0,
            step: None,
        };
        trade.first_cost = trade.cost(first);
        trade
    }

    /// The price of sizes, in thousandths of a byte of slow memory.
    #[must_use]
    pub fn cost(&self, sizes: Sizes) -> u128 {
        let fast = u128::from(sizes.fast_bytes) * u128::from(self.terms.ratio);
        fast + u128::from(sizes.slow_bytes) * SLOW_PRICE
    }

    /// The price that the VM never exceeds, in thousandths of a byte of slow memory.
    #[must_use]
    pub fn first_cost(&self) -> u128 {
        self.first_cost
    }

    /// Pages per major fault that the VM would buy.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The step that is to be carried out.
    #[must_use]
    pub fn step(&self) -> Option<Step> {
        self.step
    }

    /// Whether hot and cold pages are to change places in equal numbers: nothing has been traded for some windows, be it
    /// that demand is stable or that the host has no memory to trade.
    #[must_use]
    pub fn is_double_sided(&self) -> bool {
        self.quiet >= STABLE_WINDOWS
    }

    /// Fast memory that is to come for slow memory that goes or went, bytes.
    #[must_use]
    pub fn awaits(&self) -> u64 {
        match self.step {
            Some(Step::InflateSlow(_) | Step::DeflateFast(_)) => self.gain_bytes,
            _ => 0,
        }
    }

    /// Ends a window of 5 s, of a VM that has these sizes on a host that has so much more of each tier for it. Returns
    /// the step that is to be carried out.
    pub fn end_window(&mut self, seen: &TradeWindow, have: Sizes, room: Sizes) -> Option<Step> {
        self.follow(seen.major_faults);
        if self.step.is_none() {
            self.from = have;
            self.gain_bytes = 0;
            self.step = self.first_step(seen, room);
            self.quiet = self.quiet.saturating_add(1);
        }
        if self.step.is_some() {
            self.quiet = 0;
        }
        self.step
    }

    /// Ends the step that was to be carried out, as far as it was: the VM has these sizes now. Returns the next step.
    pub fn end_step(&mut self, have: Sizes) -> Option<Step> {
        let next = match self.step? {
            Step::DeflateSlow(_) => self.to_pay(have).map(Step::MigrateDown),
            Step::MigrateDown(bytes) => Some(Step::InflateFast(self.without(have, bytes))),
            Step::InflateFast(_) | Step::MigrateUp(_) => None,
            Step::InflateSlow(_) => self.to_gain(have).map(Step::DeflateFast),
            Step::DeflateFast(_) => {
                let gained = have.fast_bytes.saturating_sub(self.from.fast_bytes);
                (gained > 0).then_some(Step::MigrateUp(gained))
            }
        };
        self.step = next.or_else(|| {
            self.from = have;
            self.gain_bytes = 0;
            self.give_back()
        });
        self.step
    }

    fn follow(&mut self, faults: u64) {
        let before = self.faults.replace(faults).unwrap_or(faults);
        if faults > before {
            self.base = (self.base * 2).min(MOST_BASE);
        } else if faults < before {
            self.base = (self.base - 1).max(1);
        }
    }

    fn first_step(&mut self, seen: &TradeWindow, room: Sizes) -> Option<Step> {
        if let Some(step) = self.give_back() {
            return Some(step);
        }
        if seen.major_faults > 0 {
            return self.buy_slow(seen, room);
        }
        self.sell_slow(seen, room)
    }

    /// The step that brings a VM which has more than it pays for back to its price: what it bought goes, or fast memory
    /// where no slow memory may.
    fn give_back(&self) -> Option<Step> {
        let above = self.cost(self.from).checked_sub(self.first_cost)?;
        if above == 0 {
            return None;
        }
        let (have, floors) = (self.from, self.terms.floors);
        let slow = self.up(above.div_ceil(SLOW_PRICE));
        let slow = slow.min(have.slow_bytes.saturating_sub(floors.slow_bytes));
        if slow > 0 {
            return Some(Step::InflateSlow(have.slow_bytes - slow));
        }
        let fast = self.up(above.div_ceil(u128::from(self.terms.ratio)));
        let fast = fast.min(have.fast_bytes.saturating_sub(floors.fast_bytes));
        (fast > 0).then(|| Step::InflateFast(have.fast_bytes - fast))
    }

    /// The difference between the price of the VM's first sizes and of these.
    fn unspent(&self, sizes: Sizes) -> u128 {
        self.first_cost.saturating_sub(self.cost(sizes))
    }

    /// The start of a trade down: slow memory grows.
    fn buy_slow(&self, seen: &TradeWindow, room: Sizes) -> Option<Step> {
        let have = self.from;
        let target = u128::from(self.base) * u128::from(seen.major_faults);
        let target = target.saturating_mul(u128::from(self.terms.page_bytes));
        let target = self.up(target.max(seen.least_bytes.into()));
        let fast = self.down(have.fast_bytes.saturating_sub(self.terms.floors.fast_bytes));
        let payable = self.unspent(have) + u128::from(fast) * u128::from(self.terms.ratio);
        let more = self
            .terms
            .ceilings
            .slow_bytes
            .saturating_sub(have.slow_bytes);
        let more = more.min(room.slow_bytes).min(target);
        let more = self.down(more.min(saturated(payable / SLOW_PRICE)));
        (more > 0).then(|| Step::DeflateSlow(have.slow_bytes + more))
    }

    /// Bytes of fast memory with which the VM pays for the slow memory that it got; `None` if it need not.
    fn to_pay(&self, have: Sizes) -> Option<u64> {
        let above = self.cost(have).checked_sub(self.first_cost)?;
        let fast = self.up(above.div_ceil(u128::from(self.terms.ratio)));
        let most = have.fast_bytes.saturating_sub(self.terms.floors.fast_bytes);
        Some(fast.min(most)).filter(|bytes| *bytes > 0)
    }

    fn without(&self, have: Sizes, fast: u64) -> u64 {
        let bytes = have.fast_bytes.saturating_sub(fast);
        bytes.max(self.terms.floors.fast_bytes.min(have.fast_bytes))
    }

    /// The start of a trade up: slow memory that lies unused goes.
    fn sell_slow(&mut self, seen: &TradeWindow, room: Sizes) -> Option<Step> {
        let (have, terms) = (self.from, &self.terms);
        let ratio = u128::from(terms.ratio);
        let slow = have.slow_bytes.saturating_sub(terms.floors.slow_bytes);
        let slow = self.down(slow.min(seen.unused_slow_bytes));
        let payable = self.unspent(have) + u128::from(slow) * SLOW_PRICE;
        let more = terms.ceilings.fast_bytes.saturating_sub(have.fast_bytes);
        let more = more.min(room.fast_bytes).min(seen.waiting_hot_bytes);
        let more = self.down(more.min(saturated(payable / ratio)));
        if more == 0 {
            return None;
        }
        self.gain_bytes = more;
        let price = u128::from(more) * ratio;
        let slow = self.up(price
            .saturating_sub(self.unspent(have))
            .div_ceil(SLOW_PRICE));
        Some(match slow {
            0 => Step::DeflateFast(have.fast_bytes + more),
            slow => Step::InflateSlow(have.slow_bytes - slow),
        })
    }

    /// The fast memory that the VM is to have for the slow memory that it gave away; `None` if it gave none, or only
    /// what it had not paid for.
    fn to_gain(&self, have: Sizes) -> Option<u64> {
        let paid = saturated(self.unspent(have) / u128::from(self.terms.ratio));
        let more = self.down(paid.min(self.gain_bytes));
        (more > 0).then(|| have.fast_bytes.saturating_add(more))
    }

    fn up(&self, bytes: u128) -> u64 {
        let bytes = saturated(bytes);
        let granule = self.terms.granule_bytes;
        bytes.checked_next_multiple_of(granule).unwrap_or(u64::MAX)
    }

    fn down(&self, bytes: u64) -> u64 {
        bytes - bytes % self.terms.granule_bytes
    }
}

fn saturated(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
