//! The HTTP API over the unix socket: routes, and how a request reaches the daemon's thread.

mod agent_views;
mod elastic;
mod metrics;
mod routes;
mod views;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use terrace_api::elastic::{Elastic, Resize};
use terrace_api::types::{self, ErrorBody};
use terrace_core::Engine;
use terrace_host::Finding;
use terrace_proto::{Command, Tick};
use tokio::net::UnixListener;
use tokio::sync::oneshot;

use crate::daemon::Input;
use crate::elastic::Origin;
use crate::elastic::orders::Given;
use crate::events::Events;
use crate::roster::Entry;

/// What the API shows and steers: this host, or a simulated one.
pub trait Served {
    /// Decides.
    fn engine(&self) -> &Engine;
    /// Time since the start.
    fn now(&self) -> Tick;
    /// VMs by name.
    fn vms(&self) -> &BTreeMap<String, Entry>;
    /// The tiers and their memory.
    fn tiers(&self) -> Vec<types::Tier>;
    /// What was told to people.
    fn events(&self) -> &Events;
    /// Name of the policy in general.
    fn policy(&self) -> String;
    /// Moves are turned on for some VM.
    fn moves(&self) -> bool;
    /// All VMs are paused.
    fn paused(&self) -> bool;
    /// What there is to say about the host, for `doctor`.
    fn findings(&self) -> Vec<Finding>;
    /// Hands an operator's wish to the engine.
    ///
    /// # Errors
    /// Where nothing can come of it any more.
    fn wish(&mut self, command: Command) -> Result<(), Failure>;
    /// A VM's elastic memory as last seen, where it has any.
    fn elastic(&self, _name: &str) -> Option<Elastic> {
        None
    }
    /// What there is to say about a VM's elastic memory, for `doctor`.
    fn elastic_findings(&self, _name: &str) -> Vec<Finding> {
        Vec::new()
    }
    /// Has a VM's elastic memory looked at now; with how long that, and an order after it, may take.
    ///
    /// # Errors
    /// Where it has none.
    fn look_elastic(&mut self, name: &str) -> Result<(oneshot::Receiver<()>, Duration), Failure> {
        Err(no_elastic(name))
    }
    /// Orders sizes for a VM.
    ///
    /// # Errors
    /// Where they cannot be, or not now.
    fn order(&mut self, name: &str, _origin: Origin, _sizes: &Resize) -> Result<Given, Failure> {
        Err(no_elastic(name))
    }
    /// An order was taken back before it was given.
    fn order_withdrawn(&mut self, _name: &str, _number: u64, _why: String) {}
    /// Pauses or resumes the agent in a VM; `false` where there is none.
    fn halt_agent(&mut self, _name: &str, _halt: bool) -> bool {
        false
    }
}

fn no_elastic(name: &str) -> Failure {
    Failure::NotNow(format!("{name} is simulated and has no elastic memory"))
}

/// A question of the API, to be answered on the thread that has what is served.
pub type Question = Box<dyn FnOnce(&mut dyn Served) + Send>;

/// Asks questions of that thread.
#[derive(Clone)]
pub struct Asker {
    inbox: Sender<Input>,
}

/// Why a request is not answered.
pub enum Failure {
    /// No VM, no page, no such setting.
    NotFound(String),
    /// A value that cannot be.
    Invalid(String),
    /// Not at this moment.
    NotNow(String),
    /// The daemon is ending.
    Ending,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, error) = match self {
            Self::NotFound(what) => (StatusCode::NOT_FOUND, what),
            Self::Invalid(what) => (StatusCode::BAD_REQUEST, what),
            Self::NotNow(what) => (StatusCode::CONFLICT, what),
            Self::Ending => (StatusCode::SERVICE_UNAVAILABLE, "terraced is ending".into()),
        };
        (status, Json(ErrorBody { error })).into_response()
    }
}

impl Asker {
    /// Runs `question` on that thread and brings its answer back.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut dyn Served) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (answer, answered) = oneshot::channel();
        let question: Question = Box::new(move |served| {
            // The client may have gone meanwhile; then nobody wants the answer.
            let _ = answer.send(question(served));
        });
        self.inbox
            .send(Input::Ask(question))
            .map_err(|_| Failure::Ending)?;
        answered.await.map_err(|_| Failure::Ending)?
    }
}

/// Binds the socket (0660: who may open it may steer the daemon) and serves it on a thread of its own.
pub fn start(socket: &Path, inbox: Sender<Input>) -> Result<()> {
    let listener = bind(socket)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let router = routes::router(Asker { inbox });
    std::thread::Builder::new()
        .name("api".into())
        .spawn(move || {
            runtime.block_on(async {
                let served = match UnixListener::from_std(listener) {
                    Ok(listener) => axum::serve(listener, router).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = served {
                    tracing::error!("the API ended: {error}");
                }
            });
        })?;
    Ok(())
}

fn bind(socket: &Path) -> Result<std::os::unix::net::UnixListener> {
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("creating {}", folder.display()))?;
    }
    if std::os::unix::net::UnixStream::connect(socket).is_ok() {
        anyhow::bail!("another terraced already listens on {}", socket.display());
    }
    if socket.exists() {
        std::fs::remove_file(socket).with_context(|| format!("removing {}", socket.display()))?;
    }
    let listener = std::os::unix::net::UnixListener::bind(socket)
        .with_context(|| format!("listening on {}", socket.display()))?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o660))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
