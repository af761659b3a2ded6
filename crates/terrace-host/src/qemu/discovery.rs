//! Finding monitors: sockets in folders, and command lines of running QEMUs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::command_line::{self, CommandLine};
use crate::{Finding, HostRoot};

/// Where to look.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiscoveryConfig {
    /// Monitor sockets by path.
    pub sockets: Vec<PathBuf>,
    /// Folders; every socket directly in them is taken for a monitor.
    pub folders: Vec<PathBuf>,
    /// Whether to look for QEMU processes and read their command lines.
    pub processes: bool,
}

/// A monitor that may be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Its socket.
    pub socket: PathBuf,
    /// The QEMU process, where its command line named this socket.
    pub pid: Option<u32>,
    /// `-name`, where the command line was read.
    pub name: Option<String>,
    /// `-uuid`, where the command line was read.
    pub uuid: Option<String>,
}

impl Candidate {
    /// A socket of which nothing else is known.
    #[must_use]
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            pid: None,
            name: None,
            uuid: None,
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Discovery {
    /// Monitors, each VM once, in order of paths.
    pub candidates: Vec<Candidate>,
    /// QEMU processes without a usable monitor, folders that cannot be read.
    pub findings: Vec<Finding>,
}

/// Looks for monitors. Nothing is connected to. Of several monitors of one QEMU, one that the
/// configuration names is taken, else the last on its command line (libvirt's own comes first).
#[must_use]
pub fn discover(root: &HostRoot, config: &DiscoveryConfig) -> Discovery {
    let mut findings = Vec::new();
    let mut found: BTreeMap<PathBuf, Candidate> = BTreeMap::new();
    for socket in &config.sockets {
        found.insert(socket.clone(), Candidate::at(socket));
    }
    for folder in &config.folders {
        match sockets_in(folder) {
            Ok(sockets) => found.extend(sockets.into_iter().map(|s| (s.clone(), Candidate::at(s)))),
            Err(error) => findings.push(Finding::missing(
                "discovery",
                format!("{}: {error}", folder.display()),
                "create the folder and put QEMU's -qmp sockets there, or correct the configuration",
            )),
        }
    }
    if config.processes {
        for (pid, line) in command_line::running(root) {
            join_process(&mut found, &mut findings, pid, line);
        }
    }
    Discovery {
        candidates: found.into_values().collect(),
        findings,
    }
}

fn sockets_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.flatten();
    let is_socket = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|t| t.is_socket());
    Ok(entries
        .filter(is_socket)
        .map(|entry| entry.path())
        .collect())
}

fn join_process(
    found: &mut BTreeMap<PathBuf, Candidate>,
    findings: &mut Vec<Finding>,
    pid: u32,
    line: CommandLine,
) {
    let owner = |socket: &PathBuf| found.get(socket).and_then(|candidate| candidate.pid);
    let free = || line.monitors.iter().filter(|s| owner(s).is_none());
    let known = free().find(|s| found.contains_key(*s));
    let Some(socket) = known.or(free().next_back()).cloned() else {
        // A command line is only what a process says: it takes no socket from another one.
        let taken = line.monitors.iter().find_map(|s| Some((s, owner(s)?)));
        findings.push(match taken {
            Some((socket, owner)) => monitor_taken(pid, socket, owner),
            None => no_monitor(pid, &line),
        });
        return;
    };
    let candidate = Candidate {
        socket: socket.clone(),
        pid: Some(pid),
        name: line.name,
        uuid: line.uuid,
    };
    found.insert(socket, candidate);
}

fn monitor_taken(pid: u32, socket: &Path, owner: u32) -> Finding {
    Finding::missing(
        "monitor",
        format!(
            "QEMU process {pid}: its monitor {} is that of process {owner}",
            socket.display()
        ),
        "give each VM a monitor socket of its own",
    )
}

fn no_monitor(pid: u32, line: &CommandLine) -> Finding {
    let name = line.name.as_deref().unwrap_or("without a name");
    let why = if line.monitor_by_descriptor {
        "its monitor belongs to the program that started it (libvirt)"
    } else {
        "it has no QMP monitor on a Unix socket"
    };
    Finding::missing(
        "monitor",
        format!("QEMU process {pid} ({name}): {why}"),
        "start the VM with one more monitor: -qmp unix:/run/terrace/NAME.sock,server=on,wait=off (libvirt: \
         <qemu:commandline>)",
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn process(root: &Path, pid: u32, args: &[&str]) {
        let folder = root.join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cmdline"), args.join("\0") + "\0").unwrap();
    }

    #[test]
    fn folders_and_processes_are_joined_by_socket() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::new(dir.path());
        let folder = dir.path().join("run");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("no-socket"), "").unwrap();
        let a = folder.join("a.sock");
        let _listener = UnixListener::bind(&a).unwrap();
        let qmp = format!("unix:{},server=on,wait=off", a.display());
        process(
            dir.path(),
            7,
            &[
                "/usr/bin/qemu-system-x86_64",
                "-qmp",
                "unix:/x/libvirt,server",
                "-qmp",
                &qmp,
                "-name",
                "a",
            ],
        );
        process(
            dir.path(),
            8,
            &[
                "qemu-kvm",
                "-qmp",
                "unix:/elsewhere/b,server=on",
                "-uuid",
                "u",
            ],
        );
        process(dir.path(), 9, &["qemu-system-x86_64", "-name", "c"]);
        process(dir.path(), 10, &["vim", "qemu-system-x86_64"]);
        let config = DiscoveryConfig {
            folders: vec![folder, dir.path().join("none")],
            processes: true,
            ..DiscoveryConfig::default()
        };
        let got = discover(&root, &config);
        let candidates: Vec<_> = got
            .candidates
            .iter()
            .map(|c| (c.socket.clone(), c.pid))
            .collect();
        assert_eq!(candidates, [("/elsewhere/b".into(), Some(8)), (a, Some(7))]);
        assert_eq!(got.candidates[1].name.as_deref(), Some("a"));
        assert_eq!(got.candidates[0].uuid.as_deref(), Some("u"));
        let whys: Vec<_> = got.findings.iter().map(|f| f.why.as_str()).collect();
        assert_eq!(whys.len(), 2);
        assert!(whys[0].contains("none") && whys[1].contains("process 9 (c)"));
    }

    #[test]
    fn a_process_does_not_take_a_socket_that_another_one_has() {
        let dir = tempfile::tempdir().unwrap();
        let qmp = |path: &str| format!("unix:{path},server=on");
        let (a, b) = (qmp("/run/a"), qmp("/run/b"));
        process(dir.path(), 7, &["qemu-kvm", "-qmp", &a, "-name", "seven"]);
        process(dir.path(), 8, &["qemu-kvm", "-qmp", &a, "-name", "eight"]);
        process(dir.path(), 9, &["qemu-kvm", "-qmp", &b, "-qmp", &a]);
        let config = DiscoveryConfig {
            sockets: vec!["/run/a".into()],
            processes: true,
            ..DiscoveryConfig::default()
        };
        let got = discover(&HostRoot::new(dir.path()), &config);
        let candidates: Vec<_> = got
            .candidates
            .iter()
            .map(|c| (c.socket.to_str().unwrap(), c.pid))
            .collect();
        assert_eq!(candidates, [("/run/a", Some(7)), ("/run/b", Some(9))]);
        assert_eq!(got.candidates[0].name.as_deref(), Some("seven"));
        assert_eq!(got.findings.len(), 1);
        assert!(got.findings[0].why.contains("process 8"));
    }
}
