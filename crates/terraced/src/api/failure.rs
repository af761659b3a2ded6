//! The reasons why a request is not answered, in one shape: JSON with one sentence or two, from every layer that finds
//! a fault.
//!
//! A refusal by a handler is a [`Failure`]. A refusal by the web library before a handler is called (a path, a method,
//! a body that is not JSON) gets the same shape here.

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use terrace_api::types::ErrorBody;
use terrace_proto::printable::{MAX_NAME, excerpt};
use terrace_proto::provision::NotOrdered;

use crate::events::Missed;
use crate::served::Over;

/// Most characters of an error in an answer.
const MAX_ERROR: usize = 16 << 10;
/// Most VMs that an answer names if the requested one does not exist.
const MAX_NAMED: usize = 32;

/// The reason why a request is not answered.
#[derive(Debug)]
pub enum Failure {
    /// There is no such VM, page or setting.
    NotFound(String),
    /// A value is impossible.
    Invalid(String),
    /// The request cannot be met at this moment.
    NotNow(String),
    /// The thing existed, and is no longer stored.
    Gone(String),
    /// The daemon is ending.
    Ending,
}

impl From<NotOrdered> for Failure {
    fn from(not: NotOrdered) -> Self {
        match not {
            NotOrdered::Invalid(why) => Self::Invalid(why),
            NotOrdered::NotNow(why) => Self::NotNow(why),
        }
    }
}

impl From<Over> for Failure {
    fn from(over: Over) -> Self {
        Self::NotNow(over.to_string())
    }
}

impl From<Missed> for Failure {
    fn from(missed: Missed) -> Self {
        Self::Gone(missed.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, error) = match self {
            Self::NotFound(what) => (StatusCode::NOT_FOUND, what),
            Self::Invalid(what) => (StatusCode::BAD_REQUEST, what),
            Self::NotNow(what) => (StatusCode::CONFLICT, what),
            Self::Gone(what) => (StatusCode::GONE, what),
            Self::Ending => (StatusCode::SERVICE_UNAVAILABLE, "terraced is ending".into()),
        };
        said(status, &error)
    }
}

/// An error in the shape that all errors have.
pub fn said(status: StatusCode, error: &str) -> Response {
    let error = excerpt(error, MAX_ERROR);
    (status, Json(ErrorBody { error })).into_response()
}

/// The same error as raw bytes of HTTP, for a request that was not understood.
pub fn raw(status: StatusCode, error: &str) -> Vec<u8> {
    let error = ErrorBody {
        error: excerpt(error, MAX_ERROR),
    };
    // Plain data always has a JSON form.
    let body = serde_json::to_string(&error).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        status.as_u16(),
        status.canonical_reason().unwrap_or("Error"),
        body.len()
    );
    (head + &body).into_bytes()
}

/// Advice about a request that the HTTP library refuses by itself.
pub fn unread(status: StatusCode) -> &'static str {
    match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            "the request's headers are larger than 16 KiB, or more than 64"
        }
        StatusCode::URI_TOO_LONG => "the request's path is too long",
        _ => "this is no HTTP/1.1 request; see docs/api.md",
    }
}

/// Gives an error that is not JSON yet the shape that all errors have.
pub async fn in_json(answer: Response) -> Response {
    let status = answer.status();
    let is_json = |headers: &HeaderMap| {
        let kind = headers.get(CONTENT_TYPE);
        kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"))
    };
    if status.as_u16() < 400 || is_json(answer.headers()) {
        return answer;
    }
    let (head, body) = answer.into_parts();
    let message = text(body).await;
    let allowed = head.headers.get(ALLOW).cloned();
    let message = match (status, &allowed) {
        (StatusCode::METHOD_NOT_ALLOWED, Some(allowed)) => {
            let allowed = allowed.to_str().unwrap_or("another method");
            format!("this path takes {allowed} alone; see docs/api.md")
        }
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, _) => {
            "send JSON, and say so by the header `content-type: application/json`".into()
        }
        _ if message.is_empty() => status.canonical_reason().unwrap_or("an error").to_owned(),
        _ => message,
    };
    let mut answer = said(status, &message);
    for (name, value) in &head.headers {
        if name != CONTENT_TYPE && name != CONTENT_LENGTH {
            answer.headers_mut().insert(name.clone(), value.clone());
        }
    }
    answer
}

/// The library's words; empty if they are too long or not text.
async fn text(body: Body) -> String {
    let bytes = to_bytes(body, MAX_ERROR).await.unwrap_or_default();
    String::from_utf8(bytes.into()).unwrap_or_default()
}

/// The failure of a request about a VM that went meanwhile.
pub fn gone() -> Failure {
    Failure::NotFound("the VM is gone".into())
}

/// The failure of a request about a VM that does not exist.
pub fn no_vm<'a>(name: &str, known: impl Iterator<Item = &'a String>) -> Failure {
    let mut known: Vec<&str> = known.take(MAX_NAMED + 1).map(String::as_str).collect();
    if known.len() > MAX_NAMED {
        known.truncate(MAX_NAMED);
        known.push("and others");
    }
    let name = excerpt(name, MAX_NAME);
    Failure::NotFound(if known.is_empty() {
        format!("no VM {name}: no VMs were found; `terrace doctor` says why")
    } else {
        format!("no VM {name}; there are: {}", known.join(", "))
    })
}
