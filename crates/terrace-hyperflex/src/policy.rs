//! Which of the host's nodes a tier's memory comes from.
//!
//! The files behind a tier keep the node, so that a page which the guest gives back and takes again comes from there
//! too, whichever thread touches it. It is preferred, never bound to: if a node that is bound to is full, the kernel
//! ends the hypervisor. Pages that are present already stay on their nodes. A file that keeps no node (on hugetlbfs
//! none does), or a kernel that knows none, is a warning and a count; the VM runs on.

use std::os::fd::AsFd as _;

use serde::{Deserialize, Serialize};
use terrace_sys::{SysError, file_prefers, prefer_node};
use vm_memory::{GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap};

use crate::memory::GuestFiles;
use crate::tier::TierMap;

/// The result of setting a tier's host node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodePolicy {
    /// The hypervisor shares none of the tier's memory yet.
    Waiting,
    /// Each file behind the tier prefers the node.
    Set,
    /// Some of its files do not; the log has the reason.
    Refused,
}

/// Why a file does not prefer a node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// The kernel.
    #[error("{0}")]
    System(#[from] SysError),
    /// The file took the policy for this process alone.
    #[error(
        "its file keeps no policy of its own, as tmpfs and memfd do and hugetlbfs does not; start the VM with \
         host-nodes={node},policy=preferred in its memory backend"
    )]
    NotShared {
        /// The host's.
        node: u32,
    },
    /// The mapping is not at its reported address.
    #[error("its memory is not mapped: {0}")]
    NotMapped(String),
}

/// Sets the preferred node of the files behind a tier, and reads back the policy of each.
pub(crate) fn prefer(
    files: &GuestFiles,
    memory: &GuestMemoryMmap,
    tier: &TierMap,
    node: u32,
) -> Result<NodePolicy, Refused> {
    let mut done = NodePolicy::Waiting;
    for piece in files.pieces_of(tier) {
        let not_mapped = |why: &dyn std::fmt::Display| Refused::NotMapped(why.to_string());
        let start = memory
            .get_host_address(GuestAddress(piece.gpa))
            .map_err(|e| not_mapped(&e))?;
        let bytes = usize::try_from(piece.bytes).map_err(|e| not_mapped(&e))?;
        let page_bytes = usize::try_from(piece.page_bytes).map_err(|e| not_mapped(&e))?;
        prefer_node(start.addr(), bytes, node)?;
        if file_prefers(piece.file.as_fd(), piece.offset, page_bytes)? != Some(node) {
            return Err(Refused::NotShared { node });
        }
        done = NodePolicy::Set;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::Config;
    use crate::device::Device;
    use crate::memory::Backing as _;
    use crate::ring::Memory;
    use crate::state::State;
    use crate::test_vm::{MIB, MockVm};

    /// A device whose tiers have these host nodes, with the memory of a VM.
    fn device(vm: &MockVm, host_nodes: [Option<u32>; 2]) -> Device {
        let mut tiers = vm.config().tiers().to_vec();
        for (tier, node) in tiers.iter_mut().zip(host_nodes) {
            tier.host_node = node;
        }
        let config = Config::new(tiers, vm.config().orders(), vm.config().limits()).unwrap();
        let state = Arc::new(State::in_memory(&config).unwrap());
        let mut device = Device::new(config, state, GuestFiles::default());
        let wanted = host_nodes.map(|node| node.map(|_| NodePolicy::Waiting));
        assert_eq!(device.node_policies(), wanted);
        device.set_memory(Memory::new(vm.memory().clone()));
        device
    }

    /// A node that this process may prefer, which a cpuset may have chosen.
    fn node() -> u32 {
        terrace_sys::allowed_nodes().first().copied().unwrap_or(0)
    }

    /// Past the test harness's capture.
    fn skipped(test: &str, why: &dyn std::fmt::Display) {
        use std::io::Write as _;
        let text = format!("\nSKIPPED {test}: NOT TESTED, since {why}\n");
        std::io::stderr().write_all(text.as_bytes()).unwrap();
    }

    /// Whether this kernel has policies.
    fn has_policies(test: &str, vm: &MockVm) -> bool {
        let said = file_prefers(vm.file(0).as_fd(), 0, 4096);
        if let Err(error) = &said {
            skipped(test, &error);
        }
        said.is_ok()
    }

    #[test]
    fn a_tiers_file_prefers_its_node_also_for_pages_that_come_again() {
        let vm = MockVm::two_tiers();
        let test = "a_tiers_file_prefers_its_node_also_for_pages_that_come_again";
        if !has_policies(test, &vm) {
            return;
        }
        vm.fill();
        let device = device(&vm, [None, Some(node())]);
        assert_eq!(device.node_policies(), [None, Some(NodePolicy::Set)]);
        assert_eq!(device.counters().refused_node_policies, 0);
        let run = device.tier_maps()[1]
            .find(vm.tier(1).start + MIB, 1)
            .unwrap();
        let region = device.files().region_of(&run).unwrap();
        assert!(device.files().free(region, &run));
        drop(device);
        vm.touch(run.gpa, 1);
        let seen = |tier, at| file_prefers(vm.file(tier).as_fd(), at, 4096).unwrap();
        assert_eq!(
            [seen(1, 0), seen(1, MIB), seen(1, 7 * MIB)],
            [Some(node()); 3]
        );
        assert_eq!(seen(0, 0), None, "the other tier's file");
    }

    #[test]
    fn an_absent_host_node_is_counted_and_the_device_continues() {
        let vm = MockVm::two_tiers();
        let device = device(&vm, [Some(node()), Some(1023)]);
        assert_eq!(device.node_policies()[1], Some(NodePolicy::Refused));
        assert!(device.counters().refused_node_policies > 0);
        assert!(device.is_connected());
    }

    #[test]
    fn memory_mapped_elsewhere_than_its_file_is_refused_early() {
        let vm = MockVm::two_tiers();
        let files = GuestFiles::new(vm.memory());
        let tier = TierMap::new(&vm.config().tiers()[1]);
        // Of another hypervisor: the first tier alone.
        let limits = vm.config().limits();
        let other = MockVm::new(&[8 * MIB], 1, limits).unwrap();
        let why = prefer(&files, other.memory(), &tier, node()).unwrap_err();
        assert!(matches!(why, Refused::NotMapped(_)), "{why}");
        assert!(
            why.to_string().starts_with("its memory is not mapped: "),
            "{why}"
        );
        let preferred = file_prefers(vm.file(1).as_fd(), 0, 4096);
        assert!(preferred.is_err() || preferred.is_ok_and(|node| node.is_none()));
    }

    #[test]
    fn a_file_that_keeps_no_policy_is_told_from_one_that_does() {
        // Beside the program: /tmp is often in memory.
        let folder = std::env::current_exe().unwrap();
        let on_disk = || {
            let file = tempfile::tempfile_in(folder.parent().unwrap()).unwrap();
            file.set_len(4 * MIB).unwrap();
            file
        };
        let limits = MockVm::two_tiers().config().limits();
        let vm = MockVm::over(vec![on_disk(), on_disk()], 1, limits).unwrap();
        let test = "a_file_that_keeps_no_policy_is_told_from_one_that_does";
        if terrace_sys::is_tmpfs(vm.file(0).as_fd()).unwrap() {
            return skipped(test, &"the program is in memory");
        }
        if !has_policies(test, &vm) {
            return;
        }
        let tier = TierMap::new(&vm.config().tiers()[0]);
        let files = GuestFiles::new(vm.memory());
        let why = prefer(&files, vm.memory(), &tier, node()).unwrap_err();
        assert!(
            matches!(why, Refused::NotShared { node: refused } if refused == node()),
            "{why}"
        );
        let device = device(&vm, [Some(node()), None]);
        assert_eq!(device.node_policies(), [Some(NodePolicy::Refused), None]);
    }
}
