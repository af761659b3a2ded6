//! VMs whose memory map changed: their threads end at once, the discoverer makes them ready anew, and they continue
//! under their id with the operator's settings.

use terrace_proto::{Event, PageSize, RamChange, VmId, VmSpec};

use super::Daemon;
use crate::registry::{Managed, VmKey};

impl Daemon {
    /// Ends all work by a VM's old map: nothing is scanned, moved or held by it from now on.
    pub fn map_changed(&mut self, id: VmId, change: &str) {
        let Some(vm) = self.vms.of_id(id) else {
            return;
        };
        // What is named still is of the old map.
        self.end_named(id);
        if self.executors.of(id).is_none() {
            return;
        }
        // Now, so that its threads, its worker and the files of its RAM are let go.
        drop(self.executors.take(id));
        if let Some(managed) = self.vms.managed_mut(id) {
            managed.tracking.shortfall = None;
        }
        self.handle(Event::RamChanged(RamChange {
            vm: id,
            ram: Vec::new(),
            unit: PageSize::Base,
        }));
        if let Some(process) = self.vms.get(vm).and_then(|entry| entry.process) {
            self.discoverer.claims().reattach(process);
        }
        let text = format!("its memory map changed: {change}; it is made ready anew");
        self.tell_of(vm, text);
        // The provider may have another size, or be gone.
        self.provider_changed(vm);
    }

    /// Takes the daemon's state of the VM of this name out of the registry if its map changed, and it is not ready
    /// anew yet.
    pub fn take_remapped(&mut self, name: &str) -> Option<Managed> {
        let vm = self.vms.key(name)?;
        let executors = &self.executors;
        let managed = &mut self.vms.get_mut(vm)?.managed;
        managed.take_if(|managed| executors.of(managed.id).is_none())
    }

    /// Tells the engine of a VM that is ready, for the first time or anew.
    pub fn arrived(&mut self, vm: VmKey, spec: VmSpec, is_anew: bool) {
        if is_anew {
            let VmSpec {
                vm: id, ram, unit, ..
            } = spec;
            self.tell_of(vm, "under management by its new memory map".into());
            self.handle(Event::RamChanged(RamChange { vm: id, ram, unit }));
        } else {
            self.tell_of(vm, "under management".into());
            self.handle(Event::VmArrived(spec));
        }
    }

    /// Ends the management of a VM whose map changed, and which cannot be managed by the new one.
    pub fn give_up_remapped(&mut self, remapped: Option<Managed>) {
        if let Some(managed) = remapped {
            self.handle(Event::VmDeparted(managed.id));
            let _ = self.named.end(managed.id, self.session.now());
        }
    }
}
