//! The daemon's and the command's end of the control socket.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use terrace_sys::{connect_unix, peer};

use super::timed::{Limits, Timed, named};
use super::{LeaseRequest, MAX_LINE, PinCheckResult, Reply, Request, Status};

/// How long a device may take: 5 s for the connection and for each byte, 30 s for all of an answer.
const LIMITS: Limits = Limits {
    wait: Duration::from_secs(5),
    whole: Duration::from_secs(30),
};

/// Most bytes of an export that are taken: those of a VM of 16 TiB.
const MAX_EXPORT: u64 = 1 << 30;

/// The request of a device for a pin check, and the process that makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The device's request.
    pub asked: LeaseRequest,
    /// The process that listens on its control socket, if that is of this pid namespace.
    pub process: Option<u32>,
}

/// A request that brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket.
    #[error("{}: {source}; is the VM's terrace-hyperflex running?", path.display())]
    Socket {
        /// The control socket.
        path: PathBuf,
        /// The error of the socket.
        #[source]
        source: std::io::Error,
    },
    /// The device refused.
    #[error("{0}")]
    Refused(String),
    /// The answer is none.
    #[error("{}: not an answer of this version: {why}", path.display())]
    Answer {
        /// The control socket of the device that answered.
        path: PathBuf,
        /// The reason, for people.
        why: String,
    },
}

/// Asks one device. Each request is a connection of its own, so that a device may be restarted between two. A device
/// that hangs is an error of kind `TimedOut`, soon if it takes no connection or sends nothing, at the latest
/// if the whole takes too long.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
    limits: Limits,
}

impl Client {
    /// A client of the device with this control socket.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            limits: LIMITS,
        }
    }

    /// The status of the device; `verify` checks the files as well.
    ///
    /// # Errors
    /// If the device does not answer.
    pub fn status(&self, verify: bool) -> Result<Status, ClientError> {
        match self.ask(&Request::Status { verify }, &[])? {
            (Reply::Status(status), _) => Ok(*status),
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    /// Orders the sizes of the tiers, bytes, fastest first; `None` leaves a tier alone. Returns at once, with the
    /// number of the targets.
    ///
    /// # Errors
    /// If the device does not answer, or the sizes are against the limits of the VM.
    pub fn resize(&self, size_bytes: &[Option<u64>]) -> Result<u32, ClientError> {
        let size_bytes = size_bytes.to_vec();
        match self.ask(&Request::Resize { size_bytes }, &[])? {
            (Reply::Accepted { generation }, _) => Ok(generation),
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    /// Sends the result of the pin check of the number before, and requests the next one. Returns the process that
    /// listens, too, if it is known.
    ///
    /// # Errors
    /// If the device does not answer.
    pub fn lease(&self, pin_checked: Option<PinCheckResult>) -> Result<Lease, ClientError> {
        let (reply, _, process) = self.ask_whom(&Request::Lease { pin_checked }, &[])?;
        match reply {
            Reply::Lease(asked) => Ok(Lease { asked, process }),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The balloons as bytes.
    ///
    /// # Errors
    /// If the device does not answer.
    pub fn export(&self) -> Result<Vec<u8>, ClientError> {
        match self.ask(&Request::Export, &[])? {
            (Reply::Exported { .. }, bytes) => Ok(bytes),
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    /// Takes over balloons that another device exported.
    ///
    /// # Errors
    /// If the device does not answer, or they do not fit.
    pub fn import(&self, exported: &[u8]) -> Result<(), ClientError> {
        let bytes = exported.len() as u64;
        match self.ask(&Request::Import { bytes }, exported)? {
            (Reply::Accepted { .. }, _) => Ok(()),
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    fn ask(&self, request: &Request, behind: &[u8]) -> Result<(Reply, Vec<u8>), ClientError> {
        let (reply, rest, _) = self.ask_whom(request, behind)?;
        Ok((reply, rest))
    }

    fn ask_whom(
        &self,
        request: &Request,
        behind: &[u8],
    ) -> Result<(Reply, Vec<u8>, Option<u32>), ClientError> {
        let failed = |source| ClientError::Socket {
            path: self.path.clone(),
            source,
        };
        let mut line = serde_json::to_vec(request).map_err(|e| self.wrong(&e))?;
        line.push(b'\n');
        let socket = connect_unix(&self.path, self.limits.wait).map_err(|e| {
            failed(named(
                e.source,
                "the device accepted no connection",
                self.limits.wait,
            ))
        })?;
        let process = peer(&socket).ok().and_then(|peer| peer.pid);
        let mut sending = Timed::new(&socket, self.limits);
        sending.write_all(&line).map_err(failed)?;
        // A device that refuses may close before it has read all of it: its answer has the reason.
        let sent = sending.write_all(behind);
        let mut reader = BufReader::new(sending);
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
            Reply::Status(_) | Reply::Accepted { .. } | Reply::Lease(_) => {}
        }
        Ok((reply, rest, process))
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A client with short limits, and the listener of its socket.
    fn impatient(folder: &Path, wait_ms: u64, whole_ms: u64) -> (UnixListener, Client) {
        let path = folder.join("control");
        let listener = UnixListener::bind(&path).unwrap();
        let limits = Limits {
            wait: Duration::from_millis(wait_ms),
            whole: Duration::from_millis(whole_ms),
        };
        (listener, Client { path, limits })
    }

    fn late(asked: Result<Status, ClientError>) -> String {
        match asked.unwrap_err() {
            ClientError::Socket { source, path } => {
                assert_eq!(source.kind(), std::io::ErrorKind::TimedOut, "{source}");
                format!("{}: {source}", path.display())
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_device_that_accepts_and_stays_silent_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let (_listener, client) = impatient(folder.path(), 50, 60_000);
        let why = late(client.status(false));
        assert!(why.ends_with("control: no answer within 0.05 s"), "{why}");
    }

    #[test]
    fn a_device_that_trickles_is_given_up_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (listener, client) = impatient(folder.path(), 60_000, 100);
        let device = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            // Until the client is gone.
            while socket.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let why = late(client.status(false));
        assert!(why.contains(" within "), "{why}");
        device.join().unwrap();
    }

    #[test]
    fn a_device_that_takes_no_more_bytes_of_an_import_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let (_listener, client) = impatient(folder.path(), 50, 60_000);
        // More than a socket holds.
        let error = client.import(&vec![0; 16 << 20]).unwrap_err().to_string();
        assert!(error.contains("nothing was taken within"), "{error}");
    }

    #[test]
    fn a_device_that_takes_no_connection_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let (_listener, client) = impatient(folder.path(), 20, 60_000);
        // Until the listener's queue is full.
        let mut waiting = Vec::new();
        while let Ok(socket) = connect_unix(&client.path, client.limits.wait) {
            waiting.push(socket);
            assert!(
                waiting.len() < 100_000,
                "the queue of a listener has no end"
            );
        }
        let why = late(client.status(false));
        assert!(
            why.contains("the device accepted no connection within"),
            "{why}"
        );
    }
}
