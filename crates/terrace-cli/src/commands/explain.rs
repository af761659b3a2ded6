//! `terrace explain VM [--page GPA]`.

use anyhow::Result;
use serde::Serialize;
use terrace_api::client::{Client, segment};
use terrace_api::provision::SizeChange;
use terrace_api::types::{Limit, PageExplanation, Reason, Round, Status, Tier, Vm, VmDetail};
use terrace_core::MoveRefusal;

use super::{print_json, provisioning};
use crate::{output, render};

pub async fn run(client: &Client, name: &str, page: Option<u64>, json: bool) -> Result<()> {
    match page {
        Some(gpa) => explain_page(client, name, gpa, json).await,
        None => explain_vm(client, name, json).await,
    }
}

async fn explain_page(client: &Client, name: &str, gpa: u64, json: bool) -> Result<()> {
    let path = format!("/v1/vms/{}/pages/{gpa:#x}", segment(name));
    let page: PageExplanation = client.get(&path).await?;
    if json {
        return print_json(&page);
    }
    output::print_line(format_args!(
        "{name}, page at {} (guest page {}): in {}",
        page.gpa,
        page.gfn,
        page.tier.as_deref().unwrap_or("no tier"),
    ))?;
    if page.known {
        output::print_line(format_args!(
            "  accessed in {} and written in {} of {} windows: degree {} (hot from {}), level {}",
            u16::from(page.reads) + u16::from(page.writes),
            page.writes,
            page.windows,
            page.degree,
            page.threshold_degree,
            page.level,
        ))?;
    }
    for sentence in &page.because {
        output::print_line(format_args!("  {sentence}"))?;
    }
    Ok(())
}

/// The causes of the placement of a VM's memory.
#[derive(Serialize)]
struct Explanation<'a> {
    vm: &'a Vm,
    /// The limits, one per tier, as `vm.tier_bytes`.
    limits: &'a [Limit],
    tiers: &'a [Tier],
    /// Counts, threshold and refusals of the last round that ran to its end.
    last_round: Option<&'a Round>,
    reasons: &'a [Reason],
    /// The last changes of its memory by balancing, oldest first.
    changes: &'a [SizeChange],
}

async fn explain_vm(client: &Client, name: &str, json: bool) -> Result<()> {
    let detail: VmDetail = client.get(&format!("/v1/vms/{}", segment(name))).await?;
    let status: Status = client.get("/v1/status").await?;
    let mut newest_first = detail.history.iter().rev();
    let explanation = Explanation {
        vm: &detail.vm,
        limits: &detail.limits,
        tiers: &status.tiers,
        last_round: newest_first.find(|round| round.abandoned.is_none()),
        reasons: &detail.reasons,
        changes: detail
            .provisioning
            .as_ref()
            .map_or(&[], |provisioning| &provisioning.changes),
    };
    if json {
        return print_json(&explanation);
    }
    output::print(text(&explanation, detail.unit_bytes))?;
    Ok(())
}

fn text(e: &Explanation<'_>, unit_bytes: u64) -> String {
    let mut out = format!("{}: {}, {}\n", e.vm.name, e.vm.mode, e.vm.reason);
    for ((tier, bytes), limit) in e.tiers.iter().zip(&e.vm.tier_bytes).zip(e.limits) {
        let most = limit.ceiling_bytes;
        out += &format!(
            "  {}: holds {}, at least {} by its floor, at most {}; the tier has {} free\n",
            tier.name,
            render::bytes(*bytes),
            render::bytes(limit.floor_bytes),
            most.map_or_else(
                || "what is free (no ceiling)".into(),
                |most| format!("{} by its ceiling", render::bytes(most))
            ),
            render::bytes(tier.free_bytes),
        );
    }
    if let Some(share) = &e.vm.share {
        out += &format!("  {}\n", share.why);
    }
    match e.last_round {
        None => out += "  no round has ranked its pages yet\n",
        Some(round) => out += &ranked(round, unit_bytes),
    }
    for reason in e.reasons {
        out += &format!("  {:>8.1} s  {}\n", reason.at_s, reason.text);
    }
    if !e.changes.is_empty() {
        out += "  its memory in all, by balancing:\n";
    }
    for change in e.changes {
        out += &changed(change);
    }
    out
}

fn changed(change: &SizeChange) -> String {
    let ago = change.ago_s.unwrap_or(0.0);
    format!("  {ago:>6.0} s ago  {}\n", provisioning::change(change))
}

fn ranked(round: &Round, unit_bytes: u64) -> String {
    let mut out = format!(
        "  round {}: {} known pages ranked by degree; the hottest {} fit into the first tier, \
         so degree {} is the threshold\n    of these {} were there before and {} after\n    \
         wanted: {} up, {} down; done: {} up, {} down, {} failed\n",
        round.number,
        round.known_pages,
        round.hot_pages,
        round.threshold_degree,
        round.hot_on_fast_before,
        round.hot_on_fast_after,
        round.proposed_promotions,
        round.proposed_demotions,
        round.promoted_pages,
        round.demoted_pages,
        round.failed_pages,
    );
    if round.planned.is_some() {
        out += "    it was only to plan, so nothing was moved\n";
    }
    let tried = |r: &&terrace_api::types::Refused| r.reason != MoveRefusal::PlanOnly.text();
    for refused in round.refused.iter().filter(tried) {
        let bytes = refused.units.saturating_mul(unit_bytes);
        out += &format!(
            "    not tried: {}: {}\n",
            render::bytes(bytes),
            refused.reason
        );
    }
    out
}
