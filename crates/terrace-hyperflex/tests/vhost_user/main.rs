//! The device behind a real vhost-user frontend: in this process, and as the program in its sandbox.

mod hypervisor;
mod in_process;
mod process;
