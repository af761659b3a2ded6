//! The limit of the RAM that a VM is believed to have: what the daemon keeps grows with it.
//!
//! A file of 1 TiB costs nothing while it is sparse, and each of its pages would cost the daemon some bytes.

use crate::HostRoot;
use crate::host_memory::meminfo_bytes;
use crate::memory_map::GuestMemory;
use crate::qemu::who::{Refusal, Rules};

/// Most bytes of guest-physical addresses without RAM, beside as many as there is RAM: holes for devices. (The one
/// that QEMU leaves below 1 TiB is in VMs that have about as much RAM.)
const MAX_HOLES: u64 = 16 << 30;

/// Memory and swap of the host, bytes; `None` if the kernel does not say.
#[must_use]
pub fn host_bytes(root: &HostRoot) -> Option<u64> {
    let text = root.read("proc/meminfo").ok()?;
    let swap = meminfo_bytes(&text, "SwapTotal:").unwrap_or(0);
    meminfo_bytes(&text, "MemTotal:")?.checked_add(swap)
}

/// Whether a VM may have this RAM on a host of so much memory and swap.
///
/// # Errors
/// If it may not, with the reason.
pub fn may_have_ram(
    memory: &GuestMemory,
    host_bytes: Option<u64>,
    rules: &Rules,
) -> Result<(), Refusal> {
    let ram: u64 = memory.ranges().iter().map(|range| range.len).sum();
    let span = memory.ranges().last().map_or(0, |r| r.gpa.0 + r.len);
    let Some(host_bytes) = host_bytes else {
        return Err(Refusal::new(
            "the host's size of memory cannot be read, so the VM's cannot be compared with it",
            "mount procfs, and let terraced read /proc/meminfo",
        ));
    };
    let most = rules.most_ram(host_bytes);
    if ram > most {
        return Err(Refusal::new(
            format!(
                "it claims {} MiB of RAM; on a host that has {} MiB of memory and swap at most {} MiB are believed",
                ram >> 20,
                host_bytes >> 20,
                most >> 20
            ),
            "if the VM really is that large, raise most_ram_percent under [hypervisors]",
        ));
    }
    if span.saturating_sub(ram) > ram.saturating_add(MAX_HOLES) {
        return Err(Refusal::new(
            format!(
                "its RAM of {} MiB is spread over {} MiB of addresses",
                ram >> 20,
                span >> 20
            ),
            "report this with the output of QEMU's `info mtree -f`",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use terrace_proto::{Gpa, Hva};

    use super::*;
    use crate::memory_map::Range;
    use crate::qemu::who::FileId;

    fn memory(runs: &[(u64, u64)]) -> GuestMemory {
        let range = |(gpa, len): &(u64, u64)| Range {
            gpa: Gpa(*gpa),
            len: *len,
            hva: Hva(*gpa),
            file_index: 0,
            file_offset: 0,
            shared: true,
        };
        GuestMemory::of_ranges(runs.iter().map(range).collect())
    }

    fn rules() -> Rules {
        let file = FileId {
            device: 1,
            inode: 1,
        };
        Rules::of_test(&[0], 0, "/usr/bin/qemu-system-x86_64", file)
    }

    #[test]
    fn a_sparse_file_of_1_tib_is_no_ram_of_a_small_host() {
        const GIB: u64 = 1 << 30;
        let host = Some(16 * GIB);
        let refusal = may_have_ram(&memory(&[(0, 1 << 40)]), host, &rules()).unwrap_err();
        assert!(refusal.why.contains("1048576 MiB") && refusal.change.contains("most_ram_percent"));
        assert_eq!(
            may_have_ram(&memory(&[(0, 32 * GIB)]), host, &rules()),
            Ok(())
        );
        assert!(may_have_ram(&memory(&[(0, 33 * GIB)]), host, &rules()).is_err());
        let spread = memory(&[(0, GIB), (1 << 40, GIB)]);
        assert!(may_have_ram(&spread, host, &rules()).is_err());
        assert!(may_have_ram(&memory(&[(0, GIB)]), None, &rules()).is_err());
    }

    #[test]
    fn memory_and_swap_of_the_host_are_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        let root = HostRoot::new(dir.path());
        assert_eq!(host_bytes(&root), None);
        let text = "MemTotal:       1024 kB\nMemFree: 5 kB\nSwapTotal:      1024 kB\n";
        std::fs::write(dir.path().join("proc/meminfo"), text).unwrap();
        assert_eq!(host_bytes(&root), Some(2 << 20));
    }
}
