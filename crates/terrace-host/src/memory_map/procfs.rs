//! Mappings and descriptors of the hypervisor's process.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use terrace_sys::is_hugetlbfs;
use terrace_sys::opener::{self, How};

use crate::HostRoot;
use crate::ReadError;
use crate::process_memory::is_pinning;

/// Most descriptors of a process that are inspected: systemd's limit for services.
const MAX_DESCRIPTORS: usize = 1 << 19;

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub start: u64,
    pub end: u64,
    pub shared: bool,
    /// The process may read and write it, and not execute it.
    pub read_write: bool,
    pub offset: u64,
    pub file: FileId,
    pub path: String,
}

/// The identity of a file while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileId {
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
}

impl Mapping {
    /// Anonymous memory of huge pages that were reserved (`MAP_HUGETLB`), by the name that the kernel
    /// gives it.
    pub(super) fn is_huge_and_anonymous(&self) -> bool {
        self.path.starts_with("/anon_hugepage")
    }
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

/// Bytes of these mappings that are resident. Mappings that the kernel does not list any more have none.
pub(super) fn resident(root: &HostRoot, pid: u32, of: &[&Mapping]) -> Result<u64, ReadError> {
    let text = root.read(format!("proc/{pid}/smaps"))?;
    let mut is_one = false;
    let mut bytes = 0_u64;
    for line in text.lines() {
        if let Some(kib) = line.strip_prefix("Rss:") {
            let kib = kib
                .trim()
                .trim_end_matches("kB")
                .trim()
                .parse()
                .unwrap_or(0);
            if is_one {
                bytes = bytes.saturating_add(u64::saturating_mul(kib, 1024));
            }
        } else if let Some(found) = mapping(line) {
            is_one = of
                .iter()
                .any(|m| m.start < found.end && found.start < m.end);
        }
    }
    Ok(bytes)
}

/// One line such as `7fc58ffff000-7fc6cffff000 rw-s 00000000 00:1b 2    /dev/shm/x`.
pub(super) fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let mode = fields.next()?;
    let offset = fields.next()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode = fields.next()?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        shared: mode.ends_with('s'),
        read_write: mode.starts_with("rw-"),
        offset: hex(offset)?,
        file: FileId {
            major: u32::from_str_radix(major, 16).ok()?,
            minor: u32::from_str_radix(minor, 16).ok()?,
            inode: inode.parse().ok()?,
        },
        path: fields.next().unwrap_or_default().trim().into(),
    })
}

/// The process's descriptors: where each link leads.
pub(super) struct Descriptors {
    /// `/proc/PID/fdinfo`.
    info: PathBuf,
    links: Vec<(PathBuf, String)>,
}

impl Descriptors {
    pub(super) fn read(root: &HostRoot, pid: u32) -> Result<Self, ReadError> {
        let folder = root.process(pid, "fd");
        let paths = opener::entries(&folder, MAX_DESCRIPTORS);
        let paths = paths.map_err(|source| ReadError::Io {
            path: folder,
            source,
        })?;
        let target = |path: &Path| {
            let link = opener::read_link(path).ok()?;
            Some(link.to_string_lossy().into_owned())
        };
        Ok(Self {
            info: root.process(pid, "fdinfo"),
            links: paths
                .into_iter()
                .filter_map(|p| Some((p.clone(), target(&p)?)))
                .collect(),
        })
    }

    /// A device that is passed through to the guest, if any.
    pub(super) fn passed_through(&self) -> Option<&str> {
        let mut targets = self.links.iter().map(|(_, target)| target.as_str());
        targets.find(|target| is_pinning(target))
    }

    /// Opens the file of a mapping anew, to read and write, by any descriptor of it that is open for both:
    /// the user that runs this may have more rights than the process, which must not gain by it.
    ///
    /// # Errors
    /// If one is there but cannot be opened.
    pub(super) fn open(&self, mapping: &Mapping) -> Result<Option<OwnedFile>, ReadError> {
        for (path, _) in &self.links {
            if !self.is_read_write(path) {
                continue;
            }
            let Some((held, _)) = hold(path, mapping) else {
                continue;
            };
            let file = opener::reopen(&held, How::ReadWrite).map_err(|source| ReadError::Io {
                path: path.clone(),
                source,
            })?;
            return Ok(Some(OwnedFile(file)));
        }
        Ok(None)
    }

    /// Bytes of the file of a mapping that have memory, by any descriptor of it; the file is not opened.
    pub(super) fn present(&self, mapping: &Mapping) -> Option<u64> {
        let mut held = self
            .links
            .iter()
            .filter_map(|(path, _)| hold(path, mapping));
        let (_, meta) = held.next()?;
        Some(meta.blocks().saturating_mul(512))
    }

    /// Whether the process itself may read and write by the descriptor behind this path.
    fn is_read_write(&self, path: &Path) -> bool {
        let info = path.file_name().map(|number| self.info.join(number));
        let text = info.and_then(|info| opener::read(&info).ok());
        text.and_then(|text| open_flags(&String::from_utf8_lossy(&text)))
            .is_some_and(|flags| flags & libc::O_ACCMODE == libc::O_RDWR)
    }
}

/// Opens the file behind a descriptor's link if it is the file of the mapping.
///
/// The process may close and reuse its descriptor at any time, so it is held first and inspected then. O_PATH opens
/// nothing yet: it may be a device or a pipe.
fn hold(path: &Path, mapping: &Mapping) -> Option<(File, fs::Metadata)> {
    let held = opener::open(path, How::PathOnly).ok()?;
    let meta = held.metadata().ok()?;
    let is_it = meta.is_file() && FileId::of(&meta) == mapping.file;
    is_it.then_some((held, meta))
}

/// The line `flags:` of a file in `fdinfo`, which is octal.
fn open_flags(info: &str) -> Option<libc::c_int> {
    let digits = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    libc::c_int::from_str_radix(digits.trim(), 8).ok()
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
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn lines_of_maps_are_read() {
        let line =
            "7fc58ffff000-7fc6cffff000 rw-s 00001000 00:1b 2                          /dev/shm/a b";
        let m = mapping(line).unwrap();
        assert_eq!((m.start, m.end), (0x7fc5_8fff_f000, 0x7fc6_cfff_f000));
        assert!(m.shared && m.read_write && m.offset == 0x1000 && m.path == "/dev/shm/a b");
        assert_eq!((m.file.major, m.file.minor, m.file.inode), (0, 0x1b, 2));
        let anon = mapping("7f0000000000-7f0000001000 rw-p 00000000 00:00 0 ").unwrap();
        assert!(!anon.shared && anon.path.is_empty());
        assert_eq!(mapping("garbage"), None);
    }

    #[test]
    fn flags_of_a_descriptor_are_read() {
        let info = |flags: &str| open_flags(&format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t9\n"));
        assert_eq!(info("02100002").unwrap() & libc::O_ACCMODE, libc::O_RDWR);
        assert_eq!(info("0100000").unwrap() & libc::O_ACCMODE, libc::O_RDONLY);
        assert_eq!(info("9"), None);
        assert_eq!(open_flags("pos:\t0\n"), None);
    }

    #[test]
    fn a_file_is_reopened_only_if_the_process_may_write_it() {
        use std::os::fd::AsFd;
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("ram");
        fs::write(&path, [0; 4096]).unwrap();
        let reader = File::open(&path).unwrap();
        let writer = OpenOptions::new().read(true).write(true).open(&path);
        let writer = writer.unwrap();
        let _mapped = terrace_sys::SharedMapping::new(writer.as_fd(), 0, 4096).unwrap();
        let (root, pid) = (HostRoot::default(), std::process::id());
        let mappings = mappings(&root, pid).unwrap();
        let id = FileId::of(&reader.metadata().unwrap());
        let mapping = mappings.iter().find(|m| m.file == id).unwrap();
        assert!(mapping.shared && mapping.read_write);
        let open = || {
            Descriptors::read(&root, pid)
                .unwrap()
                .open(mapping)
                .unwrap()
        };
        assert_eq!(open().unwrap().len(), 4096);
        drop(writer);
        assert!(open().is_none());
    }

    proptest::proptest! {
        #[test]
        fn no_line_makes_it_panic(line in ".{0,80}") {
            let _ = mapping(&line);
        }
    }
}
