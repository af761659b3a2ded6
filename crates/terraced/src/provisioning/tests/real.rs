//! The daemon with the real device, behind a real vhost-user frontend, and a guest's driver that a test plays.

use std::path::Path;
use std::sync::Arc;

use terrace_api::provision::OrderState;
use terrace_host::qemu::who::HypervisorConfig;
use terrace_hyperflex::abi::Entry;
use terrace_testkit::front_end::{Hypervisor, PAGE, args, start};
use terrace_testkit::mock::{MIB, MockVm};

use super::super::Provisioning;
use super::super::finder;
use super::GIB;
use super::script::{Host, live};
use crate::messages::State;
use crate::played::serve_resizable;
use terrace_core::provision::ProvisionConfig;

/// A daemon that manages the sizes of the VM `vm` with this device.
pub fn serve(control: &Path) -> Host {
    let pace = ProvisionConfig {
        under_way_ms: 20,
        idle_ms: 50,
        verify_ms: 50,
        patience_ms: 60_000,
        driver_ms: 600_000,
        ..ProvisionConfig::default()
    };
    let config = format!(
        "[vm.vm]\nhyperflex = \"{}\"\nhyperflex_nodes = [0, 1]\n",
        control.display()
    );
    let served = serve_resizable(
        |_| config,
        Provisioning::new(finder(HypervisorConfig::default()), pace),
    );
    // The test is the hypervisor.
    let pid = std::process::id();
    live(served.folder.path(), pid);
    served.find(
        "vm",
        Some(pid),
        State::Unscannable("its RAM is private".into()),
    );
    let scripts = Arc::default();
    let host = Host { served, scripts };
    host.free([GIB, GIB]);
    host
}

#[test]
fn a_vm_shrinks_by_the_real_device_and_claims_are_verified() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path(), &[]);
    let vm = MockVm::two_tiers();
    vm.fill();
    let device = start(&args);
    let mut guest = Hypervisor::connect(&args.socket, &vm, None);
    let host = serve(&args.control);
    host.until("vm", |provisioning| provisioning.connected.then_some(()));
    let ordered = host.resize("vm", [None, Some(6 * MIB)]).unwrap();
    assert!(ordered.done.contains("slow 8 MiB → 6 MiB"), "{ordered:?}");
    assert_eq!(
        host.provisioning("vm").unwrap().tiers[1].counted_bytes,
        8 * MIB
    );

    // A driver that comes later finds the target in the configuration space, at the ABI's place.
    assert_eq!(guest.config(40, 8), 512_u64.to_le_bytes());
    // The driver learns the targets and gives two huge pages' worth back in small ones.
    let at = guest.post_event_buffer(100);
    assert_eq!(guest.event(at).1, [0, 512]);
    let base = vm.tier(1).start;
    for chain in 0..16 {
        let pages = (0..32).map(|i| Entry::new(base + (32 * chain + i) * PAGE, 0));
        assert_eq!(guest.entries(2, &pages.collect::<Vec<_>>()), (32, 0));
    }
    host.event("vm", "has reached its target: fast 8 MiB, slow 6 MiB");
    let tier = host.until("vm", |provisioning| {
        let is_met = provisioning.order.as_ref()?.state == OrderState::Met;
        let tier = provisioning.tiers[1].clone();
        (is_met && tier.counted_bytes == 6 * MIB).then_some(tier)
    });
    assert_eq!(
        (tier.present_bytes, tier.verified_ratio),
        (Some(6 * MIB), Some(1.0))
    );
    assert_eq!((tier.host_nodes, tier.may_take_bytes), (vec![1], 0));

    // A guest that still uses pages that it gave back is detected, and counted whole from then on.
    vm.touch(base, 256);
    let lie =
        "claims to have given back 2 MiB of slow, of which 1 MiB is still there (verified: 0.50)";
    host.event("vm", lie);
    host.until("vm", |e| {
        (e.tiers[1].counted_bytes == 8 * MIB).then_some(())
    });

    // A reboot empties the balloons, which is reported; then the device goes.
    let guest = guest.reboot(&vm);
    host.event("vm", "the guest started anew");
    host.until("vm", |e| (e.tiers[1].size_bytes == 8 * MIB).then_some(()));
    let rings = guest.disconnect();
    device.join().unwrap();
    host.event("vm", "its HyperFlex device does not answer");
    let device = start(&args);
    let guest = Hypervisor::connect(&args.socket, &vm, Some(rings));
    host.event("vm", "its HyperFlex device answers");
    drop(guest);
    device.join().unwrap();
}
