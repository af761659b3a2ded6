//! The VMs that the daemon knows, by key and by name.
//!
//! Responsible for: what is known of each VM, and whose a name is. All of it is plain data, so that a view is made of a
//! copy. It leaves to others: who comes under management and who is gone (`daemon`), and the threads that work
//! for a VM (`executor`).

mod agent;
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
pub use managed::{Managed, Tracking, TrackingNews};

use crate::events::Events;

/// A VM's key, as long as the daemon knows it. Its [`VmId`] in the engine is another one each time that it comes under
/// management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmKey(u32);

/// A VM, managed or not.
#[derive(Clone)]
pub struct Entry {
    /// Its name, which no other VM of the host has.
    pub name: String,
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
    /// What the daemon keeps of it while the engine knows it.
    pub managed: Option<Managed>,
    /// The agent in the guest, where the configuration asks for one.
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

    /// A VM.
    pub fn get(&self, key: VmKey) -> Option<&Entry> {
        self.vms.get(&key)
    }

    /// A VM, to change it; its name stays.
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

    /// The VM that has this id in the engine.
    pub fn of_id(&self, id: VmId) -> Option<VmKey> {
        let is_it = |entry: &Entry| entry.managed.as_ref().is_some_and(|m| m.id == id);
        let found = self.vms.iter().find(|(_, entry)| is_it(entry));
        found.map(|(key, _)| *key)
    }

    /// What is kept of the VM that has this id in the engine.
    pub fn managed_mut(&mut self, id: VmId) -> Option<&mut Managed> {
        let mut managed = self.vms.values_mut().filter_map(|e| e.managed.as_mut());
        managed.find(|m| m.id == id)
    }

    /// Keeps what a VM's tracker says of itself.
    pub fn keep_tracking(&mut self, id: VmId, news: TrackingNews) {
        if let Some(managed) = self.managed_mut(id) {
            managed.tracking.hear(news);
        }
    }

    /// Keeps what a VM's last moves showed.
    pub fn keep_move_findings(&mut self, id: VmId, findings: Vec<Finding>) {
        if let Some(managed) = self.managed_mut(id) {
            managed.move_findings = findings;
        }
    }

    /// Lists a VM. One that is known by its name is replaced, and its key stays.
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

    /// Forgets all VMs but these.
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

    /// How many are known.
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

    /// Makes the engine's new reasons events, and remembers its rounds.
    pub fn tell_reasons(&mut self, engine: &Engine, events: &mut Events) {
        for (name, key) in &self.keys {
            let entry = self.vms.get_mut(key);
            let Some(managed) = entry.and_then(|entry| entry.managed.as_mut()) else {
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
}
