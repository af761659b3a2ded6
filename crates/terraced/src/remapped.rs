//! VMs whose memory map changed: their threads end at once, the scout makes them ready anew, and they go on under their
//! id with what an operator set.

use terrace_proto::{Event, PageSize, RamChange, VmId, VmSpec};

use crate::daemon::Daemon;
use crate::roster::{Entry, Managed};

impl Daemon {
    /// Nothing is scanned, moved or held by a VM's old map from now on.
    pub fn map_changed(&mut self, vm: VmId, words: &str) {
        let is_it = |entry: &Entry| entry.managed.as_ref().is_some_and(|m| m.id == vm);
        let Some((name, entry)) = self.vms.iter_mut().find(|(_, entry)| is_it(entry)) else {
            return;
        };
        let name = name.clone();
        let process = entry.process;
        let Some(managed) = entry.managed.as_mut().filter(|m| m.body.is_some()) else {
            return;
        };
        // Now, so that its threads, its worker and the files of its RAM are let go.
        managed.body = None;
        managed.shortfall = None;
        self.handle(Event::RamChanged(RamChange {
            vm,
            ram: Vec::new(),
            unit: PageSize::Base,
        }));
        if let Some(process) = process {
            self.claims.look_anew(process);
        }
        let text = format!("its memory map changed: {words}; it is made ready anew");
        self.tell(Some(&name), text);
        // What resizes it may have another size, or be gone.
        self.elastic_changed(&name);
    }

    /// What is kept of a VM whose map changed, until it is ready anew.
    pub fn take_remapped(&mut self, name: &str) -> Option<Managed> {
        let managed = &mut self.vms.get_mut(name)?.managed;
        managed.take_if(|managed| managed.body.is_none())
    }

    /// Tells the engine of a VM that is ready, for the first time or anew.
    pub fn arrived(&mut self, name: &str, spec: VmSpec, is_anew: bool) {
        if is_anew {
            let VmSpec { vm, ram, unit, .. } = spec;
            self.tell(Some(name), "under management by its new memory map".into());
            self.handle(Event::RamChanged(RamChange { vm, ram, unit }));
        } else {
            self.tell(Some(name), "under management".into());
            self.handle(Event::VmArrived(spec));
        }
    }

    /// A VM whose map changed cannot be managed by the new one.
    pub fn give_up_remapped(&mut self, remapped: Option<Managed>) {
        if let Some(managed) = remapped {
            self.handle(Event::VmDeparted(managed.id));
        }
    }
}

#[cfg(test)]
mod tests;
