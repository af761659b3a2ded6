//! The rights that the process drops before it faces a hypervisor and its guest.
//!
//! Left are: descriptors that are open and those that the hypervisor sends, memory that is not executable and the
//! node that it prefers, threads of its own, names and peers of sockets, time, and holes in files. There is no way to
//! open, connect, start, or trace anything.

use terrace_sys::sandbox::{
    CallFilter, FilterError, Limited, RulesetStatus, has, is, lacks, reach_nothing_by_name,
    refuse_on_all_threads,
};
use terrace_sys::{keep_only, no_new_privileges, not_dumpable};

use crate::error::FlexError;

/// Locks the process in while it has one thread: later ones inherit it. Returns the lesser restrictions that this
/// kernel could not set, for people.
///
/// # Errors
/// If capabilities are left or no system call filter is in force.
pub fn lock() -> Result<Vec<String>, FlexError> {
    let refused =
        |what: &str, error: &dyn std::fmt::Display| FlexError::Sandbox(format!("{what}: {error}"));
    let mut gaps = Vec::new();
    if let Err(error) = not_dumpable() {
        gaps.push(format!("no core dumps: {error}"));
    }
    no_new_privileges().map_err(|e| refused("no new privileges", &e))?;
    match reach_nothing_by_name() {
        Ok(RulesetStatus::FullyEnforced) => {}
        Ok(status) => gaps.push(format!("landlock of this kernel: {status:?}")),
        Err(error) => gaps.push(format!("landlock: {error}")),
    }
    keep_only(&[]).map_err(|e| refused("drop capabilities", &e))?;
    filters().map_err(|e| refused("system call filter", &e))?;
    Ok(gaps)
}

/// Calls without a condition.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_ppoll,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_close,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Refused by the other filter, with an error instead of an end.
    libc::SYS_clone3,
    // The filter that is applied second is applied by this.
    libc::SYS_seccomp,
];

/// Asks for the policy of an address; libc does not name it.
const MPOL_F_ADDR: libc::c_int = 2;

/// Older calls that newer machines do not have.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &[libc::SYS_epoll_wait, libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// Calls under conditions on their arguments.
const LIMITED: &[Limited] = &[
    (libc::SYS_clone, &[&[has(0, libc::CLONE_THREAD)]]),
    (libc::SYS_mmap, &[&[lacks(2, libc::PROT_EXEC)]]),
    (libc::SYS_mprotect, &[&[lacks(2, libc::PROT_EXEC)]]),
    // The node of new pages; present pages stay on theirs (no flags), and no node is bound to.
    (libc::SYS_mbind, &[&[is(2, libc::MPOL_PREFERRED), is(5, 0)]]),
    (libc::SYS_get_mempolicy, &[&[is(4, MPOL_F_ADDR)]]),
    // Of this process's own mappings; never MADV_REMOVE, which frees parts of files.
    (
        libc::SYS_madvise,
        &[&[is(2, libc::MADV_DONTNEED)], &[is(2, libc::MADV_FREE)]],
    ),
    (
        libc::SYS_fallocate,
        &[&[is(
            1,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        )]],
    ),
    // Of a descriptor, not of a path.
    (libc::SYS_statx, &[&[has(2, libc::AT_EMPTY_PATH)]]),
    (libc::SYS_newfstatat, &[&[has(3, libc::AT_EMPTY_PATH)]]),
    // The standard library checks descriptors before it closes them, in debug builds.
    (
        libc::SYS_fcntl,
        &[&[is(1, libc::F_DUPFD_CLOEXEC)], &[is(1, libc::F_GETFD)]],
    ),
    // Who the hypervisor is.
    (
        libc::SYS_getsockopt,
        &[
            &[is(1, libc::SOL_SOCKET), is(2, libc::SO_PEERCRED)],
            &[is(1, libc::SOL_SOCKET), is(2, libc::SO_ACCEPTCONN)],
        ],
    ),
    (libc::SYS_prctl, &[&[is(0, libc::PR_SET_NAME)]]),
];

fn filters() -> Result<(), FilterError> {
    // Its flags are in memory, which no filter can read; glibc and musl use clone(2) then.
    refuse_on_all_threads(libc::SYS_clone3, libc::ENOSYS)?;
    let mut filter = CallFilter::default();
    filter.allow(ALLOWED);
    filter.allow(OLDER);
    filter.allow_limited(LIMITED);
    filter.kill_others_on_all_threads()
}
