//! Other processes that have performance events open.

use std::fs;

use terrace_sys::HostRoot;

/// The kernel's name for a descriptor of an event.
const TARGET: &str = "anon_inode:[perf_event]";
/// Most processes that are named.
const MAX_NAMES: usize = 4;
/// Most descriptors that are inspected.
const MAX_INSPECTED: usize = 100_000;

/// Programs that have events open, with their numbers, such as `perf (4711)`, without ourselves. A program whose
/// descriptors may not be inspected is not found, nor is what the kernel itself uses.
pub fn holders(root: &HostRoot) -> Vec<String> {
    let mut inspected = 0;
    let mut found = Vec::new();
    let processes = fs::read_dir(root.proc()).into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in numbers.filter(|pid| *pid != std::process::id()) {
        let fds = fs::read_dir(root.process(pid, "fd"));
        let holds = fds.into_iter().flatten().flatten().any(|fd| {
            inspected += 1;
            fs::read_link(fd.path()).is_ok_and(|target| target.as_os_str() == TARGET)
        });
        if holds {
            let name = root.read(format!("proc/{pid}/comm")).unwrap_or_default();
            found.push(format!("{} ({pid})", name.trim()));
        }
        if found.len() == MAX_NAMES || inspected >= MAX_INSPECTED {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn who_has_an_event_open_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for (pid, name, target) in [
            (12, "perf", TARGET),
            (13, "cat", "/dev/null"),
            (std::process::id(), "we", TARGET),
        ] {
            let folder = dir.path().join(format!("proc/{pid}/fd"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("../comm"), format!("{name}\n")).unwrap();
            symlink("/dev/null", folder.join("0")).unwrap();
            symlink(target, folder.join("3")).unwrap();
        }
        let root = HostRoot::new(dir.path());
        assert_eq!(holders(&root), ["perf (12)"]);
        assert!(holders(&HostRoot::new(dir.path().join("nowhere"))).is_empty());
    }
}
