//! Writes a small log: two VMs that are resized, one of which hangs.
//!
//!     cargo run -p terrace-core --example record_sizes -- FILE
//!
//! As for `record_sample`, a sample is never written again.

use terrace_core::EngineConfig;
use terrace_testkit::log::sample;
use terrace_testkit::providers::{GIB, Provided, Providers};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("usage: record_sizes FILE")?;
    let mut host = Providers::new(EngineConfig::default(), &[GIB, 8 * GIB]);
    host.arrive(1, Provided::settled(&[2 * GIB, 2 * GIB]));
    host.arrive(2, Provided::settled(&[2 * GIB, 2 * GIB]));
    // More than there is; less; and what its guest does not do for a while.
    host.resize(1, &[Some(4 * GIB), None]);
    host.resize(1, &[Some(GIB), Some(3 * GIB)]);
    host.run_for(20);
    if let Some(vm) = host.vms.get_mut(&1) {
        vm.obey();
    }
    host.run_for(20);
    if let Some(vm) = host.vms.get_mut(&2) {
        vm.hangs_at_orders = true;
    }
    host.resize(2, &[Some(3 * GIB), None]);
    host.run_for(20);
    if let Some(vm) = host.vms.get_mut(&1) {
        vm.pinned_by = Some("0000:01:00.0".into());
    }
    host.resize(1, &[Some(GIB / 2), None]);
    host.run_for(20);
    std::fs::write(file, sample(host.log()))?;
    Ok(())
}
