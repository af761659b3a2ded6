//! A small client: one request, one connection, over the daemon's unix socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use terrace_proto::printable::{MAX_TEXT_CHARS, excerpt};

use crate::types::ErrorBody;
use crate::{old_keys, plain};

/// Longest answer that the client reads, bytes.
const MAX_ANSWER: usize = 64 << 20;
/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two tries to connect while the daemon's queue is full.
const PAUSE: Duration = Duration::from_millis(5);

/// The reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A daemon listens, but this user may not connect.
    #[error(
        "you may not talk to terraced at {path}: its socket is for its owner and group alone (mode 0660). \
         Run this as root (sudo), or as a member of the socket's group"
    )]
    NotAllowed {
        /// The socket.
        path: PathBuf,
    },
    /// No daemon listens.
    #[error(
        "cannot reach terraced: nothing answers at {path} ({why}). Start it (`systemctl start terraced`, or \
         `terraced` as root), or name its socket \
         (--socket, TERRACE_SOCKET)"
    )]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The error of the connection.
        why: std::io::Error,
    },
    /// The daemon said no.
    #[error("{0}")]
    Refused(String),
    /// The connection broke, or the answer was not HTTP.
    #[error("terraced at {path} did not answer properly: {what}")]
    Broken {
        /// The socket.
        path: PathBuf,
        /// The error, for people.
        what: String,
    },
}

/// A client of one daemon.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client for the daemon behind this socket; nothing is opened yet.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    /// `GET path`.
    ///
    /// # Errors
    /// If the daemon cannot be reached, refuses, or answers something else than a `T`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// `POST path` with a JSON body.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|e| self.broken(&e))?;
        self.send(Method::POST, path, body.into()).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, ClientError> {
        let answer = tokio::time::timeout(TIMEOUT, self.exchange(method, path, body))
            .await
            .map_err(|_| self.broken(&format!("no answer within {} s", TIMEOUT.as_secs())))?;
        let (status, bytes) = answer?;
        if status.is_success() {
            // No name of a VM is a key in an answer about one VM, so no name is taken for an old key.
            let is_about_a_vm = path.starts_with("/v1/vms/");
            return read(&bytes, is_about_a_vm).map_err(|e| self.broken(&e));
        }
        let text = read::<ErrorBody>(&bytes, false).map_or_else(
            |_| {
                let said = String::from_utf8_lossy(&bytes);
                format!("{status}: {}", excerpt(&said, MAX_TEXT_CHARS))
            },
            |body| body.error,
        );
        Err(ClientError::Refused(text))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let stream = self.connect().await.map_err(|why| self.unreachable(why))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.broken(&e))?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "terraced")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|e| self.broken(&e))?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|e| self.broken(&e))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(|e| self.broken(&e))?;
        Ok((status, body.to_bytes()))
    }

    /// Connects to the socket. While too many others connect at the same time it tries again, until the time for the
    /// answer is over.
    async fn connect(&self) -> std::io::Result<UnixStream> {
        loop {
            match UnixStream::connect(&self.socket).await {
                Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(PAUSE).await;
                }
                done => return done,
            }
        }
    }

    fn unreachable(&self, why: std::io::Error) -> ClientError {
        let path = self.socket.clone();
        if why.kind() == std::io::ErrorKind::PermissionDenied {
            ClientError::NotAllowed { path }
        } else {
            ClientError::Connect { path, why }
        }
    }

    fn broken(&self, what: &dyn std::fmt::Display) -> ClientError {
        ClientError::Broken {
            path: self.socket.clone(),
            what: excerpt(&what.to_string(), MAX_TEXT_CHARS),
        }
    }
}

/// Reads an answer. Its texts are safe to print on a terminal, whoever they came from.
fn read<T: DeserializeOwned>(bytes: &[u8], may_have_old_keys: bool) -> serde_json::Result<T> {
    let mut value = serde_json::from_slice(bytes)?;
    plain::escape(&mut value);
    if may_have_old_keys {
        old_keys::rename(&mut value);
    }
    T::deserialize(value)
}

/// A VM's name as a path segment: everything but letters, digits, `-`, `_` and `.` percent-encoded.
#[must_use]
pub fn segment(name: &str) -> String {
    use std::fmt::Write as _;
    name.bytes().fold(String::new(), |mut out, b| {
        if b.is_ascii_alphanumeric() || b"-_.".contains(&b) {
            out.push(char::from(b));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{b:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer_brings_an_escape_to_the_terminal() {
        let body: ErrorBody = read(br#"{"error": "\u001b[2J\u009b\u202e"}"#, false).unwrap();
        assert_eq!(body.error, "\\u{1b}[2J\\u{9b}\\u{202e}");
    }

    #[test]
    fn names_survive_as_path_segments() {
        assert_eq!(segment("vm-1.a_b"), "vm-1.a_b");
        assert_eq!(segment("a/b c?ü"), "a%2Fb%20c%3F%C3%BC");
    }

    #[test]
    fn an_unprivileged_user_is_told_what_to_do() {
        let client = Client::new(Path::new("/run/terrace/terraced.sock"));
        let denied = std::io::ErrorKind::PermissionDenied.into();
        let text = client.unreachable(denied).to_string();
        assert!(text.contains("sudo") && text.contains("/run/terrace/terraced.sock"));
        assert!(!text.contains("Start it"), "{text}");
    }

    #[tokio::test]
    async fn a_daemon_that_is_not_there_is_named_with_its_socket() {
        let client = Client::new(Path::new("/nonexistent/terraced.sock"));
        let error = client.get::<ErrorBody>("/v1/status").await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("/nonexistent/terraced.sock") && text.contains("Start it"),
            "{text}"
        );
    }
}
