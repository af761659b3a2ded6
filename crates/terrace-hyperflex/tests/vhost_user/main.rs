//! The device behind a real vhost-user frontend: in this process, and as the program in its sandbox.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

mod huge;
mod in_process;
mod killed;
mod left;
mod process;
mod stopped;
mod storm;
