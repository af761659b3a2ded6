//! The unit of ranking and moving, 4 KiB or 2 MiB, for each VM.
//!
//! Responsible for: choosing it by what backs the VM's RAM, and saying why. It leaves to others:
//! ranking (`terrace-core`) and moving (`mover`) by it. It is chosen once, when the VM comes under
//! management; with either unit the mover asks the kernel anew what backs each page.
//!
//! The kernel counts in `smaps` what a process maps by huge entries, as `PAGEMAP_SCAN` does: a huge page
//! that is mapped by small entries counts as small pages. RAM on hugetlbfs does not come this far
//! ([`crate::memory_map::Unscannable`]).

use serde::Deserialize;
use terrace_proto::PageSize;

use crate::memory_map::GuestMemory;
use crate::{HostRoot, ReadError};

/// Least share of resident RAM on huge pages that makes the unit 2 MiB, percent. Below it, small pages
/// among them would be moved with 511 others that were not scanned.
const MAX_PERCENT: u64 = 90;

/// The unit as people choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
pub enum UnitChoice {
    /// 2 MiB if the host backs most of the RAM with huge pages.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// 4 KiB; huge pages of the host still move whole.
    #[serde(rename = "4KiB")]
    Base,
    /// 2 MiB, whatever the host's pages are.
    #[serde(rename = "2MiB")]
    Huge,
}

/// The unit of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The unit of ranking and moving.
    pub size: PageSize,
    /// The reason, for people.
    pub why: String,
}

impl Unit {
    /// Chooses for the VM of a process.
    #[must_use]
    pub fn choose(root: &HostRoot, pid: u32, memory: &GuestMemory, choice: UnitChoice) -> Self {
        let base = |why: String| Self {
            size: PageSize::Base,
            why,
        };
        let huge = |why: String| Self {
            size: PageSize::Huge,
            why,
        };
        if choice == UnitChoice::Base {
            return base("as configured".into());
        }
        if !memory.is_huge_aligned() {
            // One unit would be parts of two huge pages, and move its neighbours' halves.
            return base(
                "its RAM does not begin at a multiple of 2 MiB in QEMU (align=2M would change that)".into(),
            );
        }
        if choice == UnitChoice::Huge {
            return huge("as configured".into());
        }
        match Resident::read(root, pid, memory) {
            Err(error) => base(format!(
                "the size of the pages that back its RAM is not known: {error}"
            )),
            Ok(resident) if resident.is_mostly_huge() => huge(resident.text()),
            Ok(resident) => base(resident.text()),
        }
    }
}

/// The amount of a VM's RAM that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Resident {
    bytes: u64,
    huge_bytes: u64,
}

impl Resident {
    fn read(root: &HostRoot, pid: u32, memory: &GuestMemory) -> Result<Self, ReadError> {
        let text = root.read(format!("proc/{pid}/smaps"))?;
        let mut sum = Self::default();
        let mut counts = false;
        for line in text.lines() {
            if let Some((start, end)) = addresses(line) {
                let overlaps =
                    |(from, len): (u64, u64)| start < from.saturating_add(len) && from < end;
                let mut ranges = memory.ranges().iter().map(|r| (r.hva.0, r.len));
                counts = ranges.any(overlaps);
            } else if let Some((key, bytes)) = amount(line).filter(|_| counts) {
                match key {
                    "Rss" => sum.bytes = sum.bytes.saturating_add(bytes),
                    "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => {
                        sum.huge_bytes = sum.huge_bytes.saturating_add(bytes);
                    }
                    _ => {}
                }
            }
        }
        Ok(sum)
    }

    fn percent(self) -> u64 {
        let part = u128::from(self.huge_bytes) * 100 / u128::from(self.bytes.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    fn is_mostly_huge(self) -> bool {
        self.bytes > 0 && self.percent() >= MAX_PERCENT
    }

    fn text(self) -> String {
        format!(
            "when it came, huge pages backed {} % of its {} MiB of resident RAM ({MAX_PERCENT} % and more \
             make it 2 MiB)",
            self.percent(),
            self.bytes >> 20
        )
    }
}

/// The addresses of a mapping's first line.
fn addresses(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    Some((hex(start)?, hex(end)?))
}

/// A line such as `Rss:      1024 kB`.
fn amount(line: &str) -> Option<(&str, u64)> {
    let (key, value) = line.split_once(':')?;
    let kib: u64 = value.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some((key, kib.checked_mul(1024)?))
}

#[cfg(test)]
mod tests {
    use terrace_proto::{Gpa, Hva};

    use super::*;
    use crate::memory_map::Range;

    const PID: u32 = 42;
    const RAM: u64 = 0x7f00_0000_0000;

    /// 1 GiB below and 1 GiB above 4 GiB, one file.
    fn memory(shift: u64) -> GuestMemory {
        let range = |gpa, offset| Range {
            gpa: Gpa(gpa),
            len: 1 << 30,
            hva: Hva(RAM + shift + offset),
            file_index: 0,
            file_offset: offset,
            shared: true,
        };
        GuestMemory::of_ranges(vec![range(0, 0), range(1 << 32, 1 << 30)])
    }

    fn mapping(start: u64, rss_mib: u64, kind: &str, huge_mib: u64) -> String {
        format!(
            "{start:x}-{:x} rw-s 00000000 00:1b 2    /dev/shm/ram\n\
             Size:            2097152 kB\nKernelPageSize:        4 kB\nRss: {:>15} kB\n\
             {kind}: {:>10} kB\nVmFlags: rd wr sh mr mw me ms sd\n",
            start + (2 << 30),
            rss_mib << 10,
            huge_mib << 10,
        )
    }

    fn choose(smaps: Option<&str>, shift: u64, choice: UnitChoice) -> Unit {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("proc/42")).unwrap();
        if let Some(smaps) = smaps {
            std::fs::write(folder.path().join("proc/42/smaps"), smaps).unwrap();
        }
        Unit::choose(&HostRoot::new(folder.path()), PID, &memory(shift), choice)
    }

    #[test]
    fn ram_mostly_on_huge_pages_is_ranked_by_2_mib() {
        let other = mapping(0x5500_0000_0000, 700, "AnonHugePages", 0);
        for kind in ["ShmemPmdMapped", "FilePmdMapped", "AnonHugePages"] {
            let smaps = other.clone() + &mapping(RAM, 1000, kind, 950);
            let unit = choose(Some(&smaps), 0, UnitChoice::Auto);
            assert_eq!(unit.size, PageSize::Huge, "{kind}");
            assert!(unit.why.contains("95 % of its 1000 MiB"), "{}", unit.why);
        }
    }

    #[test]
    fn ram_mostly_on_small_or_absent_pages_is_ranked_by_4_kib() {
        let other = mapping(0x5500_0000_0000, 700, "AnonHugePages", 700);
        for (rss, huge) in [(1000, 890), (0, 0)] {
            let smaps = mapping(RAM, rss, "ShmemPmdMapped", huge) + &other;
            let unit = choose(Some(&smaps), 0, UnitChoice::Auto);
            assert_eq!(unit.size, PageSize::Base, "{}", unit.why);
        }
    }

    #[test]
    fn what_is_configured_counts_unless_ram_is_not_aligned() {
        let huge = mapping(RAM, 1000, "ShmemPmdMapped", 1000);
        assert_eq!(
            choose(Some(&huge), 0, UnitChoice::Base).size,
            PageSize::Base
        );
        assert_eq!(choose(Some(""), 0, UnitChoice::Huge).size, PageSize::Huge);
        for choice in [UnitChoice::Auto, UnitChoice::Huge] {
            let unit = choose(Some(&huge), 4096, choice);
            assert_eq!(unit.size, PageSize::Base);
            assert!(unit.why.contains("align=2M"), "{}", unit.why);
        }
    }

    #[test]
    fn a_process_that_cannot_be_read_leaves_4_kib_and_the_reason() {
        let unit = choose(None, 0, UnitChoice::Auto);
        assert_eq!(unit.size, PageSize::Base);
        assert!(unit.why.contains("proc/42/smaps"), "{}", unit.why);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[0-9a-f: \\-RskB\n]{0,200}") {
            let _ = choose(Some(&text), 0, UnitChoice::Auto);
        }
    }
}
