//! This host as the API shows and steers it.

use terrace_api::provision::{ProvisioningStatus, Resize};
use terrace_api::types;
use terrace_core::{Engine, PolicyChoice};
use terrace_host::Finding;
use terrace_proto::provision::{NotOrdered, Origin};
use terrace_proto::{Command, Tick};

use super::Daemon;
use crate::confine;
use crate::events::Events;
use crate::provisioning::findings;
use crate::registry::{Registry, VmKey};
use crate::served::{BalanceChange, FindHost, Over, ResizeAnswer, Served};

impl Served for Daemon {
    fn engine(&self) -> &Engine {
        self.session.engine()
    }

    fn now(&self) -> Tick {
        self.session.now()
    }

    fn vms(&self) -> &Registry {
        &self.vms
    }

    fn tiers(&self) -> Vec<types::Tier> {
        self.host.tiers()
    }

    fn events(&self) -> &Events {
        self.session.events()
    }

    fn policy(&self) -> String {
        policy_name(&self.config.engine.policy)
    }

    fn paused(&self) -> bool {
        self.paused
    }

    fn log_ended(&self) -> Option<String> {
        self.session.log_ended()
    }

    fn find_host(&self) -> FindHost {
        let host = self.host.doctor();
        let discovered = self.discoverer.findings();
        let provisioning = self.provisioning_host_findings();
        let log = self.session.log_finding();
        let sections = self.sections_without_vm();
        Box::new(move || {
            let mut findings = host();
            findings.extend(confine::findings());
            findings.extend(discovered);
            findings.extend(provisioning);
            findings.extend(log);
            findings.extend(sections);
            findings
        })
    }

    fn command(&mut self, command: Command) -> Result<(), Over> {
        self.command(command);
        Ok(())
    }

    fn provisioning(&self, vm: VmKey) -> Option<ProvisioningStatus> {
        self.provisioning_view(vm)
    }

    fn provisioning_findings(&self, vm: VmKey) -> Vec<Finding> {
        let view = self.provisioning_view(vm);
        let mut found = view.as_ref().map_or_else(Vec::new, findings::findings);
        if self.is_balanced(vm) {
            found.extend(findings::balance(
                view.as_ref(),
                self.provisioning.setup(vm),
            ));
        }
        found
    }

    fn resize(
        &mut self,
        vm: VmKey,
        origin: Origin,
        sizes: &Resize,
    ) -> Result<ResizeAnswer, NotOrdered> {
        self.want_sizes(vm, origin, sizes)
    }

    fn balance(&mut self, vm: VmKey, change: BalanceChange) -> Result<(), String> {
        self.set_balance(vm, change)
    }

    fn halt_agent(&mut self, vm: VmKey, halt: bool) -> bool {
        self.halt_agents(Some(vm), halt)
    }
}

fn policy_name(choice: &PolicyChoice) -> String {
    match choice {
        PolicyChoice::Named(name) => name.clone(),
        PolicyChoice::Composed(stages) => format!("{} with other stages", stages.base),
    }
}
