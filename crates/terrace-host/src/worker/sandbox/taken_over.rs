//! Workers that a guest has taken over, under the very filter that workers have: each attempt in a process of its own.

use std::arch::asm;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};

use libc::{c_int, c_long};

/// The attempt that the process is to make.
const ATTEMPT: &str = "TERRACE_TEST_ATTEMPT";
/// The attempt was possible.
const DONE: c_int = 7;
/// The attempt was refused, with this error number above it.
const REFUSED: c_int = 100;

/// Calls by their number, arguments all zero unless it says otherwise. Each must end the process.
const FORBIDDEN: [(&str, c_long, [c_long; 3]); 26] = [
    ("fork", libc::SYS_fork, [0; 3]),
    ("vfork", libc::SYS_vfork, [0; 3]),
    (
        "clone-as-fork-does",
        libc::SYS_clone,
        [libc::SIGCHLD as c_long, 0, 0],
    ),
    ("clone-with-nothing", libc::SYS_clone, [0; 3]),
    (
        "clone-that-shares-memory-alone",
        libc::SYS_clone,
        [
            (libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as c_long,
            0,
            0,
        ],
    ),
    (
        "clone-of-all-but-the-thread-group",
        libc::SYS_clone,
        [
            (libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND) as c_long,
            0,
            0,
        ],
    ),
    (
        "clone-into-a-user-namespace",
        libc::SYS_clone,
        [(libc::CLONE_NEWUSER | libc::SIGCHLD) as c_long, 0, 0],
    ),
    // The kernel takes the low half alone, and so does the filter.
    (
        "clone-with-the-bit-in-the-upper-half",
        libc::SYS_clone,
        [(libc::CLONE_THREAD as c_long) << 32, 0, 0],
    ),
    ("execve", libc::SYS_execve, [0; 3]),
    ("execveat", libc::SYS_execveat, [0; 3]),
    ("open", libc::SYS_open, [0; 3]),
    ("openat", libc::SYS_openat, [0; 3]),
    ("openat2", libc::SYS_openat2, [0; 3]),
    ("open-by-handle", libc::SYS_open_by_handle_at, [0; 3]),
    ("socket", libc::SYS_socket, [1, 1, 0]),
    ("connect", libc::SYS_connect, [0; 3]),
    ("ptrace", libc::SYS_ptrace, [0; 3]),
    (
        "reading-another-process",
        libc::SYS_process_vm_readv,
        [1, 0, 0],
    ),
    ("kill", libc::SYS_kill, [0, 0, 0]),
    (
        "unshare",
        libc::SYS_unshare,
        [libc::CLONE_NEWUSER as c_long, 0, 0],
    ),
    ("prctl", libc::SYS_prctl, [0; 3]),
    ("io_uring", libc::SYS_io_uring_setup, [1, 0, 0]),
    ("pidfd_getfd", libc::SYS_pidfd_getfd, [0; 3]),
    (
        "memory-to-execute",
        libc::SYS_mmap,
        [0, 4096, (libc::PROT_READ | libc::PROT_EXEC) as c_long],
    ),
    (
        "memory-that-becomes-code",
        libc::SYS_mprotect,
        [0, 4096, libc::PROT_EXEC as c_long],
    ),
    // The numbers of the ABI with pointers of 32 bits.
    (
        "clone-of-the-other-abi",
        libc::SYS_clone | 0x4000_0000,
        [libc::CLONE_THREAD as c_long, 0, 0],
    ),
];

/// An attempt by its name; it returns the exit code that tells its outcome.
type Attempt = (&'static str, fn() -> c_int);

/// Attempts that need more than a number.
const OTHERS: [Attempt; 5] = [
    ("clone3-of-a-thread", || {
        clone3((libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD) as u64)
    }),
    ("clone3-as-fork-does", || clone3(0)),
    ("thread", || std::thread::spawn(|| DONE).join().unwrap()),
    ("thread-that-opens-a-file", || {
        let opens = || std::fs::File::open("/proc/self/status").map_or(REFUSED, |_| DONE);
        std::thread::spawn(opens).join().unwrap()
    }),
    ("thread-in-a-namespace", || {
        let flags = libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM | libc::CLONE_NEWUSER;
        call(libc::SYS_clone, [c_long::from(flags), 0, 0])
    }),
];

/// The exit code that tells the outcome of a call.
fn call(number: c_long, [a, b, c]: [c_long; 3]) -> c_int {
    // SAFETY: nothing is behind the pointers, which are null; a new process would end at once, below.
    let rc = unsafe { libc::syscall(number, a, b, c, 0, 0, 0) };
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    if rc < 0 { REFUSED + errno } else { DONE }
}

fn clone3(flags: u64) -> c_int {
    let arguments = [flags, 0, 0, 0, 0, 0, 0, 0_u64];
    // SAFETY: the structure is as long as it says; the call is refused before it is read.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            arguments.as_ptr(),
            size_of_val(&arguments),
        )
    };
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    if rc < 0 { REFUSED + errno } else { DONE }
}

/// `fork` by the calls of 32-bit programs.
fn fork_of_32_bits() -> c_int {
    let rc: i64;
    // SAFETY: a call without arguments; RBX and the rest stay as they are.
    unsafe {
        asm!("int 0x80", inlateout("rax") 2_i64 => rc, out("r8") _, out("r9") _, out("r10") _, out("r11") _)
    };
    if rc < 0 { REFUSED } else { DONE }
}

fn attempt(name: &str) -> c_int {
    if name == "fork-of-32-bits" {
        return fork_of_32_bits();
    }
    if let Some((_, number, arguments)) = FORBIDDEN.iter().find(|call| call.0 == name) {
        return call(*number, *arguments);
    }
    OTHERS
        .iter()
        .find(|other| other.0 == name)
        .map_or(0, |(_, other)| other())
}

/// The process that makes the attempt.
#[test]
#[ignore = "locks its process in: run by the tests below"]
fn made_under_the_filter() {
    let name = std::env::var(ATTEMPT).unwrap();
    super::lock().unwrap();
    let outcome = attempt(&name);
    // SAFETY: ends this process, and nothing in it is needed any more.
    unsafe { libc::_exit(outcome) };
}

fn tried(name: &str) -> ExitStatus {
    let made = "worker::sandbox::taken_over::made_under_the_filter";
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", made, "--test-threads=1"])
        .env(ATTEMPT, name)
        .output();
    output.unwrap().status
}

#[test]
fn no_process_file_or_code_comes_of_a_taken_over_worker() {
    for (name, ..) in FORBIDDEN {
        let status = tried(name);
        assert_eq!(status.signal(), Some(libc::SIGSYS), "{name}: {status}");
    }
}

#[test]
fn calls_of_32_bit_programs_are_no_way_around_the_filter() {
    let status = tried("fork-of-32-bits");
    // A kernel without such calls has the process fault.
    let ends = [Some(libc::SIGSYS), Some(libc::SIGSEGV)];
    assert!(ends.contains(&status.signal()), "{status}");
}

#[test]
fn clone3_fails_and_threads_start_all_the_same() {
    for name in ["clone3-of-a-thread", "clone3-as-fork-does"] {
        assert_eq!(tried(name).code(), Some(REFUSED + libc::ENOSYS), "{name}");
    }
    assert_eq!(tried("thread").code(), Some(DONE));
}

#[test]
fn a_thread_of_a_worker_is_under_the_filter_too() {
    let opened = tried("thread-that-opens-a-file");
    assert_eq!(opened.signal(), Some(libc::SIGSYS), "{opened}");
    let apart = tried("thread-in-a-namespace");
    assert_eq!(apart.code(), Some(REFUSED + libc::EINVAL), "{apart}");
}
