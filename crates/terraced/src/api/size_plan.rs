//! `GET /v1/plan`: the sizes that the sharing of memory between VMs would order now.

use terrace_api::provision::{BalanceStatus, PlannedSize, SizePlan, Unchanged};

use crate::served::Served;

/// The plan, by the name of VMs.
pub fn size_plan(served: &dyn Served) -> SizePlan {
    let planned = served.engine().size_plan(served.now());
    let planned = planned.into_iter();
    let changes: Vec<PlannedSize> = planned
        .map(|(vm, change)| PlannedSize { vm, change })
        .collect();
    let mut unchanged = Vec::new();
    for (vm, entry) in served.vms().iter() {
        let changes = changes.iter().any(|change| change.vm == entry.name);
        let Some(provisioning) = served.provisioning(vm).filter(|_| !changes) else {
            continue;
        };
        unchanged.push(Unchanged {
            vm: entry.name.clone(),
            left_alone: match &provisioning.balance {
                Some(balance) => why(balance),
                None => Some("its memory is not balanced: mode = \"off\" under [balance]".into()),
            },
        });
    }
    SizePlan { changes, unchanged }
}

/// Why nothing is decided about a VM.
fn why(balance: &BalanceStatus) -> Option<String> {
    let alone = balance.left_alone.clone();
    alone.or_else(|| balance.statistics_missing.clone())
}
