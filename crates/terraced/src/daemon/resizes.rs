//! VMs that change size: the loop's work for their providers and reconcilers.

use terrace_api::provision::{ProvisioningStatus, Resize};
use terrace_core::arbiter::Rule;
use terrace_host::Finding;
use terrace_proto::provision::{NotOrdered, Origin};
use terrace_proto::{Event, MemoryBalance};

use super::Daemon;
use crate::messages::ProviderNews;
use crate::provisioning::{self, ResizeCandidate, three_ways};
use crate::registry::VmKey;
use crate::served::{BalanceChange, ResizeAnswer};

impl Daemon {
    /// Starts the reconciler of a VM that was found, or that an operator asks for, if the VM has resizable memory.
    pub fn keep_provider(&mut self, vm: VmKey, is_asked_for: bool) {
        let Some(entry) = self.vms.get(vm) else {
            return;
        };
        let process = entry.process;
        if self.provisioning.is_settled(vm, process, is_asked_for) {
            return;
        }
        let Ok(config) = self.config.vm(&entry.name) else {
            return;
        };
        let candidate = ResizeCandidate {
            vm,
            name: entry.name.clone(),
            process,
            monitor: entry.socket.clone(),
            config,
            is_asked_for,
        };
        match self
            .provisioning
            .keep(candidate, self.host.root(), &self.inbox)
        {
            Ok(events) => {
                self.handle_all(events);
                self.enter_rights(vm);
            }
            Err(error) => self.tell_of(
                vm,
                format!("its memory cannot be resized: its thread could not be started: {error}"),
            ),
        }
    }

    /// Whether no memory is shared.
    fn shares_nothing(&self) -> bool {
        self.config.engine.arbiter.rule == Rule::Off
    }

    /// Tells the engine a VM's rights in the sharing of memory, if they are new. They also say which VM of the engine's it
    /// is, which counts where huge pages are made and nothing is shared.
    pub fn enter_rights(&mut self, vm: VmKey) {
        let collapses = self.config.engine.provision.collapse_bytes_per_s > 0;
        let is_wanted = collapses || !self.shares_nothing();
        let Some(entry) = self.vms.get(vm).filter(|_| is_wanted) else {
            return;
        };
        let Ok(config) = self.config.vm(&entry.name) else {
            return;
        };
        let id = entry.managed.as_ref().map(|managed| managed.id);
        let events = self.provisioning.enter_rights(vm, id, &config);
        self.handle_all(events);
    }

    /// Changes a VM's part in the sharing of memory until the daemon restarts.
    ///
    /// # Errors
    /// If it has none: the reason.
    pub fn set_balance(&mut self, vm: VmKey, change: BalanceChange) -> Result<(), String> {
        let rights = self.provisioning.rights(vm);
        let Some(rights) = rights.filter(|_| !self.shares_nothing()) else {
            return Err("nothing resizes it, or mode is \"off\" under [balance]".into());
        };
        let provider = rights.provider;
        let event = match change {
            BalanceChange::On(is_on) => Some(Event::MemoryBalance(MemoryBalance {
                provider,
                is_on,
                is_pause: false,
            })),
            BalanceChange::Halted(halted) => Some(Event::MemoryBalance(MemoryBalance {
                provider,
                is_on: !halted,
                is_pause: true,
            })),
            BalanceChange::Floor(0) => {
                return Err(
                    "a VM that shares memory needs a memory_floor; balance=off leaves it alone"
                        .into(),
                );
            }
            BalanceChange::Floor(_) if rights.floor_bytes == 0 => {
                return Err("it has no memory_floor in the configuration: set one there and restart terraced".into());
            }
            BalanceChange::Floor(bytes) if bytes > rights.ceiling_bytes => {
                return Err(above(bytes, rights.ceiling_bytes));
            }
            BalanceChange::Ceiling(bytes) if bytes < rights.floor_bytes => {
                return Err(above(rights.floor_bytes, bytes));
            }
            BalanceChange::Floor(bytes) => self
                .provisioning
                .change_rights(vm, |rights| rights.floor_bytes = bytes),
            BalanceChange::Ceiling(bytes) => self
                .provisioning
                .change_rights(vm, |rights| rights.ceiling_bytes = bytes),
            BalanceChange::Weight(weight) => self
                .provisioning
                .change_rights(vm, |rights| rights.weight = weight),
        };
        self.handle_all(event.into_iter().collect());
        Ok(())
    }

    /// Tells the engine that a VM's provider may have another size, or be gone.
    pub fn provider_changed(&mut self, vm: VmKey) {
        if let Some(provider) = self.provisioning.provider(vm) {
            self.handle(Event::ProviderChanged(provider));
        }
    }

    /// Ends the reconcilers of VMs that are gone.
    pub fn forget_providers(&mut self) {
        let events = self.provisioning.forget_all_but(&self.vms);
        self.handle_all(events);
    }

    /// Hands news of a VM's provider to the engine.
    pub fn provider_news(&mut self, news: ProviderNews) {
        let host = || self.host.node_memory(self.session.engine());
        let event = self.provisioning.hear(news, host);
        self.handle(event);
    }

    /// Wants a VM to have other sizes; the answer comes once.
    ///
    /// # Errors
    /// If nothing could resize it, or the sizes make no sense.
    pub fn want_sizes(
        &mut self,
        vm: VmKey,
        origin: Origin,
        sizes: &Resize,
    ) -> Result<ResizeAnswer, NotOrdered> {
        let size_bytes = sizes.list().map_err(NotOrdered::Invalid)?;
        self.keep_provider(vm, true);
        let Some(provider) = self.provisioning.provider(vm) else {
            let name = self.vms.get(vm).map(|entry| entry.name.as_str());
            return Err(NotOrdered::NotNow(three_ways(name.unwrap_or_default())));
        };
        let (wanted, answered) = self.provisioning.want(provider, origin, size_bytes);
        self.handle(wanted);
        Ok(answered)
    }

    /// A VM's resizable memory as people see it.
    pub fn provisioning_view(&self, vm: VmKey) -> Option<ProvisioningStatus> {
        let (engine, now) = (self.session.engine(), self.session.now());
        self.provisioning.view(vm, engine, now)
    }

    /// Whether a VM is to take part in the sharing of memory.
    pub fn is_balanced(&self, vm: VmKey) -> bool {
        let is_off = self.config.engine.arbiter.rule == Rule::Off;
        let named = self.vms.get(vm).map(|entry| self.config.vm(&entry.name));
        let takes_part = named.and_then(Result::ok);
        !is_off && takes_part.is_some_and(|config| config.balance.takes_part())
    }

    /// Sections of the configuration whose VM is not there.
    pub fn sections_without_vm(&self) -> Option<Finding> {
        let is_there = |name: &str| self.vms.iter().any(|(_, entry)| entry.name == name);
        let gone: Vec<&str> = self.config.named().filter(|name| !is_there(name)).collect();
        (!gone.is_empty()).then(|| {
            let found = format!(
                "no VM of these names runs (QEMU's -name), which have a section [vm.NAME]: {}",
                gone.join(", ")
            );
            Finding::ok("vm-sections", found)
        })
    }

    /// Findings about the host's resizable memory, for `doctor`.
    pub fn provisioning_host_findings(&self) -> Vec<Finding> {
        if self.provisioning.is_empty() {
            return Vec::new();
        }
        let engine = self.session.engine();
        let shortage = provisioning::shortage_finding(engine, self.session.now());
        let mut findings = provisioning::host_findings(engine, &self.host.node_memory(engine));
        findings.extend(shortage);
        let mut vms = self.vms.iter();
        if vms.any(|(vm, _)| self.is_balanced(vm)) {
            findings.extend(provisioning::swap_finding(self.host.root()));
        }
        findings
    }
}

/// The refusal of a floor above the ceiling, bytes.
fn above(floor: u64, ceiling: u64) -> String {
    let [floor, ceiling] = [floor, ceiling].map(provisioning::size_text);
    format!("the floor of {floor} would be above the ceiling of {ceiling}")
}
