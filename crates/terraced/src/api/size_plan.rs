//! `GET /v1/plan`: the sizes that the sharing of memory between VMs would order now.

use terrace_api::provision::{
    BalanceStatus, PlannedSize, ProvisionedTier, ProvisioningStatus, SharingVm, SizePlan, Unchanged,
};

use crate::provisioning::size_text;
use crate::served::Served;

/// The plan, by the name of VMs.
pub fn size_plan(served: &dyn Served) -> SizePlan {
    let planned = served.engine().size_plan(served.now());
    let planned = planned.into_iter();
    let changes: Vec<PlannedSize> = planned
        .map(|(vm, change)| PlannedSize { vm, change })
        .collect();
    let (mut unchanged, mut vms) = (Vec::new(), Vec::new());
    let changes_some = !changes.is_empty();
    for (vm, entry) in served.vms().iter() {
        let Some(provisioning) = served.provisioning(vm) else {
            continue;
        };
        vms.extend(sharing(&entry.name, &provisioning));
        if changes.iter().any(|change| change.vm == entry.name) {
            continue;
        }
        unchanged.push(Unchanged {
            vm: entry.name.clone(),
            left_alone: match &provisioning.balance {
                Some(balance) => why(balance, &provisioning, !changes_some),
                None => Some("its memory is not balanced: mode = \"off\" under [balance]".into()),
            },
        });
    }
    let shared = served.engine().shared_memory(served.now());
    SizePlan {
        changes,
        unchanged,
        shared: shared.filter(|_| !vms.is_empty()),
        vms,
    }
}

/// The part of a VM in the sharing of memory; `None`: it has no floor, and so none.
fn sharing(name: &str, provisioning: &ProvisioningStatus) -> Option<SharingVm> {
    let balance = provisioning.balance.as_ref();
    let balance = balance.filter(|balance| balance.floor_bytes > 0)?;
    let (size_bytes, whole) = sizes(provisioning);
    Some(SharingVm {
        vm: name.to_owned(),
        size_bytes,
        floor_bytes: balance.floor_bytes,
        ceiling_bytes: balance.ceiling_bytes.unwrap_or(whole).min(whole),
        weight: balance.weight,
        free_bytes: balance.free_bytes,
        used_swap_bytes: balance.used_swap_bytes,
        is_swapping: balance.is_swapping,
    })
}

/// The memory of a VM, and the most that it could have, bytes.
fn sizes(provisioning: &ProvisioningStatus) -> (u64, u64) {
    let sum = |of: fn(&ProvisionedTier) -> u64| provisioning.tiers.iter().map(of).sum::<u64>();
    (sum(|tier| tier.size_bytes), sum(|tier| tier.whole_bytes))
}

/// Why a VM keeps its size; `None`: it has what it needs. `nobody_gives`: no VM would change size now.
fn why(
    balance: &BalanceStatus,
    provisioning: &ProvisioningStatus,
    nobody_gives: bool,
) -> Option<String> {
    let known = balance.left_alone.clone();
    if let Some(why) = known.or_else(|| balance.statistics_missing.clone()) {
        return Some(why);
    }
    let (size, whole) = sizes(provisioning);
    let ceiling = balance.ceiling_bytes.unwrap_or(whole).min(whole);
    match balance.is_swapping {
        false => None,
        true if size >= ceiling => Some(format!(
            "it swaps, and has all that it may have: {} (its memory_ceiling, or the size that it was started with)",
            size_text(ceiling)
        )),
        true if nobody_gives => Some("it swaps, and no other VM has memory to give".into()),
        true => Some("it swaps, and grows once others have given what they would give now".into()),
    }
}
