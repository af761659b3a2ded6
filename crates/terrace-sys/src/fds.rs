//! Descriptors that travel over a Unix socket, and the process at its other end.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};

use crate::SysError;
use crate::process::has_ended;

/// Most descriptors in one message (the kernel's `SCM_MAX_FD`).
pub const MAX_FDS: usize = 253;

/// Numbers of descriptors among which a connection is searched for: as many as processes are allowed by default.
const MAX_DESCRIPTORS: RawFd = 1024;

/// Room for the control message of [`MAX_FDS`] descriptors, aligned as `cmsghdr` wants.
const CONTROL_WORDS: usize = 160;

const _: () = assert!(
    2 * size_of::<libc::cmsghdr>() + MAX_FDS * size_of::<RawFd>()
        <= CONTROL_WORDS * size_of::<u64>()
);

/// Sends `bytes` with descriptors beside the first byte. Returns the number of bytes sent (at least one).
///
/// # Errors
/// If `bytes` is empty, if there are more than [`MAX_FDS`] descriptors, or if the socket fails.
pub fn send_with_fds(
    socket: &UnixStream,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<usize, SysError> {
    if bytes.is_empty() || fds.len() > MAX_FDS {
        return Err(invalid("sendmsg", bytes.len(), fds.len()));
    }
    let mut control = [0_u64; CONTROL_WORDS];
    let mut io = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut message = header(&mut io, &mut control);
    if fds.is_empty() {
        message.msg_control = std::ptr::null_mut();
        message.msg_controllen = 0;
    } else {
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        attach(&mut message, &raw);
    }
    loop {
        // SAFETY: `message` points to `io` and `control`, which live until the end of this function,
        // and `io` to `bytes`, which sendmsg only reads.
        let sent =
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        if let Some(sent) = done("sendmsg", sent)? {
            return Ok(sent);
        }
    }
}

/// Receives up to `buffer.len()` bytes and the descriptors beside them, which are closed on exec. Zero bytes mean
/// that the other end closed.
///
/// # Errors
/// If the socket fails, or if more descriptors came than fit (those that came are closed).
pub fn receive_with_fds(
    socket: &UnixStream,
    buffer: &mut [u8],
) -> Result<(usize, Vec<OwnedFd>), SysError> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut io = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut message = header(&mut io, &mut control);
    let len = loop {
        // SAFETY: as in `send_with_fds`; `buffer` is writable for `iov_len` bytes.
        let got =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if let Some(len) = done("recvmsg", got)? {
            break len;
        }
    };
    let fds = take_fds(&message);
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(invalid("recvmsg", len, fds.len()));
    }
    Ok((len, fds))
}

/// The process and the user at the other end of a connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process that called `listen` or `socketpair`; `None` if it is outside this pid namespace.
    pub pid: Option<u32>,
    /// The user that it ran as then.
    pub uid: u32,
}

/// The process that called `listen` or `socketpair` at the other end of a connected socket.
///
/// # Errors
/// If the socket has no peer.
pub fn peer(socket: &UnixStream) -> Result<Peer, SysError> {
    peer_behind(socket.as_raw_fd())
}

/// Whether the process that [`peer`] names has ended: its number may be another one's by now, while a process it left
/// the socket to answers. `false` also if the kernel does not report it (before Linux 6.5).
#[must_use]
pub fn peer_has_ended(socket: &UnixStream) -> bool {
    const SO_PEERPIDFD: libc::c_int = 77;
    match option::<libc::c_int>(socket.as_raw_fd(), SO_PEERPIDFD) {
        // SAFETY: the kernel made this descriptor just now; nothing else owns it.
        Ok(pidfd) => has_ended(&unsafe { OwnedFd::from_raw_fd(pidfd) }),
        // Kernels before 6.16 make none for a process that was waited for, and say so by either.
        Err(error) => matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL)),
    }
}

/// The process at the other end of a connection that this process has from `listener`, whichever part of it holds it: a
/// library may not share the connections that it accepted. `None` if that process is outside this pid namespace. If
/// there are several connections, it is the peer of one of them.
///
/// # Errors
/// If there is no such connection, or if the kernel does not say.
pub fn accepted_peer_pid(listener: &UnixListener) -> Result<Option<u32>, SysError> {
    let ours = local_name(listener.as_raw_fd());
    // A descriptor that closes meanwhile is an error of one call.
    let accepted = (0..MAX_DESCRIPTORS).find(|fd| {
        let same = ours.is_some() && local_name(*fd) == ours;
        same && option::<libc::c_int>(*fd, libc::SO_ACCEPTCONN).is_ok_and(|listens| listens == 0)
    });
    let none = || SysError {
        call: "getsockname",
        what: format!("{MAX_DESCRIPTORS} descriptors"),
        source: io::Error::new(io::ErrorKind::NotConnected, "no connection of the listener"),
    };
    peer_behind(accepted.ok_or_else(none)?).map(|peer| peer.pid)
}

/// The name that a Unix socket is bound to; an accepted connection has its listener's.
fn local_name(fd: RawFd) -> Option<Vec<u8>> {
    // SAFETY: `sockaddr_un` is plain old data; all zero is its empty value.
    let mut name: libc::sockaddr_un = unsafe { zeroed() };
    let mut len = socklen(size_of::<libc::sockaddr_un>());
    // SAFETY: `name` is writable for `len` bytes; a number that is no socket is an error.
    let rc = unsafe { libc::getsockname(fd, (&raw mut name).cast(), &raw mut len) };
    let is_unix = rc == 0 && i32::from(name.sun_family) == libc::AF_UNIX;
    let path = usize::try_from(len)
        .ok()?
        .checked_sub(size_of::<libc::sa_family_t>())?;
    let path = name
        .sun_path
        .get(..path)
        .filter(|path| is_unix && !path.is_empty())?;
    Some(path.iter().map(|byte| byte.cast_unsigned()).collect())
}

/// A type of plain old data.
///
/// # Safety
/// Any bytes are a value.
unsafe trait Plain {}
// SAFETY: an integer.
unsafe impl Plain for libc::c_int {}
// SAFETY: three integers.
unsafe impl Plain for libc::ucred {}

/// A socket option of a fixed size.
fn option<T: Plain>(fd: RawFd, name: libc::c_int) -> io::Result<T> {
    // SAFETY: all zero is a value of such a type.
    let mut value: T = unsafe { zeroed() };
    let mut len = socklen(size_of::<T>());
    // SAFETY: `value` is writable for `len` bytes, of which any are a value; a number that is no socket is an error.
    let rc = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if rc == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The process that connected, listened, or made the pair.
fn peer_behind(fd: RawFd) -> Result<Peer, SysError> {
    let peer: libc::ucred = option(fd, libc::SO_PEERCRED).map_err(|source| SysError {
        call: "getsockopt(SO_PEERCRED)",
        what: "a Unix socket".into(),
        source,
    })?;
    Ok(Peer {
        pid: u32::try_from(peer.pid).ok().filter(|pid| *pid != 0),
        uid: peer.uid,
    })
}

fn header(io: &mut libc::iovec, control: &mut [u64; CONTROL_WORDS]) -> libc::msghdr {
    // SAFETY: `msghdr` is plain old data; all zero is its empty value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = io;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<[u64; CONTROL_WORDS]>() as _;
    message
}

/// Writes one `SCM_RIGHTS` control message; `raw` has 1 to [`MAX_FDS`] entries.
fn attach(message: &mut libc::msghdr, raw: &[RawFd]) {
    let bytes = socklen(size_of_val(raw));
    // SAFETY: the control buffer has room for `MAX_FDS` descriptors (asserted above), so the first
    // header and its data lie inside of it.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
        let first = libc::CMSG_FIRSTHDR(message);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(bytes) as _;
        std::ptr::copy_nonoverlapping(raw.as_ptr().cast(), libc::CMSG_DATA(first), bytes as usize);
    }
}

fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the control buffer, which is still alive; the macros stay within
    // `msg_controllen`. Each descriptor was made for this process just now and has no owner yet.
    unsafe {
        let empty = libc::CMSG_LEN(0) as usize;
        let mut at = libc::CMSG_FIRSTHDR(message);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*at).cmsg_len as usize - empty) / size_of::<RawFd>();
                let data: *const RawFd = libc::CMSG_DATA(at).cast();
                fds.extend((0..count).map(|i| OwnedFd::from_raw_fd(data.add(i).read_unaligned())));
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
    fds
}

/// The length that a call returned; `None` if it was interrupted and is to be tried again.
fn done(call: &'static str, result: libc::ssize_t) -> Result<Option<usize>, SysError> {
    match usize::try_from(result) {
        Ok(len) => Ok(Some(len)),
        Err(_) => {
            let error = SysError::last(call, "a Unix socket");
            if error.errno() == libc::EINTR {
                Ok(None)
            } else {
                Err(error)
            }
        }
    }
}

fn invalid(call: &'static str, bytes: usize, fds: usize) -> SysError {
    SysError {
        call,
        what: format!("a Unix socket with {bytes} bytes and {fds} descriptors"),
        source: io::Error::from_raw_os_error(libc::EINVAL),
    }
}

fn socklen(bytes: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(bytes).unwrap_or(libc::socklen_t::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn descriptors_arrive_in_order_and_refer_to_the_same_files() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
        for (file, text) in files.iter_mut().zip(["one", "two"]) {
            file.write_all(text.as_bytes()).unwrap();
            file.rewind().unwrap();
        }
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        assert_eq!(send_with_fds(&here, b"hello", &fds).unwrap(), 5);
        let mut buffer = [0; 16];
        let (len, got) = receive_with_fds(&there, &mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"hello");
        let texts: Vec<String> = got
            .into_iter()
            .map(|fd| std::io::read_to_string(std::fs::File::from(fd)).unwrap())
            .collect();
        assert_eq!(texts, ["one", "two"]);
    }

    #[test]
    fn plain_bytes_bring_no_descriptors_and_a_closed_end_reads_zero() {
        let (here, there) = UnixStream::pair().unwrap();
        send_with_fds(&here, b"x", &[]).unwrap();
        let mut buffer = [0; 4];
        let (len, fds) = receive_with_fds(&there, &mut buffer).unwrap();
        assert_eq!((len, fds.len()), (1, 0));
        drop(here);
        assert_eq!(receive_with_fds(&there, &mut buffer).unwrap().0, 0);
        let mut rest = Vec::new();
        (&there).read_to_end(&mut rest).unwrap();
    }

    #[test]
    fn too_many_descriptors_or_no_bytes_are_refused() {
        let (here, _there) = UnixStream::pair().unwrap();
        let many = vec![here.as_fd(); MAX_FDS + 1];
        assert!(send_with_fds(&here, b"x", &many).is_err());
        assert!(send_with_fds(&here, b"", &[]).is_err());
    }

    #[test]
    fn a_connected_peer_is_found_behind_anothers_connection() {
        let folder = tempfile::tempdir().unwrap();
        let listen = |name| UnixListener::bind(folder.path().join(name)).unwrap();
        let (listener, other) = (listen("one"), listen("two"));
        let connect = |name| UnixStream::connect(folder.path().join(name)).unwrap();
        let _strangers = (connect("two"), other.accept().unwrap());
        let error = accepted_peer_pid(&listener).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::NotConnected, "{error}");
        let client = connect("one");
        let held = Box::new(listener.accept().unwrap());
        let pid = accepted_peer_pid(&listener).unwrap();
        assert_eq!(pid, Some(std::process::id()));
        drop((client, held));
        assert!(accepted_peer_pid(&listener).is_err());
    }

    #[test]
    fn a_peer_that_ended_is_told_although_its_number_is_still_named() {
        use std::os::unix::process::CommandExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let mut child = std::process::Command::new("sleep");
        child.arg("60");
        // SAFETY: one connection, which the child keeps; nothing of the parent is touched.
        unsafe {
            child.pre_exec(move || UnixStream::connect(&path).map(drop));
        }
        let mut child = child.spawn().unwrap();
        let (socket, _) = listener.accept().unwrap();
        assert_eq!(peer(&socket).unwrap().pid, Some(child.id()));
        assert!(!peer_has_ended(&socket));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(peer(&socket).unwrap().pid, Some(child.id()));
        assert!(peer_has_ended(&socket));
    }

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (here, _there) = UnixStream::pair().unwrap();
        assert_eq!(peer(&here).unwrap().pid, Some(std::process::id()));
    }
}
