//! A process by the kernel's account: its users, its executable, its cgroup.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use terrace_sys::opener::{self, How};

use super::Refusal;
use crate::HostRoot;

/// Most bytes of a small file of procfs that are read.
const MAX_BYTES: u64 = 16 << 10;

/// The identity of a file, whatever path leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// The device number.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
}

impl FileId {
    pub(super) fn of(meta: &fs::Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
        }
    }
}

/// The file that a process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    /// The path that the file has, or had, by the kernel's word in the mount namespace of the process.
    pub path: PathBuf,
    /// The file has no name any more: an upgrade replaced it.
    pub replaced: bool,
    /// The file's identity.
    pub file: FileId,
    /// The file's owner.
    pub owner: u32,
    /// The permission bits.
    pub mode: u32,
}

/// The facts that decide whether a process may be a hypervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Real, effective, saved and file system user.
    pub uids: [u32; 4],
    /// The executable.
    pub executable: Executable,
    /// The cgroup, if it can be read.
    pub cgroup: Option<String>,
}

impl ProcessFacts {
    /// Reads the facts about a process. The program is read twice: it may become another program meanwhile. A caller
    /// that relies on them holds the process by a pidfd and reads them again after what they were needed for.
    ///
    /// # Errors
    /// If the process is gone, hidden, or just becomes another program.
    pub fn read(root: &HostRoot, pid: u32) -> Result<Self, Refusal> {
        let gone = |error: io::Error| {
            Refusal::new(
                format!("the program of process {pid} cannot be determined: {error}"),
                "start terraced with CAP_SYS_PTRACE, or as the VM's user",
            )
        };
        let before = executable(root, pid).map_err(gone)?;
        let status = small(&root.process(pid, "status")).map_err(gone)?;
        let uids = uids(&status).ok_or_else(|| {
            Refusal::new(
                format!("process {pid} has no users in its status"),
                "report this: the kernel's format is not known",
            )
        })?;
        let cgroup = small(&root.process(pid, "cgroup")).ok();
        let after = executable(root, pid).map_err(gone)?;
        if before != after {
            return Err(Refusal::new(
                format!("process {pid} became another program while it was inspected"),
                "nothing: it is inspected again",
            ));
        }
        Ok(Self {
            uids,
            executable: after,
            cgroup: cgroup.as_deref().and_then(cgroup_path),
        })
    }
}

/// The executable of a process. Its link leads to the file itself, also into another mount namespace.
pub(in crate::qemu) fn executable(root: &HostRoot, pid: u32) -> io::Result<Executable> {
    const DELETED: &[u8] = b" (deleted)";
    let link = root.process(pid, "exe");
    let path = opener::read_link(&link)?;
    let meta = opener::metadata(&link)?;
    // A file may be called so; one without a name is not there any more.
    let replaced = meta.nlink() == 0;
    let bytes = path.as_os_str().as_bytes();
    let path = match bytes.strip_suffix(DELETED) {
        Some(bytes) if replaced => PathBuf::from(std::ffi::OsStr::from_bytes(bytes)),
        _ => path,
    };
    Ok(Executable {
        path,
        replaced,
        file: FileId::of(&meta),
        owner: meta.uid(),
        mode: meta.mode(),
    })
}

/// Whether an operator may want to know why this is not taken for a VM. Decides nothing else.
pub(in crate::qemu) fn is_named_like_qemu(executable: &Executable) -> bool {
    let name = executable.path.file_name().unwrap_or_default();
    sounds_like_qemu(&name.to_string_lossy())
}

/// The same of a program's name, for processes of which no more can be read.
pub(in crate::qemu) fn sounds_like_qemu(name: &str) -> bool {
    name.starts_with("qemu-system-") || matches!(name, "qemu-kvm" | "kvm" | "qemu")
}

/// The start of a file that is small by nature.
pub(in crate::qemu) fn small(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    opener::open(path, How::Read)?
        .take(MAX_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The line `Uid:` of `status`. The name, which may hold anything, stands above it with its line ends escaped.
pub(super) fn uids(status: &str) -> Option<[u32; 4]> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let numbers: Option<Vec<u32>> = line.split_whitespace().map(|n| n.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// The path in the unified hierarchy, else in systemd's own.
fn cgroup_path(text: &str) -> Option<String> {
    let unified = text.lines().find_map(|line| line.strip_prefix("0::"));
    let systemd = || {
        let named = |line| str::split_once(line, ":name=systemd:");
        text.lines().find_map(|line| Some(named(line)?.1))
    };
    let path = unified.or_else(systemd)?;
    path.starts_with('/').then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_cgroups_are_read() {
        let status = "Name:\ta\\nUid:\t0 0 0 0\nUmask:\t0022\nUid:\t1\t2\t3\t4\nGid:\t5\t5\t5\t5\n";
        assert_eq!(uids(status), Some([1, 2, 3, 4]));
        assert_eq!(uids("Uid:\t1\t2\n"), None);
        for (text, want) in [
            ("0::/machine.slice/x\n", Some("/machine.slice/x")),
            ("9:name=systemd:/a\n4:memory:/b\n0::/c\n", Some("/c")),
            ("9:name=systemd:/a\n4:memory:/b\n", Some("/a")),
            ("4:memory:/b\n", None),
            ("", None),
        ] {
            assert_eq!(cgroup_path(text).as_deref(), want, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(Uid:|0::|:name=systemd:|[0-9 \t\n/])*") {
            let _ = (uids(&text), cgroup_path(&text));
        }
    }
}
