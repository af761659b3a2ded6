//! A copy of the data that a view is made of.
//!
//! Responsible for: copying, on the engine's thread, no more than one question needs. Views are made of it on other
//! threads ([`super::asker`]): a view of many VMs or of a large one keeps no decision waiting.

use std::collections::BTreeMap;

use terrace_api::provision::ProvisioningStatus;
use terrace_api::types;
use terrace_core::VmView;
use terrace_host::Finding;
use terrace_proto::Tick;

use super::failure::{Failure, no_vm};
use crate::registry::{Entry, VmKey};
use crate::served::{FindHost, Served};

/// The subject of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// The host alone.
    Host,
    /// All VMs, in short.
    Vms,
    /// All about one VM.
    Vm(String),
    /// All findings about host and VMs.
    Doctor,
}

/// The copy that answers one question.
pub struct Snapshot {
    /// The time of the copy.
    pub now: Tick,
    /// The tiers and their memory.
    pub tiers: Vec<types::Tier>,
    /// Name of the default policy.
    pub policy: String,
    /// Whether moves are turned on for some VM.
    pub moves: bool,
    /// Whether all VMs are paused.
    pub paused: bool,
    /// The reason why the observation log ended early; `None` if it did not.
    pub log_ended: Option<String>,
    /// Number of all VMs.
    pub count: usize,
    /// The VMs that the question is about.
    pub vms: BTreeMap<String, VmCopy>,
    /// Findings about the host, once [`Snapshot::inspect_host`] has run.
    pub findings: Vec<Finding>,
    find: Option<FindHost>,
}

/// The copy of one VM.
pub struct VmCopy {
    /// The registry's entry.
    pub entry: Entry,
    /// The engine's view; `None` if the engine does not have the VM.
    pub view: Option<VmView>,
    /// The VM's resizable memory.
    pub provisioning: Option<ProvisioningStatus>,
    /// Findings about the resizable memory.
    pub provisioning_findings: Vec<Finding>,
}

impl Snapshot {
    /// Copies the data that a question needs.
    ///
    /// # Errors
    /// If the question is about a VM that does not exist.
    pub fn of(served: &dyn Served, about: &About) -> Result<Self, Failure> {
        let vms = served.vms();
        let one = match about {
            About::Vm(name) => {
                let key = served.known(name)?;
                vms.get(key).map(|entry| (key, entry))
            }
            About::Host | About::Vms | About::Doctor => None,
        };
        let all = vms
            .iter()
            .filter(|_| matches!(about, About::Vms | About::Doctor));
        let copies = one.into_iter().chain(all);
        let copies =
            copies.map(|(vm, entry)| (entry.name.clone(), VmCopy::of(served, vm, entry, about)));
        Ok(Self {
            now: served.now(),
            tiers: served.tiers(),
            policy: served.policy(),
            // Not by the configuration: `terrace set` may have changed it.
            moves: served.engine().moves_some(),
            paused: served.paused(),
            log_ended: served.log_ended(),
            count: vms.len(),
            vms: copies.collect(),
            findings: Vec::new(),
            find: (*about == About::Doctor).then(|| served.find_host()),
        })
    }

    /// Looks at the host, for `doctor`.
    pub fn inspect_host(&mut self) {
        if let Some(find) = self.find.take() {
            self.findings = find();
        }
    }

    /// The copy of the VM of this name.
    ///
    /// # Errors
    /// If the question was not about that VM.
    pub fn vm(&self, name: &str) -> Result<&VmCopy, Failure> {
        let vm = self.vms.get(name);
        vm.ok_or_else(|| no_vm(name, self.vms.keys()))
    }
}

impl VmCopy {
    fn of(served: &dyn Served, vm: VmKey, entry: &Entry, about: &About) -> Self {
        let managed = entry.managed.as_ref();
        Self {
            entry: entry.clone(),
            view: managed.and_then(|m| served.engine().vm(m.id)),
            provisioning: served.provisioning(vm),
            provisioning_findings: match about {
                About::Doctor => served.provisioning_findings(vm),
                _ => Vec::new(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::{Engine, EngineConfig};
    use terrace_proto::{Command, Event, VmId, VmSpec};
    use terrace_testkit::engine::spec;

    use super::*;

    #[test]
    fn status_reports_moves_on_once_an_operator_turned_them_on() {
        let mut engine = Engine::new(EngineConfig::default()).unwrap();
        let observed = VmSpec {
            moves: false,
            ..spec(1, 512, 512)
        };
        engine.handle(Tick(0), Event::VmArrived(observed));
        assert!(!engine.moves_some());
        engine.handle(Tick(1), Event::Command(Command::Moves(VmId(1), true)));
        assert!(engine.moves_some());
    }
}
