//! All that is known of one provider.

use std::time::Duration;

use terrace_proto::provision::{
    Mechanism, OrderState, Orders, Origin, ProviderError, ProviderKind, ProviderSpec,
    ProviderStatus, ResidentMemory, TierStatus,
};
use terrace_proto::{OrderId, Tick};

use super::admission::Claim;
use super::config::ProvisionConfig;
use super::looks::Looks;
use super::order::Order;
use super::report::{Restarts, TierState};
use super::verdicts::Verdicts;
use super::words::tier_name;
use crate::reasons::Reasons;

/// How often at most it is said that a guest starts anew, and tried again what failed.
pub(super) const EVERY: Duration = Duration::from_secs(60);

/// A provider.
pub(super) struct Provider {
    pub spec: ProviderSpec,
    /// Nothing was heard yet, and nobody asked: it is shown to nobody.
    pub is_quiet: bool,
    /// What it is, once that is known.
    pub mechanism: Option<Mechanism>,
    /// The last report that brought something.
    pub seen: Option<Seen>,
    /// Why the last one brought nothing, if it did not.
    pub trouble: Option<String>,
    /// When something was heard of it last.
    pub heard: Tick,
    /// What pins the VM's memory.
    pub pinned_by: Option<String>,
    /// Why that is not known, if it is not.
    pub pinning_unknown: Option<String>,
    /// Who else has the VM's RAM.
    pub held_by: Option<String>,
    /// Why that is not known, if it is not.
    pub holding_unknown: Option<String>,
    /// Memory of the hypervisor's process.
    pub resident: Option<ResidentMemory>,
    /// The last order.
    pub order: Option<Order>,
    /// Orders that no report has shown the end of, and what they named: the guest may have it by now.
    unseen: Vec<(OrderId, Vec<Option<u64>>)>,
    /// What became of all orders.
    pub counts: Orders,
    /// What was said of it.
    pub reasons: Reasons,
    pub(super) looks: Looks,
    pub(super) verdicts: Verdicts,
    pub(super) tiers: Vec<TierState>,
    pub(super) was_met: Option<bool>,
    /// Targets of which it was said that they are met: a guest that goes to and fro makes one sentence.
    pub(super) met_said: Vec<u64>,
    /// Since when the driver does not know the targets, and that this was said.
    pub(super) untold: Option<(Tick, bool)>,
    pub(super) is_silence_said: bool,
    pub(super) restarts: Restarts,
    pub(super) is_pinning_said: bool,
    pub(super) is_holding_said: bool,
}

/// A report that brought something.
pub(super) struct Seen {
    /// When.
    pub at: Tick,
    /// How it stood.
    pub status: ProviderStatus,
}

impl Provider {
    /// Nothing is known yet.
    pub fn new(now: Tick, spec: ProviderSpec, reasons: Reasons) -> Self {
        Self {
            is_quiet: spec.is_quiet,
            spec,
            mechanism: None,
            seen: None,
            trouble: None,
            heard: now,
            pinned_by: None,
            pinning_unknown: None,
            held_by: None,
            holding_unknown: None,
            resident: None,
            order: None,
            unseen: Vec::new(),
            counts: Orders::default(),
            reasons,
            looks: Looks::new(now),
            verdicts: Verdicts::default(),
            tiers: Vec::new(),
            was_met: None,
            met_said: Vec::new(),
            untold: None,
            is_silence_said: false,
            restarts: Restarts::default(),
            is_pinning_said: false,
            is_holding_said: false,
        }
    }

    /// Which mechanism it is; a device of ours until that is known.
    pub fn kind(&self) -> ProviderKind {
        self.mechanism
            .as_ref()
            .map_or(ProviderKind::HyperFlex, |m| m.kind)
    }

    /// The mechanism, to stand after "by".
    pub fn words(&self) -> &str {
        self.mechanism.as_ref().map_or("HyperFlex", |m| &m.words)
    }

    /// What is asked.
    pub fn asked(&self) -> &'static str {
        // What is not known yet is looked for by the monitor.
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
        self.unseen.push((number, size_bytes.clone()));
        self.order = Some(Order {
            number,
            origin,
            at: now,
            from_bytes,
            size_bytes,
            state: OrderState::Sent,
            why: None,
            resident: self.resident,
        });
        self.met_said.clear();
        // What the guest said until now was about another target.
        for tier in &mut self.tiers {
            tier.forget_stuck(report);
        }
    }

    /// Takes in what came of an order.
    pub fn answered(&mut self, now: Tick, number: OrderId, result: &Result<(), ProviderError>) {
        match result {
            Ok(()) => self.counts.taken += 1,
            Err(trouble) => {
                self.counts.failed += 1;
                let said = format!("order {number} came to nothing: {trouble}");
                self.reasons.say(now, said);
            }
        }
        // A lost answer is none: the order, or half of it, may have been taken.
        if matches!(
            result,
            Err(ProviderError::Refused(_) | ProviderError::Nothing(_))
        ) {
            self.unseen.retain(|(unseen, _)| *unseen != number);
        }
        let Some(order) = self.order.as_mut().filter(|o| o.number == number) else {
            return;
        };
        match result {
            Ok(()) => order.state = OrderState::UnderWay,
            Err(trouble) => {
                order.state = match trouble {
                    ProviderError::Gone(_) => OrderState::Unknown,
                    ProviderError::Refused(_) | ProviderError::Nothing(_) => OrderState::Failed,
                };
                order.why = Some(trouble.to_string());
            }
        }
    }

    /// A report came after the provider was given that order, and those before it.
    pub fn orders_seen(&mut self, given: OrderId) {
        self.unseen.retain(|(unseen, _)| *unseen > given);
    }

    /// The most that tier `i` may have, or be on its way to, bytes.
    pub fn most(&self, i: usize, tier: &TierStatus) -> u64 {
        let sent = self.unseen.iter();
        let sent = sent.filter_map(|(_, sizes)| sizes.get(i).copied().flatten());
        sent.fold(tier.size_bytes.max(tier.target_bytes), u64::max)
    }

    /// Something was heard of it, or somebody wants to.
    pub fn heard_of(&mut self, now: Tick) {
        self.heard = now;
        self.is_quiet = false;
    }

    /// It answers, after it was said that it does not.
    pub fn answers(&mut self, now: Tick) {
        self.heard_of(now);
        if std::mem::take(&mut self.is_silence_said) {
            let said = format!("{} answers again", self.asked());
            self.reasons.say(now, said);
        }
    }

    /// When it counts as hung, if nothing is heard until then.
    pub fn hangs_at(&self, config: &ProvisionConfig) -> Option<Tick> {
        let may = !self.is_quiet && !self.is_silence_said;
        may.then(|| self.heard.after(config.idle() + config.patience()))
    }

    /// Says so if nothing was heard for too long.
    pub fn watch_silence(&mut self, now: Tick, config: &ProvisionConfig) {
        if self.hangs_at(config).is_some_and(|at| at <= now) {
            self.is_silence_said = true;
            let silent = now.since(self.heard).as_secs();
            let said = format!("{} hangs: no answer for {silent} s", self.asked());
            self.reasons.say(now, said);
        }
    }

    /// It hangs.
    pub fn is_silent(&self) -> bool {
        self.is_silence_said
    }

    /// The guest says of the target of now that it cannot reach tier `i`'s.
    pub fn is_stuck(&self, i: usize) -> bool {
        self.tiers.get(i).is_some_and(TierState::is_stuck)
    }

    /// The driver brought tier `i` to its target, so that no more than that is counted.
    pub fn is_inflated(&self, i: usize) -> bool {
        self.tiers.get(i).is_some_and(|tier| tier.is_inflated)
    }

    /// Host memory behind tier `i`, bytes; if nobody looked at its files, its share of what the hypervisor's process
    /// holds, by the sizes.
    pub fn present_bytes(&self, i: usize) -> u64 {
        let tiers = self.status().map(|status| &status.tiers);
        let Some(tier) = tiers.and_then(|tiers| tiers.get(i)) else {
            return 0;
        };
        if let Some(seen) = tier.verified {
            // An old look at files is no word about what was given back since.
            let most = if self.is_inflated(i) {
                tier.size_bytes
            } else {
                tier.whole_bytes
            };
            return seen.present_bytes.min(most);
        }
        let sizes = tiers.into_iter().flatten().map(|tier| tier.size_bytes);
        let all: u128 = sizes.map(u128::from).sum();
        let held = u128::from(self.resident.map_or(0, |resident| resident.bytes()));
        let share = (held * u128::from(tier.size_bytes)).checked_div(all);
        u64::try_from(share.unwrap_or(0))
            .unwrap_or(u64::MAX)
            .min(tier.size_bytes)
    }

    /// What admission counts of tier `i`, bytes: all of it until the driver has inflated.
    pub fn counted(&self, i: usize, tier: &TierStatus) -> u64 {
        if !self.is_inflated(i) {
            return tier.whole_bytes;
        }
        self.most(i, tier)
    }

    /// What each of its tiers counts for.
    pub fn claims(&self) -> impl Iterator<Item = Claim> {
        let tiers = self.status().into_iter().flat_map(|status| &status.tiers);
        tiers.enumerate().map(|(i, tier)| Claim {
            vm: self.spec.vm.clone(),
            tier: i,
            name: tier_name(self.kind(), i),
            nodes: tier.host_nodes.clone(),
            counted_bytes: self.counted(i, tier),
            present_bytes: self.present_bytes(i),
            is_inflated: self.is_inflated(i),
            pool: tier.pool(),
        })
    }

    /// Why its targets are held: a device, or another process.
    pub fn holding(&self) -> Origin {
        if self.held_by.is_some() {
            Origin::Sharing
        } else {
            Origin::Pinning
        }
    }

    /// What each tier shall have so that a device that is passed through loses no memory: the driver would go on giving
    /// back what the device writes to. None: nothing is to be done, or an order is on its way. `given`: the last order
    /// before the report.
    pub fn held(&self, now: Tick, given: OrderId) -> Option<Vec<Option<u64>>> {
        let is_pinned = self.kind() == ProviderKind::HyperFlex && self.pinned_by.is_some();
        let is_pinned = is_pinned || self.held_by.is_some();
        let status = self.status()?;
        if !is_pinned || self.trouble.is_some() {
            return None;
        }
        if let Some(order) = &self.order {
            let is_ours = matches!(order.origin, Origin::Pinning | Origin::Sharing);
            let failed = is_ours && order.state == OrderState::Failed;
            if order.number > given || (failed && now.since(order.at) < EVERY) {
                return None;
            }
        }
        let most = status.total_bytes.unwrap_or(u64::MAX);
        let tiers = status.tiers.iter().map(|tier| {
            let held = tier.kept_as_it_is().min(most);
            (tier.target_bytes < tier.size_bytes && held != tier.target_bytes).then_some(held)
        });
        let tiers: Vec<_> = tiers.collect();
        tiers.iter().any(Option::is_some).then_some(tiers)
    }
}
