//! Filters of system calls: what the process may call, and what a thread of it may.
//!
//! Lists of what is allowed. What is refused fails with `EPERM` and is named in the kernel's log; it ends nothing: a C
//! library that does a thing in another way must not end a production daemon. Calls that are newer than Linux 5.1
//! (from 424 on) fail with `ENOSYS`, so that libraries take the older way.

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};
use terrace_sys::filter_system_calls;

use super::role::Role;

/// Calls that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Over sockets that are connected.
    Talk,
    /// Opening and looking at files and folders, connecting.
    Open,
    /// Making, renaming, removing files; writing at a place of one.
    ChangeFiles,
    /// Making a socket that waits for connections.
    Listen,
    /// Taking in who connects to one.
    Accept,
    /// Holding a process by a descriptor; how a child ended. Ending one is for the threads that start workers.
    Processes,
    /// The ioctls of a process's page map.
    PageMap,
    /// `move_pages(2)`.
    MovePages,
}

/// What every thread needs to live: memory of its own, other threads, time, descriptors that are open.
const LIFE: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_membarrier,
    libc::SYS_get_robust_list,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

const TALK: &[c_long] = &[
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
];

const OPEN: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_faccessat,
    libc::SYS_getcwd,
    libc::SYS_connect,
];

const CHANGE_FILES: &[c_long] = &[
    libc::SYS_pwrite64,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_umask,
    libc::SYS_pipe2,
];

const LISTEN: &[c_long] = &[libc::SYS_bind, libc::SYS_listen];
const ACCEPT: &[c_long] = &[libc::SYS_accept4];

const PROCESSES: &[c_long] = &[libc::SYS_wait4, libc::SYS_waitid];

/// What only starting a program takes, and what that program, a worker, does before it locks itself in.
const START: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_clone,
    libc::SYS_set_tid_address,
    libc::SYS_prlimit64,
    libc::SYS_prctl,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_seccomp,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_move_pages,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_chdir,
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_getppid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
];

/// Older calls that newer machines do not have, of each group.
#[cfg(target_arch = "x86_64")]
mod older {
    use libc::c_long;
    pub const LIFE: &[c_long] = &[libc::SYS_poll, libc::SYS_epoll_wait, libc::SYS_time];
    pub const OPEN: &[c_long] = &[
        libc::SYS_open,
        libc::SYS_stat,
        libc::SYS_lstat,
        libc::SYS_readlink,
        libc::SYS_access,
    ];
    pub const CHANGE_FILES: &[c_long] = &[
        libc::SYS_unlink,
        libc::SYS_mkdir,
        libc::SYS_rmdir,
        libc::SYS_rename,
        libc::SYS_chmod,
        libc::SYS_pipe,
    ];
    pub const START: &[c_long] = &[
        libc::SYS_fork,
        libc::SYS_vfork,
        libc::SYS_arch_prctl,
        libc::SYS_dup2,
    ];
}
#[cfg(not(target_arch = "x86_64"))]
mod older {
    use libc::c_long;
    pub const LIFE: &[c_long] = &[];
    pub const OPEN: &[c_long] = &[];
    pub const CHANGE_FILES: &[c_long] = &[];
    pub const START: &[c_long] = &[];
}

/// From here on numbers are the same on all machines.
const NEWER: u32 = 424;
const PIDFD_SEND_SIGNAL: u32 = 424;
const PIDFD_OPEN: u32 = 434;
const CLONE3: u32 = 435;
const CLOSE_RANGE: u32 = 436;
const FACCESSAT2: u32 = 439;
const EPOLL_PWAIT2: u32 = 441;
/// `landlock_create_ruleset`, `landlock_add_rule`, `landlock_restrict_self`.
const LANDLOCK: [u32; 3] = [444, 445, 446];
/// Requests of ioctl(2) about a descriptor itself; their type differs between C libraries.
const FIONBIO: libc::c_int = 0x5421;
const FIOCLEX: libc::c_int = 0x5451;
/// The bit of calls of x32 programs, which no list has.
const X32: u32 = 0x4000_0000;

/// Puts the process's filter on its only thread.
pub fn filter_process() -> io::Result<()> {
    filter_system_calls(&no_clone3(), false).map_err(|error| error.source)?;
    let mut rules = Rules::life(false).map_err(io::Error::other)?;
    for calls in [
        TALK,
        OPEN,
        CHANGE_FILES,
        LISTEN,
        ACCEPT,
        PROCESSES,
        START,
        older::START,
        older::OPEN,
        older::CHANGE_FILES,
    ] {
        rules.add(calls);
    }
    rules.newer.extend([
        PIDFD_SEND_SIGNAL,
        PIDFD_OPEN,
        CLOSE_RANGE,
        FACCESSAT2,
        EPOLL_PWAIT2,
    ]);
    rules.newer.extend(LANDLOCK);
    rules.apply()
}

/// Puts its role's filter on the calling thread.
pub fn filter_thread(role: Role) -> io::Result<()> {
    let Some(groups) = role.calls() else {
        return Ok(());
    };
    let mut rules = Rules::life(true).map_err(io::Error::other)?;
    for group in groups {
        rules.add_group(*group).map_err(io::Error::other)?;
    }
    rules.apply()
}

/// What is allowed.
struct Rules {
    older: BTreeMap<c_long, Vec<SeccompRule>>,
    newer: Vec<u32>,
}

impl Rules {
    /// What every thread needs; `narrow`: nothing that can be executed, no mapping that is shared with others.
    fn life(narrow: bool) -> Result<Self, BackendError> {
        let mut rules = Self {
            older: BTreeMap::new(),
            // It is refused elsewhere, without a line in the log.
            newer: vec![CLONE3, EPOLL_PWAIT2],
        };
        rules.add(LIFE);
        rules.add(older::LIFE);
        if narrow {
            rules.narrow_life()?;
        }
        Ok(rules)
    }

    fn add(&mut self, calls: &[c_long]) {
        for call in calls {
            // No rule is no condition.
            self.older.insert(*call, Vec::new());
        }
    }

    fn any(&mut self, call: c_long, of: Vec<SeccompCondition>) -> Result<(), BackendError> {
        let rules = of.into_iter().map(|one| SeccompRule::new(vec![one]));
        let rules = rules.collect::<Result<Vec<_>, _>>()?;
        // A call without a condition keeps that.
        match self.older.get_mut(&call) {
            Some(there) if there.is_empty() => {}
            Some(there) => there.extend(rules),
            None => drop(self.older.insert(call, rules)),
        }
        Ok(())
    }

    fn narrow_life(&mut self) -> Result<(), BackendError> {
        self.any(libc::SYS_clone, vec![has(0, libc::CLONE_THREAD)?])?;
        let private = vec![lacks(2, libc::PROT_EXEC)?, lacks(3, libc::MAP_SHARED)?];
        self.older
            .insert(libc::SYS_mmap, vec![SeccompRule::new(private)?]);
        self.any(libc::SYS_mprotect, vec![lacks(2, libc::PROT_EXEC)?])?;
        // Never MADV_REMOVE, which frees parts of files. The last two guard stacks (Linux 6.13).
        let advice = [
            libc::MADV_DONTNEED,
            libc::MADV_FREE,
            libc::MADV_HUGEPAGE,
            libc::MADV_NOHUGEPAGE,
            102,
            103,
        ];
        self.any(libc::SYS_madvise, all(advice.map(|advice| is(2, advice)))?)?;
        let about = [
            libc::F_DUPFD_CLOEXEC,
            libc::F_GETFD,
            libc::F_SETFD,
            libc::F_GETFL,
            libc::F_SETFL,
        ];
        self.any(libc::SYS_fcntl, all(about.map(|about| is(1, about)))?)?;
        let about = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA];
        self.any(libc::SYS_prctl, all(about.map(|about| is(0, about)))?)?;
        // Asking for a limit, not setting one.
        let none = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
        self.any(libc::SYS_prlimit64, vec![none])?;
        // Ending by abort(3).
        let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        self.any(libc::SYS_tgkill, vec![is(0, own)?])?;
        // Of a descriptor, not of a path.
        self.any(libc::SYS_statx, vec![has(2, libc::AT_EMPTY_PATH)?])?;
        self.any(libc::SYS_newfstatat, vec![has(3, libc::AT_EMPTY_PATH)?])?;
        let about = [FIONBIO, FIOCLEX];
        self.any(libc::SYS_ioctl, all(about.map(|about| is(1, about)))?)
    }

    fn add_group(&mut self, calls: Calls) -> Result<(), BackendError> {
        match calls {
            Calls::Talk => {
                self.add(TALK);
                // Over one of datagrams, something can be sent to any socket that has a path.
                let stream = SeccompRule::new(vec![is(0, libc::AF_UNIX)?, stream(1)?])?;
                self.older.insert(libc::SYS_socketpair, vec![stream]);
            }
            Calls::Open => {
                self.add(OPEN);
                self.add(older::OPEN);
                self.newer.push(FACCESSAT2);
                self.any(libc::SYS_socket, vec![is(0, libc::AF_UNIX)?])?;
            }
            Calls::ChangeFiles => {
                self.add(CHANGE_FILES);
                self.add(older::CHANGE_FILES);
            }
            Calls::Listen => self.add(LISTEN),
            Calls::Accept => self.add(ACCEPT),
            Calls::Processes => {
                self.add(PROCESSES);
                self.newer.push(PIDFD_OPEN);
            }
            Calls::PageMap => {
                let scan = terrace_sys::PAGEMAP_SCAN;
                let scan = SeccompCondition::new(
                    1,
                    SeccompCmpArgLen::Dword,
                    SeccompCmpOp::Eq,
                    scan & u64::from(u32::MAX),
                )?;
                self.any(libc::SYS_ioctl, vec![scan])?;
            }
            Calls::MovePages => self.add(&[libc::SYS_move_pages]),
        }
        Ok(())
    }

    fn apply(self) -> io::Result<()> {
        let arch = std::env::consts::ARCH;
        let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
        let arch = arch.try_into().map_err(io::Error::other)?;
        let filter = SeccompFilter::new(self.older, refuse, SeccompAction::Allow, arch);
        let program = filter.and_then(BpfProgram::try_from);
        let program = program.map_err(io::Error::other)?;
        let mut whole = newer(&self.newer);
        whole.extend(program.iter().map(|step| libc::sock_filter {
            code: step.code,
            jt: step.jt,
            jf: step.jf,
            k: step.k,
        }));
        filter_system_calls(&whole, true).map_err(|error| error.source)
    }
}

fn condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

fn number(value: libc::c_int) -> u64 {
    u64::from(value.cast_unsigned())
}

fn is(argument: u8, value: libc::c_int) -> Result<SeccompCondition, BackendError> {
    condition(argument, SeccompCmpOp::Eq, number(value))
}

fn has(argument: u8, bits: libc::c_int) -> Result<SeccompCondition, BackendError> {
    condition(argument, SeccompCmpOp::MaskedEq(number(bits)), number(bits))
}

fn lacks(argument: u8, bits: libc::c_int) -> Result<SeccompCondition, BackendError> {
    condition(argument, SeccompCmpOp::MaskedEq(number(bits)), 0)
}

/// Of a socket's type, the lowest bits say which, the others how.
fn stream(argument: u8) -> Result<SeccompCondition, BackendError> {
    let stream = number(libc::SOCK_STREAM);
    condition(argument, SeccompCmpOp::MaskedEq(0xf), stream)
}

fn all<const N: usize>(
    of: [Result<SeccompCondition, BackendError>; N],
) -> Result<Vec<SeccompCondition>, BackendError> {
    of.into_iter().collect()
}

// The machine of seccomp's filters: linux/bpf_common.h.
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

fn step(code: u16, k: u32, jt: usize, jf: usize) -> libc::sock_filter {
    let short = |jump| u8::try_from(jump).unwrap_or(u8::MAX);
    libc::sock_filter {
        code,
        jt: short(jt),
        jf: short(jf),
        k,
    }
}

/// Its flags are in memory, where no filter sees them; C libraries use clone(2) then.
fn no_clone3() -> Vec<libc::sock_filter> {
    vec![
        step(LOAD, 0, 0, 0),
        step(JUMP_IF_EQUAL, CLONE3, 0, 1),
        step(RETURN, ERRNO | libc::ENOSYS.cast_unsigned(), 0, 0),
        step(RETURN, ALLOW, 0, 0),
    ]
}

/// Decides on calls from [`NEWER`] on, and leaves others to what follows.
fn newer(allowed: &[u32]) -> Vec<libc::sock_filter> {
    let count = allowed.len();
    let mut steps = vec![
        step(LOAD, 0, 0, 0),
        step(JUMP_IF_AT_LEAST, X32, count + 3, 0),
        step(JUMP_IF_AT_LEAST, NEWER, 0, count + 2),
    ];
    // Behind those that are left and the refusal.
    steps.extend(
        allowed
            .iter()
            .enumerate()
            .map(|(at, call)| step(JUMP_IF_EQUAL, *call, count - at, 0)),
    );
    steps.push(step(RETURN, ERRNO | libc::ENOSYS.cast_unsigned(), 0, 0));
    steps.push(step(RETURN, ALLOW, 0, 0));
    steps
}
