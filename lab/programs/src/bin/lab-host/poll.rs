//! Waiting for several descriptors at once.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The answer of `poll(2)` about one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// Whether something can be read, or the end has been reached.
    pub readable: bool,
    /// Whether the other side is gone (for a virtio-serial port: no client is connected at the moment).
    pub hung_up: bool,
}

/// Waits until one of the descriptors is ready, for `timeout_ms` at most; -1 waits for ever.
pub fn wait<const N: usize>(
    descriptors: [BorrowedFd<'_>; N],
    timeout_ms: i32,
) -> io::Result<[Ready; N]> {
    let mut requests = descriptors.map(|descriptor| libc::pollfd {
        fd: descriptor.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    let count = libc::nfds_t::try_from(N).map_err(io::Error::other)?;
    // SAFETY: `requests` holds `count` entries and lives through the call.
    let result = unsafe { libc::poll(requests.as_mut_ptr(), count, timeout_ms) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(requests.map(|request| Ready {
        readable: request.revents & libc::POLLIN != 0,
        hung_up: request.revents & (libc::POLLHUP | libc::POLLERR) != 0,
    }))
}

/// A descriptor that becomes readable when the process ends.
pub fn process_end(pid: u32) -> io::Result<OwnedFd> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: the call takes plain numbers and returns a new descriptor or -1.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let descriptor = i32::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel just returned this descriptor and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Makes reads return at once if there is nothing to read.
pub fn set_nonblocking(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let number = descriptor.as_raw_fd();
    // SAFETY: the descriptor is open; both calls take and return flags.
    let result = unsafe {
        let flags = libc::fcntl(number, libc::F_GETFL);
        libc::fcntl(number, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
