//! Whose turn it is to spend the move budget: start-time fair queueing over one token bucket.
//!
//! Responsible for: sharing the rate by weight between VMs that want to move. It leaves to others: the
//! rate ([`super::budget`]), and what is moved.
//!
//! Each VM's spending advances a clock of its own, the slower the more it weighs. VMs that wait for tokens are served
//! in the order of these clocks, whatever the size of its plans; none overtakes. A VM that wants nothing
//! lets the others have all of the rate, and cannot save up for later: when it comes back its clock is set
//! to that of the one served last. So over any time in which a VM waits it gets its part by weight, less one
//! plan of its own and one of each other VM.

use std::collections::BTreeMap;

use terrace_proto::{Tick, VmId};

use super::budget::TokenBucket;

/// The clocks' scale: a clock advances by bytes × this / weight.
const PER_WEIGHT: u128 = 1 << 20;

#[derive(Debug, Default)]
struct Account {
    weight: u32,
    /// The VM's virtual clock after what it spent.
    ends: u128,
    /// The clock when the VM began to wait, and the bytes that it waits for.
    waits: Option<(u128, u64)>,
    /// Since when it waits because it is another's turn.
    held_up: Option<Tick>,
}

/// A VM's use of the budget, and the delay that others caused it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Bytes of its plans.
    pub bytes: u64,
    /// Plans that came later because it was others' turn, and by how much, ns.
    pub held_up: u64,
    pub held_up_ns: u64,
}

/// The budget of all moves.
#[derive(Debug)]
pub(crate) struct MoveBudget {
    bucket: TokenBucket,
    /// By weight; otherwise first come, first served.
    fair: bool,
    accounts: BTreeMap<VmId, Account>,
    /// The clock of who was served last.
    clock: u128,
    now: Tick,
    /// Bytes of all plans of all VMs ever.
    pub spent: u64,
}

impl MoveBudget {
    pub fn new(bucket: TokenBucket, fair: bool) -> Self {
        Self {
            bucket,
            fair,
            accounts: BTreeMap::new(),
            clock: 0,
            now: Tick(0),
            spent: 0,
        }
    }

    pub fn refill(&mut self, now: Tick) {
        self.now = self.now.max(now);
        self.bucket.refill(now);
    }

    /// Whether a VM may spend so many bytes now.
    ///
    /// # Errors
    /// If it has to wait for its turn: the earliest time at which it may ask again.
    pub fn ask(&mut self, vm: VmId, weight: u32, bytes: u64) -> Result<(), Tick> {
        let enough = self.bucket.bytes() >= bytes;
        if !self.fair {
            return if enough {
                Ok(())
            } else {
                Err(self.bucket.ready_at(bytes))
            };
        }
        let clock = self.clock;
        let account = self.accounts.entry(vm).or_default();
        account.weight = weight.max(1);
        let start = account.waits.map_or(clock.max(account.ends), |w| w.0);
        let first = self.waiting().min().filter(|w| (w.0, w.1) < (start, vm));
        if first.is_none() && enough {
            return Ok(());
        }
        // Before the first of all has got its tokens, none are anybody else's.
        let wait_for = first.map_or(bytes, |(_, _, bytes)| bytes);
        let now = self.now;
        if let Some(account) = self.accounts.get_mut(&vm) {
            account.waits = Some((start, bytes));
            if first.is_some() {
                account.held_up.get_or_insert(now);
            }
        }
        Err(self.bucket.ready_at(wait_for))
    }

    /// A VM's plan is under way; returns what came of its waiting.
    pub fn spend(&mut self, vm: VmId, bytes: u64) -> Spent {
        self.bucket.spend(bytes);
        self.spent = self.spent.saturating_add(bytes);
        let (clock, now) = (self.clock, self.now);
        let mut spent = Spent {
            bytes,
            ..Spent::default()
        };
        if let Some(account) = self.accounts.get_mut(&vm) {
            let waited = account.waits.take();
            let start = waited.map_or(clock.max(account.ends), |w| w.0);
            account.ends = start + u128::from(bytes) * PER_WEIGHT / u128::from(account.weight);
            self.clock = clock.max(start);
            if let Some(since) = account.held_up.take() {
                let ns = now.since(since).as_nanos();
                (spent.held_up, spent.held_up_ns) = (1, u64::try_from(ns).unwrap_or(u64::MAX));
            }
        }
        spent
    }

    /// Forgets the VMs that do not wait any more.
    pub fn only_waits(&mut self, waits: impl Fn(VmId) -> bool) {
        for (vm, account) in &mut self.accounts {
            if account.waits.is_some() && !waits(*vm) {
                (account.waits, account.held_up) = (None, None);
            }
        }
    }

    /// A VM has nothing that may move now.
    pub fn leave(&mut self, vm: VmId) {
        self.only_waits(|other| other != vm);
    }

    pub fn remove(&mut self, vm: VmId) {
        self.accounts.remove(&vm);
    }

    /// Those that wait, in the order of their turns.
    pub fn turns(&self) -> Vec<VmId> {
        let mut turns: Vec<_> = self.waiting().collect();
        turns.sort_unstable();
        turns.into_iter().map(|(_, vm, _)| vm).collect()
    }

    fn waiting(&self) -> impl Iterator<Item = (u128, VmId, u64)> {
        let waits = |(vm, a): (&VmId, &Account)| a.waits.map(|(start, bytes)| (start, *vm, bytes));
        self.accounts.iter().filter_map(waits)
    }
}

#[cfg(test)]
mod tests;
