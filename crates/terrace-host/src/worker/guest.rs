//! The guest as its worker sees it: mapped RAM, top-level tables, scans.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use terrace_pagetable::{GuestTables, MappedMemory, MappedRange, Paging, Scanner, find_roots};
use terrace_proto::worker::FileRange;
use terrace_proto::{Gfn, PAGE_SIZE, PagingRegisters, ScanAnswer, ScanRequest};
use terrace_sys::{
    Extent, MonotonicClock, SharedMapping, data_extents, file_size, thread_cpu_time,
};

use super::roots::Roots;

/// One VM's RAM.
pub(super) struct Guest {
    /// Dropped before the mappings that it points into.
    memory: MappedMemory,
    mappings: Vec<SharedMapping>,
    files: Vec<OwnedFd>,
    ranges: Vec<FileRange>,
    scanner: Scanner,
    roots: Roots,
}

impl Guest {
    /// Maps RAM; nothing of it is touched.
    ///
    /// # Errors
    /// Where ranges do not fit the files or cannot be mapped; for people.
    pub(super) fn map(ranges: Vec<FileRange>, files: Vec<OwnedFd>) -> Result<Self, String> {
        let mut mappings = Vec::new();
        for range in &ranges {
            mappings.push(map(range, &files)?);
        }
        let mapped: Vec<MappedRange> = ranges
            .iter()
            .zip(&mappings)
            .map(|(range, mapping)| {
                Ok(MappedRange {
                    start: range.gpa,
                    len: range.len,
                    host: NonNull::new(mapping.as_ptr()).ok_or("mapped at zero")?,
                })
            })
            .collect::<Result<_, String>>()?;
        // SAFETY: the mappings are readable and writable, as long as the ranges say, and live in the
        // same value, whose fields are dropped in order. Nothing else in this process touches them. A
        // file that is cut off raises SIGBUS, which ends this process: that is what it is apart for.
        let memory = unsafe { MappedMemory::new(&mapped) }.map_err(|error| error.to_string())?;
        Ok(Self {
            scanner: Scanner::new(memory.frames()),
            memory,
            mappings,
            files,
            ranges,
            roots: Roots::default(),
        })
    }

    /// One pass.
    ///
    /// # Errors
    /// Where no virtual CPU's tables can be walked now; for people.
    pub(super) fn scan(
        &mut self,
        request: &ScanRequest,
        vcpus: &[PagingRegisters],
    ) -> Result<ScanAnswer, String> {
        let (clock, cpu) = (MonotonicClock::start(), thread_cpu_time());
        let pagings = pagings(vcpus)?;
        let paging = pagings[0];
        let in_use: Vec<Gfn> = pagings.iter().map(Paging::root).collect();
        for root in &in_use {
            self.roots.learn(&self.memory, *root);
        }
        if request.discover {
            self.discover(&in_use)?;
        }
        let roots = self.roots.live(&self.memory, &in_use);
        let mut answer = self.scanner.scan(&self.memory, paging, &roots, request);
        answer.stats.elapsed_ns = clock.now().0;
        let cpu = thread_cpu_time().saturating_sub(cpu);
        answer.stats.cpu_ns = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        Ok(answer)
    }

    /// Looks for top-level tables in all allocated memory, then lets go of the pages that this mapped
    /// here: a page that two processes map is harder to move and to reclaim.
    fn discover(&mut self, in_use: &[Gfn]) -> Result<(), String> {
        let extents = self.allocated()?;
        // Without a usable reference (all virtual CPUs idle in firmware, say) what is in use has to do.
        if let Ok(found) = find_roots(&self.memory, extents, in_use) {
            self.roots.replace(found);
        }
        for mapping in &self.mappings {
            mapping.forget_pages().map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Guest pages that the files hold data for.
    fn allocated(&self) -> Result<Vec<Range<Gfn>>, String> {
        let mut frames = Vec::new();
        for (index, file) in self.files.iter().enumerate() {
            let extents = data_extents(file.as_fd()).map_err(|error| error.to_string())?;
            let own = self.ranges.iter().filter(|r| r.file as usize == index);
            for range in own {
                frames.extend(extents.iter().filter_map(|extent| in_guest(range, extent)));
            }
        }
        Ok(frames)
    }
}

fn map(range: &FileRange, files: &[OwnedFd]) -> Result<SharedMapping, String> {
    let file = files
        .get(range.file as usize)
        .ok_or_else(|| format!("no file {} came along", range.file))?;
    let size = file_size(file.as_fd()).map_err(|error| error.to_string())?;
    let end = range.offset.checked_add(range.len);
    if end.is_none_or(|end| end > size) {
        return Err(format!(
            "RAM at {} lies beyond the end of its file",
            range.gpa
        ));
    }
    let len = usize::try_from(range.len).map_err(|error| error.to_string())?;
    SharedMapping::new(file.as_fd(), range.offset, len).map_err(|error| error.to_string())
}

/// The part of a file's extent that is in this run of RAM.
fn in_guest(range: &FileRange, extent: &Extent) -> Option<Range<Gfn>> {
    let start = extent.start.max(range.offset);
    let end = (extent.start + extent.len).min(range.offset + range.len);
    let gfn = |at: u64| (range.gpa.0 + (at - range.offset)) / PAGE_SIZE;
    (start < end).then(|| Gfn(gfn(start))..Gfn(gfn(end + PAGE_SIZE - 1)))
}

/// The virtual CPUs whose tables can be walked, all of one shape.
fn pagings(vcpus: &[PagingRegisters]) -> Result<Vec<Paging>, String> {
    let mut first_error = "the VM has no virtual CPU".to_owned();
    let mut pagings: Vec<Paging> = Vec::new();
    for (n, registers) in vcpus.iter().enumerate() {
        match Paging::from_registers(*registers) {
            Ok(paging) => pagings.push(paging),
            Err(error) if n == 0 => first_error = error.to_string(),
            Err(_) => {}
        }
    }
    let Some(first) = pagings.first() else {
        return Err(first_error);
    };
    if pagings.iter().any(|p| p.levels() != first.levels()) {
        return Err("virtual CPUs differ in paging levels: the guest is booting".into());
    }
    Ok(pagings)
}

#[cfg(test)]
mod tests {
    use terrace_proto::Gpa;

    use super::*;

    #[test]
    fn extents_of_the_file_become_pages_of_the_guest() {
        let range = FileRange {
            gpa: Gpa(4 << 30),
            len: 1 << 30,
            file: 0,
            offset: 2 << 30,
        };
        let extent = |start, len| Extent { start, len };
        let base = 1 << 20;
        assert_eq!(
            in_guest(&range, &extent(0, (2 << 30) + 8192)),
            Some(Gfn(base)..Gfn(base + 2))
        );
        assert_eq!(
            in_guest(&range, &extent((3 << 30) - 4096, 1 << 30)),
            Some(Gfn(base + (1 << 18) - 1)..Gfn(base + (1 << 18)))
        );
        assert_eq!(in_guest(&range, &extent(0, 2 << 30)), None);
        assert_eq!(in_guest(&range, &extent(3 << 30, 4096)), None);
    }

    #[test]
    fn vcpus_that_cannot_be_walked_are_left_out_and_mixed_ones_refused() {
        let long = |cr4| PagingRegisters {
            cr0: 1 << 31,
            cr3: 0x1000,
            cr4,
            efer: 0xd01,
        };
        let off = PagingRegisters::default();
        assert_eq!(pagings(&[off, long(0x20)]).unwrap().len(), 1);
        assert!(pagings(&[off]).unwrap_err().contains("paging off"));
        assert!(pagings(&[long(0x20), long(0x1020)]).is_err());
        assert!(pagings(&[]).is_err());
    }
}
