//! A host's state in the API's types.

use terrace_api::types as api;
use terrace_core::{PhaseView, PlannedMove, Refusal, RoundSummary, VmView};
use terrace_host::{Finding, Status};
use terrace_proto::{Command, Gpa, PAGE_SIZE, TierId, TierLimit, VmId};

use super::{Failure, Served, agent_views};
use crate::config::{MOST_WEIGHT, tier_named};
use crate::events::seconds;
use crate::guest_managed::Agent;
use crate::roster::{Entry, Managed};

impl dyn Served + '_ {
    /// `GET /v1/status`.
    pub fn status(&self) -> api::Status {
        api::Status {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: seconds(self.now()),
            policy: self.policy(),
            moves: self.moves(),
            paused: self.paused(),
            tiers: self.tiers(),
            vms: self.vms().len(),
        }
    }

    /// `GET /v1/vms`.
    pub fn list(&self) -> Vec<api::Vm> {
        self.vms()
            .iter()
            .map(|(name, entry)| self.summary(name, entry))
            .collect()
    }

    fn summary(&self, name: &str, entry: &Entry) -> api::Vm {
        let view = entry.managed.as_ref().and_then(|m| self.engine().vm(m.id));
        let (mode, mut reason) = mode(entry, view.as_ref());
        if let (Some(_), Some(why)) = (&view, entry.agent.as_ref().and_then(Agent::fallback)) {
            reason = format!("{reason}; {why}");
        }
        let counters = view.as_ref().map(|v| &v.counters);
        let history = entry.managed.iter().flat_map(|m| m.history.iter().rev());
        let ranked = history.into_iter().find(|r| r.abandoned.is_none());
        api::Vm {
            name: name.to_owned(),
            pid: entry.pid,
            hypervisor: entry.hypervisor.clone(),
            mode,
            reason,
            memory_bytes: entry.memory_bytes,
            tier_bytes: view
                .iter()
                .flat_map(|v| v.tiers.iter().map(|t| t.bytes))
                .collect(),
            share: view.as_ref().and_then(|v| v.share.clone()).map(share),
            rounds: counters.map_or(0, |c| c.rounds),
            moves: view.as_ref().is_some_and(|v| v.moves),
            hot_pages: ranked.map(|r| r.hot_pages),
            hot_on_fast_pages: ranked.map(|r| r.hot_in_first_tier_after),
            promoted_pages: counters.map_or(0, |c| c.promoted_pages),
            demoted_pages: counters.map_or(0, |c| c.demoted_pages),
            agent: entry.agent.as_ref().map(agent_views::agent),
        }
    }

    /// `GET /v1/vms/{name}`.
    pub fn detail(&self, name: &str) -> Result<api::VmDetail, Failure> {
        let entry = self.entry(name)?;
        let vm = self.summary(name, entry);
        let Some(managed) = &entry.managed else {
            return Ok(api::VmDetail {
                stages: entry
                    .agent
                    .as_ref()
                    .map(agent_views::stages)
                    .unwrap_or_default(),
                elastic: self.elastic(name),
                ..unmanaged(vm)
            });
        };
        let view = self.view(managed.id)?;
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
                stage("observe", &observe(managed, &m.observe)),
                stage("estimate", &m.estimate),
                stage("share", &m.share),
                stage("place", &m.place),
                stage("move", &m.moves),
            ],
            phase: phase(&view.phase),
            round_under_way: view.current_round.as_ref().map(|r| r.round),
            next_round_in_s: view
                .next_round_at
                .map(|at| at.since(self.now()).as_secs_f64()),
            history: managed.history.iter().map(|r| self.round(r)).collect(),
            reasons: view
                .reasons
                .iter()
                .map(|r| api::Reason {
                    at_s: seconds(r.at),
                    text: r.text.clone(),
                })
                .collect(),
            elastic: self.elastic(name),
        })
    }

    /// `GET /v1/vms/{name}/pages/{gpa}`.
    pub fn explain(&self, name: &str, gpa: Gpa) -> Result<api::PageExplanation, Failure> {
        let id = self.managed_id(name)?;
        let page = self
            .engine()
            .explain_page(id, gpa.gfn())
            .filter(|p| p.ram)
            .ok_or_else(|| {
                Failure::NotFound(format!("{name} has no RAM at guest physical address {gpa}"))
            })?;
        let mut because = vec![page.why.clone()];
        if let Some(last) = &page.last_move {
            let ago = self.now().since(last.at).as_secs();
            because.push(format!(
                "last move: to {}, {ago} s ago: {}",
                self.tier_name(last.to),
                status(last.status)
            ));
        }
        Ok(api::PageExplanation {
            gpa: page.gfn.gpa().0,
            gfn: page.gfn.0,
            tier: page.tier.map(|t| self.tier_name(t)),
            known: page.known,
            reads: page.reads.into(),
            writes: page.writes.into(),
            windows: self.engine().config().windows.into(),
            degree: page.degree.unwrap_or(0).into(),
            threshold_degree: page.threshold_degree.unwrap_or(0).into(),
            level: page.level.into(),
            because,
        })
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
        let tiers = &self.engine().config().tiers;
        let named = tiers.get(tier.index()).map(|t| t.name.clone());
        named.unwrap_or_else(|| tier.to_string())
    }

    /// `POST /v1/vms/{name}/plan`.
    pub fn plan(&mut self, name: &str) -> Result<api::Planning, Failure> {
        let id = self.managed_id(name)?;
        let before = self.view(id)?;
        self.wish(Command::PlanRound(id))?;
        let after = self.view(id)?;
        match after.current_round {
            Some(round) if round.planned.is_some() && after.round > before.round => {
                Ok(api::Planning { round: round.round })
            }
            _ => {
                let last = after.reasons.last().map(|r| r.text.clone());
                let why = last.unwrap_or_else(|| "no round can start now".into());
                Err(Failure::NotNow(format!("{name}: {why}")))
            }
        }
    }

    /// `GET /v1/vms/{name}/map`.
    pub fn map(&self, name: &str, cells: u64) -> Result<api::HeatMap, Failure> {
        let id = self.managed_id(name)?;
        let map = self
            .engine()
            .heat_map(id, cells)
            .ok_or_else(|| Failure::NotFound(format!("{name} is gone")))?;
        let cell = |c: terrace_core::HeatCell| api::Cell {
            tier_pages: c.tier_pages,
            known_pages: c.known_pages,
            warm_pages: c.warm_pages,
            degree_sum: c.degree_sum,
        };
        Ok(api::HeatMap {
            pages_per_cell: map.pages_per_cell,
            tiers: self
                .engine()
                .config()
                .tiers
                .iter()
                .map(|t| t.name.clone())
                .collect(),
            max_degree: map.max_degree.into(),
            cells: map.cells.into_iter().map(cell).collect(),
        })
    }

    /// `POST /v1/vms/{name}/set`.
    pub fn set(&mut self, name: &str, setting: &api::Setting) -> Result<api::Done, Failure> {
        let id = self.managed_id(name)?;
        let command = match setting.key.as_str() {
            "moves" => Command::Moves(id, on_or_off(&setting.value)?),
            "weight" => Command::Weight(id, weight(&setting.value)?),
            "fast" => Command::FastSize(id, bytes(&setting.value)?),
            key => Command::Limits(id, self.new_limits(id, key, &setting.value)?),
        };
        self.wish(command)?;
        Ok(api::Done {
            done: format!("{name}: {} = {}", setting.key, setting.value),
        })
    }

    fn new_limits(&self, id: VmId, key: &str, value: &str) -> Result<Vec<TierLimit>, Failure> {
        let unknown = || {
            Failure::Invalid(format!(
                "no setting {key}: there are moves, weight, fast, floor, ceiling, TIER.floor, TIER.ceiling"
            ))
        };
        // Without a tier's name it is the first one's, as for `fast`.
        let (tier, which) = key.split_once('.').unwrap_or(("fast", key));
        let tier = tier_named(&self.engine().config().tiers, tier)
            .ok_or_else(|| Failure::Invalid(format!("there is no tier {tier}")))?;
        let mut limits: Vec<TierLimit> = self.view(id)?.tiers.iter().map(|t| t.limit).collect();
        let limit = limits.get_mut(tier.index()).ok_or_else(unknown)?;
        match which {
            "floor" => limit.floor_bytes = bytes(value)?,
            "ceiling" => limit.ceiling_bytes = bytes(value)?,
            _ => return Err(unknown()),
        }
        if limit.floor_bytes > limit.ceiling_bytes {
            return Err(Failure::Invalid(format!(
                "{key} = {value}: the floor would be above the ceiling"
            )));
        }
        Ok(limits)
    }

    /// `GET /v1/doctor`.
    pub fn doctor(&self) -> api::Doctor {
        let host = self.findings().iter().map(finding).collect();
        let vms = self.vms().iter().map(|(name, entry)| {
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
            findings.extend(self.elastic_findings(name).iter().map(finding));
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

    /// `POST /v1/vms/{name}/pause` and `/resume`: the engine's moves and scans, and the agent.
    pub fn halt(&mut self, name: &str, halt: bool) -> Result<api::Done, Failure> {
        self.entry(name)?;
        let agent = self.halt_agent(name, halt);
        let command = if halt {
            Command::Pause
        } else {
            Command::Resume
        };
        match self.managed_id(name) {
            Ok(id) => self.wish(command(Some(id)))?,
            Err(_) if agent => {}
            Err(unmanaged) => return Err(unmanaged),
        }
        let said = if halt { "paused" } else { "resumed" };
        Ok(api::Done {
            done: format!("{name}: {said}"),
        })
    }

    /// `GET /v1/events`.
    pub fn events_after(&self, after: u64) -> Vec<api::EventLine> {
        self.events().after(after)
    }

    /// The engine's id of a VM that it manages.
    pub fn managed_id(&self, name: &str) -> Result<VmId, Failure> {
        let entry = self.entry(name)?;
        entry.managed.as_ref().map(|m| m.id).ok_or_else(|| {
            let (_, reason) = mode(entry, None);
            Failure::NotFound(format!("{name} is not under management: {reason}"))
        })
    }

    pub fn entry(&self, name: &str) -> Result<&Entry, Failure> {
        self.vms().get(name).ok_or_else(|| {
            let known: Vec<&str> = self.vms().keys().map(String::as_str).collect();
            let known = if known.is_empty() {
                "none".into()
            } else {
                known.join(", ")
            };
            Failure::NotFound(format!("no VM {name}; there are: {known}"))
        })
    }

    fn view(&self, id: VmId) -> Result<VmView, Failure> {
        self.engine()
            .vm(id)
            .ok_or_else(|| Failure::NotFound("the VM is gone".into()))
    }
}

fn mode(entry: &Entry, view: Option<&VmView>) -> (api::Mode, String) {
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

/// What observes a VM: the host's word where it is not the engine's tables, and the source of writes.
fn observe(managed: &Managed, engine: &str) -> String {
    let tracker = match &managed.damon {
        None => engine.to_owned(),
        Some(why) => format!("damon (vaddr), regions instead of pages: {why}"),
    };
    match &managed.writes {
        None => tracker,
        Some(writes) => format!("{tracker}; writes: {writes}"),
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

fn bytes(value: &str) -> Result<u64, Failure> {
    let size: Result<bytesize::ByteSize, _> = value.parse();
    size.map(|size| size.as_u64())
        .map_err(|_| Failure::Invalid(format!("{value}: not a size; write it as 512MiB or 2GiB")))
}

fn weight(value: &str) -> Result<u32, Failure> {
    let weight = value.parse().ok().filter(|w| (1..=MOST_WEIGHT).contains(w));
    weight.ok_or_else(|| {
        Failure::Invalid(format!(
            "{value}: not a weight; write a number from 1 to {MOST_WEIGHT} (1000 is normal)"
        ))
    })
}

fn on_or_off(value: &str) -> Result<bool, Failure> {
    match value {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(Failure::Invalid(format!("{value}: write on or off"))),
    }
}
