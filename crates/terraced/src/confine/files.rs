//! Landlock: threads that reach no file, no port and no other process.
//!
//! Best effort: a kernel may lack it or parts of it. What it takes away is out of reach without it, too, by the filter
//! of system calls; it stays where that is turned off.

use terrace_sys::sandbox::{RulesetStatus, reach_nothing_by_name};

/// What a thread may reach by a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// What its user and capabilities allow.
    All,
    /// No file, no port, and no process but this one by a signal; what is open stays open.
    None,
}

/// Restricts the calling thread; says what this kernel could not do, for people.
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
