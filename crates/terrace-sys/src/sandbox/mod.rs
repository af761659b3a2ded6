//! Rights that a process or a thread gives up for good: system calls, and reaching things by a name.
//!
//! Responsible for: allow lists of system calls with conditions on their arguments ([`CallFilter`]), as programs of
//! seccomp and in force; a Landlock that leaves nothing to reach by a name. It leaves to others: the lists, and what
//! happens if the kernel has no such thing.

mod calls;
mod install;
mod reach;

pub use calls::{
    Argument, CallFilter, FilterError, Limited, has, is, lacks, refuse_on_all_threads,
};
pub use install::filter_system_calls;
pub use reach::{RulesetError, RulesetStatus, reach_nothing_by_name};
