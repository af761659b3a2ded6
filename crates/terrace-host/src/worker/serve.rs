//! The worker's main.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use terrace_proto::worker::{MAX_FRAME, Request, Response};
use terrace_proto::{Pass, Readings, ScanFailure, Tick};

use super::channel::{Channel, ChannelError};
use super::guest::Guest;
use super::sandbox;

/// A worker that cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Standard input is not there.
    #[error("worker: standard input: {0}; workers are started by the daemon only")]
    Input(#[source] io::Error),
    /// The daemon's messages did not come through.
    #[error("worker: socket on standard input: {0}; workers are started by the daemon only")]
    Channel(String),
    /// The daemon said something out of turn.
    #[error("worker: {0}")]
    Protocol(&'static str),
}

impl From<ChannelError> for ServeError {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error.to_string())
    }
}

/// Serves the socket on standard input until the daemon closes it. Locks this process in for good, so
/// call it from a main that does nothing else, before any thread is started.
///
/// # Errors
/// If standard input is no socket, or what comes from it makes no sense.
pub fn run() -> Result<(), ServeError> {
    sandbox::begin();
    let input = io::stdin().as_fd().try_clone_to_owned();
    serve(&Channel::new(UnixStream::from(
        input.map_err(ServeError::Input)?,
    )))
}

fn serve(channel: &Channel) -> Result<(), ServeError> {
    let Some((first, files)) = channel.receive_with_fds(MAX_FRAME)? else {
        return Ok(());
    };
    let Request::Attach {
        ranges,
        files: count,
    } = first
    else {
        return Err(ServeError::Protocol(
            "asked about tables before there was RAM",
        ));
    };
    let mapped = if files.len() == count as usize {
        Guest::map(ranges, files)
    } else {
        Err(format!(
            "only {} of {count} descriptors were sent with the request",
            files.len()
        ))
    };
    let mut guest = match mapped {
        Ok(guest) => guest,
        Err(reason) => return Ok(channel.send(&Response::Refused { reason }, &[], None)?),
    };
    let sandbox_gaps = match sandbox::lock() {
        Ok(gaps) => gaps,
        Err(reason) => return Ok(channel.send(&Response::Refused { reason }, &[], None)?),
    };
    channel.send(&Response::Attached { sandbox_gaps }, &[], None)?;
    while let Some(request) = channel.receive(MAX_FRAME, None)? {
        let response = match request {
            Request::Attach { .. } => return Err(ServeError::Protocol("given RAM twice")),
            Request::Search { readings } => match guest.search(&readings) {
                Ok(withheld) => Response::Searched { withheld },
                Err(reason) => Response::SearchFailed { reason },
            },
            Request::Scan {
                pass,
                readings,
                until,
                writes,
                threads,
                tables,
            } => {
                guest.name_tables(tables);
                scan(&mut guest, &pass, &readings, until, (writes, threads))
            }
        };
        channel.send(&response, &[], None)?;
    }
    Ok(())
}

fn scan(
    guest: &mut Guest,
    pass: &Pass,
    readings: &Readings,
    until: Tick,
    how: (bool, u8),
) -> Response {
    match guest.scan(pass, readings, until, how) {
        Ok(passed) => Response::Scanned(passed, guest.take_tables()),
        Err(reason) => Response::ScanFailed(ScanFailure {
            id: pass.id(),
            vm: pass.space().vm(),
            reason,
            fatal: false,
        }),
    }
}
