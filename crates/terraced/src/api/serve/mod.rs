//! The server for clients that may do anything: one request per connection, each part of it within its time, and
//! a client delays only itself.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::response::Parts;
use axum::http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};
use tower::ServiceExt as _;

use super::failure::{self, said};
use super::limits::{Gate, Room};
use super::line::{Line, Patient};

/// Pause if no connection can be accepted (because no descriptors are left, for example).
const PAUSE: Duration = Duration::from_millis(100);
/// Time that a client that is not served has to read why.
const FAREWELL: Duration = Duration::from_secs(1);
/// Most bytes, and most headers, of a request's head.
const MAX_HEAD: usize = 16 << 10;
const MAX_HEADERS: usize = 64;

/// Serves forever.
pub async fn serve(listener: UnixListener, router: Router, gate: Arc<Gate>) {
    let mut is_logged = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                is_logged = false;
                admit(stream, &router, &gate);
            }
            Err(error) => {
                if !is_logged {
                    tracing::warn!("the API accepts no connection for now: {error}");
                }
                is_logged = true;
                sleep(PAUSE).await;
            }
        }
    }
}

fn admit(stream: UnixStream, router: &Router, gate: &Arc<Gate>) {
    // The kernel knows the peer, except of a socket that broke already.
    let Ok(peer) = stream.peer_cred() else { return };
    let line = Line::new(stream);
    let uid = peer.uid();
    match gate.enter(uid) {
        Ok(permit) => {
            let (router, gate) = (router.clone(), Arc::clone(gate));
            tokio::spawn(async move {
                answer_one(&line, uid, router, &gate).await;
                drop(permit);
            });
        }
        Err(why) => {
            line.say(&failure::raw(StatusCode::SERVICE_UNAVAILABLE, &why));
            // The client may still be sending; hanging up on it would take the words away again.
            if let Some(permit) = gate.refuse() {
                tokio::spawn(async move {
                    let _ = timeout(FAREWELL, line.hung_up(MAX_HEAD)).await;
                    drop(permit);
                });
            }
        }
    }
}

/// One request and its answer.
async fn answer_one(line: &Arc<Line>, uid: u32, router: Router, gate: &Arc<Gate>) {
    let limits = gate.limits();
    let io = TokioIo::new(Patient::new(Arc::clone(line), limits.unread));
    let service = service_fn(|request: Request<Incoming>| {
        line.ask();
        let (router, gate) = (router.clone(), Arc::clone(gate));
        async move { Ok::<_, Infallible>(answer(request, uid, router, &gate).await) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .serve_connection(io, service);
    let mut connection = pin!(connection);
    let head = timeout(limits.head, connection.as_mut());
    let done = match head.await {
        Ok(done) => done,
        Err(_) if line.was_asked() => {
            let rest = limits.whole.saturating_sub(limits.head);
            match timeout(rest, connection).await {
                Ok(done) => done,
                Err(_) => return tracing::debug!("a client read its answer too slowly"),
            }
        }
        Err(_) => {
            let text = format!(
                "no whole request came within {} s",
                limits.head.as_secs_f64()
            );
            return line.say(&failure::raw(StatusCode::REQUEST_TIMEOUT, &text));
        }
    };
    let is_broken = done.is_err();
    if let Err(error) = done {
        tracing::debug!("a client's connection: {error}");
    }
    // The library has no status for input that is HTTP/2, or that ends in the middle of a head.
    let unsaid = (is_broken && !line.was_asked()).then_some(StatusCode::BAD_REQUEST);
    if let Some(status) = line.refused().or(unsaid) {
        line.say(&failure::raw(status, failure::unread(status)));
        let _ = timeout(FAREWELL, line.hung_up(MAX_HEAD)).await;
    }
}

async fn answer(
    request: Request<Incoming>,
    uid: u32,
    router: Router,
    gate: &Arc<Gate>,
) -> Response<Full<Bytes>> {
    let limits = gate.limits();
    let answer = match with_body(request, gate).await {
        Ok(request) => match timeout(limits.answer, router.oneshot(request)).await {
            Ok(Ok(answer)) => failure::in_json(answer).await,
            Ok(Err(never)) => match never {},
            Err(_) => said(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!(
                    "no answer was ready within {} s; what was asked may yet be done",
                    limits.answer.as_secs_f64()
                ),
            ),
        },
        Err((status, why)) => said(status, &why),
    };
    held(answer, uid, gate).await
}

/// Reads the whole body of a request, before the request is handled.
async fn with_body(
    request: Request<Incoming>,
    gate: &Gate,
) -> Result<Request<Body>, (StatusCode, String)> {
    let limits = gate.limits();
    let too_large = || {
        (
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is larger than {} bytes", limits.body_bytes),
        )
    };
    let (head, body) = request.into_parts();
    let least = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if least > limits.body_bytes {
        return Err(too_large());
    }
    let whole = Limited::new(body, limits.body_bytes).collect();
    let body = match timeout(limits.body, whole).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
        Ok(Err(error)) => {
            let why = format!("the body could not be read: {error}");
            return Err((StatusCode::BAD_REQUEST, why));
        }
        Err(_) => {
            let seconds = limits.body.as_secs_f64();
            let why = format!("the body did not come within {seconds} s");
            return Err((StatusCode::REQUEST_TIMEOUT, why));
        }
    };
    Ok(Request::from_parts(head, Body::from(body)))
}

/// An answer's bytes with their room, which is free again once the last byte was written.
struct Held {
    bytes: Bytes,
    _room: Room,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

async fn held(answer: Response<Body>, uid: u32, gate: &Arc<Gate>) -> Response<Full<Bytes>> {
    let (head, bytes) = in_memory(answer).await;
    match gate.hold(uid, bytes.len()) {
        Ok(room) => {
            let held = Held { bytes, _room: room };
            Response::from_parts(head, Full::new(Bytes::from_owner(held)))
        }
        Err(why) => {
            let (head, bytes) = in_memory(said(StatusCode::SERVICE_UNAVAILABLE, &why)).await;
            Response::from_parts(head, Full::new(bytes))
        }
    }
}

/// The answer's head and bytes. Reading them never waits: the daemon's own answers are in memory already.
async fn in_memory(answer: Response<Body>) -> (Parts, Bytes) {
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes());
    (head, body.unwrap_or_default())
}

#[cfg(test)]
mod tests;
