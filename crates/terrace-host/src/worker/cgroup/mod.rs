//! Puts a worker into the memory cgroup of its VM's hypervisor.
//!
//! Memory that a worker faults in is charged to the cgroup that it is in: the VM's is where it belongs. That cgroup
//! may be frozen or killed with the VM, so no thread may wait for a worker without a limit of time.
//!
//! Best effort: a worker that stays in the daemon's cgroup does its work all the same.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_sys::Process;
use terrace_sys::opener::{self, How};

use crate::HostRoot;

/// The owner of the memory cgroup that a worker joins.
#[derive(Clone, Debug)]
pub struct ChargedTo {
    /// The root of the host's files.
    pub root: HostRoot,
    /// The VM's hypervisor.
    pub hypervisor: Arc<Process>,
}

impl ChargedTo {
    /// Moves a worker there; to be called before it maps anything.
    ///
    /// # Errors
    /// If it stays in the daemon's; for people.
    pub(super) fn take_in(&self, worker: u32) -> Result<(), String> {
        let pid = self.hypervisor.pid();
        let theirs = self.read(format!("proc/{pid}/cgroup"))?;
        if !self.hypervisor.is_alive() {
            return Err("the VM has ended".into());
        }
        let ours = self.read("proc/self/cgroup".to_owned())?;
        // Without such cgroups nothing is charged to anybody.
        let Some(theirs) = Membership::of(&theirs)? else {
            return Ok(());
        };
        // All VMs share the root's; there is nothing to distinguish.
        if theirs.path == "/" || Membership::of(&ours)?.as_ref() == Some(&theirs) {
            return Ok(());
        }
        let mounts = self.read("proc/self/mountinfo".to_owned())?;
        let mount = mounts.lines().find_map(|line| Mount::of(line, theirs.kind));
        let mount = mount.ok_or_else(|| format!("no {} is mounted", theirs.kind.name()))?;
        let folder = self.folder(&theirs, &mount)?;
        let procs = folder.join("cgroup.procs");
        opener::open(&procs, How::Write)
            .and_then(|mut file| file.write_all(worker.to_string().as_bytes()))
            .map_err(|error| format!("{}: {error}", procs.display()))
    }

    fn read(&self, path: String) -> Result<String, String> {
        self.root.read(path).map_err(|error| error.to_string())
    }

    /// The cgroup that pays for what the hypervisor does, as a folder. Threads of a process may be spread over
    /// threaded cgroups, as libvirt does; the one above them pays.
    fn folder(&self, of: &Membership, mount: &Mount) -> Result<PathBuf, String> {
        let top = self.root.join(mount.point.trim_start_matches('/'));
        let mut folder = top.join(mount.below(&of.path)?);
        if of.kind == HierarchyKind::Unified {
            while folder != top && is_threaded(&folder)? {
                folder.pop();
            }
            if folder == top {
                return Err("its cgroup has no domain but the root's".into());
            }
        }
        Ok(folder)
    }
}

/// The cgroups of version 2 that pay for a process's memory as folders, its own first; none if it is of another version.
///
/// # Errors
/// If they are not to be seen from here; for people.
pub(crate) fn paying_cgroups(root: &HostRoot, pid: u32) -> Result<Vec<PathBuf>, String> {
    let read = |path: String| root.read(path).map_err(|error| error.to_string());
    let of = Membership::of(&read(format!("proc/{pid}/cgroup"))?)?;
    let Some(of) = of.filter(|of| of.kind == HierarchyKind::Unified) else {
        return Ok(Vec::new());
    };
    let mounts = read("proc/self/mountinfo".to_owned())?;
    let mount = mounts.lines().find_map(|line| Mount::of(line, of.kind));
    let mount = mount.ok_or_else(|| format!("no {} is mounted", of.kind.name()))?;
    let top = root.join(mount.point.trim_start_matches('/'));
    let own = top.join(mount.below(&of.path)?);
    let all = own
        .ancestors()
        .take_while(|folder| folder.starts_with(&top));
    Ok(all.map(Path::to_owned).collect())
}

fn is_threaded(folder: &Path) -> Result<bool, String> {
    let file = folder.join("cgroup.type");
    let text = opener::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    match String::from_utf8_lossy(&text).trim() {
        "threaded" => Ok(true),
        "domain" | "domain threaded" => Ok(false),
        other => Err(format!("{}: {other:?} takes no process", file.display())),
    }
}

/// The kind of hierarchy that charges memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HierarchyKind {
    /// Version 1 has one for memory.
    Memory,
    /// Version 2 has one for all.
    Unified,
}

impl HierarchyKind {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "cgroup hierarchy for memory",
            Self::Unified => "cgroup2",
        }
    }
}

/// The position of a process in the hierarchy that charges memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Membership {
    kind: HierarchyKind,
    path: String,
}

impl Membership {
    /// From `/proc/PID/cgroup`: lines such as `4:memory:/machine/web1` and `0::/machine.slice/web1.scope`.
    fn of(text: &str) -> Result<Option<Self>, String> {
        let entries = || {
            text.lines().filter_map(|line| {
                let (number, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                Some((number, controllers, path))
            })
        };
        let memory =
            entries().find(|(_, controllers, _)| controllers.split(',').any(|c| c == "memory"));
        let unified =
            || entries().find(|(number, controllers, _)| (*number, *controllers) == ("0", ""));
        let (kind, path) = match (memory, unified) {
            (Some((.., path)), _) => (HierarchyKind::Memory, path),
            (None, unified) => match unified() {
                Some((.., path)) => (HierarchyKind::Unified, path),
                None => return Ok(None),
            },
        };
        // It was deleted, or lies outside of this cgroup namespace.
        let is_plain = path.starts_with('/') && !path.split('/').any(|part| part == "..");
        if !is_plain || path.ends_with(" (deleted)") {
            return Err(format!(
                "its cgroup {path:?} was deleted, or is outside of terraced's cgroup namespace"
            ));
        }
        let path = path.to_owned();
        Ok(Some(Self { kind, path }))
    }
}

/// The mount point of a hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The part of the hierarchy that is mounted.
    root: String,
    /// The mount point's path.
    point: String,
}

impl Mount {
    /// The mount point by a line of `mountinfo`, if it is one of this hierarchy:
    /// `31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate`.
    fn of(line: &str, kind: HierarchyKind) -> Option<Self> {
        let (place, what) = line.split_once(" - ")?;
        let mut what = what.split(' ');
        let (filesystem, options) = (what.next()?, what.nth(1)?);
        let fits = match kind {
            HierarchyKind::Memory => {
                filesystem == "cgroup" && options.split(',').any(|o| o == "memory")
            }
            HierarchyKind::Unified => filesystem == "cgroup2",
        };
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        fits.then(|| Self {
            root: root.to_owned(),
            point: point.to_owned(),
        })
    }

    /// A cgroup's path below the mount.
    fn below<'a>(&self, path: &'a str) -> Result<&'a str, String> {
        let rest = path.strip_prefix(self.root.trim_end_matches('/'));
        let rest = rest.filter(|rest| rest.starts_with('/'));
        let rest = rest.map(|rest| rest.trim_start_matches('/'));
        rest.ok_or_else(|| format!("its cgroup {path:?} is not mounted here"))
    }
}

#[cfg(test)]
mod tests;
