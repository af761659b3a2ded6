//! A host's state in the API's types, made from a copy of it, away from the engine's thread.

use terrace_api::neighbours::Neighbours;
use terrace_api::types as api;
use terrace_core::{
    HeatMap, PageExplanation, PhaseView, PlannedMove, Refusal, RoundSummary, VmView,
};
use terrace_host::{Finding, Status};
use terrace_proto::{PAGE_SIZE, TierId, TierLimit};

use super::agent_views;
use super::failure::{Failure, gone};
use super::snapshot::{Snapshot, VmCopy};
use crate::events::seconds;
use crate::registry::{Agent, Entry};

impl Snapshot {
    /// `GET /v1/status`.
    pub fn status(&self) -> api::Status {
        api::Status {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: seconds(self.now),
            policy: self.policy.clone(),
            moves: self.moves,
            paused: self.paused,
            tiers: self.tiers.clone(),
            vms: self.count,
            log_ended: self.log_ended.clone(),
        }
    }

    /// `GET /v1/vms`.
    pub fn list(&self) -> Vec<api::Vm> {
        self.vms
            .iter()
            .map(|(name, vm)| self.summary(name, vm))
            .collect()
    }

    fn summary(&self, name: &str, vm: &VmCopy) -> api::Vm {
        let (entry, view) = (&vm.entry, vm.view.as_ref());
        let (mode, mut reason) = mode(entry, view);
        if let (Some(_), Some(why)) = (&view, entry.agent.as_ref().and_then(Agent::fallback)) {
            reason = format!("{reason}; {why}");
        }
        let counters = view.map(|v| &v.counters);
        let history = entry.managed.iter().flat_map(|m| m.history.iter().rev());
        let ranked = history.into_iter().find(|r| r.abandoned.is_none());
        api::Vm {
            name: name.to_owned(),
            pid: entry.process.map(|process| process.pid),
            hypervisor: entry.hypervisor.clone(),
            mode,
            reason,
            memory_bytes: entry.memory_bytes,
            tier_bytes: view
                .iter()
                .flat_map(|v| v.tiers.iter().map(|t| t.bytes))
                .collect(),
            share: view.and_then(|v| v.share.clone()).map(share),
            rounds: counters.map_or(0, |c| c.rounds),
            moves: view.is_some_and(|v| v.moves),
            hot_pages: ranked.map(|r| r.hot_pages),
            hot_on_fast_pages: ranked.map(|r| r.hot_in_first_tier_after),
            promoted_pages: counters.map_or(0, |c| c.promoted_pages),
            demoted_pages: counters.map_or(0, |c| c.demoted_pages),
            agent: entry.agent.as_ref().map(agent_views::agent),
        }
    }

    /// `GET /v1/vms/{name}`.
    pub fn detail(&self, name: &str) -> Result<api::VmDetail, Failure> {
        let copy = self.vm(name)?;
        let entry = &copy.entry;
        let vm = self.summary(name, copy);
        let Some(managed) = &entry.managed else {
            return Ok(api::VmDetail {
                stages: entry
                    .agent
                    .as_ref()
                    .map(agent_views::stages)
                    .unwrap_or_default(),
                elastic: copy.elastic.clone(),
                ..unmanaged(vm)
            });
        };
        let view = copy.view.as_ref().ok_or_else(gone)?;
        let stage = |stage: &str, mechanism: &String| api::Stage {
            stage: stage.into(),
            mechanism: mechanism.clone(),
        };
        let m = &view.mechanism;
        Ok(api::VmDetail {
            vm,
            unit_bytes: view.unit.bytes(),
            unit_reason: managed.unit_reason.clone(),
            limits: view.tiers.iter().map(|t| limit(&t.limit)).collect(),
            stages: vec![
                stage("observe", &managed.tracking.words(&m.observe)),
                stage("estimate", &m.estimate),
                stage("share", &m.share),
                stage("place", &m.place),
                stage("move", &m.moves),
            ],
            phase: phase(&view.phase),
            round_under_way: view.current_round.as_ref().map(|r| r.round),
            next_round_in_s: view
                .next_round_at
                .map(|at| at.since(self.now).as_secs_f64()),
            history: managed.history.iter().map(|r| self.round(r)).collect(),
            reasons: view
                .reasons
                .iter()
                .map(|r| api::Reason {
                    at_s: seconds(r.at),
                    text: r.text.clone(),
                })
                .collect(),
            elastic: copy.elastic.clone(),
            neighbours: Some(neighbours(&view.neighbours)),
        })
    }

    /// `GET /v1/vms/{name}/pages/{gpa}`.
    pub fn explain(&self, page: &PageExplanation) -> api::PageExplanation {
        let mut because = vec![page.why.clone()];
        if let Some(last) = &page.last_move {
            let ago = self.now.since(last.at).as_secs();
            because.push(format!(
                "last move: to {}, {ago} s ago: {}",
                self.tier_name(last.to),
                status(last.status)
            ));
        }
        api::PageExplanation {
            gpa: page.gfn.gpa().0,
            gfn: page.gfn.0,
            tier: page.tier.map(|t| self.tier_name(t)),
            known: page.known,
            reads: page.reads.into(),
            writes: page.writes.into(),
            windows: self.config.windows.into(),
            degree: page.degree.unwrap_or(0).into(),
            threshold_degree: page.threshold_degree.unwrap_or(0).into(),
            level: page.level.into(),
            because,
        }
    }

    /// `GET /v1/vms/{name}/map`.
    pub fn map(&self, map: HeatMap) -> api::HeatMap {
        let cell = |c: terrace_core::HeatCell| api::Cell {
            tier_pages: c.tier_pages,
            known_pages: c.known_pages,
            warm_pages: c.warm_pages,
            degree_sum: c.degree_sum,
        };
        api::HeatMap {
            pages_per_cell: map.pages_per_cell,
            tiers: self.config.tiers.iter().map(|t| t.name.clone()).collect(),
            max_degree: map.max_degree.into(),
            cells: map.cells.into_iter().map(cell).collect(),
        }
    }

    fn round(&self, r: &RoundSummary) -> api::Round {
        let planned_move = |m: &PlannedMove| api::PlannedMove {
            gpa: m.gfn.gpa().0,
            bytes: m.pages.saturating_mul(PAGE_SIZE),
            from: self.tier_name(m.from),
            to: self.tier_name(m.to),
            degree: m.degree.unwrap_or(0).into(),
        };
        let refused = |(why, units): &(Refusal, u64)| api::Refused {
            reason: why.words().into(),
            units: *units,
        };
        let planned = r.planned.as_ref();
        api::Round {
            number: r.round,
            known_pages: r.known_pages,
            hot_pages: r.hot_pages,
            hot_on_fast_before: r.hot_in_first_tier,
            hot_on_fast_after: r.hot_in_first_tier_after,
            threshold_degree: r.threshold_degree.into(),
            degree_histogram: r.degree_histogram.clone(),
            promoted_pages: r.promoted_pages,
            demoted_pages: r.demoted_pages,
            failed_pages: r.failed_pages,
            mapped_by_others_pages: r.mapped_by_others_pages,
            proposed_promotions: r.proposed_promotions,
            proposed_demotions: r.proposed_demotions,
            refused: r.refused.iter().map(refused).collect(),
            abandoned: r.abandoned.clone(),
            planned: planned.map(|moves| moves.iter().map(planned_move).collect()),
            scans: r.scan.scans,
            scan_cpu_ns: r.scan.cpu_ns,
        }
    }

    fn tier_name(&self, tier: TierId) -> String {
        let tiers = &self.config.tiers;
        let named = tiers.get(tier.index()).map(|t| t.name.clone());
        named.unwrap_or_else(|| tier.to_string())
    }

    /// `GET /v1/doctor`.
    pub fn doctor(&self) -> api::Doctor {
        let host = self.findings.iter().map(finding).collect();
        let vms = self.vms.iter().map(|(name, vm)| {
            let entry = &vm.entry;
            let moves = entry.managed.iter().flat_map(|m| &m.move_findings);
            let mut findings: Vec<api::Finding> =
                entry.findings.iter().chain(moves).map(finding).collect();
            findings.extend(
                entry
                    .agent
                    .iter()
                    .flat_map(agent_views::findings)
                    .map(|f| finding(&f)),
            );
            findings.extend(vm.elastic_findings.iter().map(finding));
            if !entry.reason.is_empty() {
                let health = if entry.unscannable {
                    api::Health::Missing
                } else {
                    api::Health::Ok
                };
                findings.push(api::Finding {
                    name: "management".into(),
                    health,
                    found: entry.reason.clone(),
                    advice: None,
                });
            }
            (name.clone(), findings)
        });
        api::Doctor {
            host,
            vms: vms.collect(),
        }
    }
}

/// How a VM is managed, and why.
pub fn mode(entry: &Entry, view: Option<&VmView>) -> (api::Mode, String) {
    match view {
        None if entry.agent.as_ref().is_some_and(|a| !a.is_by_host()) => agent_views::mode(entry),
        None if entry.unscannable => (api::Mode::Unscannable, entry.reason.clone()),
        None if entry.agent.is_some() => agent_views::mode(entry),
        None => (api::Mode::Ignored, entry.reason.clone()),
        Some(view) if view.paused => (api::Mode::Paused, "an operator paused it".into()),
        Some(view) => match &view.phase {
            PhaseView::Unscannable { reason } => (api::Mode::Unscannable, reason.clone()),
            _ if view.moves => (api::Mode::Managed, format!("policy {}", view.policy)),
            _ => (api::Mode::Observed, "moves are off".into()),
        },
    }
}

fn unmanaged(vm: api::Vm) -> api::VmDetail {
    let phase = vm.reason.clone();
    api::VmDetail {
        vm,
        unit_bytes: PAGE_SIZE,
        unit_reason: "it is not managed".into(),
        limits: Vec::new(),
        stages: Vec::new(),
        phase,
        round_under_way: None,
        next_round_in_s: None,
        history: Vec::new(),
        reasons: Vec::new(),
        elastic: None,
        neighbours: None,
    }
}

/// What a VM costs the others.
pub fn neighbours(n: &terrace_core::NeighboursView) -> Neighbours {
    Neighbours {
        fair: n.fair,
        weight: n.weight,
        right_bytes: n.right_bytes,
        most_bytes: n.most_bytes,
        held_bytes: n.held_bytes,
        above_right_bytes: n.above_right_bytes,
        moved_bytes: n.moved_bytes,
        all_moved_bytes: n.all_moved_bytes,
        scan_cpu_ns: n.scan_cpu_ns,
        all_scan_cpu_ns: n.all_scan_cpu_ns,
        refused_bytes: n.refused_bytes,
        late_plans: n.late_plans,
        late_plans_ns: n.late_plans_ns,
        late_scans: n.late_scans,
        late_scans_ns: n.late_scans_ns,
    }
}

fn share(share: terrace_core::ShareView) -> api::Share {
    api::Share {
        pooled: share.pooled,
        weight: share.weight,
        nominal_bytes: share.nominal_bytes,
        lower_bytes: share.lower_bytes,
        upper_bytes: share.upper_bytes,
        held_bytes: share.held_bytes,
        hot_bytes: share.hot_bytes,
        unseen_bytes: share.unseen_bytes,
        want_bytes: share.want_bytes,
        target_bytes: share.target_bytes,
        pool_free_bytes: share.pool_free_bytes,
        why: share.words,
    }
}

fn limit(limit: &TierLimit) -> api::Limit {
    api::Limit {
        floor_bytes: limit.floor_bytes,
        ceiling_bytes: (limit.ceiling_bytes != u64::MAX).then_some(limit.ceiling_bytes),
    }
}

fn phase(phase: &PhaseView) -> String {
    match phase {
        PhaseView::Unmanaged => "its policy does nothing".into(),
        PhaseView::Waiting => "between rounds".into(),
        PhaseView::Placing => "asking the kernel where pages are".into(),
        PhaseView::Clearing => "clearing accessed bits".into(),
        PhaseView::Window { window, of, .. } => format!("in window {window} of {of}"),
        PhaseView::Scanning { window, of } => {
            format!("scanning at the end of window {window} of {of}")
        }
        PhaseView::Moving {
            waiting_pages,
            in_flight_pages,
        } => {
            format!("moving pages: {in_flight_pages} under way, {waiting_pages} waiting")
        }
        PhaseView::Unscannable { reason } => format!("cannot be scanned: {reason}"),
    }
}

fn status(status: terrace_proto::MoveStatus) -> String {
    use terrace_proto::MoveStatus as S;
    match status {
        S::Moved => "done".into(),
        S::AlreadyThere => "it was there already".into(),
        S::Busy => "the page was pinned or in use".into(),
        S::Absent => "no host page backs it".into(),
        S::NoMemory => "the target had no free page".into(),
        S::NotTried => "not tried".into(),
        S::MappedByOthers => "other processes map it too (KSM, a template file)".into(),
        S::Failed(errno) => format!("failed: {}", std::io::Error::from_raw_os_error(errno)),
    }
}

fn finding(f: &Finding) -> api::Finding {
    api::Finding {
        name: f.name.into(),
        health: match f.status {
            Status::Ok => api::Health::Ok,
            Status::Degraded => api::Health::Degraded,
            Status::Missing => api::Health::Missing,
        },
        found: f.why.clone(),
        advice: f.change.clone(),
    }
}
