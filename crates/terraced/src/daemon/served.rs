//! This host as the API shows and steers it.

use std::sync::Arc;

use terrace_api::elastic::{Elastic, Resize};
use terrace_api::types;
use terrace_core::{Engine, PolicyChoice};
use terrace_host::{Finding, doctor};
use terrace_proto::provision::{NotOrdered, Origin};
use terrace_proto::{Command, Tick};

use super::Daemon;
use crate::confine::{self, Role};
use crate::events::Events;
use crate::provisioning::findings;
use crate::registry::{Registry, VmKey};
use crate::served::{FindHost, Over, ResizeAnswer, Served};

impl Served for Daemon {
    fn engine(&self) -> &Engine {
        self.session.engine()
    }

    fn now(&self) -> Tick {
        self.clock.now()
    }

    fn vms(&self) -> &Registry {
        &self.vms
    }

    fn tiers(&self) -> Vec<types::Tier> {
        let tier = |tier: &terrace_host::topology::Tier| types::Tier {
            name: tier.name.clone(),
            nodes: tier.nodes.iter().map(|n| n.0).collect(),
            total_bytes: tier.total_bytes,
            free_bytes: self.memory.get(tier.id.index()).map_or(0, |m| m.free_bytes),
        };
        self.topology.tiers.iter().map(tier).collect()
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn policy(&self) -> String {
        policy_name(&self.config.engine.policy)
    }

    fn moves(&self) -> bool {
        let mut names = self.vms.names();
        names.any(|name| self.config.vm(name).is_ok_and(|vm| vm.moves))
    }

    fn paused(&self) -> bool {
        self.paused
    }

    fn log_ended(&self) -> Option<String> {
        self.session.log().ended().map(str::to_owned)
    }

    fn find_host(&self) -> FindHost {
        let (root, topology) = (self.root.clone(), Arc::clone(&self.topology));
        let looked = self.look_findings.iter().chain(self.refused.values());
        let looked: Vec<Finding> = looked.cloned().collect();
        let elastic = self.elastic_host_findings();
        let log = self.session.log().ended().map(|why| {
            let advice = "give the log another disk or limit ([log]), and start terraced again";
            Finding::degraded("log", why, advice)
        });
        Box::new(move || {
            let host = confine::run(Role::Doctor, move || doctor::host(&root, &topology));
            let mut findings = host.unwrap_or_else(|error| vec![confine::not_looked(&error)]);
            findings.extend(confine::findings());
            findings.extend(looked);
            findings.extend(elastic);
            findings.extend(log);
            findings
        })
    }

    fn wish(&mut self, command: Command) -> Result<(), Over> {
        self.command(command);
        Ok(())
    }

    fn elastic(&self, vm: VmKey) -> Option<Elastic> {
        self.elastic_view(vm)
    }

    fn elastic_findings(&self, vm: VmKey) -> Vec<Finding> {
        let view = self.elastic_view(vm);
        view.map_or_else(Vec::new, |view| findings::findings(&view))
    }

    fn resize(
        &mut self,
        vm: VmKey,
        origin: Origin,
        sizes: &Resize,
    ) -> Result<ResizeAnswer, NotOrdered> {
        self.want_sizes(vm, origin, sizes)
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
