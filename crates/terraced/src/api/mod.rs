//! The HTTP API over the unix socket.
//!
//! Responsible for: routes, limits of clients, views, and the HTTP form of typed errors from below ([`failure`]).
//! Nothing below this module knows of status codes.

mod agent_views;
pub mod asker;
mod commands;
mod failure;
mod limits;
mod line;
mod metrics;
mod resize;
mod routes;
mod serve;
mod size_plan;
pub mod snapshot;
#[cfg(test)]
mod tests;
mod views;

use std::path::Path;
use std::sync::mpsc::Sender;

use anyhow::Result;
use terrace_sys::{SocketFile, listen_at};
use tokio::net::UnixListener;

use asker::{Asker, MAKERS};
use limits::{Gate, Limits};

use crate::confine::{self, Role};
use crate::messages::Input;

/// Binds the socket (0660: its users may steer the daemon) and serves it on a thread of its own. The socket's
/// file is removed when the returned value is dropped.
pub fn start(socket: &Path, inbox: Sender<Input>) -> Result<SocketFile> {
    let (listener, file) = listen_at(socket, 0o660)?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAKERS)
        .thread_name("view")
        .build()?;
    let router = routes::router(Asker::new(inbox));
    let gate = Gate::new(Limits::default());
    confine::spawn(Role::Api, move || {
        runtime.block_on(async {
            match UnixListener::from_std(listener) {
                Ok(listener) => serve::serve(listener, router, gate).await,
                Err(error) => tracing::error!("the API ended: {error}"),
            }
        });
    })?;
    Ok(file)
}
