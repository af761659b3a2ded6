//! A VM's resizable memory in words.

use terrace_api::provision::{
    BalanceStatus, GuestTier, HugeStatus, OrderState, OrderView, ProvisionedTier,
    ProvisioningStatus, SizeChange,
};

use crate::render;

/// Age from which figures are said to be old, s.
const OLD_S: f64 = 12.0;

/// The VM's size of each tier, the size it is to have, and how far the guest's word holds.
pub fn text(provisioning: &ProvisioningStatus) -> String {
    let by = if provisioning.by_name.is_empty() {
        "by a provider that is not known yet"
    } else {
        &format!("by {} ({})", provisioning.by_name, provisioning.at)
    };
    let mut out = format!("\nresizable memory, {by}:");
    if let Some(problem) = &provisioning.problem {
        out += &format!(" {problem}\n");
    }
    let Some(age_s) = provisioning.age_s else {
        return if provisioning.problem.is_some() {
            out
        } else {
            out + "\n"
        };
    };
    if provisioning.problem.is_some() || age_s > OLD_S {
        out += &format!("  as it was {age_s:.0} s ago:");
    }
    out += match (provisioning.connected, provisioning.targets_sent) {
        // Only a device of ours hears of that.
        _ if provisioning.by != "hyperflex" => "",
        (false, _) => " no hypervisor is connected",
        (true, false) => " the guest's driver does not know the targets yet",
        (true, true) => " the guest's driver knows the targets",
    };
    out += "\n";
    for tier in &provisioning.tiers {
        out += &tier_text(tier);
    }
    if let Some(resident) = &provisioning.resident {
        let all = resident.shared_bytes.saturating_add(resident.private_bytes);
        out += &format!("  the hypervisor's process holds {}", render::bytes(all));
        out += &match resident.fell_bytes {
            Some(n) if n > 0 => format!(
                ", {} less than at the last order",
                render::bytes(n.unsigned_abs())
            ),
            Some(n) if n < 0 => format!(
                ", {} more than at the last order",
                render::bytes(n.unsigned_abs())
            ),
            _ => String::new(),
        };
        out += "\n";
    }
    if let Some(order) = &provisioning.order {
        out += &order_text(order);
    }
    if provisioning.refused_entries > 0 {
        out += &format!(
            "  {} requests of the guest were refused\n",
            provisioning.refused_entries
        );
    }
    out += &held_text(provisioning);
    if let Some(device) = &provisioning.pinned_by {
        out += &format!("  cannot shrink: {device} is passed through and pins all of its memory\n");
    }
    out += &format!("  {}\n", provisioning.admission);
    out + &shared_text(provisioning)
}

/// The work that is done on its memory unasked: huge pages, and its part in sharing.
fn shared_text(provisioning: &ProvisioningStatus) -> String {
    let huge = provisioning.huge.as_ref().map(huge_text);
    let balance = provisioning.balance.as_ref().map(balance_text);
    huge.unwrap_or_default() + &balance.unwrap_or_default()
}

/// Huge pages that were made of what the balloon gave back.
fn huge_text(huge: &HugeStatus) -> String {
    let mut out = String::new();
    if let (Some(before), Some(after)) = (huge.before_percent, huge.after_percent) {
        out += &format!(
            "  huge pages back {after:.0} % of its memory, {before:.0} % before the balloon's was made huge ({} were)\n",
            render::bytes(huge.collapsed_bytes)
        );
    }
    if let Some(why) = &huge.why_not {
        out += &format!("  no huge pages are made of its single ones: {why}\n");
    }
    out
}

/// The VM's part in the sharing of memory between VMs.
fn balance_text(balance: &BalanceStatus) -> String {
    let ceiling = balance.ceiling_bytes.map(render::bytes);
    let ceiling = ceiling.unwrap_or_else(|| "all it was started with".into());
    let mut out = format!(
        "balanced by {} (mode {}): at least {}, at most {ceiling}, weight {}\n",
        balance.share,
        balance.mode,
        render::bytes(balance.floor_bytes),
        balance.weight
    );
    if let Some(why) = &balance.left_alone {
        out += &format!("  left alone: {why}\n");
    }
    if let Some(why) = &balance.statistics_missing {
        out += &format!("  its guest's need is not known: {why}\n");
    }
    if let (Some(free), Some(age)) = (balance.free_bytes, balance.statistics_age_s) {
        let swap = balance.used_swap_bytes.unwrap_or(0);
        let swaps = if balance.is_swapping {
            ", and swaps"
        } else {
            ""
        };
        let cache = balance.cache_bytes.map(render::bytes);
        let cache = cache.map_or_else(String::new, |cache| format!(", {cache} of page cache"));
        let about = match balance.is_swap_estimate {
            true => "an estimated ",
            false => "",
        };
        out += &format!(
            "  the guest says: {} free{cache}, {about}{} of swap used{swaps} ({age:.0} s ago)\n",
            render::bytes(free),
            render::bytes(swap)
        );
    }
    if let Some(phase) = &balance.phase {
        let source = match phase.source.as_str() {
            "page-walks" => "page walks, as the host counts them",
            _ => "its statistics",
        };
        out += &format!(
            "  uses its memory alike for {:.0} s, by {source}; changed {} times before\n",
            phase.since_s, phase.changes
        );
    }
    if let Some(ages) = &balance.ages {
        out += &format!(
            "  by age, observed for {:.0} s: its programs have {} and do not use {} of it\n",
            ages.observed_s,
            render::bytes(ages.mapped_bytes),
            render::bytes(ages.unused_bytes)
        );
    }
    out
}

/// A change of a VM's memory by balancing, in a sentence.
pub fn change(change: &SizeChange) -> String {
    format!(
        "{} -> {}{}: {}",
        render::bytes(change.from_bytes),
        render::bytes(change.to_bytes),
        if change.is_ordered {
            ""
        } else {
            " (not ordered)"
        },
        change.why
    )
}

/// Other processes that have the VM's RAM, and the consequences.
fn held_text(provisioning: &ProvisioningStatus) -> String {
    let mut out = String::new();
    for tier in provisioning
        .tiers
        .iter()
        .filter(|tier| tier.withheld_bytes > 0)
    {
        let withheld = render::bytes(tier.withheld_bytes);
        out += &format!(
            "  {withheld} of {} are withheld: another process came as they were given back\n",
            tier.name
        );
    }
    if let Some(who) = &provisioning.held_by {
        out += &format!("  cannot shrink: {who}, may have pinned it\n");
    }
    out
}

/// The sizes in one line: `fast 300 MiB, on the way to 256 MiB; slow 768 MiB`.
pub fn state(provisioning: &ProvisioningStatus) -> String {
    let each = provisioning.tiers.iter().map(|tier| {
        let size = render::bytes(tier.size_bytes);
        if tier.size_bytes == tier.target_bytes {
            return format!("{} {size}", tier.name);
        }
        let target = render::bytes(tier.target_bytes);
        format!("{} {size}, on the way to {target}", tier.name)
    });
    each.collect::<Vec<_>>().join("; ")
}

fn tier_text(tier: &ProvisionedTier) -> String {
    let progress = match &tier.stuck {
        _ if tier.size_bytes == tier.target_bytes => "reached",
        Some(_) => "the guest cannot for now",
        None => "under way",
    };
    let nodes: Vec<String> = tier.host_nodes.iter().map(u32::to_string).collect();
    let nodes = match nodes.as_slice() {
        [] => ", host node not known".to_owned(),
        nodes => format!(", host node {}", nodes.join(",")),
    };
    let mut out = format!(
        "  {:<8} {} {:>10} of {}, target {} ({progress}){nodes}\n",
        tier.name,
        render::bar(tier.size_bytes, tier.whole_bytes, 24),
        render::bytes(tier.size_bytes),
        render::bytes(tier.whole_bytes),
        render::bytes(tier.target_bytes),
    );
    if let (Some(present), Some(verified_ratio)) = (tier.present_bytes, tier.verified_ratio) {
        let age = tier.verified_age_s.unwrap_or(0.0);
        out += &format!(
            "           {} of host memory behind it; {:.1} % of what the guest says it gave back is gone \
             (checked {age:.0} s ago)\n",
            render::bytes(present),
            verified_ratio * 100.0,
        );
        if let Some(retained) = tier.retained_bytes.filter(|retained| *retained > 0) {
            out += &format!(
                "           {} that it says it gave back is still there: it uses it, or never stopped\n",
                render::bytes(retained)
            );
        }
    }
    if let Some(why) = tier
        .stuck
        .as_ref()
        .filter(|_| tier.size_bytes != tier.target_bytes)
    {
        out += &format!("           {why}\n");
    }
    out + &guest_text(&tier.guest)
}

fn guest_text(guest: &GuestTier) -> String {
    let (Some(free), Some(total)) = (guest.free_bytes, guest.total_bytes) else {
        return String::new();
    };
    let mut out = format!(
        "           the guest says: {} of {} free",
        render::bytes(free),
        render::bytes(total)
    );
    if let Some(pages) = guest.pressure_pages.filter(|pages| *pages > 0) {
        out += &format!(", {} taken back under pressure", render::pages(pages));
    }
    out + "\n"
}

fn order_text(order: &OrderView) -> String {
    let state = match order.state {
        OrderState::Sent => "on its way to the device",
        OrderState::UnderWay => "under way",
        OrderState::Met => "met",
        OrderState::Stuck => "stuck",
        OrderState::Failed => "failed",
        OrderState::Unknown => "not known",
    };
    let why = order.why.as_ref().map(|why| format!(": {why}"));
    let by = match order.origin.as_str() {
        "pinning" => "terraced, because a device is passed through".to_owned(),
        "sharing" => "terraced, because another process has its RAM".to_owned(),
        origin => format!("the {origin}"),
    };
    format!(
        "  order {} by {}, {:.0} s ago: {state}{}\n",
        order.number,
        by,
        order.age_s,
        why.unwrap_or_default()
    )
}
