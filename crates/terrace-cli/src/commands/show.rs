//! `terrace show VM`.

use std::path::Path;

use anyhow::Result;
use terrace_api::client::{Client, segment};
use terrace_api::old_keys;
use terrace_api::types::{Agent, Round, Status, VmDetail, Worth};

use super::{map, neighbours, print_json, provisioning};
use crate::{output, render};

pub async fn run(
    client: &Client,
    name: &str,
    json: bool,
    draw: bool,
    svg: Option<&Path>,
) -> Result<()> {
    let detail: VmDetail = client.get(&format!("/v1/vms/{}", segment(name))).await?;
    if json {
        print_json(&old_keys::with_old(&detail)?)?;
    } else {
        let status: Status = client.get("/v1/status").await?;
        output::print(text(&status, &detail))?;
    }
    if draw {
        let map = map::fetch(client, name, map::TERMINAL_CELLS).await?;
        let text = map::text(&map, render::in_colours());
        output::print(format_args!("\n{text}"))?;
    }
    if let Some(file) = svg {
        map::write_svg(&map::fetch(client, name, map::SVG_CELLS).await?, name, file)?;
        output::tell(format_args!("wrote {}", file.display()));
    }
    Ok(())
}

fn text(status: &Status, detail: &VmDetail) -> String {
    let vm = &detail.vm;
    let mut out = format!(
        "{} (process {}, {}): {}, {}\n{} of RAM, moved in units of {} ({})\n\n",
        vm.name,
        render::process(vm.pid),
        vm.hypervisor,
        vm.mode,
        vm.reason,
        render::bytes(vm.memory_bytes),
        render::bytes(detail.unit_bytes),
        detail.unit_reason,
    );
    let resident: u64 = vm.tier_bytes.iter().sum();
    for ((tier, bytes), limit) in status.tiers.iter().zip(&vm.tier_bytes).zip(&detail.limits) {
        out += &format!(
            "  {:<8} {} {:>10}  floor {}, ceiling {}\n",
            tier.name,
            render::bar(*bytes, resident, 24),
            render::bytes(*bytes),
            render::bytes(limit.floor_bytes),
            limit
                .ceiling_bytes
                .map_or_else(|| "none".into(), render::bytes),
        );
    }
    if let Some(share) = &vm.share {
        out += &format!("\n  {}, weight {}\n", share.why, share.weight);
    }
    out += "\n";
    for stage in &detail.stages {
        out += &format!("  {:<8} {}\n", stage.stage, stage.mechanism);
    }
    if let Some(agent) = &vm.agent {
        out += &agent_text(agent);
    }
    if let Some(provisioning) = &detail.provisioning {
        out += &provisioning::text(provisioning);
    }
    if let Some(costs) = &detail.neighbours {
        out += &neighbours::text(costs);
    }
    if let Some(why) = &status.log_ended {
        out += &format!("\n{why}\n");
    }
    out += &format!("\nnow: {}", detail.phase);
    if let Some(next) = detail.next_round_in_s {
        out += &format!("; next round in {next:.0} s");
    }
    out += "\n";
    if !detail.history.is_empty() {
        out += &format!("\n{}", rounds(&detail.history));
        out += &vm.worth.and_then(worth).unwrap_or_default();
    }
    if !detail.reasons.is_empty() {
        out += "\nlast decisions:\n";
        for reason in detail.reasons.iter().rev().take(12).rev() {
            out += &format!("  {:>8.1} s  {}\n", reason.at_s, reason.text);
        }
    }
    out
}

/// The report of the agent in the guest, and who is in force.
fn agent_text(agent: &Agent) -> String {
    let version = agent.version.as_deref().unwrap_or("unknown");
    let mut out = format!(
        "\nagent in the guest (mode {}, version {version}): {}\n  manages it: {}\n",
        agent.mode, agent.state, agent.in_force,
    );
    if let Some(why) = &agent.fallback {
        out += &format!("  fallback: {why}\n");
    }
    if let Some(hot) = &agent.gather {
        out += &format!(
            "  named to gather: {} of {} hot pages in {} blocks of 2 MiB (round {})\n",
            hot.named_pages, hot.hot_pages, hot.hot_blocks, hot.round
        );
    }
    let Some(r) = &agent.report else {
        return out + &format!("  its port: {}\n", agent.socket);
    };
    for node in &r.nodes {
        let used = node.total_bytes.saturating_sub(node.free_bytes);
        out += &format!(
            "  node {:<3} tier {} {} {:>10} used of {}\n",
            node.node,
            node.tier.0,
            render::bar(used, node.total_bytes, 24),
            render::bytes(used),
            render::bytes(node.total_bytes),
        );
    }
    let did = &r.activity;
    let paused = if r.paused { ", paused" } else { "" };
    out += &format!(
        "  does: {}{paused}; {} processes, {} epochs; sampler {}\n",
        r.mode,
        did.processes,
        did.epochs,
        match r.mechanism.sampler.as_str() {
            "" => "none",
            sampler => sampler,
        },
    );
    out += &format!(
        "  moved: {} up, {} down, {} failed; may move {} a second\n",
        render::pages(did.promoted_pages),
        render::pages(did.demoted_pages),
        render::pages(did.failed_pages),
        render::bytes(r.budget_bytes_per_s),
    );
    out += &format!(
        "  costs: {:.1} s of CPU ({} % of one at most), {} of memory\n",
        std::time::Duration::from_nanos(r.cost.cpu_ns).as_secs_f64(),
        r.budget_cpu_percent,
        render::bytes(r.cost.resident_bytes),
    );
    if let (Some(some), Some(full)) = (
        r.pressure_some_avg10_hundredths,
        r.pressure_full_avg10_hundredths,
    ) {
        out += &format!(
            "  waits for memory: {:.2} % of the time (all tasks: {:.2} %); {} major faults, swap {} in, {} out\n",
            f64::from(some) / 100.0,
            f64::from(full) / 100.0,
            r.major_faults,
            render::pages(r.swap_in_pages),
            render::pages(r.swap_out_pages),
        );
    }
    out
}

/// Fast memory's part of the accesses beside its part of the memory.
fn worth(worth: Worth) -> Option<String> {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let accesses = percent(worth.fast_access_share()?);
    let writes = worth
        .fast_write_share()
        .map(|share| format!(" and {} of the writes", percent(share)));
    Some(format!(
        "\n  fast memory has {} % of the pages in use and takes {accesses} of the accesses{}: \
         DRAM utility {:.2} (interleaved memory has 1; an estimate by windows)\n",
        render::percent(worth.fast_pages, worth.pages),
        writes.unwrap_or_default(),
        worth.dram_utility()?,
    ))
}

fn rounds(history: &[Round]) -> String {
    let header = [
        "ROUND",
        "KNOWN",
        "HOT",
        "HOT ON FAST",
        "",
        "DEGREE",
        "UP",
        "DOWN",
        "FAILED",
        "SCAN CPU",
    ];
    let rows: Vec<Vec<String>> = history
        .iter()
        .rev()
        .take(10)
        .rev()
        .map(|r| {
            vec![
                r.number.to_string(),
                r.known_pages.to_string(),
                r.hot_pages.to_string(),
                format!("{} -> {}", r.hot_on_fast_before, r.hot_on_fast_after),
                format!("{} %", render::percent(r.hot_on_fast_after, r.hot_pages)),
                format!(">= {}", r.threshold_degree),
                r.promoted_pages.to_string(),
                r.demoted_pages.to_string(),
                r.failed_pages.to_string(),
                format!(
                    "{:.1} ms",
                    std::time::Duration::from_nanos(r.scan.cpu_ns).as_secs_f64() * 1e3
                ),
            ]
        })
        .collect();
    render::table(&header, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], &rows)
}
