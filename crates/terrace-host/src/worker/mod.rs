//! The process that holds one VM's RAM and walks its page tables, and the daemon's handle on it.
//!
//! Responsible for: starting a worker, having the VM's cgroup charged for it and handing it the VM's files; the
//! worker's confinement; which top-level tables are walked; time limits; answers that are checked before anybody uses
//! them. It leaves to others: the walk itself (`terrace-pagetable`), asking the hypervisor for registers
//! (`tracker`).
//!
//! A worker faces a guest: everything it reads is under the guest's control. It has no capabilities and
//! no system calls that open, connect or start anything, and all it can do to the rest is to answer.
//! **Invariant:** what a worker answers cannot make the daemon panic, run out of memory or believe
//! anything about another VM; a worker that is frozen or killed holds up only its own VM's scans.

mod allocated;
mod cgroup;
mod channel;
mod guest;
mod handle;
mod process;
mod roots;
mod sandbox;
mod serve;
mod shares;
mod spawn;

pub use cgroup::ChargedTo;
pub(crate) use cgroup::paying_cgroups;
pub use handle::{WorkerError, WorkerHandle};
pub use process::WorkerStop;
pub use serve::{ServeError, run};
pub use spawn::{WorkerCommand, failed_starts, start_threads, started};
