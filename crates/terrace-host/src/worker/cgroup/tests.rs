use std::fs;

use super::*;

/// A tree in which this process is a VM's hypervisor, and whose cgroup files are plain ones.
struct Tree {
    dir: tempfile::TempDir,
}

const V2: &str = "31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
const V1: &str = "30 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                  31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
const OURS: &str = "0::/system.slice/terraced.service\n";
const WORKER: u32 = 4711;

impl Tree {
    fn new(theirs: &str, ours: &str, mounts: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join(format!("proc/{}", std::process::id()));
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        fs::copy("/proc/self/stat", own.join("stat")).unwrap();
        fs::write(own.join("cgroup"), theirs).unwrap();
        fs::write(dir.path().join("proc/self/cgroup"), ours).unwrap();
        fs::write(dir.path().join("proc/self/mountinfo"), mounts).unwrap();
        Self { dir }
    }

    /// A cgroup, of this type if it is of the second version.
    fn group(self, path: &str, kind: Option<&str>) -> Self {
        let folder = self.dir.path().join(path);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup.procs"), "").unwrap();
        if let Some(kind) = kind {
            fs::write(folder.join("cgroup.type"), format!("{kind}\n")).unwrap();
        }
        self
    }

    fn take_in(&self) -> Result<(), String> {
        let root = HostRoot::new(self.dir.path());
        let hypervisor = Process::open(&root.proc(), std::process::id()).unwrap();
        let charged = ChargedTo {
            root,
            hypervisor: Arc::new(hypervisor),
        };
        charged.take_in(WORKER)
    }

    fn procs(&self, path: &str) -> String {
        fs::read_to_string(self.dir.path().join(path).join("cgroup.procs")).unwrap()
    }
}

#[test]
fn a_worker_joins_the_hypervisors_cgroup_in_either_version() {
    let (theirs, group) = (
        "0::/machine.slice/web1.scope\n",
        "sys/fs/cgroup/machine.slice/web1.scope",
    );
    let tree = Tree::new(theirs, OURS, V2).group(group, Some("domain"));
    assert_eq!(tree.take_in(), Ok(()));
    assert_eq!(tree.procs(group), "4711");
    let theirs = "9:name=systemd:/x\n4:memory:/machine/web1\n0::/y\n";
    let group = "sys/fs/cgroup/memory/machine/web1";
    let tree = Tree::new(theirs, "4:memory:/\n0::/y\n", V1).group(group, None);
    assert_eq!(tree.take_in(), Ok(()));
    assert_eq!(tree.procs(group), "4711");
}

#[test]
fn a_hypervisor_in_threaded_cgroups_is_joined_above_them() {
    let tree = Tree::new("0::/m/web1.scope/libvirt/emulator\n", OURS, V2)
        .group("sys/fs/cgroup/m/web1.scope", Some("domain"))
        .group(
            "sys/fs/cgroup/m/web1.scope/libvirt",
            Some("domain threaded"),
        )
        .group(
            "sys/fs/cgroup/m/web1.scope/libvirt/emulator",
            Some("threaded"),
        );
    assert_eq!(tree.take_in(), Ok(()));
    assert_eq!(tree.procs("sys/fs/cgroup/m/web1.scope/libvirt"), "4711");
    assert_eq!(
        tree.procs("sys/fs/cgroup/m/web1.scope/libvirt/emulator"),
        ""
    );
    let nowhere = Tree::new("0::/t\n", OURS, V2).group("sys/fs/cgroup/t", Some("threaded"));
    assert!(nowhere.take_in().unwrap_err().contains("no domain"));
}

#[test]
fn without_cgroups_or_in_the_root_nothing_is_done() {
    for theirs in ["", "0::/\n", OURS, "4:memory:/\n0::/x\n"] {
        assert_eq!(Tree::new(theirs, OURS, V2).take_in(), Ok(()), "{theirs}");
    }
}

#[test]
fn a_part_of_the_hierarchy_may_be_mounted() {
    let mounts = "31 23 0:27 /host /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    let group = "sys/fs/cgroup/web1";
    let tree = Tree::new("0::/host/web1\n", OURS, mounts).group(group, Some("domain"));
    assert_eq!(tree.take_in(), Ok(()));
    assert_eq!(tree.procs(group), "4711");
    let other = Tree::new("0::/hosting/web1\n", OURS, mounts).take_in();
    assert!(other.unwrap_err().contains("not mounted here"));
}

#[test]
fn an_obstacle_is_reported_and_nothing_is_written_elsewhere() {
    for (theirs, mounts, kind, why) in [
        ("0::/a\n", "", "domain", "no cgroup2 is mounted"),
        ("4:memory:/a\n", V2, "domain", "for memory is mounted"),
        ("0::/../a\n", V2, "domain", "or is outside of"),
        ("0::/x/../../a\n", V2, "domain", "or is outside of"),
        ("0::/a (deleted)\n", V2, "domain", "or is outside of"),
        ("0::/a\n", V2, "domain invalid", "takes no process"),
        ("0::/b\n", V2, "domain", "cgroup.type"),
    ] {
        let tree = Tree::new(theirs, OURS, mounts).group("sys/fs/cgroup/a", Some(kind));
        let error = tree.take_in().unwrap_err();
        assert!(error.contains(why), "{theirs:?}: {error}");
        assert_eq!(tree.procs("sys/fs/cgroup/a"), "");
    }
}

#[test]
fn a_refusal_of_the_kernel_is_said_with_the_file() {
    let tree = Tree::new("0::/a\n", OURS, V2).group("sys/fs/cgroup/a", Some("domain"));
    let procs = tree.dir.path().join("sys/fs/cgroup/a/cgroup.procs");
    fs::remove_file(&procs).unwrap();
    fs::create_dir(&procs).unwrap();
    let error = tree.take_in().unwrap_err();
    assert!(error.contains("a/cgroup.procs"), "{error}");
}
