//! What the process takes from itself before it faces a hypervisor and its guest.
//!
//! Left are: descriptors that are open and those that the hypervisor sends, memory that is not executable and the
//! node that it prefers, threads of its own, names and peers of sockets, time, and holes in files. There is no way to
//! open, connect, start, or trace anything.

use std::collections::BTreeMap;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetStatus, Scope,
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};
use terrace_sys::{keep_only, no_new_privileges, not_dumpable};

use crate::error::FlexError;

/// Locks the process in while it has one thread: later ones inherit it. Returns what this kernel could not do of the
/// lesser things, for people.
///
/// # Errors
/// Where capabilities are left or no system call filter is in force.
pub fn lock() -> Result<Vec<String>, FlexError> {
    let refused =
        |what: &str, error: &dyn std::fmt::Display| FlexError::Sandbox(format!("{what}: {error}"));
    let mut gaps = Vec::new();
    if let Err(error) = not_dumpable() {
        gaps.push(format!("no core dumps: {error}"));
    }
    no_new_privileges().map_err(|e| refused("no new privileges", &e))?;
    match landlock() {
        Ok(RulesetStatus::FullyEnforced) => {}
        Ok(status) => gaps.push(format!("landlock of this kernel: {status:?}")),
        Err(error) => gaps.push(format!("landlock: {error}")),
    }
    keep_only(&[]).map_err(|e| refused("drop capabilities", &e))?;
    filters().map_err(|e| refused("system call filter", &e))?;
    Ok(gaps)
}

/// No file, no port, no abstract socket, no signal to others.
fn landlock() -> Result<RulesetStatus, landlock::RulesetError> {
    let abi = ABI::V6;
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .restrict_self()?;
    Ok(status.ruleset)
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
];

/// Asks for the policy of an address; libc does not name it.
const MPOL_F_ADDR: libc::c_int = 2;

/// Older calls that newer machines do not have.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &[libc::SYS_epoll_wait, libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

fn filters() -> Result<(), Box<dyn std::error::Error>> {
    let arch = std::env::consts::ARCH;
    // Its flags are in memory, where no filter sees them; glibc and musl use clone(2) then.
    let no_clone3 = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(u32::try_from(libc::ENOSYS)?),
        arch.try_into()?,
    )?;
    let known = SeccompFilter::new(
        rules()?,
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        arch.try_into()?,
    )?;
    for filter in [no_clone3, known] {
        let program: BpfProgram = filter.try_into()?;
        seccompiler::apply_filter_all_threads(&program)?;
    }
    Ok(())
}

fn rules() -> Result<BTreeMap<libc::c_long, Vec<SeccompRule>>, BackendError> {
    let calls = ALLOWED.iter().chain(OLDER);
    let mut rules: BTreeMap<libc::c_long, Vec<SeccompRule>> =
        calls.map(|call| (*call, Vec::new())).collect();
    // Refused by the other filter, with an error instead of an end.
    rules.insert(libc::SYS_clone3, Vec::new());
    // The filter that is applied second is applied by this.
    rules.insert(libc::SYS_seccomp, Vec::new());
    let number = |value: libc::c_int| u64::from(value.cast_unsigned());
    let only = |argument, operator, value: libc::c_int| {
        let length = SeccompCmpArgLen::Dword;
        let condition = SeccompCondition::new(argument, length, operator, number(value))?;
        SeccompRule::new(vec![condition])
    };
    let has =
        |argument, bits: libc::c_int| only(argument, SeccompCmpOp::MaskedEq(number(bits)), bits);
    let lacks =
        |argument, bits: libc::c_int| only(argument, SeccompCmpOp::MaskedEq(number(bits)), 0);
    let is = |argument, value| only(argument, SeccompCmpOp::Eq, value);
    let equal = |argument, value: libc::c_int| {
        let length = SeccompCmpArgLen::Dword;
        SeccompCondition::new(argument, length, SeccompCmpOp::Eq, number(value))
    };
    rules.insert(libc::SYS_clone, vec![has(0, libc::CLONE_THREAD)?]);
    rules.insert(libc::SYS_mmap, vec![lacks(2, libc::PROT_EXEC)?]);
    rules.insert(libc::SYS_mprotect, vec![lacks(2, libc::PROT_EXEC)?]);
    // Of this process's own mappings; never MADV_REMOVE, which frees parts of files.
    let forget = [libc::MADV_DONTNEED, libc::MADV_FREE];
    let forget = forget.into_iter().map(|advice| is(2, advice));
    // Where new pages come from; what is there stays there (no flags), and no node is bound to.
    let prefer = vec![equal(2, libc::MPOL_PREFERRED)?, equal(5, 0)?];
    rules.insert(libc::SYS_mbind, vec![SeccompRule::new(prefer)?]);
    rules.insert(libc::SYS_get_mempolicy, vec![is(4, MPOL_F_ADDR)?]);
    rules.insert(libc::SYS_madvise, forget.collect::<Result<_, _>>()?);
    let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    rules.insert(libc::SYS_fallocate, vec![is(1, hole)?]);
    // Of a descriptor, not of a path.
    rules.insert(libc::SYS_statx, vec![has(2, libc::AT_EMPTY_PATH)?]);
    rules.insert(libc::SYS_newfstatat, vec![has(3, libc::AT_EMPTY_PATH)?]);
    // The standard library looks at descriptors before it closes them, in debug builds.
    let fcntl = vec![is(1, libc::F_DUPFD_CLOEXEC)?, is(1, libc::F_GETFD)?];
    rules.insert(libc::SYS_fcntl, fcntl);
    // Who the hypervisor is.
    let socket = [libc::SO_PEERCRED, libc::SO_ACCEPTCONN]
        .map(|name| SeccompRule::new(vec![equal(1, libc::SOL_SOCKET)?, equal(2, name)?]));
    let socket = socket.into_iter().collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_getsockopt, socket);
    rules.insert(libc::SYS_prctl, vec![is(0, libc::PR_SET_NAME)?]);
    Ok(rules)
}
