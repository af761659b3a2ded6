//! The discoverer's reports, taken in: which VMs come under management, under which name, and which are gone.

use std::path::Path;

use terrace_config::VmConfig;
use terrace_host::qemu::who::Refusal;
use terrace_proto::{Command, Event, PAGE_SIZE, PageSize, Processors, RamRange, VmId, VmSpec};
use terrace_sys::ProcessId;

use super::Daemon;
use crate::discovery::second_of_name;
use crate::messages::{Discovered, DiscoveryScan, Ready, State};
use crate::registry::{Agent, Entry, InForce, Managed, Tracking, VmKey};

impl Daemon {
    /// Takes in one report of the discoverer.
    pub fn found(&mut self, found: Discovered) {
        if let Some(vm) = self.take_in(found) {
            self.keep_provider(vm, false);
            self.enter_rights(vm);
        }
    }

    /// Enters the VM in the registry, under management if it is ready; returns the key that it got.
    fn take_in(&mut self, found: Discovered) -> Option<VmKey> {
        let is_worked_for = |m: &Managed| self.executors.of(m.id).is_some();
        let known =
            |e: &Entry| e.managed.as_ref().is_some_and(is_worked_for) && e.process == found.process;
        let of_name = self.vms.key(&found.name);
        let is_reinspected = matches!(found.state, State::Agent(_)) && of_name.is_some();
        if self.vms.iter().any(|(_, entry)| known(entry)) && !is_reinspected {
            // A second monitor of a VM that is managed by its first.
            return None;
        }
        if let Some(refusal) = self.why_refused(&found) {
            if let Some(text) = self.discoverer.refuse(found, &refusal) {
                self.session.tell(None, text);
            }
            return None;
        }
        self.discoverer.admit(&found.socket);
        let name = found.name;
        self.forget_other_names(&name, &found.socket);
        let mut entry = Entry {
            name,
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
        if let Some(known) = of_name.and_then(|vm| self.vms.get_mut(vm)) {
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
                if let Some(known) = of_name.and_then(|vm| self.vms.get_mut(vm)) {
                    // The host may be about to manage it, or does so in the agent's place.
                    entry.managed = known.managed.take();
                }
                let key = self.vms.put(entry);
                self.found_agent_vm(key, *vm);
                return Some(key);
            }
            State::Ready(ready) => return Some(self.found_ready(entry, *ready)),
        }
        let remapped = self.take_remapped(&entry.name);
        self.give_up_remapped(remapped);
        let said = of_name.and_then(|vm| self.vms.get(vm));
        if said.map(|known| &known.reason) != Some(&entry.reason) {
            self.session
                .tell(Some(&entry.name), format!("found: {}", entry.reason));
        }
        Some(self.vms.put(entry))
    }

    /// Manages a VM that is ready, unless its agent manages it.
    fn found_ready(&mut self, entry: Entry, ready: Ready) -> VmKey {
        let remapped = self.take_remapped(&entry.name);
        let of_host = |a: &Agent| matches!(a.in_force, InForce::Fallback(_) | InForce::Host);
        if entry.agent.as_ref().is_none_or(of_host) {
            return self.manage(entry, ready, remapped);
        }
        // Too late: the agent manages the VM. The worker ends when `ready` is dropped.
        let vm = self.vms.put(entry);
        self.give_up_remapped(remapped);
        vm
    }

    fn why_refused(&self, found: &Discovered) -> Option<Refusal> {
        if let State::Refused(refusal) = &found.state {
            return Some(refusal.clone());
        }
        let holder = self.holder(&found.name, found.process)?;
        Some(second_of_name(&found.name, holder.pid))
    }

    /// The other process that has this name and still lives: the first VM of a name stays, and nothing is renamed.
    fn holder(&self, name: &str, process: Option<ProcessId>) -> Option<ProcessId> {
        let lives = |process: &ProcessId| self.host.runs(*process);
        let vm = self.vms.key(name)?;
        let provisioned = self.provisioning.process(vm);
        let known = self.vms.get(vm);
        let managed = known.filter(|entry| entry.managed.is_some());
        let managed = managed.and_then(|entry| entry.process);
        let known = known.and_then(|entry| entry.process).filter(lives);
        let provisioned = provisioned.filter(|_| process.is_some()).filter(lives);
        let holders = [managed, known, provisioned].into_iter().flatten();
        holders.into_iter().find(|holder| process != Some(*holder))
    }

    /// Drops entries that a socket has under other names: they were listed before the VM's monitor answered with its
    /// name.
    fn forget_other_names(&mut self, name: &str, socket: &Path) {
        let gone = self.vms.keep(|entry| {
            let is_in_use = entry.managed.is_some() || entry.agent.is_some();
            entry.name == name || entry.socket != socket || is_in_use
        });
        if !gone.is_empty() {
            self.forget_providers();
        }
    }

    /// Manages a VM that is ready: one whose memory map changed continues under its id.
    fn manage(&mut self, mut entry: Entry, ready: Ready, remapped: Option<Managed>) -> VmKey {
        let ram = ready.memory.ram();
        entry.memory_bytes = ram.iter().map(|r| r.pages.saturating_mul(PAGE_SIZE)).sum();
        if let Some(reason) = self.too_much_ram(entry.memory_bytes, ready.most_ram) {
            self.session
                .tell(Some(&entry.name), format!("found: {reason}"));
            return self.leave_alone(entry, reason, remapped);
        }
        let accelerator = if ready.identity.kvm {
            "QEMU with KVM"
        } else {
            "QEMU (TCG)"
        };
        entry.hypervisor = accelerator.into();
        let is_anew = remapped.is_some();
        let id = remapped.as_ref().map(|managed| managed.id);
        let id = id.unwrap_or_else(|| self.executors.next_id());
        let (config, unit) = (ready.config.clone(), ready.unit.clone());
        let (guest_nodes, vcpus) = (ready.guest_nodes.clone(), ready.vcpus);
        let spec = spec(id, &entry.name, ram, unit.size, &config);
        let tracking = match self.executors.start(id, ready) {
            Ok(tracking) => tracking,
            Err(error) => {
                let reason = format!("its threads could not be started: {error}");
                return self.leave_alone(entry, reason, remapped);
            }
        };
        let before = remapped.unwrap_or_else(|| Managed::new(id, String::new()));
        entry.managed = Some(Managed {
            tracking: Tracking {
                shortfall: before.tracking.shortfall,
                ..tracking
            },
            unit_reason: unit.why,
            ..before
        });
        let memory_bytes = entry.memory_bytes;
        let vm = self.vms.put(entry);
        self.arrived(vm, spec, is_anew);
        self.handle(Event::Processors(Processors { vm: id, vcpus }));
        self.watch_agent(vm, &config, Some(memory_bytes));
        if let Some(nodes) = guest_nodes {
            self.found_nodes(vm, id, nodes);
        }
        if !is_anew {
            self.carry_pause(vm);
            if config.sizes.fast_bytes > 0 {
                self.command(Command::FastSize(id, config.sizes.fast_bytes));
            }
        }
        vm
    }

    /// Lists a VM that cannot be managed, with the reason.
    fn leave_alone(
        &mut self,
        mut entry: Entry,
        reason: String,
        remapped: Option<Managed>,
    ) -> VmKey {
        entry.unscannable = true;
        entry.reason = reason;
        let vm = self.vms.put(entry);
        self.give_up_remapped(remapped);
        vm
    }

    /// The reason why all VMs together claim too much RAM, if they do. Each VM's claim is checked by itself; all
    /// together may claim twice the limit of one.
    fn too_much_ram(&self, claimed: u64, most_of_one: u64) -> Option<String> {
        let entries = self.vms.iter().map(|(_, entry)| entry);
        let managed = entries.filter(|entry| entry.managed.is_some());
        let held: u64 = managed.map(|entry| entry.memory_bytes).sum();
        let most = most_of_one.saturating_mul(2);
        (held.saturating_add(claimed) > most).then(|| {
            format!(
                "with its {} MiB of RAM all VMs together claim more than {} MiB, which is refused: raise \
                 most_ram_percent under [hypervisors] if they really have that much",
                claimed >> 20,
                most >> 20
            )
        })
    }

    /// Takes in the end of a discovery scan: VMs whose process is not known are gone with their socket.
    pub fn discovery_scan(&mut self, discovery_scan: DiscoveryScan) {
        let DiscoveryScan { findings, sockets } = discovery_scan;
        self.discoverer.discovery_scan(findings, &sockets);
        let stays = |entry: &Entry| {
            entry.managed.is_some() || entry.process.is_some() || sockets.contains(&entry.socket)
        };
        let gone = self.vms.keep(stays);
        for (vm, entry) in &gone {
            self.forget_agent(*vm, &entry.name);
        }
        if !gone.is_empty() {
            self.forget_providers();
        }
    }

    /// Drops VMs whose process has ended.
    pub fn forget_ended(&mut self) {
        let ended = self.vms.iter().filter(|(_, entry)| self.has_ended(entry));
        let ended: Vec<VmKey> = ended.map(|(vm, _)| vm).collect();
        for vm in ended {
            let Some(entry) = self.vms.remove(vm) else {
                continue;
            };
            self.forget_agent(vm, &entry.name);
            self.forget_providers();
            self.session.tell(Some(&entry.name), "the VM ended".into());
            if let Some(managed) = entry.managed {
                self.handle(Event::VmDeparted(managed.id));
                let _ = self.named.end(managed.id, self.session.now());
                drop(self.executors.take(managed.id));
            }
        }
    }

    fn has_ended(&self, entry: &Entry) -> bool {
        let managed = entry.managed.as_ref();
        let executor = managed.and_then(|managed| self.executors.of(managed.id));
        match (executor, entry.process) {
            (Some(executor), _) => !executor.is_alive(),
            (None, Some(process)) => !self.host.runs(process),
            (None, None) => false,
        }
    }
}

fn spec(vm: VmId, name: &str, ram: Vec<RamRange>, unit: PageSize, config: &VmConfig) -> VmSpec {
    VmSpec {
        vm,
        name: name.to_owned(),
        ram,
        unit,
        limits: config.sizes.limits.clone(),
        weight: config.weight,
        moves: config.moves,
    }
}
