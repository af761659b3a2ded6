//! The join of QEMU's memory tree, its mappings and its descriptors.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use terrace_proto::{Gpa, Hva, PAGE_SIZE};

use super::layout::Layout;
use super::procfs::{Descriptors, FileId, Mapping};
use super::{GuestMemory, MAX_GPA, MemoryMapError, Range, Unscannable};
use crate::HostRoot;
use crate::qemu::{FlatRange, Memdev, Monitor, QemuError};

/// The questions about memory that QEMU's monitor answers.
pub(super) trait MemoryTree {
    fn memdevs(&mut self) -> Result<Vec<Memdev>, QemuError>;
    fn ram(&mut self) -> Result<Vec<FlatRange>, QemuError>;
    fn host_address(&mut self, gpa: Gpa) -> Result<Option<(String, Hva)>, QemuError>;
}

impl MemoryTree for Monitor {
    fn memdevs(&mut self) -> Result<Vec<Memdev>, QemuError> {
        Self::memdevs(self)
    }

    fn ram(&mut self) -> Result<Vec<FlatRange>, QemuError> {
        Self::ram(self)
    }

    fn host_address(&mut self, gpa: Gpa) -> Result<Option<(String, Hva)>, QemuError> {
        Self::host_address(self, gpa)
    }
}

/// The map of the RAM of the VM behind `monitor`.
pub(crate) fn read_guest_memory(
    root: &HostRoot,
    pid: u32,
    monitor: &mut Monitor,
) -> Result<GuestMemory, MemoryMapError> {
    build(root, pid, monitor)
}

/// The same without files: enough to watch and move RAM that only QEMU sees.
pub(crate) fn read_guest_addresses(
    root: &HostRoot,
    pid: u32,
    monitor: &mut Monitor,
) -> Result<GuestMemory, MemoryMapError> {
    build_addresses(root, pid, monitor)
}

/// The file behind a memory backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Present {
    /// The backend.
    pub(crate) region: String,
    /// Bytes of its file that have memory.
    pub(crate) bytes: u64,
}

/// Resident bytes of each memory backend that is a shared file of its own, in the order of their guest physical
/// addresses; others are left out.
pub(crate) fn present_by_backend(
    root: &HostRoot,
    pid: u32,
    monitor: &mut Monitor,
) -> Result<Vec<Present>, MemoryMapError> {
    present(root, pid, monitor)
}

fn present(
    root: &HostRoot,
    pid: u32,
    tree: &mut impl MemoryTree,
) -> Result<Vec<Present>, MemoryMapError> {
    let parts = Parts::read(root, pid, tree)?;
    let mut found: Vec<(Present, FileId)> = Vec::new();
    for run in parts.runs() {
        if found.iter().any(|(known, _)| known.region == run.region) {
            continue;
        }
        let mapping = covering(&run, &parts.mappings)?;
        if !mapping.shared {
            continue;
        }
        if let Some(bytes) = parts.descriptors.present(mapping) {
            let region = run.region;
            found.push((Present { region, bytes }, mapping.file));
        }
    }
    let ids: Vec<FileId> = found.iter().map(|(_, id)| *id).collect();
    let is_alone = |id: &FileId| ids.iter().filter(|other| *other == id).count() == 1;
    let own = found.into_iter().filter(|(_, id)| is_alone(id));
    Ok(own.map(|(present, _)| present).collect())
}

/// A run of main memory with its place in QEMU, before its file is known.
pub(super) struct Placed {
    pub gpa: u64,
    pub len: u64,
    pub hva: u64,
    pub region: String,
}

/// The sources of a map, read at once.
pub(super) struct Parts {
    pub descriptors: Descriptors,
    layout: Layout,
    pub mappings: Vec<Mapping>,
}

impl Parts {
    /// QEMU's word for where the guest's RAM is, between what the process has open before and maps after it.
    pub fn read(
        root: &HostRoot,
        pid: u32,
        tree: &mut impl MemoryTree,
    ) -> Result<Self, MemoryMapError> {
        let descriptors = Descriptors::read(root, pid)?;
        let (layout, mappings) = Layout::read(root, pid, tree)?;
        Ok(Self {
            descriptors,
            layout,
            mappings,
        })
    }

    pub fn runs(&self) -> impl Iterator<Item = Placed> + '_ {
        self.layout.pieces.iter().map(|piece| Placed {
            gpa: piece.gpa,
            len: piece.len,
            hva: piece.hva,
            region: piece.region.clone(),
        })
    }
}

fn build(
    root: &HostRoot,
    pid: u32,
    tree: &mut impl MemoryTree,
) -> Result<GuestMemory, MemoryMapError> {
    let parts = Parts::read(root, pid, tree)?;
    let mut files = Files::default();
    let mut ranges: Vec<Range> = Vec::new();
    for run in parts.runs() {
        let range = files.locate(&run, &parts.mappings, &parts.descriptors)?;
        match ranges.last_mut() {
            Some(last) if continues(last, &range) => last.len += range.len,
            _ => ranges.push(range),
        }
    }
    if let Some(device) = parts.descriptors.passed_through() {
        return Err(Unscannable::Vfio(device.into()).into());
    }
    Ok(GuestMemory::new(ranges, files.fds)?.read_by(parts.layout))
}

fn build_addresses(
    root: &HostRoot,
    pid: u32,
    tree: &mut impl MemoryTree,
) -> Result<GuestMemory, MemoryMapError> {
    let parts = Parts::read(root, pid, tree)?;
    let mut ranges: Vec<Range> = Vec::new();
    for run in parts.runs() {
        let mapping = covering(&run, &parts.mappings)?;
        if !mapping.read_write {
            return Err(Unscannable::NotWritable(run.region).into());
        }
        let file = parts.descriptors.open(mapping)?;
        if mapping.is_huge_and_anonymous() || file.is_some_and(|file| file.is_hugetlbfs()) {
            return Err(Unscannable::Hugetlbfs(run.region).into());
        }
        match ranges.last_mut() {
            Some(last)
                if last.gpa.0 + last.len == run.gpa
                    && last.hva.0 + last.len == run.hva
                    && last.shared == mapping.shared =>
            {
                last.len += run.len;
            }
            _ => ranges.push(Range {
                gpa: Gpa(run.gpa),
                len: run.len,
                hva: Hva(run.hva),
                file_index: 0,
                file_offset: 0,
                shared: mapping.shared,
            }),
        }
    }
    if let Some(device) = parts.descriptors.passed_through() {
        return Err(Unscannable::Vfio(device.into()).into());
    }
    Ok(GuestMemory::without_files(ranges)?.read_by(parts.layout))
}

fn inconsistent<T>(what: String) -> Result<T, MemoryMapError> {
    Err(MemoryMapError::Inconsistent(what))
}

/// The ranges of memory backends, ascending, cut to whole pages. Device RAM (`vga.vram`, a microvm's
/// `pc.bios`) is of no backend.
pub(super) fn main_memory(
    flat: Vec<FlatRange>,
    backends: &BTreeSet<String>,
) -> Result<Vec<FlatRange>, MemoryMapError> {
    let mut main = Vec::new();
    for mut range in flat {
        if !backends.contains(&range.region) {
            continue;
        }
        let Some(end) = range
            .start
            .0
            .checked_add(range.len)
            .filter(|e| *e <= MAX_GPA)
        else {
            return inconsistent(format!("RAM at {} ends above 16 TiB", range.start));
        };
        let first = range.start.0.next_multiple_of(PAGE_SIZE);
        let end = end / PAGE_SIZE * PAGE_SIZE;
        if first < end {
            range.start = Gpa(first);
            range.len = end - first;
            main.push(range);
        }
    }
    main.sort_by_key(|range| range.start);
    let overlap = main
        .windows(2)
        .find(|w| w[0].start.0 + w[0].len > w[1].start.0);
    if let Some(pair) = overlap {
        return inconsistent(format!(
            "RAM at {} overlaps the RAM below it",
            pair[1].start
        ));
    }
    if main.is_empty() {
        return inconsistent("no RAM of a memory backend is mapped for the guest".into());
    }
    Ok(main)
}

/// Asks for the first and the last page, which have to be as far apart as in the guest.
pub(super) fn locate_range(
    tree: &mut impl MemoryTree,
    range: FlatRange,
) -> Result<Placed, MemoryMapError> {
    let last = range.start.0 + (range.len - PAGE_SIZE);
    let mut ends = [0; 2];
    for (end, gpa) in ends.iter_mut().zip([range.start.0, last]) {
        match tree.host_address(Gpa(gpa))? {
            Some((region, hva)) if region == range.region => *end = hva.0,
            other => {
                return inconsistent(format!(
                    "RAM of '{}' at {gpa:#x} is {}",
                    range.region,
                    other.map_or("not mapped".into(), |(r, _)| format!("of '{r}' by gpa2hva"))
                ));
            }
        }
    }
    if ends[1].checked_sub(ends[0]) != Some(last - range.start.0) {
        return inconsistent(format!(
            "RAM at {} is not in one piece in QEMU",
            range.start
        ));
    }
    Ok(Placed {
        gpa: range.start.0,
        len: range.len,
        hva: ends[0],
        region: range.region,
    })
}

fn continues(last: &Range, next: &Range) -> bool {
    last.gpa.0 + last.len == next.gpa.0
        && last.hva.0 + last.len == next.hva.0
        && last.file_index == next.file_index
        && last.file_offset + last.len == next.file_offset
}

/// The files found so far.
#[derive(Default)]
struct Files {
    ids: Vec<FileId>,
    lens: Vec<u64>,
    fds: Vec<OwnedFd>,
}

impl Files {
    fn locate(
        &mut self,
        run: &Placed,
        mappings: &[Mapping],
        descriptors: &Descriptors,
    ) -> Result<Range, MemoryMapError> {
        let mapping = covering(run, mappings)?;
        if !mapping.shared {
            return Err(Unscannable::PrivateRam(run.region.clone()).into());
        }
        if !mapping.read_write {
            return Err(Unscannable::NotWritable(run.region.clone()).into());
        }
        let index = match self.ids.iter().position(|id| *id == mapping.file) {
            Some(index) => index,
            None => self.open(run, mapping, descriptors)?,
        };
        let file_offset = mapping.offset + (run.hva - mapping.start);
        if file_offset
            .checked_add(run.len)
            .is_none_or(|end| end > self.lens[index])
        {
            return inconsistent(format!(
                "RAM of '{}' at {:#x} lies beyond the end of its file",
                run.region, run.gpa
            ));
        }
        Ok(Range {
            gpa: Gpa(run.gpa),
            len: run.len,
            hva: Hva(run.hva),
            file_index: u32::try_from(index).unwrap_or(u32::MAX),
            file_offset,
            shared: true,
        })
    }

    fn open(
        &mut self,
        run: &Placed,
        mapping: &Mapping,
        descriptors: &Descriptors,
    ) -> Result<usize, MemoryMapError> {
        let file = descriptors
            .open(mapping)?
            .ok_or_else(|| Unscannable::NoDescriptor(run.region.clone()))?;
        if file.is_hugetlbfs() {
            return Err(Unscannable::Hugetlbfs(run.region.clone()).into());
        }
        self.ids.push(mapping.file);
        self.lens.push(file.len());
        self.fds.push(file.into_fd());
        Ok(self.fds.len() - 1)
    }
}

/// The mapping that holds the run's start. It may be cut into several (by memory policies), which then
/// have to continue each other up to the run's end.
pub(super) fn covering<'a>(
    run: &Placed,
    mappings: &'a [Mapping],
) -> Result<&'a Mapping, MemoryMapError> {
    let outside = || {
        MemoryMapError::Inconsistent(format!(
            "RAM of '{}' at {:#x} is said to be at {:#x}, where the process maps no such file",
            run.region, run.gpa, run.hva
        ))
    };
    let end = run.hva.checked_add(run.len).ok_or_else(outside)?;
    let first = mappings
        .iter()
        .position(|m| (m.start..m.end).contains(&run.hva))
        .ok_or_else(outside)?;
    let mut reached = &mappings[first];
    for next in &mappings[first + 1..] {
        if reached.end >= end {
            break;
        }
        let goes_on = next.start == reached.end
            && next.file == reached.file
            && next.shared == reached.shared
            && next.read_write == reached.read_write
            && (!next.shared || next.offset == reached.offset + (reached.end - reached.start));
        if !goes_on {
            return Err(outside());
        }
        reached = next;
    }
    if reached.end >= end {
        Ok(&mappings[first])
    } else {
        Err(outside())
    }
}

#[cfg(test)]
pub(super) mod tests;
