//! The resident memory of each tier, by the count of the files behind it.

use super::Tier;
use crate::HostRoot;
use crate::memory_map::{MemoryMapError, Present, present_by_backend};
use crate::qemu::{Memdev, Monitor};

/// Host memory behind a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backing {
    /// Behind what the VM was started with, bytes.
    pub boot_bytes: u64,
    /// Behind the virtio-mem devices.
    pub device_bytes: u64,
}

/// Host memory behind each tier; `None` for a tier if that cannot be determined: RAM that is no shared file, or nodes
/// whose backends are not known.
///
/// # Errors
/// If QEMU or the kernel does not report where RAM is.
pub fn backing(
    root: &HostRoot,
    pid: u32,
    monitor: &mut Monitor,
    tiers: &[Tier],
) -> Result<Vec<Option<Backing>>, MemoryMapError> {
    let memdevs = monitor.memdevs()?;
    let present = present_by_backend(root, pid, monitor)?;
    Ok(join(tiers, &memdevs, &present))
}

/// QEMU does not report which backend a node was started with. It lays them out in the order of the nodes, so where
/// their sizes are the nodes' in that order, they are taken for theirs.
fn join(tiers: &[Tier], memdevs: &[Memdev], present: &[Present]) -> Vec<Option<Backing>> {
    let plugs = |region: &str| {
        let mut devices = tiers.iter().flat_map(|tier| &tier.devices);
        devices.any(|device| device.backend() == region)
    };
    let size = |region: &str| memdevs.iter().find(|m| m.id == region).map(|m| m.size);
    let boot: Vec<&Present> = present.iter().filter(|p| !plugs(&p.region)).collect();
    let booted = || tiers.iter().filter(|tier| tier.boot_bytes > 0);
    let same = |(tier, present): (&Tier, &&Present)| size(&present.region) == Some(tier.boot_bytes);
    let is_known = boot.len() == booted().count() && booted().zip(&boot).all(same);
    let mut boot = boot.into_iter();
    let each = tiers.iter().map(|tier| {
        let boot = if tier.boot_bytes > 0 {
            boot.next().map(|present| present.bytes)
        } else {
            Some(0)
        };
        let of_device = |backend: &str| present.iter().find(|p| p.region == backend);
        let devices = tier.devices.iter();
        let devices = devices.map(|device| Some(of_device(device.backend())?.bytes));
        Some(Backing {
            boot_bytes: boot.filter(|_| is_known)?,
            device_bytes: devices.sum::<Option<u64>>()?,
        })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MIB, two_tiers};
    use super::*;

    fn memdev(id: &str, mib: u64) -> Memdev {
        Memdev {
            id: id.into(),
            size: mib * MIB,
            share: true,
            host_nodes: Vec::new(),
        }
    }

    fn present(region: &str, bytes: u64) -> Present {
        Present {
            region: region.into(),
            bytes,
        }
    }

    fn all() -> (Vec<Memdev>, Vec<Present>) {
        let memdevs = [("m0", 256), ("m1", 256), ("v0", 1024), ("v1", 1024)];
        let files = [("m0", 1), ("m1", 2), ("v0", 3), ("v1", 4)];
        (
            memdevs.map(|(id, mib)| memdev(id, mib)).into(),
            files.map(|(id, bytes)| present(id, bytes)).into(),
        )
    }

    #[test]
    fn files_match_nodes_by_order_and_size_and_devices_by_name() {
        let (memdevs, files) = all();
        let backing = |boot_bytes, device_bytes| {
            Some(Backing {
                boot_bytes,
                device_bytes,
            })
        };
        let joined = join(&two_tiers(), &memdevs, &files);
        assert_eq!(joined, [backing(1, 3), backing(2, 4)]);
    }

    #[test]
    fn a_backend_that_may_be_another_nodes_is_not_guessed() {
        let (mut memdevs, files) = all();
        memdevs[0].size = 512 * MIB;
        assert_eq!(join(&two_tiers(), &memdevs, &files), [None, None]);
        let (memdevs, mut files) = all();
        files.remove(0);
        assert_eq!(join(&two_tiers(), &memdevs, &files), [None, None]);
    }

    #[test]
    fn a_device_that_is_no_file_leaves_its_tier_unknown() {
        let (memdevs, mut files) = all();
        files.pop();
        let joined = join(&two_tiers(), &memdevs, &files);
        assert!(joined[0].is_some() && joined[1].is_none());
    }
}
