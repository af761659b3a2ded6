//! The parts of a process's address space that are worth managing (HyperTier §5, range initialization).
//!
//! Responsible for: reading `/proc/PID/maps` and `stat` into the ranges that the tree and the samplers
//! see, and those that are brought into fast memory once: program text, its data and the stack. It leaves to
//! others: which pages of a range exist, and where.
//!
//! Shared memory that several of the managed processes map is left alone: the samples of each process show its own
//! accesses alone, and pages that are cold to one may be hot to another.

use std::collections::{BTreeMap, BTreeSet};

use terrace_core::ranges::Range;
use terrace_proto::{PAGE_SIZE, PAGES_PER_HUGE};
use terrace_sys::HostRoot;
use terrace_sys::opener;

/// Most ranges of one process; nearest neighbours are joined until they fit.
const MAX_RANGES: usize = 256;

/// Most lines of `maps` that are read; the kernel's own default limit is 65,530 mappings.
const MAX_LINES: usize = 100_000;

/// The managed parts of one process. Page numbers are virtual.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Layout {
    /// From the heap's start to the base of mappings, `[start_brk, mmap_base)`.
    pub root: Option<Range>,
    /// Mappings that are managed, in whole 2 MiB blocks; ascending, apart.
    pub ranges: Vec<Range>,
    /// The same mappings with their exact bounds.
    pub mapped: Vec<Range>,
    /// The managed mappings that other processes may map, too.
    pub shared: Vec<Range>,
    /// Program text, static data and the stack.
    pub pinned: Vec<Range>,
}

/// A line of `maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line<'a> {
    pages: Range,
    executable: bool,
    /// Whether pages may be read, written or executed; a mapping without any of these is a mere reservation.
    usable: bool,
    shared: bool,
    device: &'a str,
    inode: u64,
    offset: u64,
    path: &'a str,
}

impl Line<'_> {
    fn key(&self) -> (String, u64, u64) {
        (self.device.to_owned(), self.inode, self.offset)
    }
}

/// Shared mappings, each by device, inode and offset, with the processes that map them.
pub type Sharers = BTreeMap<(String, u64, u64), BTreeSet<u32>>;

impl Layout {
    /// Reads the layouts of several processes together; a process that is gone or hidden is left out.
    #[must_use]
    pub fn read_all(root: &HostRoot, pids: &[u32]) -> BTreeMap<u32, Self> {
        let texts = pids.iter().filter_map(|pid| {
            // Its opening waits for a process that hangs in execve(2).
            let maps = opener::read(&root.process(*pid, "maps")).ok()?;
            let maps = String::from_utf8_lossy(&maps).into_owned();
            let stat = root.read(format!("proc/{pid}/stat")).ok()?;
            Some((*pid, (maps, stat)))
        });
        let texts: BTreeMap<u32, (String, String)> = texts.collect();
        let mut sharers = Sharers::new();
        for (pid, (maps, _)) in &texts {
            for line in lines(maps).filter(|line| line.shared) {
                sharers.entry(line.key()).or_default().insert(*pid);
            }
        }
        let layouts = texts.iter();
        layouts
            .map(|(pid, (maps, stat))| (*pid, Self::parse(maps, stat, &sharers)))
            .collect()
    }

    fn parse(maps: &str, stat: &str, sharers: &Sharers) -> Self {
        let lines: Vec<Line<'_>> = lines(maps).collect();
        let images: BTreeSet<&str> = lines
            .iter()
            .filter(|line| line.executable && line.path.starts_with('/'))
            .map(|line| line.path)
            .collect();
        let mut layout = Self::default();
        let contested = |line: &Line<'_>| {
            let who = line.shared.then(|| sharers.get(&line.key())).flatten();
            who.is_some_and(|pids| pids.len() > 1)
        };
        for line in &lines {
            match kind(line, &images) {
                MappingKind::Managed if contested(line) => {}
                MappingKind::Managed => {
                    push(&mut layout.mapped, line.pages);
                    if line.shared {
                        push(&mut layout.shared, line.pages);
                    }
                }
                MappingKind::Pinned => push(&mut layout.pinned, line.pages),
                MappingKind::Other => {}
            }
        }
        layout.root = start_brk(stat).and_then(|start| root_range(start, &lines));
        layout.ranges = seeds(&layout.mapped);
        layout
    }

    /// Whether this layout is of another program, by where its heap begins: `exec` keeps the process and its number.
    #[must_use]
    pub fn is_of_another_program(&self, before: &Self) -> bool {
        match (self.root, before.root) {
            (Some(now), Some(before)) => now.start != before.start,
            _ => false,
        }
    }
}

fn lines(maps: &str) -> impl Iterator<Item = Line<'_>> {
    maps.lines().take(MAX_LINES).filter_map(line)
}

enum MappingKind {
    Managed,
    Pinned,
    Other,
}

/// The treatment of a mapping. Images (files that are mapped executable anywhere) and the stack are pinned. Devices,
/// the kernel's own pages, hugetlbfs (System V's may be), which `move_pages` treats differently, and mere
/// reservations are left alone.
fn kind(line: &Line<'_>, images: &BTreeSet<&str>) -> MappingKind {
    let path = line.path;
    if path == "[stack]" || images.contains(path) {
        return MappingKind::Pinned;
    }
    let hugetlb = path.starts_with("/anon_hugepage") || path.starts_with("/SYSV");
    let special = path.starts_with('[') && path != "[heap]" && !path.starts_with("[anon");
    let memory_device = path.starts_with("/dev/shm/") || path.starts_with("/dev/zero");
    let device = path.starts_with("/dev/") && !memory_device;
    if special || device || hugetlb || !line.usable {
        MappingKind::Other
    } else {
        MappingKind::Managed
    }
}

fn line(text: &str) -> Option<Line<'_>> {
    let mut fields = text.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let address = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    let permissions = fields.next()?;
    let offset = address(fields.next()?)?;
    let device = fields.next()?;
    let inode = fields.next()?.parse().ok()?;
    let path = fields.next().unwrap_or("").trim_start();
    // The other half belongs to the kernel (`[vsyscall]`).
    if start >= end || end > 1 << 63 {
        return None;
    }
    Some(Line {
        pages: Range {
            start: start / PAGE_SIZE,
            end: end / PAGE_SIZE,
        },
        usable: !permissions.starts_with("---"),
        executable: permissions.as_bytes().get(2) == Some(&b'x'),
        shared: permissions.as_bytes().get(3) == Some(&b's'),
        device,
        inode,
        offset,
        path,
    })
}

/// The heap's start in pages: field 47 of `stat`. The kernel shows 0 to a process that may not inspect it; that is
/// `None`.
fn start_brk(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let address: u64 = after_name.split_whitespace().nth(44)?.parse().ok()?;
    (address > 0).then_some(address / PAGE_SIZE)
}

/// The range from the heap's start to `mmap_base`. The kernel does not report `mmap_base`; the mappings grow down from
/// it, so the end of the highest one below the stack stands for it.
fn root_range(start: u64, lines: &[Line<'_>]) -> Option<Range> {
    let stack = lines.iter().find(|line| line.path == "[stack]");
    let below = stack.map_or(u64::MAX, |stack| stack.pages.start);
    let mappings = lines.iter().filter(|line| line.pages.end <= below);
    let end = mappings.map(|line| line.pages.end).max()?;
    (start < end).then_some(Range { start, end })
}

fn push(ranges: &mut Vec<Range>, next: Range) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

/// The mappings as whole 2 MiB blocks, joined if they touch; then the nearest ones are joined until there are few
/// enough.
fn seeds(mapped: &[Range]) -> Vec<Range> {
    let mut seeds: Vec<Range> = Vec::new();
    for range in mapped {
        let start = range.start / PAGES_PER_HUGE * PAGES_PER_HUGE;
        let end = range.end.div_ceil(PAGES_PER_HUGE) * PAGES_PER_HUGE;
        match seeds.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => seeds.push(Range { start, end }),
        }
    }
    join_nearest(&seeds, MAX_RANGES)
}

/// The same ranges with the smallest gaps closed, so that at most `most` are left.
#[must_use]
pub fn join_nearest(ranges: &[Range], most: usize) -> Vec<Range> {
    let excess = ranges.len().saturating_sub(most.max(1));
    let mut gaps: Vec<(u64, usize)> = ranges
        .windows(2)
        .enumerate()
        .map(|(at, pair)| (pair[1].start - pair[0].end, at + 1))
        .collect();
    gaps.sort_unstable();
    let closed: BTreeSet<usize> = gaps.iter().take(excess).map(|(_, at)| *at).collect();
    let mut joined: Vec<Range> = Vec::new();
    for (at, range) in ranges.iter().enumerate() {
        match joined.last_mut() {
            Some(last) if closed.contains(&at) => last.end = range.end,
            _ => joined.push(*range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "42 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 \
                        26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 93824992288768 45 46";

    const MAPS: &str = "\
555555400000-555555500000 r-xp 00000000 08:01 77 /usr/bin/redis server
555555500000-555555510000 rw-p 00100000 08:01 77 /usr/bin/redis server
555555559000-555555700000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
7f0000400000-7f0000600000 rw-s 00000000 00:01 9 /dev/shm/segment
7f0000600000-7f0000700000 rw-s 00000000 00:0c 3 /dev/dri/card0
7f0001000000-7f0001100000 r-xp 00000000 08:01 5 /lib/libc.so
7f0001100000-7f0001200000 r--p 00000000 08:01 6 /data/file
7ffffff00000-7ffffff20000 rw-p 00000000 00:00 0 [stack]
7ffffff30000-7ffffff32000 r-xp 00000000 00:00 0 [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
nonsense
";

    fn range(start: u64, end: u64) -> Range {
        Range {
            start: start >> 12,
            end: end >> 12,
        }
    }

    #[test]
    fn heap_and_mappings_are_managed_images_and_stack_are_pinned() {
        let layout = Layout::parse(MAPS, STAT, &Sharers::new());
        assert_eq!(
            layout.mapped,
            [
                range(0x5555_5555_9000, 0x5555_5570_0000),
                range(0x7f00_0000_0000, 0x7f00_0060_0000),
                range(0x7f00_0110_0000, 0x7f00_0120_0000),
            ]
        );
        assert_eq!(
            layout.pinned,
            [
                range(0x5555_5540_0000, 0x5555_5551_0000),
                range(0x7f00_0100_0000, 0x7f00_0110_0000),
                range(0x7fff_fff0_0000, 0x7fff_fff2_0000),
            ]
        );
        assert_eq!(
            layout.ranges,
            [
                range(0x5555_5540_0000, 0x5555_5580_0000),
                range(0x7f00_0000_0000, 0x7f00_0060_0000),
                range(0x7f00_0100_0000, 0x7f00_0120_0000),
            ]
        );
    }

    #[test]
    fn the_papers_root_spans_heap_to_highest_mapping_below_stack() {
        let layout = Layout::parse(MAPS, STAT, &Sharers::new());
        let start = 93_824_992_288_768 / 4096;
        let end = 0x7f00_0120_0000 >> 12;
        assert_eq!(layout.root, Some(Range { start, end }));
        assert_eq!(Layout::parse(MAPS, "", &Sharers::new()).root, None);
    }

    #[test]
    fn shared_memory_is_managed_only_if_one_process_maps_it() {
        let dir = tempfile::tempdir().unwrap();
        for pid in [7, 8] {
            let folder = dir.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("maps"), MAPS).unwrap();
            std::fs::write(folder.join("stat"), STAT).unwrap();
        }
        let root = HostRoot::new(dir.path());
        let alone = &Layout::read_all(&root, &[7, 9])[&7];
        let shared = range(0x7f00_0040_0000, 0x7f00_0060_0000);
        assert_eq!(alone.shared, [shared]);
        assert_eq!(alone.mapped[1], range(0x7f00_0000_0000, 0x7f00_0060_0000));
        for layout in Layout::read_all(&root, &[7, 8]).values() {
            assert_eq!(layout.shared, []);
            let private = range(0x7f00_0000_0000, 0x7f00_0040_0000);
            assert_eq!(layout.mapped[1], private);
        }
    }

    #[test]
    fn reservations_are_left_alone_and_exec_is_noticed() {
        let reserved = "7f0000000000-7f8000000000 ---p 00000000 00:00 0 \n";
        let layout = Layout::parse(reserved, STAT, &Sharers::new());
        assert_eq!(layout.mapped, []);
        let before = Layout::parse(MAPS, STAT, &Sharers::new());
        let stat = STAT.replace("93824992288768", "93824992300000");
        let after = Layout::parse(MAPS, &stat, &Sharers::new());
        assert!(after.is_of_another_program(&before));
        assert!(!before.is_of_another_program(&before));
    }

    #[test]
    fn too_many_ranges_are_joined_where_gaps_are_small() {
        let ranges = [(0, 1), (2, 3), (10, 11), (12, 13)].map(|(start, end)| Range { start, end });
        let joined = join_nearest(&ranges, 2);
        let want = [(0, 3), (10, 13)].map(|(start, end)| Range { start, end });
        assert_eq!(joined, want);
        assert_eq!(join_nearest(&ranges, 4), ranges);
        assert_eq!(join_nearest(&[], 1), []);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(maps in "([0-9a-f]{0,17}-?[0-9a-f]{0,17} [rwxps-]{0,4}[ 0-9:a-z/\\[\\]]{0,20}\n){0,8}",
                                  stat in "[0-9() ]{0,300}") {
            Layout::parse(&maps, &stat, &Sharers::new());
        }
    }
}
