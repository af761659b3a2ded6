//! From guest frame numbers to addresses in QEMU, independently of the product under test.
//!
//! The guest's RAM is one mapping, or two of which the second has a name of its own, together smaller than 3 GiB, so the
//! offset in it is the guest physical address; `/proc/PID/maps` shows where QEMU has it. That of a guest with private RAM has
//! no name and is by far the largest one without.

use std::fs;

use anyhow::{Context, Result, bail};
use terrace_lab_programs::pages::{PAGE_SIZE, PageRange};
use terrace_lab_programs::vm;

/// A guest's RAM as its QEMU maps it.
#[derive(Debug, PartialEq, Eq)]
pub struct GuestMemory {
    /// QEMU's process id.
    pub pid: i32,
    /// Address and pages of each mapping, in the order of guest physical addresses.
    parts: Vec<(usize, u64)>,
}

impl GuestMemory {
    /// Finds the RAM of a guest, given by name or by the process id of its QEMU.
    pub fn find(guest: &str) -> Result<Self> {
        let pid = match guest.parse() {
            Ok(pid) => pid,
            Err(_) => pid_of(guest)?,
        };
        let path = format!("/proc/{pid}/maps");
        let maps = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let private = || maps.lines().filter_map(private_mapping);
        let mut found: Vec<(bool, (usize, usize))> = maps.lines().filter_map(ram_mapping).collect();
        // The first node's before the second one's.
        found.sort_by_key(|(is_second, _)| *is_second);
        let mut found: Vec<(usize, usize)> = found.into_iter().map(|(_, run)| run).collect();
        if found.is_empty() {
            found.extend(private().max_by_key(|(from, to)| to - from));
        }
        if found.is_empty() {
            bail!("{path} maps no RAM; is {guest} a guest of the lab?");
        }
        let pages = |(from, to): (usize, usize)| (from, ((to - from) / PAGE_SIZE) as u64);
        let parts: Vec<(usize, u64)> = found.into_iter().map(pages).collect();
        Ok(Self { pid, parts })
    }

    fn pages(&self) -> u64 {
        self.parts.iter().map(|(_, pages)| pages).sum()
    }

    /// The whole of the guest's RAM.
    pub fn all(&self) -> PageRange {
        PageRange::from((0, self.pages()))
    }

    /// The addresses of all pages in the ranges.
    pub fn addresses(&self, ranges: &[PageRange]) -> Result<Vec<usize>> {
        ranges
            .iter()
            .flat_map(|range| range.frames())
            .map(|frame| self.address(frame))
            .collect()
    }

    fn address(&self, frame: u64) -> Result<usize> {
        let mut left = frame;
        for (start, pages) in &self.parts {
            if left < *pages {
                return Ok(start + usize::try_from(left)? * PAGE_SIZE);
            }
            left -= pages;
        }
        bail!(
            "guest frame {frame:#x} is outside its {} pages",
            self.pages()
        );
    }
}

fn pid_of(name: &str) -> Result<i32> {
    let path = vm::pid_path(name);
    let text = fs::read_to_string(&path)
        .with_context(|| format!("no guest {name}: cannot read {path}"))?;
    Ok(text.trim().parse()?)
}

/// Start and end of the mapping, if this line is that of a guest's RAM, and whether it is the second node's.
fn ram_mapping(line: &str) -> Option<(bool, (usize, usize))> {
    let path = line.split_whitespace().nth(5)?;
    if !path.starts_with("/dev/shm/") || !path.ends_with(".ram") {
        return None;
    }
    Some((path.ends_with(".gather.ram"), bounds(line)?))
}

/// Start and end of the mapping, if this line is that of memory that no file stands for.
fn private_mapping(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_whitespace().skip(1);
    let private = fields.next()? == "rw-p" && fields.nth(3).is_none();
    bounds(line).filter(|_| private)
}

fn bounds(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(start)?, address(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_of_guest_ram_is_found_by_its_file() {
        let ram = "7f00200000-7f18200000 rw-s 00000000 00:1a 2   /dev/shm/vm1.ram";
        let run = (0x7f_0020_0000, 0x7f_1820_0000);
        assert_eq!(ram_mapping(ram), Some((false, run)));
        let second = ram.replace("vm1.ram", "vm1.ram.gather.ram");
        assert_eq!(ram_mapping(&second), Some((true, run)));
        assert_eq!(ram_mapping("00400000-00401000 r-xp 0 0:1 1 /bin/sh"), None);
        assert_eq!(
            ram_mapping("7f00200000-7f18200000 rw-p 00000000 00:00 0"),
            None
        );
    }

    #[test]
    fn private_ram_is_memory_without_a_name() {
        let ram = "7f00200000-7f18200000 rw-p 00000000 00:00 0 ";
        assert_eq!(private_mapping(ram), Some((0x7f_0020_0000, 0x7f_1820_0000)));
        for other in [
            "7f00200000-7f18200000 r--p 00000000 00:00 0 ",
            "55d000000000-55d000100000 rw-p 00000000 00:00 0   [heap]",
        ] {
            assert_eq!(private_mapping(other), None);
        }
    }

    #[test]
    fn frames_outside_the_guest_are_refused() {
        let memory = GuestMemory {
            pid: 1,
            parts: vec![(0x20_0000, 4), (0x10_0000, 2)],
        };
        let range = |first, count| [PageRange::from((first, count))];
        assert_eq!(
            memory.addresses(&range(2, 3)).unwrap(),
            [0x20_2000, 0x20_3000, 0x10_0000]
        );
        assert!(memory.addresses(&range(5, 2)).is_err());
    }
}
