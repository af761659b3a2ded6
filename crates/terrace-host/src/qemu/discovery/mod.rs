//! Finding monitors: sockets in folders, and command lines of running QEMUs.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use terrace_proto::printable::{MAX_NAME, excerpt};
use terrace_sys::{ProcessId, opener, start_time};

use super::command_line::{self, CommandLine};
use super::who::{self, ProcessFacts, Refusal, Rules, SocketFacts};
use crate::{Finding, HostRoot};

/// Most VMs that are found on a host.
const MAX_VMS: usize = 1024;
/// Most files of a folder of monitors that are inspected.
const MAX_FILES: usize = 1 << 16;
/// Most findings of a discovery scan.
pub(super) const MAX_FINDINGS: usize = 32;
/// Most bytes of a socket's path: what fits a socket's address, and links that lead there.
const MAX_PATH: usize = 255;

/// The sources in which VMs are searched for.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiscoveryConfig {
    /// Monitor sockets by path.
    pub sockets: Vec<PathBuf>,
    /// Folders; every socket directly in them is taken for a monitor.
    pub folders: Vec<PathBuf>,
    /// Whether to search for QEMU processes and read their command lines.
    pub processes: bool,
}

/// A monitor that may be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// The monitor's socket.
    pub socket: PathBuf,
    /// The QEMU processes whose command lines name it, oldest first. Which of them listens there, if any, is known from
    /// the connection alone.
    pub claims: Vec<Hypervisor>,
}

/// A process that may be a VM's hypervisor, and the contents of its command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hypervisor {
    /// The process.
    pub pid: u32,
    /// Start of the process, clock ticks after boot.
    pub start_time: u64,
    /// `-name`.
    pub name: Option<String>,
    /// `-uuid`.
    pub uuid: Option<String>,
}

impl Hypervisor {
    /// The process; processes are ordered by age, oldest first.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        ProcessId {
            start_time: self.start_time,
            pid: self.pid,
        }
    }
}

impl Candidate {
    /// A socket of which nothing else is known.
    #[must_use]
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            claims: Vec::new(),
        }
    }

    /// The process that names it, if there is exactly one.
    #[must_use]
    pub fn sole_claim(&self) -> Option<&Hypervisor> {
        match self.claims.as_slice() {
            [claim] => Some(claim),
            _ => None,
        }
    }
}

/// The result of a discovery.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Discovery {
    /// Monitors, each VM once, in order of paths.
    pub candidates: Vec<Candidate>,
    /// Processes that may be VMs, oldest first.
    pub hypervisors: Vec<Hypervisor>,
    /// QEMU processes that are not taken for VMs or have no usable monitor, folders that cannot be read.
    pub findings: Vec<Finding>,
}

/// Searches for monitors. Nothing is connected to, and nothing is read of a process before it is known that it may be a
/// VM's. Of several monitors of one QEMU, one that the configuration names is taken, else the last on its command line
/// (libvirt's own comes first).
#[must_use]
pub fn discover(root: &HostRoot, config: &DiscoveryConfig, rules: &Rules) -> Discovery {
    let mut findings = Findings::default();
    let mut found: BTreeMap<PathBuf, Candidate> = BTreeMap::new();
    for socket in &config.sockets {
        found.insert(socket.clone(), Candidate::at(socket));
    }
    for folder in &config.folders {
        let sockets = sockets_in(folder, rules, &mut findings);
        found.extend(sockets.into_iter().map(|s| (s.clone(), Candidate::at(s))));
    }
    let mut hypervisors = Vec::new();
    if config.processes {
        let mut running = running(root, rules, &mut findings);
        running.truncate(MAX_VMS);
        for running in running {
            join(&mut found, &mut findings, rules, &running);
            hypervisors.push(running.hypervisor);
        }
    }
    let mut candidates: Vec<Candidate> = found.into_values().collect();
    // Of a socket that only a folder has, nothing shows that it is a VM's.
    candidates.sort_by_key(|candidate| candidate.claims.is_empty());
    candidates.truncate(MAX_VMS);
    candidates.sort_by(|a, b| a.socket.cmp(&b.socket));
    Discovery {
        candidates,
        hypervisors,
        findings: findings.done(),
    }
}

/// A bounded list; users that may run VMs come first, so that others cannot use it up.
#[derive(Default)]
pub(super) struct Findings {
    own: Vec<Finding>,
    foreign: Vec<Finding>,
    more: usize,
}

impl Findings {
    fn push(&mut self, finding: Finding) {
        Self::keep(&mut self.own, &mut self.more, finding);
    }

    pub(super) fn push_foreign(&mut self, finding: Finding) {
        Self::keep(&mut self.foreign, &mut self.more, finding);
    }

    fn has_room(&self) -> bool {
        self.foreign.len() < MAX_FINDINGS
    }

    fn keep(list: &mut Vec<Finding>, more: &mut usize, finding: Finding) {
        if list.len() < MAX_FINDINGS {
            list.push(finding);
        } else {
            *more += 1;
        }
    }

    pub(super) fn done(mut self) -> Vec<Finding> {
        self.own.append(&mut self.foreign);
        self.more += self.own.len().saturating_sub(MAX_FINDINGS);
        self.own.truncate(MAX_FINDINGS);
        if self.more > 0 {
            self.own.push(Finding::degraded(
                "discovery",
                format!("{} more like these are not shown", self.more),
                "settle those above first",
            ));
        }
        self.own
    }
}

fn sockets_in(folder: &Path, rules: &Rules, findings: &mut Findings) -> Vec<PathBuf> {
    let unreadable = |error: std::io::Error| {
        Finding::missing(
            "discovery",
            format!("{}: {error}", folder.display()),
            "create the folder and put QEMU's -qmp sockets there, or correct the configuration",
        )
    };
    let listing = opener::real_path(folder).and_then(|real| {
        let folders = who::folders(&real)?;
        Ok((opener::entries(&real, MAX_FILES)?, folders))
    });
    let (entries, folders) = match listing {
        Ok(listing) => listing,
        Err(error) => {
            findings.push(unreadable(error));
            return Vec::new();
        }
    };
    if let Err(refusal) = who::may_hold_monitors(&folders, None, rules) {
        findings.push(refusal.finding(&format!("what is in {}", folder.display())));
        return Vec::new();
    }
    let mut sockets = Vec::new();
    let mut foreign: Vec<(PathBuf, Refusal)> = Vec::new();
    for path in entries {
        let Ok(facts) = SocketFacts::below(path, Vec::new()) else {
            continue;
        };
        if !facts.is_socket {
            continue;
        }
        match who::may_be_monitor(&facts, None, rules) {
            Ok(()) => sockets.push(facts.path),
            Err(refusal) => foreign.push((facts.path, refusal)),
        }
    }
    // One for all of them: in a sticky folder anybody makes as many as it likes.
    let count = foreign.len();
    if let Some((path, refusal)) = foreign.into_iter().min_by(|a, b| a.0.cmp(&b.0)) {
        let path = excerpt(&path.to_string_lossy(), MAX_PATH);
        let of = match count {
            1 => path,
            _ => format!("{path}, with {} more in its folder,", count - 1),
        };
        findings.push_foreign(refusal.finding(&of));
    }
    sockets.sort();
    sockets.truncate(MAX_VMS);
    sockets
}

/// A process that was inspected; a refusal comes with the process's user, as far as it is known, and the reason.
type Inspected = Result<Running, (Option<u32>, Refusal)>;

/// A QEMU that runs.
pub(super) struct Running {
    pub(super) hypervisor: Hypervisor,
    pub(super) uid: u32,
    pub(super) line: CommandLine,
}

/// The user of a process that may not be a VM for that alone. The kernel names root for processes that hide
/// themselves, whose user is read elsewhere.
fn foreign(root: &HostRoot, rules: &Rules, pid: u32) -> Option<u32> {
    let folder = opener::metadata(&root.process(pid, "")).ok()?;
    Some(folder.uid()).filter(|uid| !rules.has_user(*uid))
}

/// The refusal of a process of such a user, if an operator may take it for a VM's.
fn stranger(root: &HostRoot, pid: u32, uid: u32) -> Option<Inspected> {
    let executable = who::executable(root, pid).ok()?;
    let refusal = || Err((Some(uid), who::foreign_user(uid)));
    who::is_named_like_qemu(&executable).then(refusal)
}

/// QEMU processes that may be VMs, oldest first. A call or two say of any other process that it is none.
pub(super) fn running(root: &HostRoot, rules: &Rules, findings: &mut Findings) -> Vec<Running> {
    let mut found: Vec<Running> = Vec::new();
    for pid in pids(root) {
        let inspected = match foreign(root, rules, pid) {
            // A process that is no VM is only worth an inspection while there is room for the finding.
            Some(uid) if findings.has_room() => stranger(root, pid, uid),
            Some(_) => None,
            None => hypervisor(root, rules, pid),
        };
        match inspected {
            Some(Ok(running)) => found.push(running),
            Some(Err((uid, refusal))) => {
                let finding = refusal.finding(&format!("process {pid}"));
                if uid.is_some_and(|uid| rules.has_user(uid)) {
                    findings.push(finding);
                } else {
                    findings.push_foreign(finding);
                }
            }
            None => {}
        }
    }
    found.sort_by_key(|running| running.hypervisor.process());
    found
}

/// All processes, in an order that findings then have too.
pub(super) fn pids(root: &HostRoot) -> BTreeSet<u32> {
    let entries = opener::entries(&root.proc(), usize::MAX).unwrap_or_default();
    let pids = entries
        .iter()
        .filter_map(|entry| entry.file_name()?.to_str()?.parse().ok());
    pids.collect()
}

/// Processes that may be VMs' hypervisors, oldest first.
pub(crate) fn hypervisors(root: &HostRoot, rules: &Rules) -> Vec<u32> {
    let running = running(root, rules, &mut Findings::default());
    running.iter().map(|r| r.hypervisor.pid).collect()
}

/// `None`: not a VM, and nothing that anybody takes for one.
fn hypervisor(root: &HostRoot, rules: &Rules, pid: u32) -> Option<Inspected> {
    let executable = who::executable(root, pid).ok()?;
    if !rules.has_file(executable.file) && !who::is_named_like_qemu(&executable) {
        return None;
    }
    // Between two reads of its start time, so that all of it is about one process.
    let started = start_time(&root.proc(), pid).ok()?;
    let facts = match ProcessFacts::read(root, pid) {
        Ok(facts) => facts,
        Err(refusal) => return Some(Err((None, refusal))),
    };
    let uid = facts.uids[0];
    if let Err(refusal) = who::may_be_hypervisor(&facts, rules) {
        return Some(Err((Some(uid), refusal)));
    }
    let line = command_line::of_process(root, pid)?;
    if start_time(&root.proc(), pid).ok()? != started {
        return None;
    }
    let hypervisor = Hypervisor {
        pid,
        start_time: started,
        name: line.name.clone(),
        uuid: line.uuid.clone(),
    };
    Some(Ok(Running {
        hypervisor,
        uid,
        line,
    }))
}

/// Puts a process to the monitor that its command line names.
fn join(
    found: &mut BTreeMap<PathBuf, Candidate>,
    findings: &mut Findings,
    rules: &Rules,
    running: &Running,
) {
    if let Some(finding) = cut(running) {
        findings.push(finding);
    }
    let monitors = match monitors(running, rules) {
        Ok(monitors) => monitors,
        Err(finding) => return findings.push(finding),
    };
    let known = monitors.iter().find(|s| found.contains_key(*s));
    let Some(socket) = known.or(monitors.last()).cloned() else {
        return;
    };
    let candidate = found.entry(socket.clone());
    let candidate = candidate.or_insert_with(|| Candidate::at(socket));
    candidate.claims.push(running.hypervisor.clone());
}

/// A finding if not all of a process's command line was read.
pub(super) fn cut(running: &Running) -> Option<Finding> {
    let pid = running.hypervisor.pid;
    running.line.is_cut.then(|| {
        Finding::degraded(
            "monitor",
            format!("process {pid}: its command line is too long, only its beginning was read"),
            "name the VM's monitor (-qmp) before other options",
        )
    })
}

/// The monitors that may be a process's own, at least one; else why there is none.
pub(super) fn monitors(running: &Running, rules: &Rules) -> Result<Vec<PathBuf>, Finding> {
    let pid = running.hypervisor.pid;
    let mut monitors = Vec::new();
    let mut refused = None;
    for socket in &running.line.monitors {
        match usable(socket, running.uid, rules) {
            Ok(socket) => monitors.push(socket),
            Err(refusal) => refused = Some(refusal),
        }
    }
    match refused {
        _ if !monitors.is_empty() => Ok(monitors),
        Some(refusal) => Err(refusal.finding(&format!("process {pid}"))),
        None => Err(no_monitor(pid, &running.line)),
    }
}

/// The path without links, if it may be the monitor of a VM of this user. One that is not there yet may come.
fn usable(socket: &Path, uid: u32, rules: &Rules) -> Result<PathBuf, Refusal> {
    if socket.as_os_str().len() > MAX_PATH {
        return Err(Refusal::new(
            "the path of its monitor is too long for a socket",
            "give QEMU a shorter -qmp path, as in /run/terrace/qmp",
        ));
    }
    let Ok(facts) = SocketFacts::read(socket) else {
        return Ok(socket.to_owned());
    };
    who::may_be_monitor(&facts, Some(uid), rules)?;
    Ok(facts.path)
}

fn no_monitor(pid: u32, line: &CommandLine) -> Finding {
    let name = line.name.as_deref().unwrap_or("without a name");
    let name = excerpt(name, MAX_NAME);
    let why = if line.monitor_by_descriptor {
        "its monitor belongs to the program that started it (libvirt)"
    } else {
        "it has no QMP monitor on a Unix socket"
    };
    Finding::missing(
        "monitor",
        format!("QEMU process {pid} ({name}): {why}"),
        "start the VM with one more monitor: -qmp unix:/run/terrace/qmp/NAME.sock,server=on,wait=off (libvirt: \
         <qemu:commandline>)",
    )
}

#[cfg(test)]
mod tests;
