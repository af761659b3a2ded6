//! The VMs that the daemon knows: who comes under management, under which name, and who is gone.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_core::{Engine, RoundSummary};
use terrace_host::Finding;
use terrace_host::mover::Target;
use terrace_host::qemu::who::Refusal;
use terrace_host::tracker::{SoftDirty, Tracker};
use terrace_proto::{Command, Event, PAGE_SIZE, PageSize, RamRange, VmId, VmSpec};
use terrace_sys::{Process, ProcessId};

use crate::daemon::Daemon;
use crate::events::Events;
use crate::guest_managed::{Agent, InForce};
use crate::hands::{Context, Hands};
use crate::scout::{Found, Looked, Ready, State, second_of_name};
use terrace_config::{VmConfig, WriteSource};

/// Refused VMs that are remembered.
const MOST_REFUSED: usize = 64;
/// Rounds of a VM that are remembered.
const ROUNDS_KEPT: usize = 64;

/// A VM that the engine knows.
pub struct Managed {
    /// Its id in the engine.
    pub id: VmId,
    /// What of it is on this host; a simulated VM has nothing there.
    pub body: Option<Body>,
    /// Why its unit is what it is.
    pub unit_reason: String,
    /// Last reason of the engine that was made an event.
    pub reasons_told: u64,
    /// The last rounds, oldest first.
    pub history: VecDeque<Arc<RoundSummary>>,
    /// Why DAMON watches it and not its page tables, where it does.
    pub damon: Option<String>,
    /// What its source of writes does, where one is configured.
    pub writes: Option<String>,
    /// Why its tracker sees less of it than it could, if so.
    pub shortfall: Option<String>,
    /// What its last moves showed, for `doctor`.
    pub move_findings: Vec<Finding>,
}

/// What of a VM is on this host.
pub struct Body {
    /// Its threads.
    pub hands: Hands,
    process: Arc<Process>,
}

impl Managed {
    /// A VM without a body, of which nothing was told yet.
    pub fn new(id: VmId, unit_reason: String) -> Self {
        Self {
            id,
            body: None,
            unit_reason,
            reasons_told: 0,
            history: VecDeque::new(),
            damon: None,
            writes: None,
            shortfall: None,
            move_findings: Vec::new(),
        }
    }

    /// Remembers the last round that ended, once.
    pub fn keep_round(&mut self, last: Option<&RoundSummary>) {
        let newest = self.history.back().map(|round| round.round);
        let Some(last) = last.filter(|last| newest < Some(last.round)) else {
            return;
        };
        if self.history.len() == ROUNDS_KEPT {
            self.history.pop_front();
        }
        self.history.push_back(Arc::new(last.clone()));
    }
}

impl Managed {
    /// A copy for a view; the body stays where it is.
    pub fn copied(&self) -> Self {
        Self {
            id: self.id,
            body: None,
            unit_reason: self.unit_reason.clone(),
            reasons_told: self.reasons_told,
            history: self.history.clone(),
            damon: self.damon.clone(),
            writes: self.writes.clone(),
            shortfall: self.shortfall.clone(),
            move_findings: self.move_findings.clone(),
        }
    }
}

impl Entry {
    /// A copy for a view.
    pub fn copied(&self) -> Self {
        Self {
            process: self.process,
            socket: self.socket.clone(),
            hypervisor: self.hypervisor.clone(),
            memory_bytes: self.memory_bytes,
            reason: self.reason.clone(),
            unscannable: self.unscannable,
            findings: self.findings.clone(),
            managed: self.managed.as_ref().map(Managed::copied),
            agent: self.agent.clone(),
        }
    }
}

/// A VM, managed or not.
pub struct Entry {
    /// Its hypervisor's process, where it is known.
    pub process: Option<ProcessId>,
    /// Its monitor.
    pub socket: PathBuf,
    /// `QEMU with KVM`, `QEMU (TCG)`.
    pub hypervisor: String,
    /// Guest RAM, bytes.
    pub memory_bytes: u64,
    /// Why it is not managed, where it is not.
    pub reason: String,
    /// It is opted in, but something is in the way.
    pub unscannable: bool,
    /// For `doctor`.
    pub findings: Vec<Finding>,
    /// What managing it takes.
    pub managed: Option<Managed>,
    /// The agent in the guest, where the configuration asks for one.
    pub agent: Option<Agent>,
}

/// Makes the engine's new reasons events, and remembers its rounds.
pub fn tell_reasons(engine: &Engine, vms: &mut BTreeMap<String, Entry>, events: &mut Events) {
    for (name, entry) in vms {
        let Some(managed) = &mut entry.managed else {
            continue;
        };
        let mut told = managed.reasons_told;
        for reason in engine.vm_reasons(managed.id, told) {
            told = reason.sequence;
            events.push(reason.at, Some(name), reason.text.clone());
        }
        managed.reasons_told = told;
        managed.keep_round(engine.last_round(managed.id));
    }
}

impl Daemon {
    /// Takes in what the scout found.
    pub fn found(&mut self, found: Found) {
        if let Some(name) = self.take_in(found) {
            self.keep_elastic(&name, false);
        }
    }

    /// Returns the name that the VM got.
    fn take_in(&mut self, found: Found) -> Option<String> {
        let has_body = |m: &Managed| m.body.is_some();
        let known =
            |e: &Entry| e.managed.as_ref().is_some_and(has_body) && e.process == found.process;
        let looked_again =
            matches!(found.state, State::Agent(_)) && self.vms.contains_key(&found.name);
        if self.vms.values().any(known) && !looked_again {
            // A second monitor of a VM that is managed by its first.
            return None;
        }
        if let Some(refusal) = self.why_refused(&found) {
            self.refuse_vm(found, &refusal);
            return None;
        }
        self.refused.remove(&found.socket);
        let name = found.name;
        self.forget_other_names(&name, &found.socket);
        let mut entry = Entry {
            process: found.process,
            socket: found.socket,
            hypervisor: "QEMU".into(),
            memory_bytes: 0,
            reason: String::new(),
            unscannable: false,
            findings: found.findings,
            managed: None,
            agent: None,
        };
        // An agent that is listened to stays so.
        if let Some(known) = self.vms.get_mut(&name) {
            entry.agent = known.agent.take();
            entry.memory_bytes = known.memory_bytes;
        }
        match found.state {
            // Done above.
            State::Refused(_) => return None,
            State::Ignored => {
                entry.reason = "not opted in (scan = true under [vm.NAME])".into();
            }
            State::Unscannable(reason) | State::NotReady(reason) => {
                entry.unscannable = true;
                entry.reason = reason;
            }
            State::Agent(vm) => {
                if let Some(known) = self.vms.remove(&name) {
                    // The host may be about to manage it, or does so in the agent's place.
                    entry.managed = known.managed;
                }
                self.vms.insert(name.clone(), entry);
                self.found_agent_vm(&name, *vm);
                return Some(name);
            }
            State::Ready(ready) => {
                self.found_ready(&name, entry, *ready);
                return Some(name);
            }
        }
        let remapped = self.take_remapped(&name);
        self.give_up_remapped(remapped);
        let said = self.vms.get(&name).map(|e| e.reason.clone());
        if said.as_deref() != Some(&entry.reason) {
            self.tell(Some(&name), format!("found: {}", entry.reason));
        }
        self.vms.insert(name.clone(), entry);
        Some(name)
    }

    /// Manages a VM that is ready, unless its agent does.
    fn found_ready(&mut self, name: &str, entry: Entry, ready: Ready) {
        let remapped = self.take_remapped(name);
        let of_host = |a: &Agent| matches!(a.in_force, InForce::Fallback(_) | InForce::Host);
        if entry.agent.as_ref().is_none_or(of_host) {
            self.manage(name, entry, ready, remapped);
            return;
        }
        // It came too late: the agent manages the VM. The worker ends with what was found.
        self.vms.insert(name.to_owned(), entry);
        self.give_up_remapped(remapped);
    }

    fn why_refused(&self, found: &Found) -> Option<Refusal> {
        if let State::Refused(refusal) = &found.state {
            return Some(refusal.clone());
        }
        let holder = self.holder(&found.name, found.process)?;
        Some(second_of_name(&found.name, holder.pid))
    }

    /// The other process that has this name and still lives: the first VM of a name stays, and nothing is renamed.
    fn holder(&self, name: &str, process: Option<ProcessId>) -> Option<ProcessId> {
        let proc = self.root.proc();
        let lives = |process: &ProcessId| process.exists(&proc);
        let kept = self.elastics.vms.get(name).and_then(|kept| kept.process);
        let known = self.vms.get(name);
        let managed = known.filter(|entry| entry.managed.is_some());
        let managed = managed.and_then(|entry| entry.process);
        let known = known.and_then(|entry| entry.process).filter(lives);
        let kept = kept.filter(|_| process.is_some()).filter(lives);
        let holders = [managed, known, kept].into_iter().flatten();
        holders.into_iter().find(|holder| process != Some(*holder))
    }

    /// What was listed by a socket before its VM told its name is that VM.
    fn forget_other_names(&mut self, name: &str, socket: &Path) {
        self.vms.retain(|other, entry| {
            let is_kept = entry.managed.is_some() || entry.agent.is_some();
            other == name || entry.socket != socket || is_kept
        });
    }

    /// Says once why something is not taken for a VM, and remembers it for `doctor`.
    fn refuse_vm(&mut self, found: Found, refusal: &Refusal) {
        let of = match found.process {
            Some(ProcessId { pid, .. }) => format!("process {pid} ({})", found.socket.display()),
            None => found.socket.display().to_string(),
        };
        let finding = refusal.finding(&of);
        if self.refused.get(&found.socket) == Some(&finding) {
            return;
        }
        if self.refused.len() < MOST_REFUSED {
            self.tell(None, format!("refused: {}", finding.why));
            self.refused.insert(found.socket, finding);
        }
    }

    /// Manages a VM that is ready: one whose memory map changed goes on under its id.
    fn manage(&mut self, name: &str, mut entry: Entry, ready: Ready, remapped: Option<Managed>) {
        let ram = ready.memory.ram();
        entry.memory_bytes = ram.iter().map(|r| r.pages.saturating_mul(PAGE_SIZE)).sum();
        if let Some(reason) = self.too_much_ram(entry.memory_bytes, ready.most_ram) {
            self.tell(Some(name), format!("found: {reason}"));
            self.leave_alone(name, entry, reason, remapped);
            return;
        }
        let accelerator = if ready.identity.kvm {
            "QEMU with KVM"
        } else {
            "QEMU (TCG)"
        };
        entry.hypervisor = accelerator.into();
        let is_anew = remapped.is_some();
        let id = remapped.as_ref().map_or(VmId(self.next_id), |m| m.id);
        let context = self.context(id, &ready);
        let unit = context.target.unit;
        let spec = spec(id, name, ram, unit, &ready.config);
        let mover = Arc::clone(&self.mover);
        let soft_dirty = self.soft_dirty(&context, &ready.config);
        let writes = write_words(soft_dirty.as_ref(), ready.config.writes, &ready.tracker);
        let (vm, tracker) = (ready.vm, ready.tracker);
        let hands = match Hands::start(&context, vm, tracker, soft_dirty, mover) {
            Ok(hands) => hands,
            Err(error) => {
                let reason = format!("its threads could not be started: {error}");
                self.leave_alone(name, entry, reason, remapped);
                return;
            }
        };
        let process = context.target.process;
        let before = remapped.unwrap_or_else(|| {
            self.next_id += 1;
            Managed::new(id, String::new())
        });
        entry.managed = Some(Managed {
            damon: ready.damon,
            writes,
            body: Some(Body { hands, process }),
            unit_reason: ready.unit.why,
            ..before
        });
        let memory_bytes = entry.memory_bytes;
        self.vms.insert(name.to_owned(), entry);
        self.arrived(name, spec, is_anew);
        self.watch_agent(name, &ready.config, Some(memory_bytes));
        if !is_anew {
            self.carry_pause(name);
            if ready.config.fast_bytes > 0 {
                self.command(Command::FastSize(id, ready.config.fast_bytes));
            }
        }
    }

    fn context(&self, vm: VmId, ready: &Ready) -> Context {
        Context {
            vm,
            target: Target {
                process: Arc::clone(ready.vm.process()),
                memory: Arc::clone(&ready.memory),
                unit: ready.unit.size,
                others_map: false,
            },
            watch: Arc::new(ready.vm.watch(&ready.memory)),
            root: self.root.clone(),
            topology: Arc::clone(&self.topology),
            inbox: self.inbox.clone(),
        }
    }

    /// Lists a VM that cannot be managed, with the reason.
    fn leave_alone(
        &mut self,
        name: &str,
        mut entry: Entry,
        reason: String,
        remapped: Option<Managed>,
    ) {
        entry.unscannable = true;
        entry.reason = reason;
        self.vms.insert(name.to_owned(), entry);
        self.give_up_remapped(remapped);
    }

    /// Each VM is believed by itself; all together may claim twice what one may.
    fn too_much_ram(&self, claimed: u64, most_of_one: u64) -> Option<String> {
        let managed = self.vms.values().filter(|entry| entry.managed.is_some());
        let held: u64 = managed.map(|entry| entry.memory_bytes).sum();
        let most = most_of_one.saturating_mul(2);
        (held.saturating_add(claimed) > most).then(|| {
            format!(
                "with its {} MiB of RAM all VMs together claim more than {} MiB, which are not believed: raise \
                 most_ram_percent under [hypervisors] where they really have them",
                claimed >> 20,
                most >> 20
            )
        })
    }

    fn soft_dirty(&self, context: &Context, config: &VmConfig) -> Option<SoftDirty> {
        (config.writes == WriteSource::SoftDirty).then(|| {
            SoftDirty::new(
                context.root.clone(),
                Arc::clone(&context.target.process),
                Arc::clone(&context.target.memory),
                config.write_pause_budget,
                self.config.engine.windows,
            )
        })
    }

    /// Keeps what a VM's source of writes does.
    pub fn keep_write_words(&mut self, vm: VmId, words: String) {
        if let Some(managed) = self.managed_mut(vm) {
            managed.writes = Some(words);
        }
    }

    /// Keeps why a VM's tracker sees less of it than it could.
    pub fn keep_shortfall(&mut self, vm: VmId, words: Option<String>) {
        if let Some(managed) = self.managed_mut(vm) {
            managed.shortfall = words;
        }
    }

    fn managed_mut(&mut self, vm: VmId) -> Option<&mut Managed> {
        let mut managed = self.vms.values_mut().filter_map(|e| e.managed.as_mut());
        managed.find(|m| m.id == vm)
    }

    /// The scout looked everywhere: VMs whose process is not known are gone with their socket.
    pub fn looked(&mut self, looked: Looked) {
        self.look_findings = looked.findings;
        self.refused
            .retain(|socket, _| looked.sockets.contains(socket));
        let stays = |entry: &Entry| {
            entry.managed.is_some()
                || entry.process.is_some()
                || looked.sockets.contains(&entry.socket)
        };
        let gone = self.vms.extract_if(.., |_, entry| !stays(entry));
        let gone: Vec<_> = gone.collect();
        for (name, _) in &gone {
            self.forget_agent(name);
        }
        if !gone.is_empty() {
            self.forget_elastic();
        }
    }

    /// Drops VMs whose process has ended.
    pub fn forget_ended(&mut self) {
        let has_ended = |entry: &Entry| {
            let body = entry.managed.as_ref().and_then(|m| m.body.as_ref());
            match (body, entry.process) {
                (Some(body), _) => !body.process.is_alive(),
                (None, Some(process)) => !process.exists(&self.root.proc()),
                (None, None) => false,
            }
        };
        let ended = self.vms.iter().filter(|(_, entry)| has_ended(entry));
        let ended: Vec<String> = ended.map(|(name, _)| name.clone()).collect();
        for name in ended {
            let entry = self.vms.remove(&name);
            self.forget_agent(&name);
            self.forget_elastic();
            self.tell(Some(&name), "the VM ended".into());
            if let Some(managed) = entry.and_then(|e| e.managed) {
                self.handle(Event::VmDeparted(managed.id));
            }
        }
    }

    /// Keeps what a VM's last moves showed.
    pub fn keep_findings(&mut self, vm: VmId, findings: Vec<Finding>) {
        let mut managed = self.vms.values_mut().filter_map(|e| e.managed.as_mut());
        if let Some(managed) = managed.find(|m| m.id == vm) {
            managed.move_findings = findings;
        }
    }
}

/// What a VM's source of writes does, where one is configured.
fn write_words(
    soft_dirty: Option<&SoftDirty>,
    choice: WriteSource,
    tracker: &Tracker,
) -> Option<String> {
    match (soft_dirty, choice, tracker) {
        (Some(source), ..) => Some(source.words().to_owned()),
        (_, WriteSource::SoftBit, Tracker::GuestTables(_)) => {
            Some("dirty bits, moved to bit 58 (Linux 6.6 or later, as configured)".into())
        }
        (_, WriteSource::SoftBit, Tracker::Damon(_)) => {
            Some("reads only (DAMON sees no dirty bits)".into())
        }
        _ => None,
    }
}

fn spec(vm: VmId, name: &str, ram: Vec<RamRange>, unit: PageSize, config: &VmConfig) -> VmSpec {
    VmSpec {
        vm,
        name: name.to_owned(),
        ram,
        unit,
        limits: config.limits.clone(),
        weight: config.weight,
        moves: config.moves,
    }
}
