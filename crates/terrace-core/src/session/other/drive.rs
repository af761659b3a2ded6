//! The other engine, driven by a log's records.
//!
//! Responsible for: which records the other engine gets as they are, which it gets changed, and what
//! answers its questions. It leaves to others: what a scan's bits mean ([`super::observed`]).
//!
//! The other engine's windows last a millisecond by its own clock, and it never starts a round by
//! itself: a round starts where the log's does, and a window ends when the log's does.

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::time::Duration;

use terrace_proto::log::{LogReader, Record};
use terrace_proto::{
    Action, Command, Event, Gfn, MovePlan, MoveReport, MoveStatus, PageResult, PlacementReport,
    RequestId, ScanAnswer, ScanFailure, ScanStats, Tick, TierId, TierMemory, VmId, VmSpec,
};

use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::policy::{Estimate, Observe, Place, Policy, PolicyChoice};
use crate::session::Session;
use crate::session::replay::ReplayError;

use super::report::{ReplayReport, seconds};
use super::vm::{OpenQuestion, Vm};
use super::{Other, OtherError, Refused};

/// Longest time that the engine's configuration may name, ms: longer than any log.
const NEVER_MS: u64 = 366 * 24 * 3_600_000;
/// The other engine's windows by its own clock.
const WINDOW: Duration = Duration::from_millis(1);

pub(super) struct Driver {
    session: Session,
    recorded: EngineConfig,
    policy: Policy,
    name: String,
    /// Windows of the log that make one of the other policy's.
    windows_in_one: u8,
    /// All VMs that ever arrived, by their order; a departed one keeps what came of it.
    vms: Vec<Vm>,
    /// Those that are here.
    here: BTreeMap<VmId, usize>,
    /// The last event asked for a round of this VM that only plans.
    plan_only: Option<VmId>,
    first: Option<Tick>,
    last: Tick,
    timer_fed: Option<Tick>,
    /// Memory reports in which less was free than the other policy holds more than the recorded one.
    shortfalls: u64,
}

impl Driver {
    pub fn new(recorded: EngineConfig, other: &Other) -> Result<Self, OtherError> {
        let windows_in_one = windows_in_one(&recorded, other)?;
        let mut config = EngineConfig {
            policy: other.policy.clone(),
            vm_policies: BTreeMap::new(),
            windows: recorded.windows / windows_in_one,
            window_ms: u64::try_from(WINDOW.as_millis()).unwrap_or(1),
            first_round_after_ms: NEVER_MS,
            answer_timeout_ms: NEVER_MS,
            ..recorded.clone()
        };
        config.fixed_threshold = (config.fixed_threshold / windows_in_one).max(1);
        let policy = other
            .policy
            .resolve("policy")
            .map_err(ReplayError::Policy)?;
        Ok(Self {
            session: Session::new(Engine::new(config).map_err(ReplayError::Invalid)?, ()),
            recorded,
            policy,
            name: text(&other.policy),
            windows_in_one,
            vms: Vec::new(),
            here: BTreeMap::new(),
            plan_only: None,
            first: None,
            last: Tick(0),
            timer_fed: None,
            shortfalls: 0,
        })
    }

    /// Takes a record; false if it cannot come here.
    pub fn take(&mut self, at: Tick, record: Record) -> Result<bool, Refused> {
        self.first.get_or_insert(at);
        self.last = self.last.max(at);
        self.timers(at);
        match record {
            Record::Start(_) => return Ok(false),
            Record::Event(event) => {
                self.plan_only = None;
                self.event(at, event)?;
            }
            Record::Action(Action::QueryPlacement(query)) => {
                self.round_starts(at, query.vm, query.id);
            }
            Record::Action(Action::Scan(request)) => {
                if let Some(vm) = self.vm(request.space.vm()) {
                    vm.scan = Some(request);
                }
            }
            // Of ages: rounds by parts were refused when the log was opened.
            Record::Action(Action::ScanPart(_)) => {}
            // The other policy's passes name none.
            Record::Action(Action::NameTables(_)) => {}
            // Its outcome comes as an event.
            Record::Action(Action::Move(_)) | Record::Ranges(_) => {}
            // Sizes are no matter of the policy.
            Record::Action(
                Action::QueryProvider(_)
                | Action::Resize(_)
                | Action::Withdraw(..)
                | Action::Answer(_)
                | Action::LetGo(_)
                | Action::Collapse(_),
            ) => {}
            // Its faults are this log's alone.
            Record::Action(Action::Protect(_) | Action::Unprotect(_)) => {}
        }
        Ok(true)
    }

    fn vm(&mut self, id: VmId) -> Option<&mut Vm> {
        let index = *self.here.get(&id)?;
        self.vms.get_mut(index)
    }

    /// Lets the other engine do what it has put off until now (moves that wait for its budget).
    fn timers(&mut self, until: Tick) {
        while let Some(at) = self
            .session
            .engine()
            .poll_timeout()
            .filter(|at| *at <= until)
        {
            if self.timer_fed >= Some(at) {
                return;
            }
            self.timer_fed = Some(at);
            self.feed(at, Event::Timer);
        }
    }

    fn event(&mut self, at: Tick, event: Event) -> Result<(), Refused> {
        match event {
            Event::VmArrived(spec) => self.arrive(at, spec)?,
            Event::VmDeparted(id) => self.depart(at, id),
            Event::Placement(report) => self.placement(at, &report),
            Event::Memory(memory) => self.memory(at, memory),
            Event::Scanned(answer) => self.scanned(at, &answer)?,
            // Of ages, as above.
            Event::ScannedPart(_) => {}
            // Of the recorded passes, and the other engine's have other numbers: tables stay, as the log's data say where they are.
            Event::Tables(_) => {}
            Event::ScanFailed(failure) => self.scan_failed(at, &failure),
            Event::Moved(report) => {
                if let Some(vm) = self.vm(report.vm) {
                    vm.recorded.moved(&report);
                }
            }
            Event::BackingChanged(change) => {
                if let Some(vm) = self.vm(change.vm) {
                    vm.recorded.places.set_huge(change.block, change.huge);
                    vm.other.places.set_huge(change.block, change.huge);
                }
                self.feed(at, Event::BackingChanged(change));
            }
            // Rounds are where the log's are.
            Event::Command(Command::RoundNow(_)) => {}
            Event::Command(Command::PlanRound(vm)) => self.plan_only = Some(vm),
            Event::Command(command) => self.feed(at, Event::Command(command)),
            Event::Timer => self.feed(at, Event::Timer),
            // The cost of the recorded policy means nothing for this one.
            Event::ScanSpent(_) | Event::Processors(_) => {}
            // Sizes are no matter of the policy.
            Event::ProviderArrived(_)
            | Event::ProviderDeparted(_)
            | Event::ProviderSeen(_)
            | Event::SizesWanted(_)
            | Event::OrderOutcome(_)
            | Event::OrderWithdrawal(_)
            | Event::ProviderChanged(_)
            | Event::MemoryRights(_)
            | Event::MemoryNeed(_)
            | Event::MemoryTraffic(_)
            | Event::MemoryTiers(_)
            | Event::SpeedRights(_)
            | Event::MemoryStanding(_)
            | Event::MemoryBalance(_)
            | Event::GuestMemory(_)
            | Event::HostMemory(_)
            | Event::AgentMemory(_)
            | Event::GuestWalks(_)
            | Event::GuestMoves(_)
            | Event::GuestNodes(_)
            | Event::Collapsed(_) => {}
            // No policy needs them.
            Event::Samples(_) => {}
            // Accesses to blocks that the recorded policy protected, and to no others.
            Event::Faulted(_) | Event::Statistics(_) => {}
            Event::RamChanged(change) => {
                if let Some(vm) = self.vm(change.vm) {
                    vm.ram_changed(&change);
                }
                self.feed(at, Event::RamChanged(change));
            }
        }
        Ok(())
    }

    fn arrive(&mut self, at: Tick, spec: VmSpec) -> Result<(), Refused> {
        let (id, known) = (spec.vm, self.here.contains_key(&spec.vm));
        self.feed(at, Event::VmArrived(spec.clone()));
        // An engine that refuses a VM (its RAM is none, its limits are not) knows none of that id.
        if known || self.session.engine().vm(id).is_none() {
            return Ok(());
        }
        let choices = &self.recorded.vm_policies;
        let choice = choices.get(&spec.name).unwrap_or(&self.recorded.policy);
        if let Ok(had) = choice.resolve("policy") {
            // First: other tables would not help a policy of epochs.
            no_epochs(&self.name, self.policy, had, &spec.name)?;
            same_tables(&self.name, self.policy, had, &spec.name)?;
        }
        self.here.insert(id, self.vms.len());
        self.vms.push(Vm::new(&spec));
        Ok(())
    }

    fn depart(&mut self, at: Tick, id: VmId) {
        self.keep_counters(id);
        self.here.remove(&id);
        self.feed(at, Event::VmDeparted(id));
    }

    fn keep_counters(&mut self, id: VmId) {
        let view = self.session.engine().vm(id);
        if let (Some(vm), Some(view)) = (self.vm(id), view) {
            vm.other.counters = view.counters;
        }
    }

    /// The log's policy starts a round: so does the other one.
    fn round_starts(&mut self, at: Tick, id: VmId, query: RequestId) {
        let plan_only = self.plan_only == Some(id);
        let Some(vm) = self.vm(id) else {
            return;
        };
        let unanswered = vm.round_starts(query);
        if let Some(request) = unanswered {
            let reason = "the log's round ended before its time";
            self.fail(at, id, request, reason.into());
        }
        let command = if plan_only {
            Command::PlanRound(id)
        } else {
            Command::RoundNow(id)
        };
        self.feed(at, Event::Command(command));
        let has_rounds = self.policy.place != Place::Stay;
        if let Some(vm) = self.vm(id) {
            vm.other.missed_rounds += u64::from(has_rounds && vm.asked == OpenQuestion::Nothing);
        }
    }

    fn fail(&mut self, at: Tick, vm: VmId, id: RequestId, reason: String) {
        let failure = ScanFailure {
            id,
            vm,
            reason,
            fatal: false,
        };
        self.feed(at, Event::ScanFailed(failure));
    }

    fn placement(&mut self, at: Tick, report: &PlacementReport) {
        let Some(vm) = self.vm(report.vm) else {
            return;
        };
        if !vm.placement(report) {
            return;
        }
        let OpenQuestion::Placement(id) = std::mem::take(&mut vm.asked) else {
            return;
        };
        let answer = PlacementReport {
            id,
            vm: report.vm,
            start: Gfn(0),
            codes: vm.other.places.codes().to_vec(),
            last: true,
        };
        self.feed(at, Event::Placement(answer));
    }

    /// The tiers' memory as it would be: what the recorded policy's VMs hold is free, and what the other
    /// one's hold is not.
    fn memory(&mut self, at: Tick, mut memory: Vec<TierMemory>) {
        let held = |places: fn(&Vm) -> [u64; TierId::MAX]| {
            let here = self.here.values().filter_map(|index| self.vms.get(*index));
            here.map(places).fold([0_u64; TierId::MAX], |sum, bytes| {
                std::array::from_fn(|tier| sum[tier] + bytes[tier])
            })
        };
        let (recorded, other) = (
            held(|vm| vm.recorded.places.bytes()),
            held(|vm| vm.other.places.bytes()),
        );
        let mut short = false;
        for tier in &mut memory {
            let index = tier.tier.index();
            let (Some(recorded), Some(other)) = (recorded.get(index), other.get(index)) else {
                continue;
            };
            let all = tier.free_bytes.saturating_add(*recorded);
            short |= all < *other;
            tier.free_bytes = all.saturating_sub(*other);
        }
        self.shortfalls += u64::from(short);
        self.feed(at, Event::Memory(memory));
    }

    fn scanned(&mut self, at: Tick, answer: &ScanAnswer) -> Result<(), Refused> {
        let id = answer.space.vm();
        let windows = self.recorded.windows;
        let windows_in_one = self.windows_in_one;
        let Some(vm) = self.vm(id) else {
            return Ok(());
        };
        let Some(request) = vm.scan.take_if(|request| request.id == answer.id) else {
            return Ok(());
        };
        if !vm.fits(answer) {
            if let Some(asked) = vm.give_up() {
                let reason = "a scan's answer does not fit the VM's memory";
                self.fail(at, id, asked, reason.into());
            }
            return Ok(());
        }
        let window = vm.scanned(at, answer, &request, windows)?;
        if window.is_multiple_of(windows_in_one) {
            self.answer_scan(at, id, answer);
        }
        Ok(())
    }

    /// The other policy's window is over: it asks, and is answered.
    fn answer_scan(&mut self, at: Tick, id: VmId, from: &ScanAnswer) {
        let asks =
            |vm: Option<&mut Vm>| vm.is_some_and(|vm| matches!(vm.asked, OpenQuestion::Scan(_)));
        if !asks(self.vm(id)) {
            self.feed(at.after(WINDOW), Event::Timer);
        }
        let Some(vm) = self.vm(id) else {
            return;
        };
        let OpenQuestion::Scan(request) = &vm.asked else {
            return;
        };
        let (accessed, written) = vm.observed.ask(&request.rearm);
        let answer = ScanAnswer {
            id: request.id,
            space: request.space,
            known: from.known.clone(),
            accessed,
            written,
            huge_leaf: from.huge_leaf.clone(),
            stats: ScanStats::default(),
        };
        vm.asked = OpenQuestion::Nothing;
        self.feed(at, Event::Scanned(Box::new(answer)));
    }

    fn scan_failed(&mut self, at: Tick, failure: &ScanFailure) {
        let Some(vm) = self.vm(failure.vm) else {
            return;
        };
        if !vm.waits_for(failure.id) && !failure.fatal {
            return;
        }
        let asked = vm.give_up();
        if asked.is_some() || failure.fatal {
            let failure = ScanFailure {
                id: asked.unwrap_or(failure.id),
                ..failure.clone()
            };
            self.feed(at, Event::ScanFailed(failure));
        }
    }

    /// Gives the other engine an event, and does what it decides.
    fn feed(&mut self, at: Tick, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.session.hear(at, event) {
                match action {
                    Action::Scan(request) => {
                        if let Some(vm) = self.vm(request.space.vm()) {
                            vm.asked = OpenQuestion::Scan(request);
                        }
                    }
                    // It was told to look at all memory at once.
                    Action::ScanPart(_) => {}
                    Action::QueryPlacement(query) => {
                        if let Some(vm) = self.vm(query.vm) {
                            vm.asked = OpenQuestion::Placement(query.id);
                        }
                    }
                    Action::Move(plan) => events.push_back(Event::Moved(self.carry_out(&plan))),
                    // It heard of no provider.
                    Action::QueryProvider(_)
                    | Action::Resize(_)
                    | Action::Withdraw(..)
                    | Action::Answer(_)
                    | Action::LetGo(_)
                    | Action::Collapse(_) => {}
                    // Which accesses would have faulted is not in the log.
                    Action::Protect(_) | Action::Unprotect(_) | Action::NameTables(_) => {}
                }
            }
        }
    }

    fn carry_out(&mut self, plan: &MovePlan) -> MoveReport {
        let vm = self.vm(plan.vm);
        let mut places = vm.map(|vm| &mut vm.other.places);
        let mut results = Vec::with_capacity(plan.moves.len());
        for m in &plan.moves {
            let page = usize::try_from(m.gfn.0).unwrap_or(usize::MAX);
            let now = places.as_mut().map(|places| places.send(page, m.to));
            let now = now.unwrap_or(terrace_proto::PageCode::ABSENT);
            results.push(PageResult {
                gfn: m.gfn,
                status: now.tier().map_or(MoveStatus::Absent, |_| MoveStatus::Moved),
                now,
            });
        }
        MoveReport {
            id: plan.id,
            vm: plan.vm,
            results,
            elapsed_ns: 0,
        }
    }

    /// The report, once the log was read to its end.
    pub fn report<R: Read>(mut self, log: &LogReader<R>) -> Result<ReplayReport, Refused> {
        let here: Vec<VmId> = self.here.keys().copied().collect();
        here.into_iter().for_each(|id| self.keep_counters(id));
        for vm in &self.vms {
            vm.check()?;
        }
        if self.vms.iter().all(|vm| vm.tally.windows == 0) {
            return Err(Refused::NoScans);
        }
        let window_ns = self.recorded.window_ms.saturating_mul(1_000_000);
        let one = u64::from(self.windows_in_one);
        Ok(ReplayReport {
            policy: self.name.clone(),
            recorded_policy: text(&self.recorded.policy),
            window_s: seconds(window_ns.saturating_mul(one)),
            recorded_window_s: seconds(window_ns),
            log_s: seconds(self.last.0.saturating_sub(self.first.unwrap_or_default().0)),
            skipped: log.skipped(),
            cut_off: log.cut_off(),
            given_up: log.given_up().map(str::to_owned),
            notes: self.notes(),
            vms: self.vms.iter().map(Vm::report).collect(),
        })
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let (read, write) = self.session.engine().config().weights();
        let observes = self.policy.observe != Observe::None;
        if observes && read != write && !self.vms.iter().any(|vm| vm.tally.writes_seen) {
            notes.push(format!(
                "the log has no written bits: every access counts as a read of weight {read}, none as a \
                 write of weight {write}"
            ));
        }
        if self
            .vms
            .iter()
            .any(|vm| vm.tally.known < vm.tally.unit_windows)
        {
            notes.push(
                "if it is not known whether a page was accessed (the log's policy let it rest), the \
                 other policy sees it as accessed; record = \"full\" leaves nothing unknown"
                    .into(),
            );
        }
        if self.shortfalls > 0 {
            notes.push(format!(
                "{} times the host had less memory free than the other policy would have needed to keep \
                 what it holds",
                self.shortfalls
            ));
        }
        notes
    }
}

/// How many windows of the log make one of those asked for.
fn windows_in_one(recorded: &EngineConfig, other: &Other) -> Result<u8, Refused> {
    let (had, windows) = (recorded.window_ms.max(1), recorded.windows);
    let asked = other.window_ms.unwrap_or(had);
    if asked < had {
        return Err(Refused::FinerWindows {
            asked,
            had,
            windows,
        });
    }
    let times = u8::try_from(asked / had).unwrap_or(u8::MAX);
    if !asked.is_multiple_of(had) || !windows.is_multiple_of(times) {
        return Err(Refused::UnevenWindows {
            asked,
            had,
            windows,
        });
    }
    Ok(times)
}

/// Refuses a policy that reads other tables than the log's did.
fn same_tables(name: &str, policy: Policy, had: Policy, vm: &str) -> Result<(), Refused> {
    let tables = |observe| match observe {
        Observe::EptScan => Some(("second-stage tables", "ept-scan")),
        Observe::ProtectionFaults | Observe::None => None,
        _ => Some(("guest page tables", "guest-scan")),
    };
    match (tables(policy.observe), tables(had.observe)) {
        (Some((wanted, _)), Some((had, instead))) if wanted != had => Err(Refused::OtherTables {
            policy: name.into(),
            wanted,
            had,
            vm: vm.into(),
            instead,
        }),
        _ => Ok(()),
    }
}

/// Refuses policies whose rounds are epochs, on either side.
fn no_epochs(name: &str, policy: Policy, had: Policy, vm: &str) -> Result<(), Refused> {
    // Windows of rates are as long as the pages need that were seen, so no other rounds are like them.
    let epochs = [policy, had].map(|p| matches!(p.estimate, Estimate::HotLists | Estimate::Rates));
    let (policy, had, vm) = (name.into(), had.name.name(), vm.into());
    match epochs {
        [false, false] => Ok(()),
        [true, true] => Err(Refused::SameEpochs { policy, had, vm }),
        _ => Err(Refused::OtherEpochs { policy, had, vm }),
    }
}

/// A policy as people write it.
fn text(choice: &PolicyChoice) -> String {
    match serde_json::to_value(choice) {
        Ok(serde_json::Value::String(name)) => name,
        Ok(stages) => stages.to_string(),
        Err(error) => error.to_string(),
    }
}
