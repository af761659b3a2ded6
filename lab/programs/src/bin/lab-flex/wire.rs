//! Messages of the vhost-user protocol: a header, a payload, file descriptors beside them.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};

const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEEDS_REPLY: u32 = 8;
const HEADER: usize = 12;
const MAX_BYTES: usize = 4096;
const MAX_FILES: usize = 8;

/// A request of the hypervisor.
pub struct Message {
    pub request: u32,
    pub needs_reply: bool,
    pub payload: Vec<u8>,
    pub files: Vec<OwnedFd>,
}

impl Message {
    pub fn u32(&self, at: usize) -> Result<u32> {
        let bytes = self.payload.get(at..at + 4).context("a short message")?;
        Ok(u32::from_le_bytes(bytes.try_into()?))
    }

    pub fn u64(&self, at: usize) -> Result<u64> {
        let bytes = self.payload.get(at..at + 8).context("a short message")?;
        Ok(u64::from_le_bytes(bytes.try_into()?))
    }
}

/// The next message. `None` if the hypervisor has gone.
pub fn receive(stream: &mut UnixStream) -> Result<Option<Message>> {
    let mut header = [0; HEADER];
    let mut files = Vec::new();
    let read = receive_with_files(stream.as_raw_fd(), &mut header, &mut files)?;
    if read == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut header[read..])?;
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
    let size = usize::try_from(word(8))?;
    if size > MAX_BYTES {
        bail!("a message of {size} bytes");
    }
    let mut payload = vec![0; size];
    stream.read_exact(&mut payload)?;
    Ok(Some(Message {
        request: word(0),
        needs_reply: word(4) & NEEDS_REPLY != 0,
        payload,
        files,
    }))
}

pub fn reply(stream: &mut UnixStream, request: u32, payload: &[u8]) -> Result<()> {
    let mut message = Vec::new();
    for word in [request, VERSION | REPLY, u32::try_from(payload.len())?] {
        message.extend(word.to_le_bytes());
    }
    message.extend(payload);
    stream.write_all(&message).context("answering QEMU")
}

fn receive_with_files(socket: RawFd, into: &mut [u8], files: &mut Vec<OwnedFd>) -> Result<usize> {
    let mut control = [0_u64; 8];
    let mut vector = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    // SAFETY: all zeros is a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header points to buffers that live through the call.
    let read = unsafe { libc::recvmsg(socket, &raw mut header, libc::MSG_CMSG_CLOEXEC) };
    let read = usize::try_from(read).map_err(|_| std::io::Error::last_os_error())?;
    // SAFETY: recvmsg has filled the header; the CMSG functions stay within its control buffer.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        if !first.is_null() && (*first).cmsg_type == libc::SCM_RIGHTS {
            let bytes = (*first).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            for i in 0..(bytes / size_of::<RawFd>()).min(MAX_FILES) {
                files.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
            }
        }
    }
    Ok(read)
}
