//! A QEMU that a test plays: its files in procfs.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use terrace_host::HostRoot;
use terrace_host::qemu::who::{HypervisorConfig, Rules};

/// Makes a process of this machine a QEMU of this user in the tree of a test: all of procfs that says who it is.
pub fn play_qemu(root: &Path, pid: u32, args: &[&str]) {
    let program = root.join("usr/bin/qemu-system-x86_64");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    fs::write(&program, "").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let folder = root.join(format!("proc/{pid}"));
    fs::create_dir_all(&folder).unwrap();
    let line: Vec<&str> = ["qemu"].into_iter().chain(args.iter().copied()).collect();
    fs::write(folder.join("cmdline"), line.join("\0") + "\0").unwrap();
    for name in ["stat", "status"] {
        fs::copy(format!("/proc/{pid}/{name}"), folder.join(name)).unwrap();
    }
    fs::write(folder.join("cgroup"), "0::/machine.slice/vm.scope\n").unwrap();
    symlink(&program, folder.join("exe")).unwrap();
}

/// The rules without a configuration.
pub fn rules(root: &HostRoot) -> Rules {
    Rules::read(root, &HypervisorConfig::default()).0
}
