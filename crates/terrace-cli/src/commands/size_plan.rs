//! `terrace plan --dry-run`: the sizes that balancing would order now.

use anyhow::Result;
use terrace_api::client::Client;
use terrace_api::provision::{SharingVm, SizePlan};

use super::print_json;
use crate::{output, render};

pub async fn run(client: &Client, json: bool) -> Result<()> {
    let plan: SizePlan = client.get("/v1/plan").await?;
    if json {
        return print_json(&plan);
    }
    output::print(text(&plan))?;
    Ok(())
}

fn text(plan: &SizePlan) -> String {
    if plan.changes.is_empty() && plan.unchanged.is_empty() {
        return "no VM has memory that can be resized\n".into();
    }
    let mut out = shared(plan);
    out += &match plan.changes.len() {
        0 => "no VM would change size now\n".to_owned(),
        1 => "1 VM would change size now. Nothing was ordered.\n".to_owned(),
        n => format!("{n} VMs would change size now. Nothing was ordered.\n"),
    };
    let rows = plan.changes.iter().map(|planned| {
        let change = &planned.change;
        vec![
            planned.vm.clone(),
            render::bytes(change.from_bytes),
            render::bytes(change.to_bytes),
            change.why.clone(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if !rows.is_empty() {
        let table = render::table(&["VM", "NOW", "THEN", "WHY"], &[1, 2], &rows);
        out += &format!("\n{table}");
    }
    if !plan.unchanged.is_empty() {
        out += "\nthese keep what they have:\n";
    }
    for unchanged in &plan.unchanged {
        let why = unchanged.left_alone.as_deref();
        let why = why.unwrap_or("it has what it is to have");
        out += &format!("  {}: {why}\n", unchanged.vm);
    }
    out
}

/// The VMs that share memory, and what they share.
fn shared(plan: &SizePlan) -> String {
    let Some(memory) = plan.shared else {
        return String::new();
    };
    let rows: Vec<Vec<String>> = plan.vms.iter().map(row).collect();
    let titles = [
        "VM",
        "HAS",
        "FLOOR",
        "CEILING",
        "WEIGHT",
        "FREE",
        "SWAP USED",
    ];
    let free = memory.capacity_bytes.saturating_sub(memory.held_bytes);
    format!(
        "VMs share {}: they hold {}, {} is free, of which {} is for those that begin to swap\n\n{}\n",
        render::bytes(memory.capacity_bytes),
        render::bytes(memory.held_bytes),
        render::bytes(free),
        render::bytes(memory.reserve_bytes.min(free)),
        render::table(&titles, &[1, 2, 3, 4, 5, 6], &rows)
    )
}

fn row(vm: &SharingVm) -> Vec<String> {
    let known = |bytes: Option<u64>| bytes.map_or_else(|| "?".into(), render::bytes);
    let swaps = if vm.is_swapping { ", swaps" } else { "" };
    vec![
        vm.vm.clone(),
        render::bytes(vm.size_bytes),
        render::bytes(vm.floor_bytes),
        render::bytes(vm.ceiling_bytes),
        vm.weight.to_string(),
        known(vm.free_bytes),
        known(vm.used_swap_bytes) + swaps,
    ]
}

#[cfg(test)]
mod tests {
    use terrace_api::provision::{PlannedSize, SharedMemory, SizeChange, Unchanged};

    use super::*;

    #[test]
    fn a_plan_names_who_changes_and_why_others_do_not() {
        let plan = SizePlan {
            changes: vec![PlannedSize {
                vm: "web1".into(),
                change: SizeChange {
                    from_bytes: 4 << 30,
                    to_bytes: 3 << 30,
                    why: "its guest calls 2 GiB free; batch1 has use for more".into(),
                    ..SizeChange::default()
                },
            }],
            unchanged: vec![
                Unchanged {
                    vm: "batch1".into(),
                    left_alone: None,
                },
                Unchanged {
                    vm: "db1".into(),
                    left_alone: Some("it has no memory_floor".into()),
                },
            ],
            shared: Some(SharedMemory {
                capacity_bytes: 24 << 30,
                held_bytes: 22 << 30,
                reserve_bytes: 1 << 30,
            }),
            vms: vec![SharingVm {
                vm: "web1".into(),
                size_bytes: 4 << 30,
                floor_bytes: 1 << 30,
                ceiling_bytes: 8 << 30,
                weight: 1000,
                used_swap_bytes: Some(3 << 20),
                is_swapping: true,
                ..SharingVm::default()
            }],
        };
        let text = text(&plan);
        for part in [
            "VMs share 24 GiB: they hold 22 GiB, 2 GiB is free, of which 1 GiB is for",
            "web1  4 GiB  1 GiB    8 GiB    1000     ?  3 MiB, swaps",
            "1 VM would change size now. Nothing was ordered.",
            "web1  4 GiB  3 GiB  its guest calls 2 GiB free",
            "  batch1: it has what it is to have",
            "  db1: it has no memory_floor",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(super::text(&SizePlan::default()).contains("no VM has memory"));
    }
}
