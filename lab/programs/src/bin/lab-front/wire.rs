//! Messages of the vhost-user protocol, from the hypervisor's side.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};

const VERSION: u32 = 1;
const MAX_FILES: usize = 4;

/// Sends a message with files beside it.
pub fn send(stream: &mut UnixStream, request: u32, payload: &[u8], files: &[RawFd]) -> Result<()> {
    let mut message = Vec::new();
    for word in [request, VERSION, u32::try_from(payload.len())?] {
        message.extend(word.to_le_bytes());
    }
    message.extend(payload);
    let sent = match files {
        [] => 0,
        files => send_with_files(stream.as_raw_fd(), &message, files)?,
    };
    let all = stream.write_all(&message[sent..]);
    all.with_context(|| format!("request {request}"))
}

/// Asks for a number.
pub fn ask(stream: &mut UnixStream, request: u32) -> Result<u64> {
    send(stream, request, &[], &[])?;
    let mut answer = [0; 20];
    let read = stream.read_exact(&mut answer);
    read.with_context(|| format!("no answer to request {request}"))?;
    Ok(u64::from_le_bytes(answer[12..].try_into()?))
}

fn send_with_files(socket: RawFd, message: &[u8], files: &[RawFd]) -> Result<usize> {
    ensure!(files.len() <= MAX_FILES, "{} files", files.len());
    let bytes = u32::try_from(size_of_val(files))?;
    let mut control = [0_u64; 8];
    let mut vector = libc::iovec {
        iov_base: message.as_ptr().cast_mut().cast(),
        iov_len: message.len(),
    };
    // SAFETY: all zeros is a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    // SAFETY: the control buffer holds a header and so many files; the CMSG functions stay within it, and all that the
    // header points to lives through the call.
    let sent = unsafe {
        header.msg_controllen = libc::CMSG_SPACE(bytes) as _;
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(bytes) as _;
        let data = libc::CMSG_DATA(first).cast::<RawFd>();
        for (i, file) in files.iter().enumerate() {
            data.add(i).write_unaligned(*file);
        }
        libc::sendmsg(socket, &raw const header, libc::MSG_NOSIGNAL)
    };
    usize::try_from(sent).map_err(|_| std::io::Error::last_os_error().into())
}
