//! Private anonymous mappings of a process, and whether the kernel may back them by huge pages.

use super::procfs::mapping;
use crate::{HostRoot, ReadError};

/// A mapping of `/proc/PID/smaps` that is private anonymous memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnonymousMapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Memory of it that is there, bytes.
    pub(crate) present_bytes: u64,
    /// The part of that in huge pages, bytes.
    pub(crate) huge_bytes: u64,
    /// The kernel's two-letter flags of the mapping.
    flags: Vec<String>,
}

impl AnonymousMapping {
    /// Whether the mapping has a flag of the kernel, two letters.
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|known| known == flag)
    }

    /// Whether the kernel named the mapping's flags at all.
    pub(crate) fn has_flags(&self) -> bool {
        !self.flags.is_empty()
    }
}

/// The kernel's list of a process's mappings that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MappingsFile {
    /// With flags and sizes: the kernel walks all page tables for it.
    Smaps,
    /// Without them.
    Maps,
}

/// All private anonymous mappings that can be read and written, ascending.
pub(crate) fn anonymous_mappings(
    root: &HostRoot,
    pid: u32,
    file: MappingsFile,
) -> Result<Vec<AnonymousMapping>, ReadError> {
    let name = match file {
        MappingsFile::Smaps => "smaps",
        MappingsFile::Maps => "maps",
    };
    let text = root.read(format!("proc/{pid}/{name}"))?;
    let mut found: Vec<AnonymousMapping> = Vec::new();
    let mut is_one = false;
    for line in text.lines() {
        if let Some(seen) = mapping(line) {
            let is_named = !seen.path.is_empty() && !seen.path.starts_with("[anon:");
            is_one = !seen.shared && seen.read_write && seen.file.inode == 0 && !is_named;
            if is_one {
                found.push(AnonymousMapping {
                    start: seen.start,
                    end: seen.end,
                    ..AnonymousMapping::default()
                });
            }
        } else if let Some(last) = found.last_mut().filter(|_| is_one) {
            last.take(line);
        }
    }
    Ok(found)
}

impl AnonymousMapping {
    fn take(&mut self, line: &str) {
        let Some((key, value)) = line.split_once(':') else {
            return;
        };
        let kib = || {
            value
                .trim()
                .trim_end_matches("kB")
                .trim()
                .parse()
                .unwrap_or(0_u64)
        };
        match key {
            "Anonymous" => self.present_bytes = kib().saturating_mul(1024),
            "AnonHugePages" => self.huge_bytes = kib().saturating_mul(1024),
            "VmFlags" => self.flags = value.split_whitespace().map(str::to_owned).collect(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_files_and_shared_ones_are_left_out() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0 \nRss: 9 kB\nAnonymous: 8 kB\nAnonHugePages: 4 kB\nVmFlags: rd wr hg \n\
            3000-4000 rw-s 00000000 00:01 7 /memfd:x (deleted)\nAnonymous: 1 kB\nVmFlags: rd sh\n\
            4000-5000 rw-p 00000000 00:01 9 /ram\nAnonymous: 4 kB\nVmFlags: rd wr\n\
            5000-6000 r--p 00000000 00:00 0 \nVmFlags: rd\n\
            6000-7000 rw-p 00000000 00:00 0 [anon:ram]\nVmFlags: rd um\n\
            7000-8000 rw-p 00000000 00:00 0 [heap]\nVmFlags: rd\n";
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("proc/42")).unwrap();
        std::fs::write(folder.path().join("proc/42/smaps"), smaps).unwrap();
        let all =
            anonymous_mappings(&HostRoot::new(folder.path()), 42, MappingsFile::Smaps).unwrap();
        let starts: Vec<u64> = all.iter().map(|one| one.start).collect();
        assert_eq!(starts, [0x1000, 0x6000]);
        assert_eq!(
            (all[0].present_bytes, all[0].huge_bytes),
            (8 << 10, 4 << 10)
        );
        assert!(all[0].has("hg") && !all[0].has("um") && all[1].has("um"));
    }
}
