//! Landlock: the rule by which threads reach no file, no port and no other process.
//!
//! Best effort: a kernel may lack it or parts of it. The filter of system calls takes away the same without it; if
//! that filter is turned off, Landlock stays.

use terrace_sys::sandbox::{RulesetStatus, reach_nothing_by_name};

/// The names that a thread may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// All names that the thread's user and capabilities allow.
    All,
    /// No file, no port, and no process but this one by a signal; open descriptors stay open.
    None,
}

/// Restricts the calling thread; returns the restrictions that this kernel could not apply, for people.
pub fn restrict(files: Files) -> Option<String> {
    let status = match files {
        Files::All => return None,
        Files::None => reach_nothing_by_name(),
    };
    match status {
        Ok(RulesetStatus::FullyEnforced) => None,
        Ok(RulesetStatus::PartiallyEnforced) => {
            Some("this kernel has an older Landlock, without all of its rules".into())
        }
        Ok(RulesetStatus::NotEnforced) => Some("this kernel has no Landlock, or it is off".into()),
        Err(error) => Some(format!("Landlock: {error}")),
    }
}
