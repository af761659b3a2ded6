//! The VMs that the daemon knows, by key and by name.
//!
//! Responsible for: the facts known of each VM, and which VM a name belongs to. All of it is plain data, so that a view
//! is made of a copy. Which VMs come under management and which are gone is left to `daemon`, the threads that work for
//! a VM to `executor`.

mod agent;
mod gathers;
mod managed;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use terrace_core::Engine;
use terrace_host::Finding;
use terrace_proto::VmId;
use terrace_sys::ProcessId;

pub use agent::{Agent, InForce};
pub use gathers::Gathers;
pub use managed::{Managed, Tracking, TrackingNews};

use crate::events::Events;

/// A VM's key, as long as the daemon knows the VM. Its [`VmId`] in the engine is another one each time that it comes
/// under management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmKey(u32);

/// A VM, managed or not.
#[derive(Clone)]
pub struct Entry {
    /// The VM's name, which no other VM of the host has.
    pub name: String,
    /// The hypervisor's process; `None` if it is not known.
    pub process: Option<ProcessId>,
    /// The socket of the VM's monitor.
    pub socket: PathBuf,
    /// The kind of hypervisor, as `QEMU with KVM`, `QEMU (TCG)`.
    pub hypervisor: String,
    /// Guest RAM, bytes.
    pub memory_bytes: u64,
    /// The reason why the VM is not managed, if there is one; else empty.
    pub reason: String,
    /// Whether the VM is opted in, but something is in the way.
    pub unscannable: bool,
    /// Findings about the VM, for `doctor`.
    pub findings: Vec<Finding>,
    /// The state of a VM that the engine knows; `None` if it does not.
    pub managed: Option<Managed>,
    /// The agent in the guest; `None` if the configuration has none.
    pub agent: Option<Agent>,
}

/// All VMs that are known.
#[derive(Default)]
pub struct Registry {
    vms: BTreeMap<VmKey, Entry>,
    keys: BTreeMap<String, VmKey>,
    last: u32,
}

impl Registry {
    /// The key of the VM of this name.
    pub fn key(&self, name: &str) -> Option<VmKey> {
        self.keys.get(name).copied()
    }

    /// The entry of a VM.
    pub fn get(&self, key: VmKey) -> Option<&Entry> {
        self.vms.get(&key)
    }

    /// The entry of a VM, to change it; its name stays.
    pub fn get_mut(&mut self, key: VmKey) -> Option<&mut Entry> {
        self.vms.get_mut(&key)
    }

    /// The agent of a VM.
    pub fn agent(&self, key: VmKey) -> Option<&Agent> {
        self.get(key)?.agent.as_ref()
    }

    /// The agent of a VM, to change it.
    pub fn agent_mut(&mut self, key: VmKey) -> Option<&mut Agent> {
        self.get_mut(key)?.agent.as_mut()
    }

    /// The key of the VM that has this id in the engine.
    pub fn of_id(&self, id: VmId) -> Option<VmKey> {
        let is_it = |entry: &Entry| entry.managed.as_ref().is_some_and(|m| m.id == id);
        let found = self.vms.iter().find(|(_, entry)| is_it(entry));
        found.map(|(key, _)| *key)
    }

    /// The managed state of the VM that has this id in the engine.
    pub fn managed_mut(&mut self, id: VmId) -> Option<&mut Managed> {
        let mut managed = self.vms.values_mut().filter_map(|e| e.managed.as_mut());
        managed.find(|m| m.id == id)
    }

    /// Takes in news of a VM's tracker.
    pub fn keep_tracking(&mut self, id: VmId, news: TrackingNews) {
        if let Some(managed) = self.managed_mut(id) {
            managed.tracking.hear(news);
        }
    }

    /// Keeps the findings about a VM's last moves.
    pub fn keep_move_findings(&mut self, id: VmId, findings: Vec<Finding>) {
        if let Some(managed) = self.managed_mut(id) {
            managed.move_findings = findings;
        }
    }

    /// Enters a VM. A VM that is known by its name is replaced, and its key stays.
    pub fn put(&mut self, entry: Entry) -> VmKey {
        let key = self.key(&entry.name).unwrap_or_else(|| {
            self.last += 1;
            let key = VmKey(self.last);
            self.keys.insert(entry.name.clone(), key);
            key
        });
        self.vms.insert(key, entry);
        key
    }

    /// Forgets a VM.
    pub fn remove(&mut self, key: VmKey) -> Option<Entry> {
        let entry = self.vms.remove(&key)?;
        self.keys.remove(&entry.name);
        Some(entry)
    }

    /// Forgets all VMs but those that stay; returns the forgotten ones.
    pub fn keep(&mut self, stays: impl Fn(&Entry) -> bool) -> Vec<(VmKey, Entry)> {
        let goes = |(_, entry): &(VmKey, &Entry)| !stays(entry);
        let gone: Vec<VmKey> = self.iter().filter(goes).map(|(key, _)| key).collect();
        let gone = gone.into_iter();
        gone.filter_map(|key| self.remove(key).map(|entry| (key, entry)))
            .collect()
    }

    /// Whether a VM is known.
    pub fn has(&self, key: VmKey) -> bool {
        self.vms.contains_key(&key)
    }

    /// Number of VMs that are known.
    pub fn len(&self) -> usize {
        self.vms.len()
    }

    /// All VMs, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (VmKey, &Entry)> {
        let keys = self.keys.values().copied();
        keys.filter_map(|key| self.get(key).map(|entry| (key, entry)))
    }

    /// All names, in their order.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.keys.keys()
    }

    /// Makes the engine's new reasons events, and keeps its rounds.
    pub fn tell_reasons(&mut self, engine: &Engine, events: &mut Events) {
        for (name, key) in &self.keys {
            let entry = self.vms.get_mut(key);
            let Some(managed) = entry.and_then(|entry| entry.managed.as_mut()) else {
                continue;
            };
            let mut last_reason = managed.last_reason;
            for reason in engine.vm_reasons(managed.id, last_reason) {
                last_reason = reason.sequence;
                events.push(reason.at, Some(name), reason.text.clone());
            }
            managed.last_reason = last_reason;
            managed.keep_round(engine.last_round(managed.id));
        }
    }
}
