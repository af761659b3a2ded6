//! The memory behind a guest's RAM: of shared RAM the blocks of its files, of private RAM what is resident of it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::MemoryMapError;
use super::build::{MemoryTree, Parts};
use super::procfs::{FileId, Mapping, resident};
use crate::HostRoot;
use crate::qemu::Monitor;

/// Bytes of host memory behind a VM's RAM; `None` if no descriptor of a file behind it is known.
///
/// # Errors
/// If QEMU or the kernel does not report where the RAM is.
pub(crate) fn resident_ram(
    root: &HostRoot,
    pid: u32,
    monitor: &mut Monitor,
) -> Result<Option<u64>, MemoryMapError> {
    resident_in(root, pid, monitor)
}

fn resident_in(
    root: &HostRoot,
    pid: u32,
    tree: &mut impl MemoryTree,
) -> Result<Option<u64>, MemoryMapError> {
    let parts = Parts::read(root, pid, tree)?;
    let mut files: BTreeMap<FileId, u64> = BTreeMap::new();
    let mut private: Vec<&Mapping> = Vec::new();
    for run in parts.runs() {
        // All of them: memory policies cut a mapping into several.
        let holds = |m: &&Mapping| m.start < run.hva.saturating_add(run.len) && run.hva < m.end;
        for mapping in parts.mappings.iter().filter(holds) {
            if !mapping.shared {
                private.push(mapping);
            } else if let Entry::Vacant(entry) = files.entry(mapping.file) {
                let Some(bytes) = parts.descriptors.present(mapping) else {
                    return Ok(None);
                };
                entry.insert(bytes);
            }
        }
    }
    private.sort_by_key(|mapping| mapping.start);
    private.dedup_by_key(|mapping| mapping.start);
    let mut bytes = files.values().fold(0, |sum: u64, b| sum.saturating_add(*b));
    if !private.is_empty() {
        bytes = bytes.saturating_add(resident(root, pid, &private)?);
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::build::tests::{Fixture, HVA};
    use super::*;

    const MIB: u64 = 1 << 20;

    fn seen(fixture: &mut Fixture) -> Option<u64> {
        let root = HostRoot::new(fixture.dir.path());
        resident_in(&root, 42, &mut fixture.tree).unwrap()
    }

    #[test]
    fn shared_ram_has_the_blocks_of_its_file_once() {
        let mut fixture = Fixture::new();
        assert_eq!(seen(&mut fixture), Some(0));
        fs::write(fixture.dir.path().join("ram"), vec![1; 1 << 20]).unwrap();
        assert_eq!(seen(&mut fixture), Some(MIB));
        // Nobody has the file open any more: it cannot be measured.
        fs::remove_file(fixture.dir.path().join("proc/42/fd/9")).unwrap();
        assert_eq!(seen(&mut fixture), None);
    }

    #[test]
    fn private_ram_has_what_is_resident_of_its_mappings_alone() {
        let mut fixture = Fixture::new();
        fixture.maps(&[(0, 3 * MIB, "rw-p", 0), (3 * MIB, 8 * MIB, "rw-p", 3 * MIB)]);
        let block = |from: u64, to: u64, kib: u64| {
            format!(
                "{:x}-{:x} rw-p 00000000 00:00 0 \nSize: 9 kB\nRss: {kib} kB\nPss: 1 kB\nVmFlags: rd wr\n",
                HVA + from,
                HVA + to
            )
        };
        let all = [
            block(0, 3 * MIB, 100),
            block(3 * MIB, 8 * MIB, 20),
            // The heap.
            block(16 * MIB, 24 * MIB, 7000),
        ];
        fs::write(fixture.dir.path().join("proc/42/smaps"), all.concat()).unwrap();
        assert_eq!(seen(&mut fixture), Some(120 << 10));
    }
}
