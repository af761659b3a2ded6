//! The daemon's and the command's end of the control socket.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{MAX_LINE, Reply, Request, Status};

/// How long a device may take; verifying a large VM in many pieces takes seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Most bytes of an export that are taken: those of a VM of 16 TiB.
const MAX_EXPORT: u64 = 1 << 30;

/// A request that brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket.
    #[error("{}: {source}; is the VM's terrace-hyperflex running?", path.display())]
    Socket {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The device refused.
    #[error("{0}")]
    Refused(String),
    /// The answer is none.
    #[error("{}: not an answer of this version: {why}", path.display())]
    Answer {
        /// Whose.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// Asks one device. Each request is a connection of its own, so that a device may be restarted between two.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// A client of the device with this control socket.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// How the device stands; `verify` looks at the files as well.
    ///
    /// # Errors
    /// Where the device does not answer.
    pub fn status(&self, verify: bool) -> Result<Status, ClientError> {
        match self.ask(&Request::Status { verify }, &[])? {
            (Reply::Status(status), _) => Ok(*status),
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    /// Orders what each tier shall have, bytes, fastest first; `None` leaves a tier alone. Returns at once, with the
    /// number of the targets.
    ///
    /// # Errors
    /// Where the device does not answer, or the sizes are against the limits of the VM.
    pub fn resize(&self, size_bytes: &[Option<u64>]) -> Result<u32, ClientError> {
        let size_bytes = size_bytes.to_vec();
        match self.ask(&Request::Resize { size_bytes }, &[])? {
            (Reply::Accepted { generation }, _) => Ok(generation),
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    /// The balloons as bytes.
    ///
    /// # Errors
    /// Where the device does not answer.
    pub fn export(&self) -> Result<Vec<u8>, ClientError> {
        match self.ask(&Request::Export, &[])? {
            (Reply::Exported { .. }, bytes) => Ok(bytes),
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    /// Takes over balloons that another device exported.
    ///
    /// # Errors
    /// Where the device does not answer, or they do not fit.
    pub fn import(&self, exported: &[u8]) -> Result<(), ClientError> {
        let bytes = exported.len() as u64;
        match self.ask(&Request::Import { bytes }, exported)? {
            (Reply::Accepted { .. }, _) => Ok(()),
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    fn ask(&self, request: &Request, behind: &[u8]) -> Result<(Reply, Vec<u8>), ClientError> {
        let failed = |source| ClientError::Socket {
            path: self.path.clone(),
            source,
        };
        let mut line = serde_json::to_vec(request).map_err(|e| self.wrong(&e))?;
        line.push(b'\n');
        let socket = UnixStream::connect(&self.path).map_err(failed)?;
        socket.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        socket.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        (&socket).write_all(&line).map_err(failed)?;
        // A device that refuses may close before it has read all of it: its answer says why.
        let sent = (&socket).write_all(behind);
        let mut reader = BufReader::new(&socket);
        let mut line = Vec::new();
        let read = (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line);
        if line.is_empty() {
            sent.map_err(failed)?;
        }
        read.map_err(failed)?;
        let reply: Reply = serde_json::from_slice(&line).map_err(|e| self.wrong(&e))?;
        let mut rest = Vec::new();
        match &reply {
            Reply::Error { message } => return Err(ClientError::Refused(message.clone())),
            Reply::Exported { bytes } if *bytes <= MAX_EXPORT => {
                reader.take(*bytes).read_to_end(&mut rest).map_err(failed)?;
                if rest.len() as u64 != *bytes {
                    return Err(self.wrong(&"the export ends early"));
                }
            }
            Reply::Exported { .. } => return Err(self.wrong(&"the export is too large")),
            Reply::Status(_) | Reply::Accepted { .. } => {}
        }
        Ok((reply, rest))
    }

    fn wrong(&self, why: &dyn std::fmt::Display) -> ClientError {
        ClientError::Answer {
            path: self.path.clone(),
            why: why.to_string(),
        }
    }

    fn unexpected(&self, reply: &Reply) -> ClientError {
        self.wrong(&format!("{reply:?}"))
    }
}
