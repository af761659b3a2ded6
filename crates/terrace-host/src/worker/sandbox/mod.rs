//! The rights that a worker drops once it has mapped the guest's RAM.
//!
//! Left are: reading and writing descriptors that are open, memory of its own, and ending. There is no
//! way to open, connect, trace, start another process, or map anything executable.

use caps::CapSet;
use terrace_sys::sandbox::{CallFilter, Limited, has, is, lacks, refuse_on_all_threads};
use terrace_sys::{die_with_parent, no_new_privileges, not_dumpable, one_heap};

/// Locks this process in; returns which of the lesser things this kernel could not do, for people.
///
/// # Errors
/// If capabilities are left or no filter is in force: such a process must not face a guest.
pub(super) fn lock() -> Result<Vec<String>, String> {
    let mut gaps = Vec::new();
    let mut step = |what: &str, result: Result<(), String>| {
        if let Err(error) = result {
            gaps.push(format!("{what}: {error}"));
        }
    };
    // Before core dumps are turned off, which gives its files to root.
    step("be killed first if memory is short", die_first());
    step("end with the daemon", die_with_parent().map_err(text));
    step("no core dumps", not_dumpable().map_err(text));
    step("no new privileges", no_new_privileges().map_err(text));
    step("drop the bounding set", drop_bounding_set());
    step(
        "drop inheritable capabilities",
        drop_set(CapSet::Inheritable),
    );
    // A capability that could not be dropped shows below.
    let dropped = drop_set(CapSet::Effective).and_then(|()| drop_set(CapSet::Permitted));
    let left =
        left(CapSet::Effective).and_then(|effective| Ok(effective + left(CapSet::Permitted)?));
    verdict(dropped, left, filter)?;
    Ok(gaps)
}

/// Before anything else. In a cgroup that is frozen no thread would see that the socket closed. An error here
/// shows when [`lock`] does it again.
pub(super) fn begin() {
    let _ = die_with_parent();
    one_heap();
}

/// In its VM's cgroup, which has a limit of its own, the kernel must not choose the hypervisor before it.
fn die_first() -> Result<(), String> {
    std::fs::write("/proc/self/oom_score_adj", "1000").map_err(text)
}

/// Whether the essential restrictions are in force; the filter comes last, as it forbids to ask for capabilities.
fn verdict(
    dropped: Result<(), String>,
    left: Result<usize, String>,
    filter: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let refuse = |what: &str, error: &str| {
        Err(format!(
            "its sandbox could not be set up ({what}: {error}), and no worker reads a guest's memory without it"
        ))
    };
    match (dropped, left) {
        (Ok(()), Ok(0)) => {}
        (Err(error), _) | (_, Err(error)) => return refuse("drop capabilities", &error),
        (Ok(()), Ok(_)) => return refuse("drop capabilities", "some are left"),
    }
    filter().or_else(|error| refuse("system call filter", &error))
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

fn drop_bounding_set() -> Result<(), String> {
    let permitted = caps::read(None, CapSet::Permitted).map_err(text)?;
    if permitted.contains(&caps::Capability::CAP_SETPCAP) {
        // Without it the bounding set stays, which gives nothing to a process that executes nothing.
        for capability in caps::runtime::thread_all_supported() {
            caps::drop(None, CapSet::Bounding, capability).map_err(text)?;
        }
    }
    Ok(())
}

fn drop_set(set: CapSet) -> Result<(), String> {
    caps::clear(None, set).map_err(text)
}

fn left(set: CapSet) -> Result<usize, String> {
    Ok(caps::read(None, set).map_err(text)?.len())
}

fn filter() -> Result<(), String> {
    // Its arguments lie in memory, where no filter sees them; the C library goes on with `clone`, whose flags are checked.
    refuse_on_all_threads(libc::SYS_clone3, libc::ENOSYS).map_err(text)?;
    let mut filter = CallFilter::default();
    filter.allow(&ALLOWED);
    filter.allow_limited(&LIMITED);
    filter.kill_others_on_all_threads().map_err(text)
}

/// Calls without a condition: on descriptors that are open, on memory, on time, and ending.
const ALLOWED: [libc::c_long; 29] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mincore,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    // The runtime's handler of SIGSEGV and SIGBUS puts the default back.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Threads of a pass over a large VM; `clone3` only fails.
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
];

/// Calls under conditions on their arguments.
const LIMITED: [Limited; 4] = [
    // A thread of this process, under the same filter; never another process.
    (libc::SYS_clone, &[&[has(0, libc::CLONE_THREAD)]]),
    (libc::SYS_mmap, &[&[lacks(2, libc::PROT_EXEC)]]),
    (libc::SYS_mprotect, &[&[lacks(2, libc::PROT_EXEC)]]),
    // Advice that drops nothing but page table entries of shared mappings, and the allocator's.
    (
        libc::SYS_madvise,
        &[&[is(2, libc::MADV_DONTNEED)], &[is(2, libc::MADV_HUGEPAGE)]],
    ),
];

#[cfg(test)]
mod taken_over;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_that_is_not_in_force_is_an_error() {
        let failed = || Err("no".to_owned());
        assert_eq!(verdict(Ok(()), Ok(0), || Ok(())), Ok(()));
        for (bad, want) in [
            (verdict(failed(), Ok(0), || Ok(())), "drop capabilities: no"),
            (verdict(Ok(()), Ok(1), || Ok(())), "some are left"),
            (
                verdict(Ok(()), Err("no".into()), || Ok(())),
                "capabilities: no",
            ),
            (verdict(Ok(()), Ok(0), failed), "filter: no"),
        ] {
            let error = bad.unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
