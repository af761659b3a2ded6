//! The decision which processes may be VMs: by owner, executable, cgroup and monitor, never by a name or a command
//! line.
//!
//! Responsible for: the decision, as a function of facts and of the operator's rules, and why it is no. It leaves to
//! others: reading the facts (`facts.rs`, `path.rs`), what a VM is asked once it is one.
//!
//! Any user of the host can start a program under any name with any command line, put a socket wherever it may write,
//! and mount what it likes in a namespace of its own. What it cannot do: run as another user, put its own bytes into a
//! file that root owns, leave its cgroup upwards, or listen as another process. Only these count.

mod facts;
mod path;
mod rules;
#[cfg(test)]
mod tests;

use std::path::Path;

use terrace_proto::printable::{MAX_NAME, excerpt};
use terrace_sys::Peer;

pub use facts::{Executable, FileId, ProcessFacts};
pub(super) use facts::{executable, is_named_like_qemu, small, sounds_like_qemu};
pub(super) use path::folders;
pub use path::{Component, SocketFacts};
pub use rules::{HypervisorConfig, Rules};

use crate::Finding;

const ROOT: u32 = 0;
/// Most characters of a path or a cgroup in a reason.
const MAX_PATH: usize = 120;

/// The reason why something is not taken for a VM, or not for a VM's monitor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refusal {
    /// The reason.
    pub why: String,
    /// The operator's remedy if this is a VM after all.
    pub change: String,
}

impl Refusal {
    pub(crate) fn new(why: impl Into<String>, change: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            change: change.into(),
        }
    }

    /// For `doctor`, about what is named.
    #[must_use]
    pub fn finding(&self, of: &str) -> Finding {
        Finding::missing(
            "hypervisor",
            format!("{of} is not taken for a VM: {}", self.why),
            self.change.clone(),
        )
    }
}

/// The reason why a VM of this name is refused.
#[must_use]
pub fn bad_name(name: &str) -> Refusal {
    Refusal::new(
        format!(
            "its name is not 1 to {MAX_NAME} printable characters of ASCII: \"{}\"",
            excerpt(name, 64)
        ),
        "give the VM another name (-name), and start it again",
    )
}

/// Whether a process may be a VM's hypervisor.
///
/// # Errors
/// If it may not be one: the reason, and which key would allow it.
pub fn may_be_hypervisor(facts: &ProcessFacts, rules: &Rules) -> Result<(), Refusal> {
    let uid = facts.uids[0];
    if facts.uids.iter().any(|other| *other != uid) {
        return Err(Refusal::new(
            format!(
                "its real, effective, saved and file system user differ ({:?}): its owner cannot be determined",
                facts.uids
            ),
            "start the hypervisor as one user, not by a program that is set-user-ID",
        ));
    }
    if !rules.has_user(uid) {
        return Err(foreign_user(uid));
    }
    may_be_executable(&facts.executable, uid, rules)?;
    let cgroup = facts.cgroup.as_deref();
    if !rules.has_cgroup(cgroup, uid) {
        let shown = cgroup.map_or("none that is known".into(), |path| excerpt(path, MAX_PATH));
        let key = if rules.is_own(uid) {
            "own_cgroups"
        } else {
            "cgroups"
        };
        return Err(Refusal::new(
            format!("its cgroup is {shown}, in which no VM of user {uid} belongs"),
            format!("if they do, add {shown} (or a cgroup above it) to {key} under [hypervisors]"),
        ));
    }
    Ok(())
}

/// The reason why a process of a user that the operator does not allow is refused.
pub(crate) fn foreign_user(uid: u32) -> Refusal {
    Refusal::new(
        format!("user {uid} may not run VMs here"),
        format!("if it may, add \"{uid}\", or its name, to users under [hypervisors]"),
    )
}

/// The file is one that the operator allows, or was until an upgrade replaced it.
fn may_be_executable(executable: &Executable, uid: u32, rules: &Rules) -> Result<(), Refusal> {
    let shown = excerpt(&executable.path.to_string_lossy(), MAX_PATH);
    let allowed = if executable.replaced {
        rules.has_path(&executable.path)
    } else {
        // Not by path: in a namespace of its own a process may have anything there.
        rules.has_file(executable.file)
    };
    if !allowed {
        let which = if executable.replaced {
            "which was deleted since, "
        } else if rules.has_path(&executable.path) {
            "which is not the file that the host has there, "
        } else {
            ""
        };
        return Err(Refusal::new(
            format!("it runs {shown}, {which}which is not allowed to be a hypervisor"),
            "if it is one, add its path on this host to executables under [hypervisors]",
        ));
    }
    // Of a file that is gone only its owner speaks for what was in it.
    let own = !executable.replaced && executable.owner == uid;
    if !(executable.owner == ROOT || rules.is_own(executable.owner) || own) {
        return Err(Refusal::new(
            format!(
                "it runs {shown}, which belongs to user {}",
                executable.owner
            ),
            "give the executable to root, and start the VM again",
        ));
    }
    if executable.mode & 0o022 != 0 {
        return Err(Refusal::new(
            format!("it runs {shown}, which others than its owner may write"),
            "take the executable's write permission from group and others (chmod go-w), and start the VM again",
        ));
    }
    Ok(())
}

/// Whether who listens at the monitor of a VM that is known is the VM itself, or root, who may have opened it.
///
/// # Errors
/// If it is another process, with the reason.
pub fn may_answer_for(pid: Option<u32>, peer: Option<Peer>) -> Result<(), Refusal> {
    let is_it = peer.is_some_and(|peer| {
        let is_own = peer.uid == ROOT || peer.uid == rules::own_uid();
        is_own || (pid.is_some() && peer.pid == pid)
    });
    if is_it {
        return Ok(());
    }
    Err(Refusal::new(
        "another process listens there now",
        "nothing: the VM is searched for again",
    ))
}

/// Whether who listens at a monitor may have opened it for a VM that is another process: root alone. Another process of
/// the VM's user could name the UUID of any VM of that user, and speak for it.
///
/// # Errors
/// If it may not, with the reason.
pub fn may_hand_over(peer: Peer, rules: &Rules) -> Result<(), Refusal> {
    if rules.is_own(peer.uid) {
        return Ok(());
    }
    Err(Refusal::new(
        format!(
            "user {} may not listen for a VM that is another process",
            peer.uid
        ),
        "let the VM itself listen at its monitor, or root",
    ))
}

/// Whether a socket may be the monitor of a VM of this user; of any user that may run VMs if none is known yet.
///
/// # Errors
/// If it may not be, with the reason.
pub fn may_be_monitor(facts: &SocketFacts, uid: Option<u32>, rules: &Rules) -> Result<(), Refusal> {
    may_be("monitor", facts, uid, rules)
}

/// Whether what listens at a socket may be a HyperFlex device: one of a user that may run VMs, or of root.
///
/// # Errors
/// If it may not be, with the reason.
pub fn may_be_device(facts: &SocketFacts, rules: &Rules) -> Result<(), Refusal> {
    may_be("control socket", facts, None, rules)
}

fn may_be(what: &str, facts: &SocketFacts, uid: Option<u32>, rules: &Rules) -> Result<(), Refusal> {
    if !facts.is_socket {
        return Err(Refusal::new(
            format!("{} is no socket", shown(&facts.path)),
            "put nothing but QEMU's -qmp sockets into folders of monitors",
        ));
    }
    if !is_right(facts.owner, uid, rules) {
        return Err(Refusal::new(
            format!(
                "its {what} {} belongs to user {}, not to root or {}",
                shown(&facts.path),
                facts.owner,
                wanted(uid)
            ),
            "let QEMU, or the device, make its own socket; if this user may run VMs, add it to users under \
             [hypervisors]",
        ));
    }
    may_hold(what, &facts.folders, uid, rules)
}

/// Whether monitors may be in a folder: only root and the VM's user can put another file in the place of one, in
/// it or in any folder above it.
///
/// # Errors
/// If they may not be there, with the reason.
pub fn may_hold_monitors(
    folders: &[Component],
    uid: Option<u32>,
    rules: &Rules,
) -> Result<(), Refusal> {
    may_hold("monitor", folders, uid, rules)
}

fn may_hold(
    what: &str,
    folders: &[Component],
    uid: Option<u32>,
    rules: &Rules,
) -> Result<(), Refusal> {
    // Above the socket each folder is its child's parent: in a sticky one no other user can move the child away.
    for folder in folders {
        let path = shown(&folder.path);
        if !is_right(folder.owner, uid, rules) {
            return Err(Refusal::new(
                format!(
                    "its {what} is in {path}, which belongs to user {}, not to root or {}",
                    folder.owner,
                    wanted(uid)
                ),
                "put it in a folder that only root and the VM's user can write to, as /run/terrace/qmp",
            ));
        }
        let is_shared = folder.mode & 0o022 != 0;
        let is_sticky = folder.mode & 0o1000 != 0;
        if is_shared && !is_sticky {
            return Err(Refusal::new(
                format!(
                    "its {what} is in {path}, which others write (mode {:o})",
                    folder.mode & 0o7777
                ),
                format!(
                    "chmod go-w {path}, or chmod +t {path} if QEMU creates sockets there by its group"
                ),
            ));
        }
    }
    Ok(())
}

fn is_right(owner: u32, uid: Option<u32>, rules: &Rules) -> bool {
    let of_vm = match uid {
        Some(uid) => owner == uid,
        None => rules.has_user(owner),
    };
    owner == ROOT || of_vm
}

fn wanted(uid: Option<u32>) -> String {
    uid.map_or("one that may run VMs".into(), |uid| {
        format!("{uid}, the VM's")
    })
}

fn shown(path: &Path) -> String {
    excerpt(&path.to_string_lossy(), MAX_PATH)
}
