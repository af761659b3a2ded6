//! The state of one provider.

use terrace_proto::provision::{
    Mechanism, OrderState, Origin, ProviderError, ProviderKind, ProviderSpec, ProviderStatus,
    ResidentMemory, TierStatus,
};
use terrace_proto::{OrderId, Tick};

use super::admission::Claim;
use super::config::ProvisionConfig;
use super::guest::{Guest, MIN_REPEAT};
use super::liveness::Liveness;
use super::order::{Order, OrderBook};
use super::pins::Pins;
use super::queries::Queries;
use super::text::tier_name;
use super::verdicts::Verdicts;
use crate::reasons::Reasons;

/// A provider.
pub(super) struct Provider {
    pub spec: ProviderSpec,
    pub liveness: Liveness,
    /// The provider's mechanism; `None` until it is known.
    pub mechanism: Option<Mechanism>,
    /// The last report that brought a status.
    pub seen: Option<Seen>,
    /// The reason why the last report brought no status, if it did not.
    pub trouble: Option<String>,
    /// The device or process that may have pinned the VM's memory.
    pub pins: Pins,
    /// Memory of the hypervisor's process.
    pub resident: Option<ResidentMemory>,
    pub orders: OrderBook,
    /// The provider's reasons: sentences of what happened.
    pub reasons: Reasons,
    pub queries: Queries,
    pub verdicts: Verdicts,
    pub guest: Guest,
}

/// A report that brought a status.
pub(super) struct Seen {
    /// The time when the report was taken in.
    pub at: Tick,
    /// The provider's status.
    pub status: ProviderStatus,
}

impl Provider {
    /// A provider of which nothing is known yet.
    pub fn new(now: Tick, spec: ProviderSpec, reasons: Reasons) -> Self {
        Self {
            liveness: Liveness::new(now, spec.is_quiet),
            spec,
            mechanism: None,
            seen: None,
            trouble: None,
            pins: Pins::default(),
            resident: None,
            orders: OrderBook::default(),
            reasons,
            queries: Queries::new(now),
            verdicts: Verdicts::default(),
            guest: Guest::default(),
        }
    }

    /// The kind of mechanism; HyperFlex until it is known.
    pub fn kind(&self) -> ProviderKind {
        self.mechanism
            .as_ref()
            .map_or(ProviderKind::HyperFlex, |m| m.kind)
    }

    /// The mechanism, to stand after "by".
    pub fn text(&self) -> &str {
        self.mechanism.as_ref().map_or("HyperFlex", |m| &m.name)
    }

    /// The name of what is asked, for sentences.
    pub fn asked(&self) -> &'static str {
        // A mechanism that is not known yet is searched for by the monitor.
        match self.mechanism.as_ref().map(|m| m.kind) {
            Some(ProviderKind::HyperFlex) => "its HyperFlex device",
            None | Some(ProviderKind::VirtioMem | ProviderKind::Balloon) => "its monitor",
        }
    }

    /// The last status.
    pub fn status(&self) -> Option<&ProviderStatus> {
        self.seen.as_ref().map(|seen| &seen.status)
    }

    /// Records an order.
    pub fn ordered(
        &mut self,
        now: Tick,
        number: OrderId,
        origin: Origin,
        size_bytes: Vec<Option<u64>>,
    ) {
        let status = self.status();
        let report = status.and_then(|status| status.reports);
        let tiers = status.iter().flat_map(|status| &status.tiers);
        let from_bytes = tiers.map(|tier| tier.size_bytes).collect();
        self.orders.give(Order {
            number,
            origin,
            at: now,
            from_bytes,
            size_bytes,
            state: OrderState::Sent,
            why: None,
            resident: self.resident,
        });
        // The guest's reports until now were about another target.
        self.guest.ordered(report);
    }

    /// Takes in the outcome of an order.
    pub fn answered(&mut self, now: Tick, number: OrderId, result: &Result<(), ProviderError>) {
        if let Err(trouble) = result {
            let said = format!("order {number} came to nothing: {trouble}");
            self.reasons.say(now, said);
        }
        self.orders.answered(number, result);
    }

    /// The most that tier `i` may have, or be on its way to, bytes.
    pub fn most(&self, i: usize, tier: &TierStatus) -> u64 {
        let has = tier.size_bytes.max(tier.target_bytes);
        has.max(self.orders.most(i))
    }

    /// Takes in that the provider answers, and reports so if it was reported silent before.
    pub fn answers(&mut self, now: Tick) {
        if self.liveness.answers(now) {
            let said = format!("{} answers again", self.asked());
            self.reasons.say(now, said);
        }
    }

    /// Says that the provider hangs if nothing was heard for too long.
    pub fn watch_silence(&mut self, now: Tick, config: &ProvisionConfig) {
        if self.liveness.watch(now, config) {
            let silent = self.liveness.silent_s(now);
            let said = format!("{} hangs: no answer for {silent} s", self.asked());
            self.reasons.say(now, said);
        }
    }

    /// Host memory behind tier `i`, bytes; if its files were not verified, its share of what the hypervisor's process
    /// holds, by the sizes.
    pub fn present_bytes(&self, i: usize) -> u64 {
        let tiers = self.status().map(|status| &status.tiers);
        let Some(tier) = tiers.and_then(|tiers| tiers.get(i)) else {
            return 0;
        };
        // By files if they were verified: a process's resident memory is not split by tier.
        if let Some(seen) = tier.verified {
            // An old verification is no word about what was given back since.
            let most = if self.guest.is_inflated(i) {
                tier.size_bytes
            } else {
                tier.whole_bytes
            };
            return seen.present_bytes.min(most);
        }
        let sizes = tiers.into_iter().flatten().map(|tier| tier.size_bytes);
        let all: u128 = sizes.map(u128::from).sum();
        let held = u128::from(self.resident.map_or(0, |resident| resident.bytes()));
        // In 128 bits, as both factors are sizes; a VM whose tiers are all empty has no share.
        let share = (held * u128::from(tier.size_bytes)).checked_div(all);
        u64::try_from(share.unwrap_or(0))
            .unwrap_or(u64::MAX)
            .min(tier.size_bytes)
    }

    /// Bytes that admission counts of tier `i`: all of it until the driver has inflated.
    pub fn counted(&self, i: usize, tier: &TierStatus) -> u64 {
        // Until then nothing keeps the guest from touching all that it was started with.
        if !self.guest.is_inflated(i) {
            return tier.whole_bytes;
        }
        self.most(i, tier)
    }

    /// The claims of the VM's tiers.
    pub fn claims(&self) -> impl Iterator<Item = Claim> {
        let tiers = self.status().into_iter().flat_map(|status| &status.tiers);
        tiers.enumerate().map(|(i, tier)| Claim {
            vm: self.spec.vm.clone(),
            tier: i,
            name: tier_name(self.kind(), i),
            nodes: tier.host_nodes.clone(),
            counted_bytes: self.counted(i, tier),
            present_bytes: self.present_bytes(i),
            is_inflated: self.guest.is_inflated(i),
            pool: tier.pool(),
        })
    }

    /// The sizes to order so that a device that is passed through, or another process that has the RAM, loses no
    /// memory: the driver would continue to give back what the device writes to. `None` if nothing is to be done, or an
    /// order is on its way. `given`: the last order before the report.
    pub fn held(&self, now: Tick, given: OrderId) -> Option<Vec<Option<u64>>> {
        let is_pinned = self.kind() == ProviderKind::HyperFlex && self.pins.device.by().is_some();
        // A process that shares the RAM counts for every mechanism; a device for HyperFlex alone, because QEMU
        // coordinates its own discards with VFIO.
        let is_pinned = is_pinned || self.pins.sharer.by().is_some();
        let status = self.status()?;
        if !is_pinned || self.trouble.is_some() {
            return None;
        }
        if let Some(order) = self.orders.last() {
            let is_ours = matches!(order.origin, Origin::Pinning | Origin::Sharing);
            let failed = is_ours && order.state == OrderState::Failed;
            // An order on its way is waited for; one of ours that failed is tried again, but not at each query.
            if order.number > given || (failed && now.since(order.at) < MIN_REPEAT) {
                return None;
            }
        }
        let most = status.total_bytes.unwrap_or(u64::MAX);
        let tiers = status.tiers.iter().map(|tier| {
            let held = tier.size_rounded_up().min(most);
            // Only a tier on its way down is held: growing takes nothing from anybody.
            (tier.target_bytes < tier.size_bytes && held != tier.target_bytes).then_some(held)
        });
        let tiers: Vec<_> = tiers.collect();
        tiers.iter().any(Option::is_some).then_some(tiers)
    }
}
