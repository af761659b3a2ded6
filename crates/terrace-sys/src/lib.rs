//! System calls that no crate covers, behind safe functions.
//!
//! Responsible for: what host and guest agent share of the kernel's interfaces: nodes and tiers ([`topology`]), files
//! below a root folder, the port over `move_pages(2)` ([`Pages`]), the policy of a file in memory, the `PAGEMAP_SCAN`
//! ioctl, DAMON's sysfs, the guest's kernel module ([`guest_module`]), sampled accesses ([`perf`]), the seam through which others' things are opened ([`opener`]),
//! extents of sparse files and holes in them, listening, connecting and passing descriptors over Unix sockets, the
//! identity of a process, confinement ([`sandbox`]), clocks, mappings. It leaves to others: what to do with any of
//! it. All `unsafe` of the host side is meant to live here.

mod clock;
mod collapse;
mod confine;
mod connect;
mod damon;
mod error;
mod extents;
mod fds;
mod file_id;
pub mod guest_module;
mod heap;
mod huge_pages;
mod inherit;
mod listen;
mod mapping;
mod mempolicy;
mod move_pages;
pub mod opener;
mod own_folder;
mod own_log;
mod pagemap;
pub mod perf;
mod privileges;
mod process;
mod root;
pub mod sandbox;
mod socket;
pub mod topology;

pub use clock::{MonotonicClock, cpu_time_of, monotonic_now, process_cpu_time, thread_cpu_time};
pub use collapse::{
    Collapse, CollapseError, KernelCollapse, MADV_COLLAPSE, PROCESS_MADVISE, split_huge_page,
};
pub use confine::{die_with_parent, no_new_privileges, not_dumpable};
pub use connect::connect_unix;
pub use damon::{Damon, DamonAttrs, DamonError, DamonRegion, Kdamond};
pub use error::SysError;
pub use extents::{
    Extent, backing_page_bytes, data_extents, file_size, first_data, for_each_data_extent,
    huge_memory_file, is_hugetlbfs, is_tmpfs, memory_file, next_data_extent, punch_hole,
};
pub use fds::{
    MAX_FDS, Peer, accepted_peer_pid, peer, peer_has_ended, receive_with_fds, send_with_fds,
};
pub use file_id::FileId;
pub use heap::one_heap;
pub use huge_pages::HugePages;
pub use inherit::inherit_nothing;
pub use listen::{ListenError, SocketFile, listen_at};
pub use mapping::SharedMapping;
pub use mempolicy::{MAX_NODES, allowed_nodes, file_prefers, prefer_node};
pub use move_pages::{
    KernelPages, MAX_BATCH, MoveOutcome, MoveScope, MoveTo, NOT_ANSWERED, Pages,
    move_pages_supported,
};
pub use own_folder::FolderError;
pub use own_log::{LogFileError, new_log_file};
pub use pagemap::{
    PAGEMAP_SCAN, PageEntry, PageRun, Pagemap, clear_soft_dirty, soft_dirty_supported,
};
pub use privileges::{Capability, keep_none_at_work, keep_only};
pub use process::{Process, ProcessError, ProcessId, start_time};
pub use root::{HostRoot, ReadError};
pub use terrace_proto::snapshot::{Finding, Health};
