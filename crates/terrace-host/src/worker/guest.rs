//! The guest as its worker sees it: mapped RAM, top-level tables, scans.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use terrace_pagetable::{
    Guard, GuestTables, MappedMemory, MappedRange, Paging, Scanner, Unproven, Unsupported,
};
use terrace_proto::worker::{FileRange, Withheld};
use terrace_proto::{Gfn, Pass, Passed, Readings, ScanRequest, TableFrame, Tick};
use terrace_sys::{MonotonicClock, SharedMapping, file_size, monotonic_now, thread_cpu_time};

use super::allocated::{Allocated, Ram, tells_cached};
use super::roots::Roots;
use super::shares::{Scanned, Share, Shares};

/// One VM's RAM.
pub(super) struct Guest {
    /// Dropped before the mappings that it points into.
    memory: MappedMemory,
    ram: Ram,
    scanner: Scanner,
    /// The threads' shares of passes over all, once such a pass used several.
    shares: Option<Shares>,
    roots: Roots,
    /// The virtual CPUs that were in long mode since kernel halves are remembered, and their number of levels.
    shape: Shape,
    /// Number of the VM's resets when the last readings were made.
    resets: u64,
    /// Scratch: a bit for each frame.
    bits: Vec<u64>,
    /// Whether the next pass names page tables.
    names_tables: bool,
}

impl Guest {
    /// Maps RAM; nothing of it is touched.
    ///
    /// # Errors
    /// If ranges do not fit the files or cannot be mapped; for people.
    pub(super) fn map(ranges: Vec<FileRange>, files: Vec<OwnedFd>) -> Result<Self, String> {
        let tells = |file: &OwnedFd| Ok(tells_cached(&File::from(file.try_clone()?)));
        let tells: std::io::Result<Vec<bool>> = files.iter().map(tells).collect();
        let tells_cached = tells.map_err(|error| error.to_string())?;
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
            shares: None,
            memory,
            ram: Ram {
                ranges,
                files,
                mappings,
                tells_cached,
            },
            roots: Roots::default(),
            shape: Shape::default(),
            resets: 0,
            bits: Vec::new(),
            names_tables: false,
        })
    }

    /// Takes in the monitor's report: how the virtual CPUs that count page.
    ///
    /// # Errors
    /// If no virtual CPU's tables can be walked now; for people.
    fn take_in(&mut self, readings: &Readings) -> Result<Vec<Paging>, String> {
        if readings.resets != self.resets {
            // RAM keeps its bytes over a reset, so only these readings speak of the kernel that runs now.
            self.forget();
            self.resets = readings.resets;
        }
        let readings: Vec<Reading> = readings
            .vcpus
            .iter()
            .map(|registers| registers.map(Paging::from_registers))
            .collect();
        if self.roots.knows_any() && self.shape.is_left(&readings) {
            self.forget();
            return Err("a virtual CPU left its paging mode: the guest reboots or starts another kernel, so \
                        what was known of its tables is forgotten"
                .into());
        }
        let pagings = pagings(&readings)?;
        self.shape.note(&readings);
        Ok(pagings)
    }

    fn forget(&mut self) {
        self.roots.forget();
        self.shape = Shape::default();
    }

    /// Makes passes name page tables, or stops that.
    pub(super) fn name_tables(&mut self, on: bool) {
        self.scanner.name_tables(on);
        self.names_tables = on;
    }

    /// The page tables that the last pass named.
    pub(super) fn take_tables(&mut self) -> Vec<TableFrame> {
        let mut tables = self.scanner.take_tables();
        if let Some(shares) = &mut self.shares {
            shares.take_tables(&mut tables);
            TableFrame::bound(&mut tables, TableFrame::most(self.memory.frames()));
        }
        tables
    }

    /// One pass, which moves D aside if `writes` is set. Its times are those of the walk alone, because its answer
    /// is about the time of the walk.
    ///
    /// # Errors
    /// If no virtual CPU's tables can be walked now; for people.
    pub(super) fn scan(
        &mut self,
        pass: &Pass,
        readings: &Readings,
        until: Tick,
        (writes, threads): (bool, u8),
    ) -> Result<Passed, String> {
        let pagings = self.take_in(readings)?;
        let memory = Allocated::new(&self.memory, &self.ram, &mut self.bits);
        self.roots.learn(&memory, &pagings).map_err(not_walked)?;
        let (clock, before) = (MonotonicClock::start(), thread_cpu_time());
        let roots = self.roots.live(&memory);
        let guard = WalkGuard {
            roots: &self.roots,
            memory: &memory,
            until,
        };
        self.scanner.tell_writes(writes);
        let scanner = &mut self.scanner;
        let mut others = Duration::ZERO;
        let mut passed = match pass {
            Pass::All(request) if threads > 1 => {
                let ram = (&self.memory, &self.ram, &self.roots);
                let of = (request, pagings[0], roots.as_slice(), until, writes);
                let shares = self
                    .shares
                    .get_or_insert_with(|| Shares::new(ram.0.frames(), threads));
                shares.name_tables(self.names_tables);
                let scanned = shares.scan(|share| scan_share(share, ram, of));
                let (answer, cpu) = scanned.ok_or("a pass of no share")?;
                others = cpu;
                Passed::All(Box::new(answer))
            }
            Pass::All(request) => {
                let answer = scanner.scan_checked(&memory, pagings[0], &roots, request, guard);
                Passed::All(Box::new(answer))
            }
            Pass::Part(request) => {
                let answer = scanner.scan_part(&memory, pagings[0], &roots, request, guard);
                Passed::Part(Box::new(answer))
            }
        };
        if monotonic_now() >= until {
            return Err("the walk was given up: its registers were read too long ago to write to page tables \
            safely (the host is too busy, \
                        or stopped the worker)"
                .into());
        }
        let stats = match &mut passed {
            Passed::All(answer) => &mut answer.stats,
            Passed::Part(answer) => &mut answer.stats,
        };
        stats.elapsed_ns = clock.now().0;
        let cpu = thread_cpu_time().saturating_sub(before) + others;
        stats.cpu_ns = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        Ok(passed)
    }

    /// Searches all allocated memory for top-level tables; returns why it does not, if so.
    ///
    /// # Errors
    /// If no virtual CPU shows what to search for, or memory cannot be searched; for people.
    pub(super) fn search(&mut self, readings: &Readings) -> Result<Option<Withheld>, String> {
        let pagings = self.take_in(readings)?;
        let cpu = thread_cpu_time();
        let memory = Allocated::new(&self.memory, &self.ram, &mut self.bits);
        self.roots.learn(&memory, &pagings).map_err(not_walked)?;
        let mut pieces = self.ram.pieces();
        // The pieces hold data: there is no need to ask for each page.
        let withheld = self.roots.search(&self.memory, &mut pieces);
        pieces.result()?;
        let cpu = thread_cpu_time().saturating_sub(cpu);
        tracing::debug!(?cpu, ?withheld, "searched for top-level tables");
        Ok(withheld)
    }
}

/// One thread's part of a pass over all. Whatever tables name is asked for by each thread itself, and each holds on to what it was
/// told.
fn scan_share(
    share: &mut Share,
    (memory, ram, roots): (&MappedMemory, &Ram, &Roots),
    (request, paging, live, until, writes): (&ScanRequest, Paging, &[Gfn], Tick, bool),
) -> Scanned {
    let before = thread_cpu_time();
    let Share {
        part,
        scanner,
        bits,
    } = share;
    let memory = Allocated::new(memory, ram, bits);
    let guard = WalkGuard {
        roots,
        memory: &memory,
        until,
    };
    scanner.tell_writes(writes);
    let answer = scanner.scan_share(&memory, paging, live, (request, *part), guard);
    (answer, thread_cpu_time().saturating_sub(before))
}

/// The conditions under which a walk may continue: the guest may start anew at any time, and then RAM keeps its bytes
/// but tables are data.
struct WalkGuard<'a, M> {
    roots: &'a Roots,
    memory: &'a M,
    until: Tick,
}

impl<M: GuestTables> Guard for WalkGuard<'_, M> {
    fn is_live(&self, root: Gfn) -> bool {
        self.roots.is_live(self.memory, root)
    }

    fn is_in_time(&self) -> bool {
        monotonic_now() < self.until
    }

    // Decided by its direct map.
    fn is_linux(&self) -> bool {
        true
    }
}

/// The reason why nothing is walked, for people.
fn not_walked(error: Unproven) -> String {
    format!("page tables are not read: {error}")
}

fn map(range: &FileRange, files: &[OwnedFd]) -> Result<SharedMapping, String> {
    let file = files.get(range.file as usize).ok_or_else(|| {
        format!(
            "file descriptor {} was not sent with the request",
            range.file
        )
    })?;
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

type Reading = Option<Result<Paging, Unsupported>>;

/// The state of the virtual CPUs' paging. One that never ran (an offline one) may stay out of long mode; one that
/// leaves it was reset.
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
                Some(Ok(paging)) => self.levels.is_some_and(|levels| levels != paging.levels()),
                Some(Err(_)) => was_long(n),
                None => false,
            })
    }

    fn note(&mut self, readings: &[Reading]) {
        self.long_mode.resize(readings.len(), false);
        for (was_long, reading) in self.long_mode.iter_mut().zip(readings) {
            *was_long |= matches!(reading, Some(Ok(_)));
        }
        self.levels = readings
            .iter()
            .flatten()
            .flatten()
            .next()
            .map(Paging::levels);
    }
}

/// The virtual CPUs whose tables can be walked, all of one shape.
fn pagings(readings: &[Reading]) -> Result<Vec<Paging>, String> {
    let count = readings.iter().flatten();
    let pagings: Vec<Paging> = count.clone().filter_map(|r| r.ok()).collect();
    let Some(first) = pagings.first() else {
        return Err(match count.clone().next() {
            Some(Err(error)) => error.to_string(),
            _ if readings.is_empty() => "the VM has no virtual CPU".into(),
            _ => "every virtual CPU ran a nested guest, or may have, while its registers were read"
                .into(),
        });
    };
    if pagings.iter().any(|p| p.levels() != first.levels()) {
        return Err("virtual CPUs differ in paging levels: the guest is booting".into());
    }
    Ok(pagings)
}

#[cfg(test)]
mod tests {
    use terrace_proto::PagingRegisters;

    use super::*;

    fn long(cr4: u64) -> Reading {
        Some(Paging::from_registers(PagingRegisters {
            cr0: 1 << 31,
            cr3: 0x1000,
            cr4,
            efer: 0xd01,
        }))
    }

    const OFF: Reading = Some(Err(Unsupported::PagingOff));
    const NESTED: Reading = None;

    #[test]
    fn unwalkable_vcpus_are_skipped_and_mixed_ones_refused() {
        assert_eq!(pagings(&[OFF, long(0x20)]).unwrap().len(), 1);
        assert!(pagings(&[OFF]).unwrap_err().contains("paging off"));
        assert!(pagings(&[long(0x20), long(0x1020)]).is_err());
        assert!(pagings(&[]).unwrap_err().contains("no virtual CPU"));
    }

    #[test]
    fn a_vcpu_that_ran_a_nested_guest_is_skipped_in_its_place() {
        assert_eq!(pagings(&[NESTED, long(0x20)]).unwrap().len(), 1);
        let all = pagings(&[NESTED, NESTED]).unwrap_err();
        assert!(
            all.contains("every virtual CPU ran a nested guest"),
            "{all}"
        );
        assert!(pagings(&[NESTED, OFF]).unwrap_err().contains("paging off"));
        let mut shape = Shape::default();
        shape.note(&[long(0x20), long(0x20)]);
        assert!(!shape.is_left(&[NESTED, long(0x20)]));
        shape.note(&[NESTED, long(0x20)]);
        assert!(shape.is_left(&[OFF, NESTED]), "the first left its mode");
    }

    #[test]
    fn a_vcpu_that_leaves_its_paging_mode_is_noticed() {
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
