//! Rights that are left to a thread, tried by one that was set up as those of the daemon are.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;

use terrace_sys::no_new_privileges;

use super::*;

const EXPOSED: [Role; 6] = [
    Role::Monitor,
    Role::Observe,
    Role::Map,
    Role::Reconciler,
    Role::Agents,
    Role::Api,
];

/// Runs on a thread that has the process's filter and its role's.
fn as_role<T: Send + 'static>(role: Role, body: impl FnOnce() -> T + Send + 'static) -> T {
    let confined = move || {
        no_new_privileges().unwrap();
        calls::filter_process().unwrap();
        restrict(role, true).unwrap();
        body()
    };
    thread::spawn(confined).join().unwrap()
}

/// The error of a system call with these arguments; `None` if it succeeded.
fn refused(number: libc::c_long, args: [u64; 6]) -> Option<i32> {
    let [a, b, c, d, e, f] = args;
    // SAFETY: each call below is one that must be refused before it does anything; its pointers are null or valid.
    let rc = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    (rc == -1).then(|| io::Error::last_os_error().raw_os_error().unwrap())
}

fn bits(value: libc::c_int) -> u64 {
    u64::from(value.cast_unsigned())
}

/// An attempt: its description, its call with the arguments, and the error with which it has to fail.
type Try = (&'static str, libc::c_long, [u64; 6], i32);

/// Calls that no thread that reads others' input may make, with any arguments.
const FORBIDDEN: [(&str, libc::c_long); 19] = [
    ("execve", libc::SYS_execve),
    ("ptrace", libc::SYS_ptrace),
    ("move_pages", libc::SYS_move_pages),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("mount", libc::SYS_mount),
    ("bpf", libc::SYS_bpf),
    ("unshare", libc::SYS_unshare),
    ("setns", libc::SYS_setns),
    ("init_module", libc::SYS_init_module),
    ("open", libc::SYS_openat),
    ("readlink", libc::SYS_readlinkat),
    ("connect", libc::SYS_connect),
    ("a hole in a file", libc::SYS_fallocate),
    ("capset", libc::SYS_capset),
    ("another filter", libc::SYS_seccomp),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("a name for a socket", libc::SYS_bind),
    ("waiting for connections", libc::SYS_listen),
];

/// Newer calls that are forbidden, too, and which the filter does not know.
const UNKNOWN: [(&str, libc::c_long); 5] = [
    ("io_uring", libc::SYS_io_uring_setup),
    ("another's descriptor", libc::SYS_pidfd_getfd),
    ("clone3", libc::SYS_clone3),
    ("a signal by a descriptor", libc::SYS_pidfd_send_signal),
    ("advice on another's memory", libc::SYS_process_madvise),
];

/// All attempts that must be refused; `memory` is a page of this process.
fn forbidden(memory: u64) -> Vec<Try> {
    let (shared, private) = (libc::MAP_SHARED, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let (write, execute) = (libc::PROT_WRITE, libc::PROT_READ | libc::PROT_EXEC);
    let (execute, own) = (bits(execute), u64::from(std::process::id()));
    let mmap = |kind, how| [0, 4096, kind, bits(how), u64::MAX, 0];
    let of = |first, second, third| [first, second, third, 0, 0, 0];
    let by_argument = [
        (
            "a socket",
            libc::SYS_socket,
            of(bits(libc::AF_INET), bits(libc::SOCK_STREAM), 0),
        ),
        // Over it something could be sent to any socket that has a path: the host's log, its service manager.
        (
            "a pair of datagrams",
            libc::SYS_socketpair,
            of(bits(libc::AF_UNIX), bits(libc::SOCK_DGRAM), 0),
        ),
        // No process has this number.
        (
            "an end",
            libc::SYS_kill,
            of(bits(libc::c_int::MAX), bits(libc::SIGKILL), 0),
        ),
        ("a fork", libc::SYS_clone, of(bits(libc::SIGCHLD), 0, 0)),
        ("memory to execute", libc::SYS_mmap, mmap(execute, private)),
        (
            "a shared mapping",
            libc::SYS_mmap,
            mmap(bits(write), shared),
        ),
        (
            "to make it so",
            libc::SYS_mprotect,
            of(memory, 4096, execute),
        ),
        ("a signal", libc::SYS_kill, of(own, bits(libc::SIGUSR1), 0)),
        ("a limit", libc::SYS_prlimit64, of(0, 7, memory)),
    ];
    let none = |(what, number), error| (what, number, [0; 6], error);
    let forbidden = FORBIDDEN.map(|call| none(call, libc::EPERM));
    let unknown = UNKNOWN.map(|call| none(call, libc::ENOSYS));
    let by_argument = by_argument.map(|(what, number, args)| (what, number, args, libc::EPERM));
    let all = forbidden.into_iter().chain(unknown);
    all.chain(by_argument).collect()
}

#[test]
fn an_input_thread_cannot_start_trace_move_open_or_map() {
    for role in EXPOSED {
        assert!(role.is_exposed());
        let passed = as_role(role, || {
            let page = vec![0_u8; 8192];
            let memory = (page.as_ptr() as u64).next_multiple_of(4096);
            let tried = forbidden(memory)
                .into_iter()
                .map(|(what, number, args, wanted)| (what, refused(number, args), Some(wanted)));
            tried
                .filter(|(_, got, wanted)| got != wanted)
                .collect::<Vec<_>>()
        });
        assert!(passed.is_empty(), "{role:?}: {passed:?}");
    }
}

#[test]
fn a_thread_that_reads_what_others_send_can_do_its_work() {
    for role in EXPOSED {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "text").unwrap();
        let mut file = File::open(&path).unwrap();
        let (mut here, mut there) = UnixStream::pair().unwrap();
        as_role(role, move || {
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!((text.as_str(), file.metadata().unwrap().len()), ("text", 4));
            here.set_nonblocking(true).unwrap();
            here.write_all(b"hello").unwrap();
            let mut buffer = [0; 5];
            there.read_exact(&mut buffer).unwrap();
            let _pair = UnixStream::pair().unwrap();
            let _second = there.try_clone().unwrap();
            let sum = thread::Builder::new().name("inner".into()).spawn(|| {
                let memory = vec![1_u8; 64 << 20];
                memory.iter().map(|byte| u64::from(*byte)).sum::<u64>()
            });
            assert_eq!(sum.unwrap().join().unwrap(), 64 << 20);
            assert!(thread::spawn(|| panic!("on purpose")).join().is_err());
            assert!(File::open(&path).is_err(), "it opens by itself");
        });
    }
}

#[test]
fn what_it_may_not_open_the_opener_opens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, "text").unwrap();
    let (asks, opener) = opener::pair();
    let asks = Mutex::new(asks);
    thread::spawn(move || opener::run(&asks));
    let text = as_role(Role::Agents, move || {
        assert!(terrace_sys::opener::read(&path).is_err());
        open_by(opener);
        terrace_sys::opener::read(&path).unwrap()
    });
    assert_eq!(text, b"text");
}

#[test]
fn no_thread_evades_its_filter_and_only_one_starts_programs() {
    for role in Role::ALL {
        let (started, tried) = as_role(role, || {
            let started = Command::new("/bin/true").status().is_ok();
            let calls = [
                "ptrace",
                "mount",
                "bpf",
                "process_vm_writev",
                "io_uring",
                "setns",
            ];
            let tried = forbidden(0)
                .into_iter()
                .filter(|(what, ..)| calls.contains(what))
                .map(|(what, number, args, wanted)| (what, refused(number, args), Some(wanted)));
            (started, tried.collect::<Vec<_>>())
        });
        assert_eq!(started, role == Role::Workers, "{role:?}");
        assert_eq!(tried.len(), 6);
        for (what, got, wanted) in tried {
            assert_eq!(got, wanted, "{role:?}: {what}");
        }
    }
}

#[test]
fn a_thread_keeps_its_roles_capabilities_and_gains_none_back() {
    for role in Role::ALL {
        let body = move || {
            // Opened before: Landlock lets such a thread open nothing.
            let status = File::open("/proc/thread-self/status").unwrap();
            let held = Sets::of(&status).permitted;
            restrict(role, false).unwrap();
            let sets = Sets::of(&status);
            let wanted = role
                .capabilities()
                .iter()
                .fold(0, |set, cap| set | 1 << cap.index());
            assert_eq!(sets.permitted, wanted & held, "{role:?}");
            assert_eq!(sets.effective, sets.permitted, "{role:?}");
            assert_eq!((sets.ambient, sets.inheritable), (0, 0), "{role:?}");
            assert!(keep_only(&CAPABILITIES).is_ok());
            assert_eq!(Sets::of(&status).permitted, sets.permitted, "{role:?}");
        };
        thread::spawn(body).join().unwrap();
    }
}

#[derive(Debug)]
struct Sets {
    permitted: u64,
    effective: u64,
    inheritable: u64,
    ambient: u64,
}

impl Sets {
    fn of(mut file: &File) -> Self {
        let mut status = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut status).unwrap();
        let set = |key| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
        };
        Self {
            permitted: set("CapPrm:"),
            effective: set("CapEff:"),
            inheritable: set("CapInh:"),
            ambient: set("CapAmb:"),
        }
    }
}

#[test]
fn one_role_alone_may_collapse_and_gives_no_other_advice() {
    for role in Role::ALL {
        let advise = |advice: i32| {
            refused(
                libc::SYS_process_madvise,
                [u64::MAX, 0, 0, bits(advice), 0, 0],
            )
        };
        let tried = as_role(role, move || {
            [25, libc::MADV_PAGEOUT, libc::MADV_DONTNEED].map(advise)
        });
        let wanted = match role {
            // There is no such descriptor.
            Role::Collapse => [libc::EBADF, libc::EPERM, libc::EPERM],
            // All calls of the process; it has no right to inspect others.
            Role::Workers => [libc::EBADF, libc::EPERM, libc::EPERM],
            _ => [libc::ENOSYS; 3],
        };
        assert_eq!(tried, wanted.map(Some), "{role:?}");
    }
}

#[test]
fn roles_have_names_that_the_kernel_keeps_whole() {
    for role in Role::ALL {
        assert!(role.name().len() <= 15, "{role:?}");
        assert!(
            role.capabilities()
                .iter()
                .all(|cap| CAPABILITIES.contains(cap))
        );
        assert!(!role.is_exposed() || role.capabilities().is_empty());
    }
}

#[test]
fn a_passed_socket_serves_a_thread_that_may_create_none() {
    let (here, there) = UnixStream::pair().unwrap();
    as_role(Role::Reconciler, move || {
        assert!(UnixStream::connect("/nowhere").is_err());
        // SAFETY: the call makes a descriptor without another owner.
        let copy = unsafe { libc::fcntl(there.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
        assert!(copy >= 0);
        // SAFETY: as above.
        let mut copy = UnixStream::from(unsafe { OwnedFd::from_raw_fd(copy) });
        copy.write_all(b"x").unwrap();
    });
    assert_eq!((&here).read(&mut [0]).unwrap(), 1);
}

#[test]
fn a_confined_threads_children_are_confined_by_every_call() {
    const X32: libc::c_long = 0x4000_0000;
    for role in EXPOSED {
        let tried = as_role(role, || {
            let inner = || {
                let open = libc::SYS_openat;
                [open, open | X32, open | 1 << 32, -1].map(|number| refused(number, [0; 6]))
            };
            thread::spawn(inner).join().unwrap()
        });
        assert_eq!(tried, [Some(libc::EPERM); 4], "{role:?}");
    }
}
