//! The HTTP API over the unix socket: routes, and how a request reaches the daemon's thread.

mod agent_views;
mod elastic;
mod failure;
mod limits;
mod line;
mod metrics;
mod routes;
mod serve;
pub mod snapshot;
#[cfg(test)]
mod tests;
mod views;
mod wishes;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use anyhow::Result;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use terrace_api::elastic::{Elastic, Resize};
use terrace_api::types;
use terrace_core::Engine;
use terrace_host::Finding;
use terrace_proto::provision::Origin;
use terrace_proto::snapshot::HeatMap;
use terrace_proto::{Command, Tick};
use terrace_sys::{SocketFile, listen_at};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, oneshot};

pub use failure::Failure;
use failure::no_vm;
use limits::{Gate, Limits};
use snapshot::{About, Snapshot};

use crate::confine::{self, Role};
use crate::daemon::Input;
use crate::elastic::drive::Resized;
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
    /// Why the observation log ended before its time, where it did.
    fn log_ended(&self) -> Option<String>;
    /// Says how to find out, elsewhere, what there is to say about the host, for `doctor`.
    fn find_host(&self) -> FindHost;
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
    /// Wants a VM to have other sizes; what comes of it is told once.
    ///
    /// # Errors
    /// Where nothing could resize it, or the sizes make no sense.
    fn resize(
        &mut self,
        name: &str,
        _origin: Origin,
        _sizes: &Resize,
    ) -> Result<oneshot::Receiver<Resized>, Failure> {
        Err(no_elastic(name))
    }
    /// Pauses or resumes the agent in a VM; `false` where there is none.
    fn halt_agent(&mut self, _name: &str, _halt: bool) -> bool {
        false
    }
}

fn no_elastic(name: &str) -> Failure {
    Failure::NotNow(format!(
        "{name} is simulated: what sizes it is its scenario (provision, resize), not this command"
    ))
}

/// Looks at a host for what there is to say about it. It reads many files, so it never runs on the engine's thread.
pub type FindHost = Box<dyn FnOnce() -> Vec<Finding> + Send>;

/// Threads that make answers.
const MAKERS: usize = 2;
/// Questions that wait for the thread that has what is served: what else that one does never waits for more.
const MOST_QUESTIONS: usize = 32;
/// Copies of what is served that wait to become answers.
const MOST_COPIES: usize = 2 * MAKERS;

/// A question of the API, to be answered on the thread that has what is served.
pub type Question = Box<dyn FnOnce(&mut dyn Served) + Send>;

/// Asks questions of that thread.
#[derive(Clone)]
pub struct Asker {
    inbox: Sender<Input>,
    /// What a client that hung up left behind counts until it is done.
    questions: Arc<Semaphore>,
    copies: Arc<Semaphore>,
}

impl Asker {
    /// Asks by this channel.
    pub fn new(inbox: Sender<Input>) -> Self {
        Self {
            inbox,
            questions: Arc::new(Semaphore::new(MOST_QUESTIONS)),
            copies: Arc::new(Semaphore::new(MOST_COPIES)),
        }
    }

    /// Runs `question` on that thread and brings its answer back.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut dyn Served) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let place = Arc::clone(&self.questions).acquire_owned().await;
        let place = place.map_err(|_| Failure::Ending)?;
        let (answer, answered) = oneshot::channel();
        let question: Question = Box::new(move |served| {
            // The client may have gone meanwhile; then nobody wants the answer.
            let _ = answer.send(question(served));
            drop(place);
        });
        self.inbox
            .send(Input::Ask(question))
            .map_err(|_| Failure::Ending)?;
        answered.await.map_err(|_| Failure::Ending)?
    }
}

/// An answer's body.
pub type Answer = Result<Body, Failure>;

/// JSON that stands on any terminal as it is.
pub struct Body(Vec<u8>);

impl Body {
    /// # Errors
    /// Where a value has no JSON.
    fn of<T: Serialize>(value: &T) -> Result<Self, Failure> {
        let json = terrace_api::plain::to_json(value);
        json.map(Self)
            .map_err(|error| Failure::NotNow(format!("the answer could not be written: {error}")))
    }
}

impl IntoResponse for Body {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/json")], self.0).into_response()
    }
}

impl Asker {
    /// Makes a view of a copy of what is served, and its JSON.
    pub async fn view<T: Serialize + Send + 'static>(
        &self,
        about: About,
        make: impl FnOnce(Snapshot) -> Result<T, Failure> + Send + 'static,
    ) -> Answer {
        self.made(about, |copied| Body::of(&make(copied)?)).await
    }

    /// Makes something of a copy of what is served, on a thread that nobody waits for but who asked.
    pub async fn made<T: Send + 'static>(
        &self,
        about: About,
        make: impl FnOnce(Snapshot) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let copy = move |served: &mut dyn Served| Snapshot::of(served, &about);
        self.copied(copy, make).await
    }

    /// The events after one, as JSON.
    pub async fn events(&self, after: u64) -> Answer {
        let copy = move |served: &mut dyn Served| {
            let lines = served.events().after(after);
            lines.map_err(|lost| Failure::Gone(lost.to_string()))
        };
        self.copied(copy, |lines| Body::of(&lines)).await
    }

    /// No more copies wait than [`MOST_COPIES`], whether or not those who asked still do.
    async fn copied<C: Send + 'static, T: Send + 'static>(
        &self,
        copy: impl FnOnce(&mut dyn Served) -> Result<C, Failure> + Send + 'static,
        make: impl FnOnce(C) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let place = Arc::clone(&self.copies).acquire_owned().await;
        let place = place.map_err(|_| Failure::Ending)?;
        let copied = self.ask(copy).await?;
        let make = move || {
            let made = make(copied);
            drop(place);
            made
        };
        elsewhere(make).await
    }

    /// Makes a map from copies of the VM's pages, a bounded number at a time.
    pub async fn map(&self, name: String, cells: u64) -> Result<HeatMap, Failure> {
        let of = name.clone();
        let begin = move |served: &mut dyn Served| {
            let id = served.managed_id(&of)?;
            let making = served.engine().heat_making(id, cells);
            making.map(|making| (id, making)).ok_or_else(|| gone(&of))
        };
        let (id, mut making) = self.ask(begin).await?;
        while let Some(first) = making.next() {
            let of = name.clone();
            let copy = move |served: &mut dyn Served| {
                let pages = served.engine().heat_pages(id, first);
                pages.ok_or_else(|| gone(&of))
            };
            let add = move |pages| {
                making.add(&pages);
                Ok(making)
            };
            making = self.copied(copy, add).await?;
        }
        Ok(making.done())
    }
}

fn gone(name: &str) -> Failure {
    Failure::NotFound(format!("{name} is gone"))
}

/// Runs what takes its time on a thread for that: neither the engine's nor the one that takes requests in.
pub async fn elsewhere<T: Send + 'static>(
    make: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let made = tokio::task::spawn_blocking(make).await;
    made.map_err(|_| Failure::NotNow("a defect of terraced: making the answer panicked".into()))?
}

/// Binds the socket (0660: who may open it may steer the daemon) and serves it on a thread of its own. Its file is
/// removed when what is returned is dropped.
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
