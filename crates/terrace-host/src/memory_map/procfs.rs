//! Mappings and descriptors of the hypervisor's process.

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use terrace_sys::is_hugetlbfs;

use crate::HostRoot;
use crate::root::ReadError;

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub start: u64,
    pub end: u64,
    pub shared: bool,
    pub offset: u64,
    pub file: FileId,
    pub path: String,
}

/// What tells one file from another while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileId {
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
}

impl FileId {
    fn of(meta: &fs::Metadata) -> Self {
        Self {
            major: libc::major(meta.dev()),
            minor: libc::minor(meta.dev()),
            inode: meta.ino(),
        }
    }
}

/// All mappings, ascending.
pub(super) fn mappings(root: &HostRoot, pid: u32) -> Result<Vec<Mapping>, ReadError> {
    let text = root.read(format!("proc/{pid}/maps"))?;
    Ok(text.lines().filter_map(mapping).collect())
}

/// One line such as `7fc58ffff000-7fc6cffff000 rw-s 00000000 00:1b 2    /dev/shm/x`.
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let mode = words.next()?;
    let offset = words.next()?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode = words.next()?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        shared: mode.ends_with('s'),
        offset: hex(offset)?,
        file: FileId {
            major: u32::from_str_radix(major, 16).ok()?,
            minor: u32::from_str_radix(minor, 16).ok()?,
            inode: inode.parse().ok()?,
        },
        path: words.next().unwrap_or_default().trim().into(),
    })
}

/// The process's descriptors: where each link leads.
pub(super) struct Descriptors(Vec<(std::path::PathBuf, String)>);

impl Descriptors {
    pub(super) fn read(root: &HostRoot, pid: u32) -> Result<Self, ReadError> {
        let folder = root.process(pid, "fd");
        let entries = fs::read_dir(&folder).map_err(|source| ReadError::Io {
            path: folder,
            source,
        })?;
        let target = |path: &std::path::Path| {
            let link = fs::read_link(path).ok()?;
            Some(link.to_string_lossy().into_owned())
        };
        let paths = entries.flatten().map(|entry| entry.path());
        Ok(Self(
            paths
                .filter_map(|p| Some((p.clone(), target(&p)?)))
                .collect(),
        ))
    }

    /// A device that is passed through to the guest, if any.
    pub(super) fn passed_through(&self) -> Option<&str> {
        let targets = self.0.iter().map(|(_, target)| target.as_str());
        let is_vfio = |t: &&str| {
            t.starts_with("/dev/vfio/") || t.contains("[vfio-device]") || *t == "/dev/iommu"
        };
        targets.into_iter().find(is_vfio)
    }

    /// Opens the file of a mapping anew, to read and write, by any descriptor of it.
    ///
    /// # Errors
    /// Where one is there but cannot be opened.
    pub(super) fn open(&self, mapping: &Mapping) -> Result<Option<OwnedFile>, ReadError> {
        for (path, _) in &self.0 {
            let same = fs::metadata(path).is_ok_and(|meta| FileId::of(&meta) == mapping.file);
            if same {
                let file = OpenOptions::new().read(true).write(true).open(path);
                let file = file.map_err(|source| ReadError::Io {
                    path: path.clone(),
                    source,
                })?;
                return Ok(Some(OwnedFile(file)));
            }
        }
        Ok(None)
    }
}

/// A file behind guest RAM.
pub(super) struct OwnedFile(File);

impl OwnedFile {
    pub(super) fn len(&self) -> u64 {
        self.0.metadata().map_or(0, |meta| meta.len())
    }

    pub(super) fn is_hugetlbfs(&self) -> bool {
        use std::os::fd::AsFd;
        is_hugetlbfs(self.0.as_fd()).unwrap_or(false)
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_read() {
        let line =
            "7fc58ffff000-7fc6cffff000 rw-s 00001000 00:1b 2                          /dev/shm/a b";
        let m = mapping(line).unwrap();
        assert_eq!((m.start, m.end), (0x7fc5_8fff_f000, 0x7fc6_cfff_f000));
        assert!(m.shared && m.offset == 0x1000 && m.path == "/dev/shm/a b");
        assert_eq!((m.file.major, m.file.minor, m.file.inode), (0, 0x1b, 2));
        let anon = mapping("7f0000000000-7f0000001000 rw-p 00000000 00:00 0 ").unwrap();
        assert!(!anon.shared && anon.path.is_empty());
        assert_eq!(mapping("garbage"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_line_makes_it_panic(line in ".{0,80}") {
            let _ = mapping(&line);
        }
    }
}
