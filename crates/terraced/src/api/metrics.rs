//! `GET /metrics`: the API's view of tiers and VMs as figures, in the text format of OpenMetrics.
//!
//! Made anew for each request from the API's own types, so that both always agree.

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{self, Registry};
use terrace_api::provision::{
    BalanceStatus, HugeStatus, OrderCounts, ProvisionedTier, ProvisioningStatus,
};
use terrace_api::types::Neighbours;
use terrace_api::types::{Status, Vm};
use terrace_proto::PAGE_SIZE;

use super::snapshot::Snapshot;

/// The content type of the answer.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;
type Figures = Family<Labels, Gauge<f64, AtomicU64>>;
type Counts = Family<Labels, Counter>;
type Seconds = Family<Labels, Counter<f64, AtomicU64>>;

/// A gauge of a `T`: its name, its help, and how to read it; `None` if it is not known.
type Of<T> = (&'static str, &'static str, fn(&T) -> Option<f64>);
/// A counter of a `T`, in the same form.
type CountOf<T> = (&'static str, &'static str, fn(&T) -> Option<u64>);

const OF_VM: [Of<Vm>; 7] = [
    ("vm_memory_bytes", "Guest RAM", |vm| some(vm.memory_bytes)),
    ("vm_managed", "1 if its pages may be moved", |vm| {
        some(vm.moves.into())
    }),
    ("vm_hot_bytes", "Hot set of the last round", |vm| {
        bytes_of(vm.hot_pages?)
    }),
    (
        "vm_hot_on_fast_bytes",
        "Part of the hot set that was in the first tier after that round",
        |vm| bytes_of(vm.hot_on_fast_pages?),
    ),
    (
        "vm_fast_access_ratio",
        "Part of the accesses that the first tier took in the last round, an estimate by windows",
        |vm| vm.worth?.fast_access_share(),
    ),
    (
        "vm_fast_write_ratio",
        "Part of the writes that the first tier took in the last round, an estimate by windows",
        |vm| vm.worth?.fast_write_share(),
    ),
    (
        "vm_dram_utility",
        "The first tier's part of the writes (accesses, if no writes are seen) divided by its part of the memory; 1 if interleaved",
        |vm| vm.worth?.dram_utility(),
    ),
];

const COUNTS_OF_VM: [CountOf<Vm>; 3] = [
    ("vm_rounds", "Rounds completed", |vm| Some(vm.rounds)),
    ("vm_promoted_pages", "Pages of 4 KiB promoted", |vm| {
        Some(vm.promoted_pages)
    }),
    ("vm_demoted_pages", "Pages of 4 KiB demoted", |vm| {
        Some(vm.demoted_pages)
    }),
];

const OF_NEIGHBOURS: [Of<Neighbours>; 5] = [
    (
        "vm_weight",
        "Weight in sharing fast memory; 1000 is normal",
        |n| some(n.weight.into()),
    ),
    (
        "vm_right_bytes",
        "Memory of the first tier that the VM is entitled to",
        |n| some(n.right_bytes?),
    ),
    (
        "vm_most_bytes",
        "Memory of the first tier that the VM may hold now",
        |n| some(n.most_bytes?),
    ),
    (
        "vm_above_right_bytes",
        "Memory of the first tier held above the entitlement",
        |n| some(n.above_right_bytes),
    ),
    (
        "vm_refused_bytes",
        "Demand above what the VM may hold",
        |n| some(n.refused_bytes),
    ),
];

const COUNTS_OF_NEIGHBOURS: [CountOf<Neighbours>; 3] = [
    ("vm_moved_bytes", "Bytes of issued move plans", |n| {
        Some(n.moved_bytes)
    }),
    (
        "vm_late_plans",
        "Move plans that were delayed by other VMs' turns",
        |n| Some(n.late_plans),
    ),
    (
        "vm_late_scans",
        "Scan windows that were lengthened because the VM's scans cost more than its share",
        |n| Some(n.late_scans),
    ),
];

/// Counters of time, ns.
const TIMES_OF_NEIGHBOURS: [CountOf<Neighbours>; 3] = [
    ("vm_scan_cpu_seconds", "CPU time of its scans", |n| {
        Some(n.scan_cpu_ns)
    }),
    (
        "vm_late_plans_seconds",
        "Time by which move plans were delayed",
        |n| Some(n.late_plans_ns),
    ),
    (
        "vm_late_scans_seconds",
        "Time by which its scan windows were lengthened",
        |n| Some(n.late_scans_ns),
    ),
];

const OF_PROVISIONING: [Of<ProvisioningStatus>; 9] = [
    (
        "provisioning_up",
        "1 if the VM's resize provider answers",
        |provisioning| some(provisioning.problem.is_none().into()),
    ),
    (
        "provisioning_age_seconds",
        "Time since the VM's resize provider was read",
        |provisioning| provisioning.age_s,
    ),
    (
        "provisioning_connected",
        "1 if the hypervisor is connected to the device",
        |provisioning| some(provisioning.connected.into()),
    ),
    (
        "provisioning_targets_sent",
        "1 if the guest's driver knows the targets",
        |provisioning| some(provisioning.targets_sent.into()),
    ),
    (
        "provisioning_pinned",
        "1 if a device is passed through, so that the VM cannot shrink",
        |provisioning| some(provisioning.pinned_by.is_some().into()),
    ),
    (
        "provisioning_held",
        "1 if another process has the VM's RAM, so that the VM cannot shrink",
        |provisioning| some(provisioning.held_by.is_some().into()),
    ),
    (
        "provisioning_resident_shared_bytes",
        "Shared resident memory of the hypervisor's process",
        |provisioning| some(provisioning.resident?.shared_bytes),
    ),
    (
        "provisioning_resident_private_bytes",
        "Private resident memory of the hypervisor's process",
        |provisioning| some(provisioning.resident?.private_bytes),
    ),
    (
        "provisioning_resizing",
        "1 while a target is not met",
        |provisioning| some(provisioning.resizing.into()),
    ),
];

const COUNTS_OF_PROVISIONING: [CountOf<ProvisioningStatus>; 2] = [
    (
        "provisioning_refused_entries",
        "Requests of the guest that the device refused, since the device was started",
        |provisioning| Some(provisioning.refused_entries),
    ),
    (
        "provisioning_resets",
        "Number of times that the guest was reset",
        |provisioning| Some(provisioning.resets),
    ),
];

const OF_BALANCE: [Of<BalanceStatus>; 10] = [
    (
        "balance_acts",
        "1 if sizes are ordered, 0 if they are only said",
        |balance| some((balance.mode == "on").into()),
    ),
    (
        "balance_left_alone",
        "1 if the VM keeps its size whatever others need",
        |balance| some(balance.left_alone.is_some().into()),
    ),
    (
        "balance_floor_bytes",
        "Least memory that the VM is left",
        |balance| some(balance.floor_bytes),
    ),
    (
        "balance_ceiling_bytes",
        "Most memory that the VM is given, if it is not the size that it was started with",
        |balance| some(balance.ceiling_bytes?),
    ),
    (
        "balance_weight",
        "Weight of the VM's lost time; 1000 is normal",
        |balance| some(balance.weight.into()),
    ),
    (
        "balance_statistics_age_seconds",
        "Time since the guest's last figures",
        |balance| balance.statistics_age_s,
    ),
    (
        "balance_guest_free_bytes",
        "Memory that the guest calls free",
        |balance| some(balance.free_bytes?),
    ),
    (
        "balance_guest_cache_bytes",
        "Page cache of the guest, as it says",
        |balance| some(balance.cache_bytes?),
    ),
    (
        "balance_guest_used_swap_bytes",
        "Swap in use in the guest, possibly an estimate",
        |balance| some(balance.used_swap_bytes?),
    ),
    ("balance_swapping", "1 if the guest swaps", |balance| {
        some(balance.is_swapping.into())
    }),
];

const COUNTS_OF_BALANCE: [CountOf<OrderCounts>; 3] = [
    (
        "balance_orders",
        "Resize orders of the arbiter, whatever came of them",
        |orders| Some(orders.by_arbiter),
    ),
    (
        "balance_given_bytes",
        "Bytes by which the arbiter ordered the VM to grow",
        |orders| Some(orders.given_bytes),
    ),
    (
        "balance_taken_bytes",
        "Bytes by which the arbiter ordered the VM to shrink",
        |orders| Some(orders.taken_bytes),
    ),
];

const COUNTS_OF_HUGE: [CountOf<HugeStatus>; 1] = [(
    "huge_made_bytes",
    "Memory that huge pages were made of after a balloon gave it back",
    |huge| Some(huge.total_bytes),
)];

const OF_TIER: [Of<ProvisionedTier>; 12] = [
    (
        "provisioning_whole_bytes",
        "Size that the VM was started with",
        |tier| some(tier.whole_bytes),
    ),
    ("provisioning_target_bytes", "Target size", |tier| {
        some(tier.target_bytes)
    }),
    (
        "provisioning_size_bytes",
        "Size by the guest's claim",
        |tier| some(tier.size_bytes),
    ),
    (
        "provisioning_present_bytes",
        "Host memory that backs it",
        |tier| some(tier.present_bytes?),
    ),
    (
        "provisioning_retained_bytes",
        "Memory that the guest claims to have given back and that is still present",
        |tier| some(tier.retained_bytes?),
    ),
    (
        "provisioning_verified_ratio",
        "Share of the memory claimed as given back that is gone",
        |tier| tier.verified_ratio,
    ),
    (
        "provisioning_counted_bytes",
        "Size that admission counts",
        |tier| some(tier.counted_bytes),
    ),
    (
        "provisioning_may_take_bytes",
        "Host memory that the VM may still take for it",
        |tier| some(tier.may_take_bytes),
    ),
    (
        "provisioning_stuck",
        "1 if the guest reports that it cannot reach the target for now",
        |tier| some(tier.stuck.is_some().into()),
    ),
    (
        "provisioning_guest_free_bytes",
        "Free memory of the guest's node, as the guest says",
        |tier| some(tier.guest.free_bytes?),
    ),
    (
        "provisioning_guest_total_bytes",
        "Memory of the guest's node, as the guest says",
        |tier| some(tier.guest.total_bytes?),
    ),
    (
        "provisioning_guest_balloon_bytes",
        "Memory in the balloon by the guest's count",
        |tier| bytes_of(tier.guest.balloon_pages?),
    ),
];

const COUNTS_OF_TIER: [CountOf<ProvisionedTier>; 4] = [
    (
        "provisioning_guest_pressure_pages",
        "Pages of 4 KiB that the guest took back under pressure, as it says",
        |tier| tier.guest.pressure_pages,
    ),
    (
        "provisioning_guest_major_faults",
        "Major faults of the guest, as it says",
        |tier| tier.guest.major_faults,
    ),
    (
        "provisioning_guest_swapped_in_pages",
        "Pages that the guest swapped in, as it says",
        |tier| tier.guest.swapped_in_pages,
    ),
    (
        "provisioning_guest_swapped_out_pages",
        "Pages that the guest swapped out, as it says",
        |tier| tier.guest.swapped_out_pages,
    ),
];

/// All figures.
///
/// # Errors
/// Never, as it writes to memory.
pub fn text(copied: &Snapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("terrace");
    let (status, vms) = (copied.status(), copied.list());
    host(&mut registry, &status, &vms);
    let named: Vec<(Labels, Vm)> = vms.into_iter().map(|vm| (of(&vm.name), vm)).collect();
    figures(&mut registry, &OF_VM, &named);
    counts(&mut registry, &COUNTS_OF_VM, &named);
    let costs = named.iter().filter_map(|(labels, vm)| {
        let view = copied.vm(&vm.name).ok()?.view.as_ref()?;
        Some((labels.clone(), view.neighbours.clone()))
    });
    let costs: Vec<(Labels, Neighbours)> = costs.collect();
    figures(&mut registry, &OF_NEIGHBOURS, &costs);
    counts(&mut registry, &COUNTS_OF_NEIGHBOURS, &costs);
    times(&mut registry, &TIMES_OF_NEIGHBOURS, &costs);
    let statuses = named.iter().filter_map(|(labels, vm)| {
        let provisioning = copied.vm(&vm.name).ok()?.provisioning.clone()?;
        Some((labels.clone(), provisioning))
    });
    let provisioned: Vec<(Labels, ProvisioningStatus)> = statuses.collect();
    figures(&mut registry, &OF_PROVISIONING, &provisioned);
    counts(&mut registry, &COUNTS_OF_PROVISIONING, &provisioned);
    orders(&mut registry, &provisioned);
    balance(&mut registry, &provisioned);
    huge(&mut registry, &provisioned);
    let tiers = provisioned.iter().flat_map(|(labels, provisioning)| {
        provisioning.tiers.iter().map(|tier| {
            let mut labels = labels.clone();
            labels.push(("tier", tier.name.clone()));
            (labels, tier.clone())
        })
    });
    let tiers: Vec<(Labels, ProvisionedTier)> = tiers.collect();
    figures(&mut registry, &OF_TIER, &tiers);
    counts(&mut registry, &COUNTS_OF_TIER, &tiers);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn host(registry: &mut Registry, status: &Status, vms: &[Vm]) {
    let total = family(registry, "tier_total_bytes", "Memory of a tier of the host");
    let free = family(registry, "tier_free_bytes", "Free memory of a tier");
    let held = family(
        registry,
        "vm_tier_bytes",
        "A VM's memory in a tier, as the kernel last said",
    );
    for (i, tier) in status.tiers.iter().enumerate() {
        let labels: Labels = vec![("tier", tier.name.clone())];
        set(&total, &labels, some(tier.total_bytes));
        set(&free, &labels, some(tier.free_bytes));
        for vm in vms {
            let mut labels = of(&vm.name);
            labels.push(("tier", tier.name.clone()));
            set(&held, &labels, vm.tier_bytes.get(i).copied().and_then(some));
        }
    }
    let uptime = family(
        registry,
        "uptime_seconds",
        "Time since the daemon was started",
    );
    set(&uptime, &Vec::new(), Some(status.uptime_s));
}

/// Registers the mechanisms that carry out orders of sizes, and counts the orders by outcome.
fn orders(registry: &mut Registry, named: &[(Labels, ProvisioningStatus)]) {
    let by = family(registry, "provisioning_by", "What resizes a VM; always 1");
    let resizes = Counts::default();
    let help = "Resize orders by outcome";
    registry.register("resizes", help, resizes.clone());
    for (labels, provisioning) in named {
        if !provisioning.by.is_empty() {
            let mut labels = labels.clone();
            labels.push(("by", provisioning.by.clone()));
            set(&by, &labels, Some(1.0));
        }
        let orders = &provisioning.orders;
        for (outcome, count) in [
            ("taken", orders.taken),
            ("refused-admission", orders.refused_admission),
            ("refused-pinned", orders.refused_pinned),
            ("refused-invalid", orders.refused_invalid),
            ("failed", orders.failed),
        ] {
            let mut labels = labels.clone();
            labels.push(("outcome", outcome.into()));
            resizes.get_or_create(&labels).inc_by(count);
        }
    }
}

/// Registers the parts of VMs in the sharing of memory.
fn balance(registry: &mut Registry, named: &[(Labels, ProvisioningStatus)]) {
    let (parts, orders): (Vec<_>, Vec<_>) = named
        .iter()
        .filter_map(|(labels, provisioning)| {
            let part = provisioning.balance.clone()?;
            let orders = provisioning.orders;
            Some(((labels.clone(), part), (labels.clone(), orders)))
        })
        .unzip();
    figures(registry, &OF_BALANCE, &parts);
    counts(registry, &COUNTS_OF_BALANCE, &orders);
}

/// Registers the huge pages that were made of VMs' memory, and the steps for it by outcome.
fn huge(registry: &mut Registry, named: &[(Labels, ProvisioningStatus)]) {
    let known = named.iter().filter_map(|(labels, provisioning)| {
        let huge = provisioning.huge.clone()?;
        Some((labels.clone(), huge))
    });
    let known: Vec<(Labels, HugeStatus)> = known.collect();
    counts(registry, &COUNTS_OF_HUGE, &known);
    let steps = Counts::default();
    let help = "Steps to make huge pages by outcome";
    registry.register("huge_steps", help, steps.clone());
    for (labels, huge) in &known {
        for (outcome, count) in [
            ("made", huge.steps.collapsed),
            ("nothing-to-make", huge.steps.idle),
            ("no-huge-page", huge.steps.no_huge_page),
            ("not-now", huge.steps.not_now),
            ("never", huge.steps.never),
        ] {
            let mut labels = labels.clone();
            labels.push(("outcome", outcome.into()));
            steps.get_or_create(&labels).inc_by(count);
        }
    }
}

fn figures<T>(registry: &mut Registry, all: &[Of<T>], things: &[(Labels, T)]) {
    for (name, help, read) in all {
        let family = family(registry, name, help);
        for (labels, thing) in things {
            set(&family, labels, read(thing));
        }
    }
}

fn counts<T>(registry: &mut Registry, all: &[CountOf<T>], things: &[(Labels, T)]) {
    for (name, help, read) in all {
        let family = Counts::default();
        register(registry, name, help, &family);
        for (labels, thing) in things {
            if let Some(count) = read(thing) {
                family.get_or_create(labels).inc_by(count);
            }
        }
    }
}

/// Registers counters of ns as seconds.
fn times<T>(registry: &mut Registry, all: &[CountOf<T>], things: &[(Labels, T)]) {
    for (name, help, read) in all {
        let family = Seconds::default();
        register(registry, name, help, &family);
        for (labels, thing) in things {
            if let Some(ns) = read(thing) {
                family.get_or_create(labels).inc_by(ns as f64 / 1e9);
            }
        }
    }
}

/// Registers a family, under its old name too if it was renamed: for one version.
fn register(
    registry: &mut Registry,
    name: &str,
    help: &str,
    family: &(impl registry::Metric + Clone),
) {
    registry.register(name, help, family.clone());
    if let Some(rest) = name.strip_prefix("provisioning_") {
        let rest = match rest {
            "targets_sent" => "told",
            "verified_ratio" => "honesty_ratio",
            "retained_bytes" => "kept_bytes",
            _ => rest,
        };
        let help = format!("The old name of terrace_{name}");
        registry.register(format!("elastic_{rest}"), help, family.clone());
    }
}

fn family(registry: &mut Registry, name: &str, help: &str) -> Figures {
    let family = Figures::default();
    register(registry, name, help, &family);
    family
}

fn set(family: &Figures, labels: &Labels, figure: Option<f64>) {
    if let Some(figure) = figure {
        family.get_or_create(labels).set(figure);
    }
}

fn of(vm: &str) -> Labels {
    vec![("vm", vm.to_owned())]
}

/// The figure as a float, exact below 8 PiB.
fn some(figure: u64) -> Option<f64> {
    Some(figure as f64)
}

fn bytes_of(pages: u64) -> Option<f64> {
    some(pages.saturating_mul(PAGE_SIZE))
}

#[cfg(test)]
mod tests {
    use terrace_api::provision::HugeSteps;

    use super::*;

    #[test]
    fn huge_pages_are_counted_by_outcome_where_there_are_any() {
        let made = HugeStatus {
            total_bytes: 4 << 20,
            steps: HugeSteps {
                collapsed: 2,
                no_huge_page: 1,
                ..HugeSteps::default()
            },
            ..HugeStatus::default()
        };
        let with = |huge| ProvisioningStatus {
            huge,
            ..ProvisioningStatus::default()
        };
        let mut registry = Registry::with_prefix("terrace");
        let named = [(of("a"), with(Some(made))), (of("b"), with(None))];
        huge(&mut registry, &named);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "terrace_huge_made_bytes_total{vm=\"a\"} 4194304",
            "terrace_huge_steps_total{vm=\"a\",outcome=\"made\"} 2",
            "terrace_huge_steps_total{vm=\"a\",outcome=\"no-huge-page\"} 1",
            "terrace_huge_steps_total{vm=\"a\",outcome=\"never\"} 0",
        ] {
            assert!(text.contains(line), "no {line} in {text}");
        }
        assert!(!text.contains("vm=\"b\""), "{text}");
    }
}
