//! The virtio-serial port, found without udev.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use terrace_proto::Gfn;
use terrace_sys::topology::node_memory;
use terrace_sys::{HostRoot, connect_unix};

/// A port that cannot be used now.
#[derive(Debug, thiserror::Error)]
pub(super) enum PortError {
    #[error(
        "there is no virtio-serial port {0}: the VM needs -device virtserialport,chardev=…,name={0}"
    )]
    Missing(String),
    #[error("{}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
}

/// An open port; a Unix socket stands in for it if agent and host share a machine.
#[derive(Debug)]
pub(super) enum Port {
    Device(File),
    Socket(UnixStream),
}

impl Port {
    pub(super) fn open(root: &HostRoot, name: &str) -> Result<Self, PortError> {
        let path = find(root, name).ok_or_else(|| PortError::Missing(name.to_owned()))?;
        open(&path).map_err(|source| PortError::Open { path, source })
    }

    /// Reads bytes; 0 means that the other end is closed.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Device(file) => file.read(buffer),
            Self::Socket(socket) => socket.read(buffer),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Device(file) => file.write(bytes),
            Self::Socket(socket) => socket.write(bytes),
        }
    }
}

/// The port's device by the kernel's list of ports, else by udev's link.
fn find(root: &HostRoot, name: &str) -> Option<PathBuf> {
    let ports = fs::read_dir(root.join("sys/class/virtio-ports"));
    let named = ports.into_iter().flatten().flatten().find(|port| {
        let text = fs::read_to_string(port.path().join("name"));
        text.is_ok_and(|text| text.trim_end() == name)
    });
    let listed = named.map(|port| root.join("dev").join(port.file_name()));
    let linked = || root.join("dev/virtio-ports").join(name);
    listed.or_else(|| Some(linked()).filter(|link| link.exists()))
}

fn open(path: &Path) -> io::Result<Port> {
    if fs::metadata(path)?.file_type().is_socket() {
        let socket = connect_unix(path, Duration::from_millis(100)).map_err(|e| e.source)?;
        socket.set_nonblocking(true)?;
        return Ok(Port::Socket(socket));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(path).map(Port::Device)
}

/// End of this guest's memory by `/proc/zoneinfo`: no frame from there on is this guest's. 0 if the kernel does not
/// say; then no frame is taken.
#[must_use]
pub fn guest_memory_end(root: &HostRoot) -> Gfn {
    let nodes = node_memory(root).unwrap_or_default();
    let end = nodes.values().map(|memory| memory.frames.end).max();
    Gfn(end.unwrap_or(0))
}
