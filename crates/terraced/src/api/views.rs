//! A host's state in the API's types, made from a copy of it, away from the engine's thread.

use terrace_api::types as api;
use terrace_core::{PartView, PhaseView, VmView};
use terrace_proto::snapshot::Round;
use terrace_proto::{PAGE_SIZE, TierLimit};

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
            share: view.and_then(|v| v.share.clone()),
            rounds: counters.map_or(0, |c| c.rounds),
            moves: view.is_some_and(|v| v.moves),
            hot_pages: ranked.map(|r| r.hot_pages),
            hot_on_fast_pages: ranked.map(|r| r.hot_on_fast_after),
            worth: ranked.map(|r| r.worth),
            promoted_pages: counters.map_or(0, |c| c.promoted_pages),
            demoted_pages: counters.map_or(0, |c| c.demoted_pages),
            agent: entry.agent.as_ref().map(|agent| {
                let moves = view.is_none_or(|v| v.moves);
                agent_views::agent(agent, moves)
            }),
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
                provisioning: copy.provisioning.clone(),
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
                stage("observe", &managed.tracking.text(&m.observe)),
                stage("estimate", &m.estimate),
                stage("share", &m.share),
                stage("place", &m.place),
                stage("move", &m.moves),
            ],
            phase: phase(&view.phase),
            round_under_way: view.current_round.as_ref().map(|r| r.number),
            next_round_in_s: view
                .next_round_at
                .map(|at| at.since(self.now).as_secs_f64()),
            history: managed.history.iter().map(|r| Round::clone(r)).collect(),
            reasons: view
                .reasons
                .iter()
                .map(|r| api::Reason {
                    at_s: seconds(r.at),
                    text: r.text.clone(),
                })
                .collect(),
            provisioning: copy.provisioning.clone(),
            neighbours: Some(view.neighbours.clone()),
        })
    }

    /// `GET /v1/doctor`.
    pub fn doctor(&self) -> api::Doctor {
        let host = self.findings.clone();
        let vms = self.vms.iter().map(|(name, vm)| {
            let entry = &vm.entry;
            let moves = entry.managed.iter().flat_map(|m| &m.move_findings);
            let mut findings: Vec<_> = entry.findings.iter().chain(moves).cloned().collect();
            findings.extend(entry.agent.iter().flat_map(agent_views::findings));
            findings.extend_from_slice(&vm.provisioning_findings);
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

/// The mode of a VM's management, and the reason for it.
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
        provisioning: None,
        neighbours: None,
    }
}

fn limit(limit: &TierLimit) -> api::Limit {
    api::Limit {
        floor_bytes: limit.floor_bytes,
        ceiling_bytes: (limit.ceiling_bytes != u64::MAX).then_some(limit.ceiling_bytes),
    }
}

fn of_part(part: Option<PartView>) -> String {
    part.map_or_else(String::new, |part| format!(" ({part})"))
}

fn phase(phase: &PhaseView) -> String {
    match phase {
        PhaseView::Unmanaged => "its policy does nothing".into(),
        PhaseView::Waiting => "between rounds".into(),
        PhaseView::Placing => "asking the kernel where pages are".into(),
        PhaseView::Clearing => "clearing accessed bits".into(),
        PhaseView::Window {
            window, of, part, ..
        } => format!("in window {window} of {of}{}", of_part(*part)),
        PhaseView::Scanning { window, of, part } => {
            format!(
                "scanning at the end of window {window} of {of}{}",
                of_part(*part)
            )
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
