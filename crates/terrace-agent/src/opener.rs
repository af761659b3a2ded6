//! A process of its own that opens what takes `CAP_SYS_ADMIN`: `/proc/PID/pagemap`, whose frame numbers the kernel shows to
//! nobody else, and the guest module's device.
//!
//! The rest of the program drops that capability. It sends the number of a process and is given a descriptor. The process opens
//! nothing else but the lists of a process's mappings, reads nothing of what it opens, and ends with its parent.
//!
//! A process that hangs in execve(2), as by a file system of its own, holds up whoever opens these files of it. Each is opened by a
//! child, which is killed if that takes too long: the others are looked at all the same.

use std::ffi::{CStr, CString};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use terrace_sys::guest_module::DEVICE;
use terrace_sys::opener::{self, Ask, Given, How, Itself, Opener};
use terrace_sys::sandbox::CallFilter;
use terrace_sys::{
    Capability, die_with_parent, keep_only, no_new_privileges, not_dumpable, receive_with_fds,
    send_with_fds,
};

/// The subcommand by which this program becomes the process.
pub const COMMAND: &str = "opener";
/// Capabilities of the process: frame numbers and the device, and processes of other users.
const CAPABILITIES: [Capability; 2] = [Capability::CAP_SYS_ADMIN, Capability::CAP_SYS_PTRACE];
/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longest time that opening one file takes: it is a matter of microseconds.
const LIMIT: Duration = Duration::from_millis(500);

/// A file that the process opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// A file of a process, by its place in [`FILES`].
    OfProcess(u8, u32),
    /// The guest module's device.
    Module,
}

/// Files of processes that are opened.
const FILES: [&str; 4] = ["pagemap", "maps", "smaps", "numa_maps"];
/// The device's kind in a request, after those of files.
const MODULE: u8 = 0x80;
/// Bytes of a request: what, and the process's number.
const REQUEST: usize = 5;

impl Wanted {
    /// The file that a request of this program asks for, if it is one of these.
    fn of(ask: &Ask) -> Option<Self> {
        let Ask::Open(path, how) = ask else {
            return None;
        };
        if *how == How::ReadWrite && *path == Path::new("/").join(DEVICE) {
            return Some(Self::Module);
        }
        let (pid, file) = path.to_str()?.strip_prefix("/proc/")?.split_once('/')?;
        let at = FILES.iter().position(|known| *known == file)?;
        let wanted = Self::OfProcess(u8::try_from(at).ok()?, pid.parse().ok()?);
        (*how == How::Read).then_some(wanted)
    }

    fn bytes(self) -> [u8; REQUEST] {
        let (kind, pid) = match self {
            Self::OfProcess(file, pid) => (file, pid),
            Self::Module => (MODULE, 0),
        };
        let [a, b, c, d] = pid.to_ne_bytes();
        [kind, a, b, c, d]
    }

    fn parse([kind, pid @ ..]: [u8; REQUEST]) -> Option<Self> {
        match (kind, u32::from_ne_bytes(pid)) {
            (MODULE, 0) => Some(Self::Module),
            (file, pid) if usize::from(file) < FILES.len() => Some(Self::OfProcess(file, pid)),
            _ => None,
        }
    }

    /// The path and the flags.
    fn file(self) -> (String, libc::c_int) {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        match self {
            Self::OfProcess(file, pid) => {
                let name = FILES[usize::from(file)];
                (format!("/proc/{pid}/{name}"), flags | libc::O_RDONLY)
            }
            Self::Module => (format!("/{DEVICE}"), flags | libc::O_RDWR),
        }
    }

    fn open(self) -> io::Result<OwnedFd> {
        let (path, flags) = self.file();
        open_in_child(&CString::new(path)?, flags, LIMIT)
    }
}

/// Opens a file in a child that has the same descriptors.
fn open_in_child(path: &CStr, flags: libc::c_int, limit: Duration) -> io::Result<OwnedFd> {
    let (mut reader, writer) = io::pipe()?;
    let share: libc::c_int = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: without CLONE_VM the child has memory of its own, as after fork(2); it makes three system calls and ends.
    let child = unsafe { libc::syscall(libc::SYS_clone, share, 0, 0, 0, 0) };
    if child == 0 {
        // SAFETY: `path` is a string with an end, `answer` has four bytes, and nothing here allocates or locks.
        unsafe {
            let file = libc::open(path.as_ptr(), flags);
            let answer = if file < 0 {
                -*libc::__errno_location()
            } else {
                file
            };
            libc::write(
                writer.as_raw_fd(),
                (&raw const answer).cast(),
                size_of::<i32>(),
            );
            libc::_exit(0);
        }
    }
    let child = libc::pid_t::try_from(child).unwrap_or(-1);
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    end(child, answers(&reader, limit));
    drop(writer);
    let mut answer = [0; 4];
    match reader
        .read_exact(&mut answer)
        .map(|()| i32::from_ne_bytes(answer))
    {
        // SAFETY: the child opened this descriptor for us, in the table that is ours, too.
        Ok(file @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(file) }),
        Ok(errno) => Err(io::Error::from_raw_os_error(-errno)),
        Err(_) => Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
    }
}

/// Whether something can be read within a time.
fn answers(reader: &io::PipeReader, limit: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd: reader.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let limit = libc::timespec {
        tv_sec: 0,
        tv_nsec: limit.subsec_nanos().into(),
    };
    // SAFETY: one valid entry and one time; no signals are masked.
    unsafe { libc::ppoll(&raw mut poll, 1, &raw const limit, std::ptr::null()) > 0 }
}

/// Waits for a child's end; one that did not answer is killed.
fn end(child: libc::pid_t, answered: bool) {
    // SAFETY: neither call has a pointer to memory; the child is ours and was not waited for.
    unsafe {
        if !answered {
            libc::kill(child, libc::SIGKILL);
        }
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

/// The process, and the way to it.
#[derive(Debug)]
pub struct OpenerProcess {
    socket: Mutex<UnixStream>,
    child: Mutex<Child>,
    without: Without,
}

/// The behaviour if the process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// Nothing is opened: pages whose frames are hidden would be taken for pages that are elsewhere.
    Fail,
    /// The thread opens by itself, without frame numbers.
    OpenItself,
}

impl OpenerProcess {
    /// Starts it, with the capabilities that this process has, and has the calling thread open by it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(without: Without) -> Result<()> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let child = Command::new("/proc/self/exe")
            .arg(COMMAND)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .context("starting the process that opens files")?;
        opener::open_by(Arc::new(Self {
            socket: Mutex::new(socket),
            child: Mutex::new(child),
            without,
        }));
        Ok(())
    }
}

impl Opener for OpenerProcess {
    fn ask(&self, ask: Ask) -> io::Result<Given> {
        let Some(wanted) = Wanted::of(&ask) else {
            return Itself.ask(ask);
        };
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let given = request(&socket, wanted);
        if given.is_none() {
            // An answer that comes late would be taken for the next one's.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        match (given, self.without) {
            (Some(given), _) => given.map(Given::Descriptor),
            (None, Without::OpenItself) => Itself.ask(ask),
            (None, Without::Fail) => Err(io::Error::other(
                "the process that opens files does not answer",
            )),
        }
    }
}

impl Drop for OpenerProcess {
    fn drop(&mut self) {
        let socket = self
            .socket
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let _ = socket.shutdown(std::net::Shutdown::Both);
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Asks for a file. `None`: there is no answer, and none will be.
fn request(mut socket: &UnixStream, wanted: Wanted) -> Option<io::Result<OwnedFd>> {
    socket.write_all(&wanted.bytes()).ok()?;
    let mut errno = [0; 4];
    let (read, mut descriptors) = receive_with_fds(socket, &mut errno).ok()?;
    if read < errno.len() {
        return None;
    }
    match i32::from_ne_bytes(errno) {
        0 => descriptors.pop().map(Ok),
        errno => Some(Err(io::Error::from_raw_os_error(errno))),
    }
}

/// Opens what is asked for on standard input, until its other end is closed.
///
/// # Errors
/// If this process cannot be confined, or the socket fails.
pub fn serve() -> Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    die_with_parent()?;
    not_dumpable()?;
    no_new_privileges()?;
    keep_only(&CAPABILITIES).context("cannot drop capabilities")?;
    let mut filter = CallFilter::default();
    filter.allow(&CALLS);
    filter.kill_others_on_all_threads()?;
    answer(&UnixStream::from(socket))
}

/// Calls on the socket and on files, on memory, and ending.
const CALLS: [libc::c_long; 23] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_clone,
    libc::SYS_kill,
    libc::SYS_wait4,
    libc::SYS_fcntl,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // An error that is made, or printed, wakes who waits for a lock: nobody.
    libc::SYS_futex,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

fn answer(mut socket: &UnixStream) -> Result<()> {
    let mut bytes = [0; REQUEST];
    loop {
        match socket.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let wanted = Wanted::parse(bytes).context("a request that is none")?;
        match wanted.open() {
            Ok(file) => send_with_fds(socket, &0_i32.to_ne_bytes(), &[file.as_fd()])?,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                send_with_fds(socket, &errno.to_ne_bytes(), &[])?
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &str, how: How) -> Option<Wanted> {
        Wanted::of(&Ask::Open(path.into(), how))
    }

    #[test]
    fn it_opens_pagemaps_mappings_and_the_device_alone() {
        assert_eq!(
            open("/proc/7/pagemap", How::Read),
            Some(Wanted::OfProcess(0, 7))
        );
        assert_eq!(
            open("/dev/terrace_guest", How::ReadWrite),
            Some(Wanted::Module)
        );
        for other in [
            open("/proc/7/pagemap", How::ReadWrite),
            open("/proc/7/mem", How::Read),
            open("/proc/self/pagemap", How::Read),
            open("/proc/7/task/7/pagemap", How::Read),
            open("/elsewhere/proc/7/pagemap", How::Read),
            open("/proc/../etc/shadow", How::Read),
            Wanted::of(&Ask::Link("/proc/7/pagemap".into())),
        ] {
            assert_eq!(other, None);
        }
        for wanted in [Wanted::OfProcess(0, u32::MAX), Wanted::Module] {
            assert_eq!(Wanted::parse(wanted.bytes()), Some(wanted));
        }
        assert_eq!(
            open("/proc/7/numa_maps", How::Read),
            Some(Wanted::OfProcess(3, 7))
        );
        assert_eq!(Wanted::parse([4, 0, 0, 0, 0]), None);
    }

    #[test]
    fn answers_are_files_or_the_kernels_errors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || answer(&theirs));
        let me = request(&ours, Wanted::OfProcess(0, std::process::id())).unwrap();
        assert!(
            std::fs::File::from(me.unwrap())
                .metadata()
                .unwrap()
                .is_file()
        );
        let gone = request(&ours, Wanted::OfProcess(0, u32::MAX)).unwrap();
        assert_eq!(gone.unwrap_err().raw_os_error(), Some(libc::ENOENT));
        ours.shutdown(std::net::Shutdown::Both).unwrap();
        server.join().unwrap().unwrap();
        assert!(request(&ours, Wanted::Module).is_none(), "nobody answers");
    }

    #[test]
    fn without_it_the_agent_opens_by_itself_and_gathering_fails() {
        let ask = || {
            Ask::Open(
                format!("/proc/{}/maps", std::process::id()).into(),
                How::Read,
            )
        };
        for (without, opens) in [(Without::OpenItself, true), (Without::Fail, false)] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            drop(theirs);
            let process = OpenerProcess {
                socket: Mutex::new(ours),
                child: Mutex::new(Command::new("true").spawn().unwrap()),
                without,
            };
            assert_eq!(process.ask(ask()).is_ok(), opens);
        }
    }

    #[test]
    fn a_file_whose_opening_hangs_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let path = CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: `path` is a string with an end.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        // Nobody writes it: opening waits for ever.
        let waits = open_in_child(&path, libc::O_RDONLY, Duration::from_millis(50));
        assert_eq!(waits.unwrap_err().raw_os_error(), Some(libc::ETIMEDOUT));
        let at_once = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC;
        assert!(open_in_child(&path, at_once, LIMIT).is_ok());
    }

    #[test]
    fn a_request_that_is_none_ends_it() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || answer(&theirs));
        (&ours).write_all(&[9; REQUEST]).unwrap();
        assert!(server.join().unwrap().is_err());
    }
}
