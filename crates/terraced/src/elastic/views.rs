//! A VM's elastic memory in the API's types, and what `doctor` says of it.

use std::time::Instant;

use terrace_api::elastic::{self as api, OrderState};
use terrace_host::Finding;

use super::kept::{HONEST, Kept, Order};
use super::{TierLook, size, tier_name};

/// All about one VM.
pub fn view(name: &str, kept: &Kept) -> api::Elastic {
    let mechanism = kept.mechanism.as_ref();
    let mut view = api::Elastic {
        by: mechanism.map_or("", |m| m.kind.name()).to_owned(),
        by_words: mechanism.map_or(String::new(), |m| m.words.clone()),
        at: mechanism.map_or(String::new(), |m| m.at.clone()),
        problem: problem(kept),
        order: kept.order.as_ref().map(|order| order_view(order, kept)),
        orders: kept.counts,
        resident: resident(kept),
        pinned_by: kept.pinned_by.clone(),
        held_by: kept.held_by.clone(),
        admission: admission(name, kept),
        ..api::Elastic::default()
    };
    let Some(seen) = &kept.seen else {
        return view;
    };
    let look = &seen.look;
    view.age_s = Some(seconds(seen.at));
    view.connected = look.connected;
    view.told = look.told;
    view.resizing = !look.is_met();
    view.resets = look.resets;
    view.total_bytes = look.total_bytes;
    view.refused_entries = look.refused_entries;
    let tiers = look.tiers.iter().enumerate();
    view.tiers = tiers.map(|(i, tier)| tier_view(kept, i, tier)).collect();
    view
}

fn tier_view(kept: &Kept, i: usize, tier: &TierLook) -> api::ElasticTier {
    let seen = tier.verified;
    let counted_bytes = kept.counted(i, tier);
    let present_bytes = seen.map(|seen| seen.present_bytes);
    api::ElasticTier {
        name: tier_name(kept.kind(), i).into(),
        node: tier.node,
        host_nodes: tier.host_nodes.clone(),
        whole_bytes: tier.whole_bytes,
        target_bytes: tier.target_bytes,
        size_bytes: tier.size_bytes,
        withheld_bytes: tier.withheld_bytes,
        present_bytes,
        kept_bytes: seen.map(|seen| seen.kept_bytes),
        honesty: seen.map(|seen| seen.honesty()),
        verified_age_s: tier.verified_at.map(seconds),
        stuck: tier.stuck.clone().filter(|_| kept.is_stuck(i)),
        counted_bytes,
        may_take_bytes: counted_bytes.saturating_sub(kept.present_bytes(i)),
        guest: tier.guest,
    }
}

fn problem(kept: &Kept) -> Option<String> {
    if kept.is_silent() {
        let silent = kept.heard.elapsed().as_secs();
        return Some(format!("no answer for {silent} s: it hangs"));
    }
    match (&kept.trouble, &kept.seen) {
        (Some(trouble), _) => Some(trouble.clone()),
        (None, None) => Some("not looked at yet".into()),
        (None, Some(_)) => None,
    }
}

fn order_view(order: &Order, kept: &Kept) -> api::Order {
    let silent = kept.is_silent() && order.state == OrderState::Sent;
    api::Order {
        number: order.number,
        origin: order.origin.name().into(),
        age_s: seconds(order.at),
        from_bytes: order.from_bytes.clone(),
        size_bytes: order.size_bytes.clone(),
        state: order.state,
        why: order
            .why
            .clone()
            .or_else(|| silent.then(|| "what resizes it hangs".into())),
    }
}

fn resident(kept: &Kept) -> Option<api::Resident> {
    let now = kept.resident?;
    let then = kept.order.as_ref().and_then(|order| order.resident);
    Some(api::Resident {
        shared_bytes: now.shared_bytes,
        private_bytes: now.private_bytes,
        fell_bytes: then.and_then(|then| {
            let bytes = i128::from(then.bytes()) - i128::from(now.bytes());
            i64::try_from(bytes).ok()
        }),
    })
}

fn admission(name: &str, kept: &Kept) -> String {
    let Some(seen) = &kept.seen else {
        return format!("admission knows nothing of {name} yet");
    };
    let tiers = &seen.look.tiers;
    let not_inflated = (0..tiers.len()).any(|i| !kept.is_inflated(i));
    let counted = tiers.iter().enumerate().map(|(i, t)| kept.counted(i, t));
    let counted = counted.fold(0, u64::saturating_add);
    if !not_inflated {
        return format!(
            "admission counts {} of {name}: what it has, or shall have where that is more",
            size(counted)
        );
    }
    let whole = tiers.iter().map(|tier| tier.whole_bytes);
    let whole = whole.fold(0, u64::saturating_add);
    let share = match seen.look.total_bytes {
        Some(total) if total > 0 && counted == whole => {
            format!("{} %", u128::from(whole) * 100 / u128::from(total))
        }
        _ => size(counted),
    };
    let why = if kept.trouble.is_some() {
        "what resizes it does not answer"
    } else if is_dishonest(kept) {
        "it keeps what it claims to have given back"
    } else {
        "its driver has not inflated yet"
    };
    format!("admission counts {share} of {name}: {why}")
}

fn is_dishonest(kept: &Kept) -> bool {
    let tiers = kept.seen.iter().flat_map(|seen| &seen.look.tiers);
    let mut seen = tiers.filter_map(|tier| tier.verified);
    seen.any(|seen| seen.honesty() < HONEST)
}

/// What `doctor` says of a VM.
pub fn findings(name: &str, kept: &Kept) -> Vec<Finding> {
    let mut findings = Vec::new();
    let by = kept.mechanism.as_ref();
    let by = by.map_or("by nothing that is known yet".to_owned(), |m| {
        format!("by {} ({})", m.words, m.at)
    });
    let found = match (&kept.seen, problem(kept)) {
        (_, Some(problem)) => Finding::missing(
            "elastic-memory",
            format!("{by}: {problem}"),
            "see that what resizes it runs: `systemctl status`, or its log",
        ),
        (Some(seen), None) if !seen.look.connected || !seen.look.told => Finding::degraded(
            "elastic-memory",
            format!("{by}: the guest's driver does not know the targets"),
            "load the module hyperflex in the guest",
        ),
        _ => Finding::ok("elastic-memory", by),
    };
    findings.push(found);
    findings.extend(holding(kept));
    if let Some(device) = &kept.pinned_by {
        findings.push(Finding::degraded(
            "elastic-pinned",
            format!("a device is passed through ({device}), which pins all of its memory: it cannot shrink"),
            "take the device out to shrink it",
        ));
    } else if let Some(why) = &kept.pinning_unknown {
        findings.push(Finding::degraded(
            "elastic-pinned",
            format!("whether a device is passed through is not known: {why}"),
            "do not shrink it where one is; terraced needs CAP_SYS_PTRACE, or the hypervisor's user, to see it",
        ));
    }
    if kept.seen.is_none() {
        return findings;
    }
    let words = admission(name, kept);
    let inflated = kept.seen.as_ref().map_or(0, |seen| seen.look.tiers.len());
    let whole = (0..inflated).any(|i| !kept.is_inflated(i));
    findings.push(if whole {
        let advice = "other VMs are refused what it may still take; it counts less once its driver has inflated";
        Finding::degraded("elastic-admission", words, advice)
    } else {
        Finding::ok("elastic-admission", words)
    });
    findings.extend(honesty(kept));
    findings
}

/// Who else has its RAM.
fn holding(kept: &Kept) -> Option<Finding> {
    if let Some(who) = &kept.held_by {
        return Some(Finding::degraded(
            "elastic-held",
            format!("{who}, may have pinned it: it cannot shrink"),
            "end that process to shrink the VM; if its program never pins memory, list it: do_not_pin under [vm.NAME]",
        ));
    }
    let why = kept.holding_unknown.as_ref()?;
    Some(Finding::degraded(
        "elastic-held",
        format!("whether another process has its RAM is not known: {why}"),
        "it cannot shrink until terraced may see all processes: CAP_SYS_PTRACE and CAP_DAC_OVERRIDE",
    ))
}

fn honesty(kept: &Kept) -> Option<Finding> {
    let tiers = kept.seen.iter().flat_map(|seen| &seen.look.tiers);
    let each = tiers.enumerate().filter_map(|(i, tier)| {
        let seen = tier.verified.filter(|seen| seen.claimed_bytes > 0)?;
        Some((i, seen))
    });
    let each: Vec<_> = each.collect();
    if each.is_empty() {
        return None;
    }
    let kind = kept.kind();
    let words = each.iter().map(|(i, seen)| {
        format!(
            "{}: {} of the {} that it gave back is still there (honesty {:.2})",
            tier_name(kind, *i),
            size(seen.kept_bytes),
            size(seen.claimed_bytes),
            seen.honesty()
        )
    });
    let words = words.collect::<Vec<_>>().join("; ");
    let lies = each.iter().any(|(_, seen)| seen.honesty() < HONEST);
    Some(if lies {
        let advice = "the guest touches memory that it gave back, or never stopped: it is counted whole until that ends";
        Finding::degraded("elastic-honesty", words, advice)
    } else {
        Finding::ok("elastic-honesty", words)
    })
}

fn seconds(at: Instant) -> f64 {
    at.elapsed().as_secs_f64()
}
