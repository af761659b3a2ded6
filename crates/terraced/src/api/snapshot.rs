//! A copy of what a view is made of.
//!
//! Responsible for: copying, on the engine's thread, no more than one question needs. It leaves to others: making views
//! of it, which happens on other threads ([`super::asker`]): a view of many VMs or of a large one keeps no
//! decision waiting.

use std::collections::BTreeMap;

use terrace_api::elastic::Elastic;
use terrace_api::types;
use terrace_core::VmView;
use terrace_host::Finding;
use terrace_proto::Tick;

use super::failure::{Failure, no_vm};
use crate::registry::{Entry, VmKey};
use crate::served::{FindHost, Served};

/// What a question is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// The host alone.
    Host,
    /// All VMs, in short.
    Vms,
    /// All about one VM.
    Vm(String),
    /// All that there is to say about host and VMs.
    Doctor,
}

/// The copy.
pub struct Snapshot {
    /// When it was made.
    pub now: Tick,
    /// The tiers and their memory.
    pub tiers: Vec<types::Tier>,
    /// Name of the policy in general.
    pub policy: String,
    /// Moves are turned on for some VM.
    pub moves: bool,
    /// All VMs are paused.
    pub paused: bool,
    /// Why the observation log ended before its time, where it did.
    pub log_ended: Option<String>,
    /// How many VMs there are.
    pub count: usize,
    /// Those that the question is about.
    pub vms: BTreeMap<String, VmCopy>,
    /// What there is to say about the host, once it was looked for.
    pub findings: Vec<Finding>,
    find: Option<FindHost>,
}

/// A VM's part of it.
pub struct VmCopy {
    /// What the daemon knows.
    pub entry: Entry,
    /// What the engine shows, where it has the VM.
    pub view: Option<VmView>,
    /// Its elastic memory.
    pub elastic: Option<Elastic>,
    /// What there is to say about that.
    pub elastic_findings: Vec<Finding>,
}

impl Snapshot {
    /// Copies what a question needs.
    ///
    /// # Errors
    /// Where it is about a VM that is not there.
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
            moves: served.moves(),
            paused: served.paused(),
            log_ended: served.log_ended(),
            count: vms.len(),
            vms: copies.collect(),
            findings: Vec::new(),
            find: (*about == About::Doctor).then(|| served.find_host()),
        })
    }

    /// Looks at the host, for `doctor`.
    pub fn look_at_host(&mut self) {
        if let Some(find) = self.find.take() {
            self.findings = find();
        }
    }

    /// A VM of it.
    ///
    /// # Errors
    /// Where the question was not about that.
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
            elastic: served.elastic(vm),
            elastic_findings: match about {
                About::Doctor => served.elastic_findings(vm),
                _ => Vec::new(),
            },
        }
    }
}
