//! Areas in which the kernel would make larger pages of base pages (khugepaged), and take them home by that.

use std::io::{self, BufRead, BufReader};

use terrace_core::ranges::Range;
use terrace_proto::PAGE_SIZE;
use terrace_sys::HostRoot;
use terrace_sys::opener::{self, How};

const THP: &str = "sys/kernel/mm/transparent_hugepage";
/// khugepaged sleeps so long between its passes that it counts as off, ms: an hour.
const OFF_MS: u64 = 3_600_000;

/// Parts of a process's memory in which khugepaged works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collapsing {
    /// In none.
    Nowhere,
    /// In those that asked for it (`MADV_HUGEPAGE`).
    Asked,
    /// In all that did not forbid it (`MADV_NOHUGEPAGE`).
    Allowed,
}

/// The setting of this kernel.
#[must_use]
pub fn collapsing(root: &HostRoot) -> Collapsing {
    let read = |name: &str| root.read(format!("{THP}/{name}")).unwrap_or_default();
    let sleep_ms = read("khugepaged/scan_sleep_millisecs").trim().parse();
    if sleep_ms.is_ok_and(|sleep_ms: u64| sleep_ms >= OFF_MS) {
        return Collapsing::Nowhere;
    }
    let enabled = read("enabled");
    if enabled.contains("[always]") {
        Collapsing::Allowed
    } else if enabled.contains("[madvise]") {
        Collapsing::Asked
    } else {
        Collapsing::Nowhere
    }
}

/// The parts of a process in which khugepaged works, ascending; all of it if that cannot be read.
#[must_use]
pub fn collapsible(root: &HostRoot, pid: u32, collapsing: Collapsing) -> Vec<Range> {
    if collapsing == Collapsing::Nowhere {
        return Vec::new();
    }
    let read = || {
        parse(
            BufReader::new(opener::open(&root.process(pid, "smaps"), How::Read)?),
            collapsing,
        )
    };
    read().unwrap_or_else(|_| {
        vec![Range {
            start: 0,
            end: u64::MAX,
        }]
    })
}

/// Reads line by line: a process may have very many mappings.
fn parse(smaps: impl BufRead, collapsing: Collapsing) -> io::Result<Vec<Range>> {
    let mut ranges: Vec<Range> = Vec::new();
    let mut mapping: Option<Range> = None;
    for line in smaps.lines() {
        let line = line?;
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |flag| flags.split_whitespace().any(|is| is == flag);
            let works = match collapsing {
                Collapsing::Nowhere => false,
                Collapsing::Asked => has("hg"),
                Collapsing::Allowed => !has("nh"),
            };
            let Some(range) = mapping.take().filter(|_| works) else {
                continue;
            };
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        } else if let Some(range) = bounds(&line) {
            mapping = Some(range);
        }
    }
    Ok(ranges)
}

/// The bounds of a mapping of the process's own, if the line of `maps` or `smaps` begins one.
#[must_use]
pub fn bounds(line: &str) -> Option<Range> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let page = |text| u64::from_str_radix(text, 16).ok().map(|at| at / PAGE_SIZE);
    let range = Range {
        start: page(start)?,
        end: page(end)?,
    };
    // The other half of the addresses is the kernel's (`[vsyscall]`).
    (range.start < range.end && range.end <= (1 << 63) / PAGE_SIZE).then_some(range)
}

/// Whether one of some ascending ranges has a page.
#[must_use]
pub fn has(ranges: &[Range], page: u64) -> bool {
    let at = ranges.partition_point(|range| range.end <= page);
    ranges.get(at).is_some_and(|range| range.start <= page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0 [heap]
Size:                  8 kB
VmFlags: rd wr mr mw me ac sd hg
8000-9000 rw-p 00000000 00:00 0
VmFlags: rd wr nh
a000-c000 rw-p 00000000 00:00 0
VmFlags: rd wr
";

    #[test]
    fn khugepaged_works_where_it_was_asked_or_not_forbidden() {
        let range = |start, end| Range { start, end };
        assert_eq!(
            parse(SMAPS.as_bytes(), Collapsing::Asked).unwrap(),
            [range(1, 3)]
        );
        let allowed = parse(SMAPS.as_bytes(), Collapsing::Allowed).unwrap();
        assert_eq!(allowed, [range(1, 3), range(10, 12)]);
        let pages: Vec<u64> = (0..20).filter(|page| has(&allowed, *page)).collect();
        assert_eq!(pages, [1, 2, 10, 11]);
    }

    #[test]
    fn mappings_of_all_kinds_are_known_but_the_kernels() {
        let stack = bounds("1000-3000 rw-p 00000000 00:00 0 [stack]");
        assert_eq!(stack, Some(Range { start: 1, end: 3 }));
        let vsyscall = "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]";
        assert_eq!(bounds(vsyscall), None);
        assert_eq!(bounds("VmFlags: rd"), None);
    }

    #[test]
    fn the_kernels_settings_say_where() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::new(dir.path());
        assert_eq!(collapsing(&root), Collapsing::Nowhere, "no such kernel");
        std::fs::create_dir_all(dir.path().join(THP).join("khugepaged")).unwrap();
        let put = |name: &str, text: &str| {
            std::fs::write(dir.path().join(THP).join(name), text).unwrap();
            collapsing(&root)
        };
        put("khugepaged/scan_sleep_millisecs", "10000\n");
        assert_eq!(
            put("enabled", "[always] madvise never\n"),
            Collapsing::Allowed
        );
        assert_eq!(
            put("enabled", "always [madvise] never\n"),
            Collapsing::Asked
        );
        assert_eq!(
            put("enabled", "always madvise [never]\n"),
            Collapsing::Nowhere
        );
        put("enabled", "[always] madvise never\n");
        assert_eq!(
            put("khugepaged/scan_sleep_millisecs", "4294967295\n"),
            Collapsing::Nowhere
        );
        assert_eq!(
            collapsible(&root, 7, Collapsing::Asked).len(),
            1,
            "not readable"
        );
    }
}
