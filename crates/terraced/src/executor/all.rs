//! The executors of all VMs: which VM has which, and its id in the engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use terrace_config::Config;
use terrace_core::EngineConfig;
use terrace_host::HostRoot;
use terrace_host::mover::{Mover, MoverConfig, Target};
use terrace_host::topology::Topology;
use terrace_proto::{Action, VmId};

use super::Executor;
use super::context::Context;
use super::observer::{Observer, WriteConfig};
use crate::messages::{Input, Ready};
use crate::registry::Tracking;

/// The executors of all VMs that have one, by their ids in the engine, and their shared state.
pub struct Executors {
    each: BTreeMap<VmId, Executor>,
    /// The last id that a VM got.
    last: u32,
    /// The mover of the pages of all VMs.
    mover: Arc<Mover>,
    /// The engine's configuration, which has the scans of each VM's rounds.
    engine: EngineConfig,
    root: HostRoot,
    topology: Arc<Topology>,
    inbox: Sender<Input>,
}

impl Executors {
    /// A set without executors yet.
    pub fn new(
        config: &Config,
        root: &HostRoot,
        topology: &Arc<Topology>,
        inbox: Sender<Input>,
    ) -> Self {
        let budget = config.engine.move_budget_bytes_per_s;
        let mover = MoverConfig {
            threads: config.mover.workers,
            batch_pages: 1024,
            bytes_per_s: (budget > 0).then_some(budget),
            attempts: config.mover.attempts,
        };
        Self {
            each: BTreeMap::new(),
            last: 0,
            mover: Arc::new(Mover::new(root.clone(), Arc::clone(topology), mover)),
            engine: config.engine.clone(),
            root: root.clone(),
            topology: Arc::clone(topology),
            inbox,
        }
    }

    /// The id of the next VM that gets an executor.
    pub fn next_id(&self) -> VmId {
        VmId(self.last + 1)
    }

    /// Starts the executor of a VM that is ready, by this id; returns how the VM is tracked.
    ///
    /// # Errors
    /// If the VM's threads cannot be started.
    pub fn start(&mut self, vm: VmId, ready: Ready) -> std::io::Result<Tracking> {
        let context = self.context(vm, &ready);
        let writes = WriteConfig {
            source: ready.config.writes.source,
            pause_budget: ready.config.writes.pause_budget,
            windows: self.engine.windows_of(&ready.identity.name),
        };
        let observer = Observer::new(&context, ready.vm, ready.tracker, writes);
        let tracking = Tracking {
            damon: ready.damon,
            writes: observer.writes_description(),
            shortfall: None,
        };
        let executor = Executor::start(&context, observer, Arc::clone(&self.mover))?;
        self.each.insert(vm, executor);
        self.last = self.last.max(vm.0);
        Ok(tracking)
    }

    fn context(&self, vm: VmId, ready: &Ready) -> Context {
        Context {
            vm,
            target: Target {
                process: Arc::clone(ready.vm.process()),
                memory: Arc::clone(&ready.memory),
                unit: ready.unit.size,
                others_map: false,
            },
            watch: Arc::new(ready.vm.watch(&ready.memory)),
            root: self.root.clone(),
            topology: Arc::clone(&self.topology),
            inbox: self.inbox.clone(),
        }
    }

    /// Takes a VM's executor out; its work ends when the returned value is dropped.
    pub fn take(&mut self, vm: VmId) -> Option<Executor> {
        self.each.remove(&vm)
    }

    /// A VM's executor.
    pub fn of(&self, vm: VmId) -> Option<&Executor> {
        self.each.get(&vm)
    }

    /// Hands a decision about a VM's pages to its executor; without one nothing can be done.
    pub fn act(&self, vm: VmId, action: Action) {
        if let Some(executor) = self.of(vm) {
            executor.act(action);
        }
    }

    /// Ends moves of a VM, or of all, at their next batch, or lets them continue.
    pub fn halt(&self, vm: Option<VmId>, halt: bool) {
        for (id, executor) in &self.each {
            if vm.is_none_or(|vm| vm == *id) {
                executor.halt(halt);
            }
        }
    }
}
