//! An order: the sizes that it names, in numbers and in words, and its progress.

use terrace_proto::bytes::Bytes;
use terrace_proto::provision::{
    OrderCounts, OrderState, Origin, ProviderError, ProviderKind, ProviderStatus, ResidentMemory,
};
use terrace_proto::{OrderId, Tick};

use super::text::{apart, tier_name};

/// An order that was given.
pub(super) struct Order {
    /// The order's number.
    pub number: OrderId,
    /// The giver of the order.
    pub origin: Origin,
    /// The time when the order was given.
    pub at: Tick,
    /// Sizes of the tiers when the order was given, bytes.
    pub from_bytes: Vec<u64>,
    /// The size that each tier is to have, bytes; `None`: unchanged.
    pub size_bytes: Vec<Option<u64>>,
    /// The order's progress.
    pub state: OrderState,
    /// The reason why the order is stuck or failed.
    pub why: Option<String>,
    /// Memory of the hypervisor's process when the order was given.
    pub resident: Option<ResidentMemory>,
}

impl Order {
    /// Whether a VM of this size grew by this order: by so many bytes at least, and not beyond what it names.
    pub fn lets_grow(&self, size: u64, least: u64) -> bool {
        let add = |sum: u64, bytes: u64| sum.saturating_add(bytes);
        let from = self.from_bytes.iter().copied().fold(0, add);
        let tiers = self.from_bytes.iter().zip(&self.size_bytes);
        let to = tiers.map(|(from, to)| to.unwrap_or(*from)).fold(0, add);
        self.state != OrderState::Failed && size <= to && size >= from.saturating_add(least)
    }
}

/// A provider's orders.
#[derive(Default)]
pub(super) struct OrderBook {
    /// The last order.
    last: Option<Order>,
    /// Orders of which no report has shown the end, and the sizes that they named: the guest may have these by now.
    unseen: Vec<(OrderId, Vec<Option<u64>>)>,
    /// Counts of all orders by outcome.
    pub counts: OrderCounts,
}

impl OrderBook {
    /// The last order.
    pub fn last(&self) -> Option<&Order> {
        self.last.as_ref()
    }

    /// Records an order that is given.
    pub fn give(&mut self, order: Order) {
        if order.origin == Origin::Arbiter {
            self.count_arbiters(&order);
        }
        self.unseen.push((order.number, order.size_bytes.clone()));
        self.last = Some(order);
    }

    fn count_arbiters(&mut self, order: &Order) {
        self.counts.by_arbiter += 1;
        let tiers = order.from_bytes.iter().zip(&order.size_bytes);
        for (from, to) in tiers.filter_map(|(from, to)| Some((*from, (*to)?))) {
            let counts = &mut self.counts;
            counts.given_bytes = counts.given_bytes.saturating_add(to.saturating_sub(from));
            counts.taken_bytes = counts.taken_bytes.saturating_add(from.saturating_sub(to));
        }
    }

    /// Takes in the outcome of an order.
    pub fn answered(&mut self, number: OrderId, result: &Result<(), ProviderError>) {
        let (state, why) = match result {
            Ok(()) => (OrderState::UnderWay, None),
            // A lost answer leaves the outcome unknown: the order, or half of it, may have been taken.
            Err(trouble @ ProviderError::Gone(_)) => (OrderState::Unknown, Some(trouble)),
            Err(trouble) => (OrderState::Failed, Some(trouble)),
        };
        match why {
            None => self.counts.taken += 1,
            Some(_) => self.counts.failed += 1,
        }
        // Refused for sure: the guest will not have what it named. After a lost answer it may.
        if state == OrderState::Failed {
            self.unseen.retain(|(unseen, _)| *unseen != number);
        }
        if let Some(order) = self.last.as_mut().filter(|o| o.number == number) {
            order.state = state;
            order.why = why.map(ToString::to_string).or(order.why.take());
        }
    }

    /// Takes in that a report came after the provider was given that order, and those before it. `progress`: the
    /// progress of the last order by the report, and why it is no farther; its argument is the reason why that was
    /// not known before.
    pub fn seen(
        &mut self,
        given: OrderId,
        progress: impl Fn(&Order, Option<String>) -> (OrderState, Option<String>),
    ) {
        // The report was made after these were given, so the targets that it shows speak for them.
        self.unseen.retain(|(unseen, _)| *unseen > given);
        let order = self.last.as_mut().filter(|order| order.number <= given);
        // What became of it stays: later targets are no word about it.
        let is_over =
            |order: &&mut Order| matches!(order.state, OrderState::Failed | OrderState::Met);
        let Some(order) = order.filter(|order| !is_over(order)) else {
            return;
        };
        let was = (order.state == OrderState::Unknown).then(|| order.why.take());
        (order.state, order.why) = progress(order, was.flatten());
    }

    /// The largest size for tier `i` that an order without a known end named, bytes: the guest may have it by now.
    pub fn most(&self, i: usize) -> u64 {
        let sizes = self
            .unseen
            .iter()
            .filter_map(|(_, sizes)| sizes.get(i)?.as_ref());
        sizes.copied().max().unwrap_or(0)
    }
}

/// The size that each tier is to have if these sizes are asked for, rounded down to whole blocks; for a balloon one
/// size, the sum.
///
/// # Errors
/// If these sizes are impossible.
pub(super) fn wanted(
    vm: &str,
    kind: ProviderKind,
    status: &ProviderStatus,
    asked: &[Option<u64>],
) -> Result<Vec<Option<u64>>, String> {
    if asked.iter().all(Option::is_none) {
        return Err("give the sizes: fast_bytes, slow_bytes or both, or tiers_bytes".into());
    }
    if !kind.knows_tiers() {
        let Some(sum) = sum(asked) else {
            return Err(format!(
                "{vm} is resized by the balloon, which knows no tiers: give both sizes, and the VM gets their sum; to resize one tier, start it with a virtio-mem device for each node of the guest, or with \
                 HyperFlex"
            ));
        };
        // A balloon takes from the VM as a whole, so its provider has one tier.
        let rounded = status.tiers.first().map_or(sum, |tier| tier.rounded(sum));
        return Ok(vec![Some(rounded)]);
    }
    let tiers = status.tiers.len();
    // Sizes beyond the last tier are refused, not dropped: the request meant a tier that this VM has not.
    let beyond = asked.iter().enumerate().skip(tiers);
    if let Some((tier, _)) = beyond.into_iter().find(|(_, asked)| asked.is_some()) {
        let tier = tier_name(kind, tier);
        let s = if tiers == 1 { "" } else { "s" };
        return Err(format!(
            "{vm} has {tiers} tier{s} of resizable memory: there is no {tier} one to resize"
        ));
    }
    let asked = asked.iter().copied().chain(std::iter::repeat(None));
    let each = status.tiers.iter().zip(asked);
    Ok(each
        .map(|(tier, asked)| asked.map(|bytes| tier.rounded(bytes)))
        .collect())
}

/// The sum of sizes that are all said.
fn sum(asked: &[Option<u64>]) -> Option<u64> {
    let mut each = asked.iter().copied();
    each.try_fold(0_u64, |sum, asked| Some(sum.saturating_add(asked?)))
}

/// `fast 512 MiB → 256 MiB`. `asked`: what was asked for before it was rounded.
pub(super) fn text(
    kind: ProviderKind,
    status: &ProviderStatus,
    wanted: &[Option<u64>],
    asked: &[Option<u64>],
) -> String {
    let whole = [sum(asked)];
    let asked = if kind.knows_tiers() { asked } else { &whole };
    let tiers = status.tiers.iter().zip(wanted).enumerate();
    let each = tiers.filter_map(|(i, (tier, wanted))| {
        let (name, wanted) = (tier_name(kind, i), (*wanted)?);
        let (from, to) = apart(tier.size_bytes, wanted);
        let asked = asked.get(i).copied().flatten();
        let rounded = asked.filter(|asked| *asked != wanted).map(|asked| {
            let [asked, block] = [asked, tier.block_bytes].map(Bytes);
            format!(" ({asked} rounded down to blocks of {block})")
        });
        let rounded = rounded.unwrap_or_default();
        Some(format!("{name} {from} → {to}{rounded}"))
    });
    each.collect::<Vec<_>>().join(", ")
}
