mod frozen;
mod remapped;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use terrace_config::WriteSource;
use terrace_host::HostRoot;
use terrace_host::memory_map::GuestMemory;
use terrace_host::mover::{Mover, MoverConfig, Target};
use terrace_host::topology::Topology;
use terrace_host::tracker::{GuestTables, Tracker};
use terrace_host::vm::Vm;
use terrace_proto::{PageSize, VmId};

use super::observer::WriteConfig;
use super::{Context, Executor, Observer};
use crate::messages::Input;

/// The executor of a VM without a source of writes, on the host in this folder.
fn start(
    folder: &Path,
    vm: Vm,
    memory: Arc<GuestMemory>,
    tables: GuestTables,
    inbox: Sender<Input>,
) -> Executor {
    let root = HostRoot::new(folder);
    let topology = Arc::new(Topology::read(&root, &[]).unwrap());
    let mover = Mover::new(root.clone(), Arc::clone(&topology), MoverConfig::default());
    let context = Context {
        vm: VmId(1),
        watch: Arc::new(vm.watch(&memory)),
        target: Target {
            process: Arc::clone(vm.process()),
            memory,
            unit: PageSize::Base,
            others_map: false,
        },
        root,
        topology,
        inbox,
    };
    let writes = WriteConfig {
        source: WriteSource::None,
        pause_budget: Duration::ZERO,
        windows: 8,
    };
    let observer = Observer::new(&context, vm, Tracker::GuestTables(Box::new(tables)), writes);
    Executor::start(&context, observer, Arc::new(mover)).unwrap()
}
