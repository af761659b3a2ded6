//! Filters of system calls: the calls that the process may make, and those that each thread of it may make.
//!
//! Lists of allowed calls. A refused call fails with `EPERM` and is named in the kernel's log; it ends nothing: a C
//! library that does a thing in another way must not end a production daemon. Calls that are newer than Linux 5.1
//! (from 424 on) fail with `ENOSYS`, so that libraries take the older way.

use std::io;

use libc::c_long;
use terrace_sys::sandbox::{Argument, CallFilter, Limited, filter_system_calls, has, is, lacks};
use terrace_sys::{MADV_COLLAPSE, PROCESS_MADVISE};

/// A group of calls that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Reading and writing over connected sockets.
    Talk,
    /// Opening and inspecting files and folders, connecting.
    Open,
    /// Making, renaming, removing files; writing at a place of one.
    ChangeFiles,
    /// Making a socket that waits for connections.
    Listen,
    /// Accepting connections.
    Accept,
    /// Holding a process by a descriptor; reading how a child ended. Ending one is for the threads that start
    /// workers.
    Processes,
    /// The ioctls of a process's page map.
    PageMap,
    /// `move_pages(2)`.
    MovePages,
    /// `process_madvise(2)` with no other advice than to collapse.
    Collapse,
    /// `perf_event_open(2)`, and starting a counter.
    Count,
}

/// Calls that every thread needs to live: memory of its own, other threads, time, descriptors that are open.
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

/// Calls that only the start of a program needs, and those that the program, a worker, makes before it locks itself
/// in.
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
    libc::SYS_perf_event_open,
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

/// Older calls that newer machines do not have, group by group.
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

/// The first number that is the same on all machines.
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
    let mut rules = Rules::life(false);
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
        rules.older.allow(calls);
    }
    rules.newer.extend([
        PIDFD_SEND_SIGNAL,
        PIDFD_OPEN,
        CLOSE_RANGE,
        FACCESSAT2,
        EPOLL_PWAIT2,
    ]);
    rules.newer.extend(LANDLOCK);
    rules.allow_collapse();
    rules.apply()
}

/// Puts a filter on the calling thread: it allows these groups beside the calls that each thread needs to live.
pub fn filter_thread(groups: &[Calls]) -> io::Result<()> {
    let mut rules = Rules::life(true);
    for group in groups {
        rules.add_group(*group);
    }
    rules.apply()
}

/// The calls of every thread that a narrow thread may make only under conditions: nothing that can be executed, no
/// mapping that is shared with others.
const NARROW: &[Limited] = &[
    (libc::SYS_clone, &[&[has(0, libc::CLONE_THREAD)]]),
    (
        libc::SYS_mmap,
        &[&[lacks(2, libc::PROT_EXEC), lacks(3, libc::MAP_SHARED)]],
    ),
    (libc::SYS_mprotect, &[&[lacks(2, libc::PROT_EXEC)]]),
    // Never MADV_REMOVE, which frees parts of files. The last two guard stacks (Linux 6.13).
    (
        libc::SYS_madvise,
        &[
            &[is(2, libc::MADV_DONTNEED)],
            &[is(2, libc::MADV_FREE)],
            &[is(2, libc::MADV_HUGEPAGE)],
            &[is(2, libc::MADV_NOHUGEPAGE)],
            &[is(2, 102)],
            &[is(2, 103)],
        ],
    ),
    (
        libc::SYS_fcntl,
        &[
            &[is(1, libc::F_DUPFD_CLOEXEC)],
            &[is(1, libc::F_GETFD)],
            &[is(1, libc::F_SETFD)],
            &[is(1, libc::F_GETFL)],
            &[is(1, libc::F_SETFL)],
        ],
    ),
    (
        libc::SYS_prctl,
        &[
            &[is(0, libc::PR_SET_NAME)],
            &[is(0, libc::PR_GET_NAME)],
            &[is(0, libc::PR_SET_VMA)],
        ],
    ),
    // Asking for a limit, not setting one.
    (libc::SYS_prlimit64, &[&[Argument::Null(2)]]),
    // Of a descriptor, not of a path.
    (libc::SYS_statx, &[&[has(2, libc::AT_EMPTY_PATH)]]),
    (libc::SYS_newfstatat, &[&[has(3, libc::AT_EMPTY_PATH)]]),
    (libc::SYS_ioctl, &[&[is(1, FIONBIO)], &[is(1, FIOCLEX)]]),
];

/// The type of a new socket: the lowest bits are the type, the others are flags.
const STREAM: Argument = Argument::Masked(1, 0xf, libc::SOCK_STREAM.cast_unsigned());
/// The number of the request, which the kernel takes as 32 bits.
const SCAN: Argument = Argument::Is(1, terrace_sys::PAGEMAP_SCAN);

/// The id of an event, and its start. A request's number is 32 bits.
const COUNT: &[&[Argument]] = &[&[Argument::Is(1, 0x8008_2407)], &[Argument::Is(1, 0x2400)]];

/// The only advice about another process's memory: others page it out, or drop it.
const COLLAPSE: Argument = Argument::Is(3, MADV_COLLAPSE);

/// The allowed calls.
struct Rules {
    older: CallFilter,
    newer: Vec<u32>,
    /// Newer calls whose arguments count: the rest of the program decides on them.
    checked: Vec<u32>,
}

impl Rules {
    /// The calls that every thread needs; `narrow`: under the conditions of [`NARROW`].
    fn life(narrow: bool) -> Self {
        let mut rules = Self {
            older: CallFilter::default(),
            // clone3 is refused by another filter, without a line in the log.
            newer: vec![CLONE3, EPOLL_PWAIT2],
            checked: Vec::new(),
        };
        rules.older.allow(LIFE);
        rules.older.allow(older::LIFE);
        if narrow {
            rules.older.allow_limited(NARROW);
            // Ending by abort(3).
            let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
            rules.older.allow_if(libc::SYS_tgkill, &[&[is(0, own)]]);
        }
        rules
    }

    fn add_group(&mut self, calls: Calls) {
        let rules = &mut self.older;
        match calls {
            Calls::Talk => {
                rules.allow(TALK);
                // Over one of datagrams, something can be sent to any socket that has a path.
                rules.allow_if(libc::SYS_socketpair, &[&[is(0, libc::AF_UNIX), STREAM]]);
            }
            Calls::Open => {
                rules.allow(OPEN);
                rules.allow(older::OPEN);
                rules.allow_if(libc::SYS_socket, &[&[is(0, libc::AF_UNIX)]]);
                self.newer.push(FACCESSAT2);
            }
            Calls::ChangeFiles => {
                rules.allow(CHANGE_FILES);
                rules.allow(older::CHANGE_FILES);
            }
            Calls::Listen => rules.allow(LISTEN),
            Calls::Accept => rules.allow(ACCEPT),
            Calls::Processes => {
                rules.allow(PROCESSES);
                self.newer.push(PIDFD_OPEN);
            }
            Calls::PageMap => rules.allow_if(libc::SYS_ioctl, &[&[SCAN]]),
            Calls::MovePages => rules.allow(&[libc::SYS_move_pages]),
            Calls::Collapse => self.allow_collapse(),
            Calls::Count => {
                rules.allow(&[libc::SYS_perf_event_open]);
                rules.allow_if(libc::SYS_ioctl, COUNT);
            }
        }
    }

    fn allow_collapse(&mut self) {
        self.older
            .allow_if(c_long::from(PROCESS_MADVISE), &[&[COLLAPSE]]);
        self.checked.push(PROCESS_MADVISE);
    }

    fn apply(self) -> io::Result<()> {
        let mut whole = newer(&self.newer, &self.checked);
        let older = self.older.failing_program(libc::EPERM);
        whole.extend(older.map_err(io::Error::other)?);
        filter_system_calls(&whole, true).map_err(|error| error.source)
    }
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

/// A filter that refuses clone3(2). Its flags are in memory, which no filter can read; C libraries use clone(2)
/// then.
fn no_clone3() -> Vec<libc::sock_filter> {
    vec![
        step(LOAD, 0, 0, 0),
        step(JUMP_IF_EQUAL, CLONE3, 0, 1),
        step(RETURN, ERRNO | libc::ENOSYS.cast_unsigned(), 0, 0),
        step(RETURN, ALLOW, 0, 0),
    ]
}

/// A filter that decides on calls from [`NEWER`] on, except those that are checked, and leaves others to the rest of the
/// program.
fn newer(allowed: &[u32], checked: &[u32]) -> Vec<libc::sock_filter> {
    let (count, more) = (allowed.len(), checked.len());
    let mut steps = vec![
        step(LOAD, 0, 0, 0),
        step(JUMP_IF_AT_LEAST, X32, count + more + 3, 0),
        step(JUMP_IF_AT_LEAST, NEWER, 0, count + more + 2),
    ];
    steps.extend(
        checked
            .iter()
            .enumerate()
            .map(|(at, call)| step(JUMP_IF_EQUAL, *call, count + more + 1 - at, 0)),
    );
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
