//! `terrace vms`.

use anyhow::Result;
use terrace_api::client::Client;
use terrace_api::types::{Status, Vm};

use super::print_json;
use crate::{output, render};

pub async fn run(client: &Client, json: bool) -> Result<()> {
    let vms: Vec<Vm> = client.get("/v1/vms").await?;
    if json {
        return print_json(&vms);
    }
    let status: Status = client.get("/v1/status").await?;
    output::print(text(&status, &vms))?;
    Ok(())
}

fn text(status: &Status, vms: &[Vm]) -> String {
    let mut out = String::new();
    // A host of one tier has a second one without memory, for the engine alone.
    let shown: Vec<usize> = (0..status.tiers.len())
        .filter(|tier| status.tiers[*tier].total_bytes > 0)
        .collect();
    for tier in shown.iter().map(|tier| &status.tiers[*tier]) {
        let nodes: Vec<String> = tier.nodes.iter().map(u32::to_string).collect();
        // A simulated tier has none.
        let nodes = match nodes.is_empty() {
            true => String::new(),
            false => format!("  node {}", nodes.join(",")),
        };
        out += &format!(
            "{:<8} {:>10} of {:>10} free{nodes}\n",
            tier.name,
            render::bytes(tier.free_bytes),
            render::bytes(tier.total_bytes),
        );
    }
    out.push('\n');
    if vms.is_empty() {
        return out + "no VMs found (see `terrace doctor`)\n";
    }
    let mut header = vec!["NAME", "PID", "MODE", "MEMORY"];
    header.extend(shown.iter().map(|tier| status.tiers[*tier].name.as_str()));
    header.extend(["SIZE", "NOMINAL", "ROUNDS", "PROMOTED", "DEMOTED", "WHY"]);
    let numbers: Vec<usize> = (3..header.len() - 1).chain([1]).collect();
    let rows: Vec<Vec<String>> = vms.iter().map(|vm| row(vm, &shown)).collect();
    out + &render::table(&header, &numbers, &rows)
}

fn row(vm: &Vm, tiers: &[usize]) -> Vec<String> {
    let mut cells = vec![
        vm.name.clone(),
        render::process(vm.pid),
        vm.mode.to_string(),
        render::bytes(vm.memory_bytes),
    ];
    cells.extend(tiers.iter().map(|tier| {
        vm.tier_bytes
            .get(*tier)
            .map_or("-".into(), |b| render::bytes(*b))
    }));
    let share = vm.share.as_ref();
    let size = |bytes: Option<u64>| bytes.map_or("-".into(), render::bytes);
    cells.extend([
        size(share.and_then(|s| s.target_bytes)),
        size(share.map(|s| s.nominal_bytes)),
        vm.rounds.to_string(),
        render::pages(vm.promoted_pages),
        render::pages(vm.demoted_pages),
        vm.reason.clone(),
    ]);
    cells
}
