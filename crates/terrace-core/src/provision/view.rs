//! The view of a VM's resizable memory for people.

use terrace_proto::Tick;
use terrace_proto::provision::{
    OrderState, OrderView, ProvisionedTier, ProvisioningStatus, Resident, TierStatus,
};

use super::order::Order;
use super::provider::Provider;
use super::text::{size, tier_name};

/// The view of one VM.
pub(super) fn view(provider: &Provider, now: Tick) -> ProvisioningStatus {
    let mechanism = provider.mechanism.as_ref();
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let mut view = ProvisioningStatus {
        by: mechanism.map_or("", |m| m.kind.name()).to_owned(),
        by_name: mechanism.map_or(String::new(), |m| m.name.clone()),
        at: mechanism.map_or(String::new(), |m| m.at.clone()),
        problem: problem(provider, now),
        order: provider
            .orders
            .last()
            .map(|order| order_view(order, provider, now)),
        orders: provider.orders.counts,
        resident: resident(provider),
        pinned_by: owned(provider.pins.device.by()),
        pinning_unknown: owned(provider.pins.device.unknown()),
        held_by: owned(provider.pins.sharer.by()),
        holding_unknown: owned(provider.pins.sharer.unknown()),
        admission: admission(provider),
        ..ProvisioningStatus::default()
    };
    let Some(seen) = &provider.seen else {
        return view;
    };
    let status = &seen.status;
    view.age_s = Some(seconds(now, seen.at));
    view.connected = status.connected;
    view.targets_sent = status.targets_sent;
    view.resizing = !status.is_met();
    view.resets = status.resets;
    view.total_bytes = status.total_bytes;
    view.refused_entries = status.refused_entries;
    let tiers = status.tiers.iter().enumerate();
    view.tiers = tiers
        .map(|(i, tier)| tier_view(provider, now, i, tier))
        .collect();
    view
}

fn tier_view(provider: &Provider, now: Tick, i: usize, tier: &TierStatus) -> ProvisionedTier {
    let seen = tier.verified;
    let counted_bytes = provider.counted(i, tier);
    let present_bytes = seen.map(|seen| seen.present_bytes);
    ProvisionedTier {
        name: tier_name(provider.kind(), i).into(),
        node: tier.node,
        host_nodes: tier.host_nodes.clone(),
        whole_bytes: tier.whole_bytes,
        target_bytes: tier.target_bytes,
        size_bytes: tier.size_bytes,
        withheld_bytes: tier.withheld_bytes,
        present_bytes,
        claimed_bytes: seen.map(|seen| seen.claimed_bytes),
        retained_bytes: seen.map(|seen| seen.retained_bytes),
        verified_ratio: seen.map(|seen| seen.verified_ratio()),
        verified_age_s: provider.verdicts.of(i).map(|seen| seconds(now, seen.at)),
        stuck: tier.stuck.clone().filter(|_| provider.guest.is_stuck(i)),
        inflated: provider.guest.is_inflated(i),
        counted_bytes,
        may_take_bytes: counted_bytes.saturating_sub(provider.present_bytes(i)),
        guest: tier.guest,
    }
}

fn problem(provider: &Provider, now: Tick) -> Option<String> {
    if provider.liveness.is_silent() {
        let silent = provider.liveness.silent_s(now);
        return Some(format!("no answer for {silent} s: it hangs"));
    }
    match (&provider.trouble, &provider.seen) {
        (Some(trouble), _) => Some(trouble.clone()),
        (None, None) => Some("not verified yet".into()),
        (None, Some(_)) => None,
    }
}

fn order_view(order: &Order, provider: &Provider, now: Tick) -> OrderView {
    let silent = provider.liveness.is_silent() && order.state == OrderState::Sent;
    OrderView {
        number: order.number.0,
        origin: order.origin.name().into(),
        age_s: seconds(now, order.at),
        from_bytes: order.from_bytes.clone(),
        size_bytes: order.size_bytes.clone(),
        state: order.state,
        why: order
            .why
            .clone()
            .or_else(|| silent.then(|| "its provider hangs".into())),
    }
}

fn resident(provider: &Provider) -> Option<Resident> {
    let now = provider.resident?;
    let then = provider.orders.last().and_then(|order| order.resident);
    Some(Resident {
        shared_bytes: now.shared_bytes,
        private_bytes: now.private_bytes,
        fell_bytes: then.and_then(|then| {
            let bytes = i128::from(then.bytes()) - i128::from(now.bytes());
            i64::try_from(bytes).ok()
        }),
    })
}

fn admission(provider: &Provider) -> String {
    let name = &provider.spec.vm;
    let Some(seen) = &provider.seen else {
        return format!("admission knows nothing of {name} yet");
    };
    let tiers = &seen.status.tiers;
    let not_inflated = (0..tiers.len()).any(|i| !provider.guest.is_inflated(i));
    let counted = tiers
        .iter()
        .enumerate()
        .map(|(i, t)| provider.counted(i, t));
    let counted = counted.fold(0, u64::saturating_add);
    if !not_inflated {
        return format!(
            "admission counts {} of {name}: its size, or its target if that is larger",
            size(counted)
        );
    }
    let whole = tiers.iter().map(|tier| tier.whole_bytes);
    let whole = whole.fold(0, u64::saturating_add);
    let share = match seen.status.total_bytes {
        Some(total) if total > 0 && counted == whole => {
            format!("{} %", u128::from(whole) * 100 / u128::from(total))
        }
        _ => size(counted),
    };
    let why = if provider.trouble.is_some() {
        "its provider does not answer"
    } else if is_dishonest(provider) {
        "it retains memory that it claims to have given back"
    } else {
        "its driver has not inflated yet"
    };
    format!("admission counts {share} of {name}: {why}")
}

fn is_dishonest(provider: &Provider) -> bool {
    let tiers = provider.seen.iter().flat_map(|seen| &seen.status.tiers);
    let mut seen = tiers.filter_map(|tier| tier.verified);
    seen.any(|seen| !seen.is_honest(provider.kind()))
}

fn seconds(now: Tick, at: Tick) -> f64 {
    now.since(at).as_secs_f64()
}
