//! Processes that may be VMs, from procfs alone: no monitor is connected to.
//!
//! For who wants to know without a daemon, perhaps without its privileges: what cannot be read is said, and is no
//! error.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;

use terrace_proto::printable::{MAX_NAME, excerpt, is_vm_name};

use super::discovery::{self, Findings, Hypervisor, Running};
use super::machine::Machine;
use super::who::{self, Rules, bad_name};
use crate::{Finding, HostRoot};

/// Most processes that are reported.
const MAX_VMS: usize = 1024;
/// Most characters of a path in a sentence.
const MAX_PATH: usize = 255;

/// A process that may be a VM, and the contents of its command line.
pub(crate) struct Unasked {
    /// The hypervisor's process.
    pub hypervisor: Hypervisor,
    /// Whether it may be a VM, and about its monitor.
    pub findings: Vec<Finding>,
    /// The machine by its command line.
    pub machine: Machine,
    /// The object that encrypts the guest's memory.
    pub encryption: Option<String>,
}

/// All of them, oldest first; and why other QEMU processes are no VMs, or cannot be determined.
pub(crate) fn unasked(root: &HostRoot, rules: &Rules) -> (Vec<Unasked>, Vec<Finding>) {
    let mut findings = Findings::default();
    let mut found = discovery::running(root, rules, &mut findings);
    found.truncate(MAX_VMS);
    for pid in discovery::pids(root) {
        if let Some(finding) = unread(root, pid) {
            findings.push_foreign(finding);
        }
    }
    let found = found.into_iter().map(|running| inspect(running, rules));
    (found.collect(), findings.done())
}

fn inspect(running: Running, rules: &Rules) -> Unasked {
    let (pid, uid) = (running.hypervisor.pid, running.uid);
    let name = running.line.name.as_deref();
    let who = match name.filter(|name| !is_vm_name(name)) {
        Some(name) => bad_name(name).finding(&format!("process {pid}")),
        None => Finding::ok(
            "hypervisor",
            format!("process {pid} of user {uid} may be a VM"),
        ),
    };
    let mut findings = vec![who];
    findings.extend(discovery::cut(&running));
    findings.push(monitor(&running, rules));
    Unasked {
        hypervisor: running.hypervisor,
        findings,
        machine: running.line.machine,
        encryption: running.line.encryption,
    }
}

fn monitor(running: &Running, rules: &Rules) -> Finding {
    let socket = match discovery::monitors(running, rules) {
        Ok(monitors) => monitors.into_iter().next_back().unwrap_or_default(),
        Err(finding) => return finding,
    };
    let shown = excerpt(&socket.to_string_lossy(), MAX_PATH);
    match fs::symlink_metadata(&socket) {
        Ok(_) => Finding::ok(
            "monitor",
            format!("{shown} (no connection was made for this report)"),
        ),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Finding::degraded(
            "monitor",
            format!("{shown} could not be read: permission denied"),
            "run this as root, or as the VM's user",
        ),
        Err(error) => Finding::missing(
            "monitor",
            format!("{shown}: {error}"),
            "the socket was removed under the VM: give it another monitor, or start it again",
        ),
    }
}

/// About a process that calls itself a QEMU and of which no more can be read.
fn unread(root: &HostRoot, pid: u32) -> Option<Finding> {
    let error = fs::read_link(root.process(pid, "exe")).err()?;
    let name = who::small(&root.process(pid, "comm")).ok()?;
    let uid = fs::metadata(root.process(pid, "")).ok()?.uid();
    unreadable(pid, name.trim_end(), uid, error.kind())
}

fn unreadable(pid: u32, name: &str, uid: u32, why: ErrorKind) -> Option<Finding> {
    // The kernel keeps the first 15 bytes of it.
    let is_hidden = why == ErrorKind::PermissionDenied && who::sounds_like_qemu(name);
    is_hidden.then(|| {
        let name = excerpt(name, MAX_NAME);
        Finding::degraded(
            "hypervisor",
            format!("process {pid} ({name}) of user {uid}: what it runs could not be read: permission denied"),
            "run this as root, or as the VM's user",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_process_is_reported_only_if_it_is_named_qemu() {
        let found = unreadable(7, "qemu-system-x86", 64055, ErrorKind::PermissionDenied).unwrap();
        assert!(found.found.contains("process 7") && found.found.contains("user 64055"));
        assert!(found.found.contains("could not be read: permission denied"));
        assert_eq!(unreadable(7, "sshd", 0, ErrorKind::PermissionDenied), None);
        assert_eq!(
            unreadable(7, "qemu-system-x86", 0, ErrorKind::NotFound),
            None
        );
        let hostile = unreadable(7, "qemu-system-\u{1b}[2J", 0, ErrorKind::PermissionDenied);
        assert!(!hostile.unwrap().found.contains('\u{1b}'));
    }
}
