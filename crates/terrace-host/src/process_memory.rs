//! A hypervisor's memory by the kernel's account: how much of it is resident, and what pins it.
//!
//! Memory that a device writes to by itself stays where it is: giving it back to the host would take it from under the
//! device.

use std::io::ErrorKind;
use std::path::PathBuf;

use terrace_sys::opener;

use crate::{HostRoot, ReadError};

/// Memory of a process that is resident, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Shared (memfd, tmpfs), of files, and huge pages of hugetlbfs.
    pub shared_bytes: u64,
    /// Bytes of private memory.
    pub private_bytes: u64,
}

impl Resident {
    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared_bytes.saturating_add(self.private_bytes)
    }
}

/// Resident memory of a process; `None` if the kernel does not say.
#[must_use]
pub fn resident(root: &HostRoot, pid: u32) -> Option<Resident> {
    let status = root.read(format!("proc/{pid}/status")).ok()?;
    let bytes = |key: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        let kib = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
        kib.checked_mul(1024)
    };
    let files = [bytes("RssFile:"), bytes("HugetlbPages:")];
    let files = files.into_iter().flatten();
    Some(Resident {
        shared_bytes: files.fold(bytes("RssShmem:")?, u64::saturating_add),
        private_bytes: bytes("RssAnon:")?,
    })
}

/// Whether a process has memory of a pool of huge pages; `None` if the kernel does not say.
#[must_use]
pub fn has_hugetlb(root: &HostRoot, pid: u32) -> Option<bool> {
    let status = root.read(format!("proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("HugetlbPages:"))?;
    let kib = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    Some(kib > 0)
}

/// Time since a process was started, ms; `None` if the kernel does not say.
#[must_use]
pub fn up_ms(root: &HostRoot, pid: u32) -> Option<u64> {
    let started = terrace_sys::start_time(&root.proc(), pid).ok()?;
    let uptime = root.read("proc/uptime").ok()?;
    let (seconds, parts) = uptime.split_whitespace().next()?.split_once('.')?;
    let parts = parts.get(..2)?.parse::<u64>().ok()?;
    // Both count from the boot: `stat` in clock ticks, of which each second has 100 on every Linux that we run on.
    let now = seconds
        .parse::<u64>()
        .ok()?
        .checked_mul(100)?
        .checked_add(parts)?;
    now.saturating_sub(started).checked_mul(10)
}

/// The device of a process that pins the memory of its VM, because it is passed through.
///
/// # Errors
/// If its descriptors cannot be seen, or one of them cannot: that is no proof that none pins. To list them takes
/// the process's user or `CAP_DAC_OVERRIDE`, to see what they are its user or `CAP_SYS_PTRACE`.
pub fn pinned_by(root: &HostRoot, pid: u32) -> Result<Option<String>, ReadError> {
    with_descriptor(root, pid, is_pinning)
}

/// Whether a process that had a VM's RAM has something by which what it pinned stays so after it let go of the RAM.
///
/// # Errors
/// As [`pinned_by`].
pub(crate) fn may_have_pinned(root: &HostRoot, pid: u32) -> Result<bool, ReadError> {
    Ok(with_descriptor(root, pid, keeps_pins)?.is_some())
}

/// The first descriptor of a process whose link is such.
fn with_descriptor(
    root: &HostRoot,
    pid: u32,
    is_such: fn(&str) -> bool,
) -> Result<Option<String>, ReadError> {
    let path = root.process(pid, "fd");
    let failed = |path: PathBuf| move |source| ReadError::Io { path, source };
    let mut unseen = None;
    let links = opener::entries(&path, usize::MAX).map_err(failed(path))?;
    for link in links {
        match opener::read_link(&link).map_err(failed(link)) {
            Ok(target) => {
                let name = target.to_string_lossy().into_owned();
                if is_such(&name) {
                    return Ok(Some(name));
                }
            }
            // Closed since.
            Err(ReadError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
            Err(error) => unseen = unseen.or(Some(error)),
        }
    }
    unseen.map_or(Ok(None), Err)
}

/// Whether a descriptor that links there is of a device that is passed through: VFIO by group or by device, iommufd,
/// or vDPA.
#[must_use]
pub(crate) fn is_pinning(target: &str) -> bool {
    target.starts_with("/dev/vfio/")
        || target.starts_with("/dev/vhost-vdpa")
        || target == "/dev/iommu"
        || target.contains("[vfio-device]")
        || target.contains("[iommufd]")
}

/// Whether memory that a process pinned by this stays pinned without its mapping: devices that are passed through,
/// registered buffers of `io_uring` and of RDMA, memory that became a dma-buf, GPUs.
fn keeps_pins(target: &str) -> bool {
    const DEVICES: [&str; 5] = [
        "/dev/infiniband/",
        "/dev/dri/",
        "/dev/nvidia",
        "/dev/kfd",
        "/dmabuf:",
    ];
    is_pinning(target)
        || target.contains("[io_uring]")
        || DEVICES.iter().any(|device| target.starts_with(device))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn process(files: &[(&str, &str)], links: &[&str]) -> (tempfile::TempDir, HostRoot) {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("proc/42");
        fs::create_dir_all(base.join("fd")).unwrap();
        for (name, text) in files {
            fs::write(base.join(name), text).unwrap();
        }
        for (fd, target) in links.iter().enumerate() {
            symlink(target, base.join("fd").join(fd.to_string())).unwrap();
        }
        let root = HostRoot::new(folder.path());
        (folder, root)
    }

    #[test]
    fn shared_and_private_memory_are_told_apart() {
        let status = "Name:\tqemu\nVmRSS:\t  1100 kB\nHugetlbPages:\t 2048 kB\nRssAnon:\t   60 kB\nRssFile:\t   40 kB\nRssShmem:\t 1000 kB\n";
        let (_folder, root) = process(&[("status", status)], &[]);
        let resident = resident(&root, 42).unwrap();
        let kib = (resident.shared_bytes / 1024, resident.private_bytes / 1024);
        assert_eq!(kib, (3088, 60));
    }

    #[test]
    fn a_process_that_is_gone_or_says_nonsense_has_no_figures() {
        let (_folder, root) = process(&[("status", "RssAnon: many kB\nRssShmem: 1 kB\n")], &[]);
        assert_eq!(resident(&root, 42), None);
        assert_eq!(resident(&root, 7), None);
        let unknown = pinned_by(&root, 7).unwrap_err();
        assert!(unknown.to_string().contains("proc/7/fd"), "{unknown}");
    }

    #[test]
    fn every_way_of_passing_a_device_through_pins_the_memory() {
        for target in [
            "/dev/vfio/17",
            "/dev/vfio/devices/vfio0",
            "/dev/iommu",
            "anon_inode:[vfio-device]",
            "/dev/vhost-vdpa-0",
        ] {
            let (_folder, root) = process(&[], &["/dev/null", target]);
            assert_eq!(pinned_by(&root, 42).unwrap().as_deref(), Some(target));
        }
        let (_folder, root) = process(&[], &["/dev/kvm", "anon_inode:kvm-vm", "/dev/vhost-net"]);
        assert_eq!(pinned_by(&root, 42).unwrap(), None);
    }

    #[test]
    fn an_unreadable_descriptor_does_not_prove_that_nothing_pins() {
        let (folder, root) = process(&[], &["/dev/kvm"]);
        // No link: it cannot be read, as without the right to inspect the process.
        fs::write(folder.path().join("proc/42/fd/7"), "").unwrap();
        let unknown = pinned_by(&root, 42).unwrap_err();
        assert!(unknown.to_string().contains("proc/42/fd/7"), "{unknown}");
        // Entries that can be read beside it count.
        symlink("/dev/vfio/17", folder.path().join("proc/42/fd/8")).unwrap();
        assert_eq!(
            pinned_by(&root, 42).unwrap().as_deref(),
            Some("/dev/vfio/17")
        );
    }
}
