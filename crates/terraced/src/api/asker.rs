//! The way of a request to the daemon's thread, and of its answer back.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::{Semaphore, oneshot};

use super::failure::Failure;
use super::snapshot::{About, Snapshot};
use crate::messages::{Input, Question};
use crate::served::Served;

/// An answer's body.
pub type Answer = Result<Body, Failure>;

/// A body of JSON that is safe to print on any terminal.
pub struct Body(Vec<u8>);

impl Body {
    /// The body of a value.
    ///
    /// # Errors
    /// If the value has no JSON form.
    pub fn of<T: Serialize>(value: &T) -> Result<Self, Failure> {
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

/// Number of threads that make answers.
pub const MAKERS: usize = 2;
/// Most questions that wait for the thread that owns the served host: its other work never waits for more.
const MAX_QUESTIONS: usize = 32;
/// Most copies of the served host that wait to become answers.
const MAX_COPIES: usize = 2 * MAKERS;

/// The sender of questions to that thread.
#[derive(Clone)]
pub struct Asker {
    inbox: Sender<Input>,
    /// Permits for questions. The question of a client that hung up keeps its permit until it is done.
    questions: Arc<Semaphore>,
    copies: Arc<Semaphore>,
}

impl Asker {
    /// An asker over this channel.
    pub fn new(inbox: Sender<Input>) -> Self {
        Self {
            inbox,
            questions: Arc::new(Semaphore::new(MAX_QUESTIONS)),
            copies: Arc::new(Semaphore::new(MAX_COPIES)),
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
            // The client may have gone meanwhile; then the answer is not needed.
            let _ = answer.send(question(served));
            drop(place);
        });
        self.inbox
            .send(Input::Ask(question))
            .map_err(|_| Failure::Ending)?;
        answered.await.map_err(|_| Failure::Ending)?
    }
}

impl Asker {
    /// Makes a view of a copy of the served host, and its JSON.
    pub async fn view<T: Serialize + Send + 'static>(
        &self,
        about: About,
        make: impl FnOnce(Snapshot) -> Result<T, Failure> + Send + 'static,
    ) -> Answer {
        self.made(about, |copied| Body::of(&make(copied)?)).await
    }

    /// Makes something of a copy of the served host, on a thread that only the asking client waits for.
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
            lines.map_err(Failure::from)
        };
        self.copied(copy, |lines| Body::of(&lines)).await
    }

    /// Copies a part of the served host and makes an answer of it. No more copies wait than [`MAX_COPIES`], even if
    /// their clients have gone.
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
    pub async fn map(&self, name: String, cells: u64) -> Answer {
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
        // A large one takes a while to be written.
        let place = Arc::clone(&self.copies).acquire_owned().await;
        let place = place.map_err(|_| Failure::Ending)?;
        elsewhere(move || {
            let body = Body::of(&making.done());
            drop(place);
            body
        })
        .await
    }
}

fn gone(name: &str) -> Failure {
    Failure::NotFound(format!("{name} is gone"))
}

/// Runs a job that takes time on a thread for such jobs: neither the engine's nor the one that takes requests in.
pub async fn elsewhere<T: Send + 'static>(
    make: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let made = tokio::task::spawn_blocking(make).await;
    made.map_err(|_| Failure::NotNow("a defect of terraced: making the answer panicked".into()))?
}
