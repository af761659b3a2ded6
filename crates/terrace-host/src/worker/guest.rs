//! The guest as its worker sees it: mapped RAM, top-level tables, scans.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use terrace_pagetable::{GuestTables, MappedMemory, MappedRange, Paging, Scanner, Unsupported};
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
    /// Which virtual CPUs were in long mode since kernel halves are remembered, and with how many levels.
    shape: Shape,
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
            shape: Shape::default(),
        })
    }

    /// One pass, which moves D aside where `writes` says so. Its times are those of the walk alone, as what it says is about the time of the walk.
    ///
    /// # Errors
    /// Where no virtual CPU's tables can be walked now; for people.
    pub(super) fn scan(
        &mut self,
        request: &ScanRequest,
        vcpus: &[PagingRegisters],
        writes: bool,
    ) -> Result<ScanAnswer, String> {
        let readings: Vec<_> = vcpus.iter().map(|r| Paging::from_registers(*r)).collect();
        if self.roots.knows_any() && self.shape.is_left(&readings) {
            self.roots.forget();
            self.shape = Shape::default();
            return Err("a virtual CPU left its paging mode: the guest reboots or starts another kernel, so \
                        what was known of its tables is forgotten"
                .into());
        }
        let pagings = pagings(&readings)?;
        self.shape.note(&readings);
        let paging = pagings[0];
        let in_use: Vec<Gfn> = pagings.iter().map(Paging::root).collect();
        self.roots.learn(&self.memory, &in_use);
        if request.discover {
            self.discover(&in_use)?;
        }
        let (clock, cpu) = (MonotonicClock::start(), thread_cpu_time());
        let roots = self.roots.live(&self.memory, &in_use).ok_or(
            "the guest's kernel was not recognised twice yet: no table is walked before (the next scan \
             usually can)",
        )?;
        let (memory, known) = (&self.memory, &self.roots);
        let is_live = |frame| known.is_live(memory, frame);
        self.scanner.tell_writes(writes);
        let mut answer = self
            .scanner
            .scan_checked(memory, paging, &roots, request, is_live);
        answer.stats.elapsed_ns = clock.now().0;
        let cpu = thread_cpu_time().saturating_sub(cpu);
        answer.stats.cpu_ns = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        Ok(answer)
    }

    /// Looks for top-level tables in all allocated memory, then lets go of the pages that this mapped
    /// here: a page that two processes map is harder to move and to reclaim.
    fn discover(&mut self, in_use: &[Gfn]) -> Result<(), String> {
        let cpu = thread_cpu_time();
        let extents = self.allocated()?;
        self.roots.discover(&self.memory, extents, in_use);
        for mapping in &self.mappings {
            mapping.forget_pages().map_err(|error| error.to_string())?;
        }
        let cpu = thread_cpu_time().saturating_sub(cpu);
        tracing::debug!(?cpu, "looked for top-level tables");
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

type Reading = Result<Paging, Unsupported>;

/// How virtual CPUs page. One that never ran (an offline one) may stay out of long mode; one that leaves
/// it was reset.
#[derive(Debug, Default)]
struct Shape {
    long_mode: Vec<bool>,
    levels: Option<u8>,
}

impl Shape {
    /// Whether a virtual CPU that was in long mode is not now, or has another number of levels.
    fn is_left(&self, readings: &[Reading]) -> bool {
        let was_long = |n: usize| self.long_mode.get(n).copied().unwrap_or(false);
        readings
            .iter()
            .enumerate()
            .any(|(n, reading)| match reading {
                Ok(paging) => self.levels.is_some_and(|levels| levels != paging.levels()),
                Err(_) => was_long(n),
            })
    }

    fn note(&mut self, readings: &[Reading]) {
        self.long_mode.resize(readings.len(), false);
        for (was_long, reading) in self.long_mode.iter_mut().zip(readings) {
            *was_long |= reading.is_ok();
        }
        self.levels = readings.iter().flatten().next().map(Paging::levels);
    }
}

/// The virtual CPUs whose tables can be walked, all of one shape.
fn pagings(readings: &[Reading]) -> Result<Vec<Paging>, String> {
    let pagings: Vec<Paging> = readings.iter().filter_map(|r| r.ok()).collect();
    let Some(first) = pagings.first() else {
        return Err(match readings.first() {
            Some(Err(error)) => error.to_string(),
            _ => "the VM has no virtual CPU".into(),
        });
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

    fn long(cr4: u64) -> Reading {
        Paging::from_registers(PagingRegisters {
            cr0: 1 << 31,
            cr3: 0x1000,
            cr4,
            efer: 0xd01,
        })
    }

    const OFF: Reading = Err(Unsupported::PagingOff);

    #[test]
    fn vcpus_that_cannot_be_walked_are_left_out_and_mixed_ones_refused() {
        assert_eq!(pagings(&[OFF, long(0x20)]).unwrap().len(), 1);
        assert!(pagings(&[OFF]).unwrap_err().contains("paging off"));
        assert!(pagings(&[long(0x20), long(0x1020)]).is_err());
        assert!(pagings(&[]).is_err());
    }

    #[test]
    fn a_vcpu_that_leaves_its_paging_mode_is_noticed_and_one_that_never_ran_is_not() {
        let mut shape = Shape::default();
        assert!(!shape.is_left(&[OFF, OFF]));
        shape.note(&[long(0x20), OFF]);
        assert!(!shape.is_left(&[long(0x20), OFF]));
        assert!(!shape.is_left(&[long(0x20), long(0x20)]));
        assert!(shape.is_left(&[OFF, OFF]));
        assert!(shape.is_left(&[OFF, long(0x20)]));
        assert!(shape.is_left(&[long(0x1020), OFF]));
    }
}
