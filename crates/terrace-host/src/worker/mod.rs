//! The process that holds one VM's RAM and walks its page tables, and the daemon's handle on it.
//!
//! Responsible for: starting a worker and handing it the VM's files; the worker's confinement; which
//! top-level tables are walked; time limits; answers that are checked before anybody uses them. It
//! leaves to others: the walk itself (`terrace-pagetable`), asking the hypervisor for registers
//! (`tracker`).
//!
//! A worker faces a guest: everything it reads is under the guest's control. It has no capabilities and
//! no system calls that open, connect or start anything, and all it can do to the rest is to answer.
//! **Invariant:** what a worker answers cannot make the daemon panic, run out of memory or believe
//! anything about another VM.

mod channel;
mod guest;
mod handle;
mod roots;
mod sandbox;
mod serve;
mod spawn;

pub use handle::{WorkerError, WorkerHandle};
pub use serve::{ServeError, run};
pub use spawn::WorkerCommand;
