//! Clients that misbehave, over real sockets.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream as Client;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Instant;

use axum::routing::{get, post};
use terrace_api::types::ErrorBody;

use super::*;
use crate::api::asker::Asker;
use crate::api::failure::Failure;
use crate::api::limits::Limits;

/// A time far longer than anything that a test waits for.
const LONG: Duration = Duration::from_secs(60);
const BIG: usize = 2 << 20;

struct Api {
    _folder: tempfile::TempDir,
    socket: PathBuf,
}

fn router() -> Router {
    Router::new()
        .route("/", get(|| async { "here" }))
        .route("/big", get(|| async { vec![b'x'; BIG] }))
        .route("/slow", get(|| async { sleep(LONG * 10).await }))
        .route("/post", post(|body: String| async move { body }))
}

fn api(limits: Limits) -> Api {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let serving = async move {
        let listener = UnixListener::from_std(listener).unwrap();
        serve(listener, router(), Gate::new(limits)).await;
    };
    // The thread ends with the tests.
    std::thread::spawn(|| crate::played::runtime().block_on(serving));
    Api {
        _folder: folder,
        socket,
    }
}

impl Api {
    /// A client that has sent these words.
    fn send(&self, text: &str) -> Client {
        let mut client = Client::connect(&self.socket).unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        client.set_write_timeout(Some(LONG)).unwrap();
        // The answer that it is not served may come before it has sent all.
        let _ = client.write_all(text.as_bytes());
        client
    }

    fn get(&self, path: &str) -> (u16, String) {
        read(self.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")))
    }

    /// Asks again and again until the status is the wanted one.
    fn until(&self, path: &str, wanted: u16) -> String {
        let begun = Instant::now();
        loop {
            let (status, body) = self.get(path);
            if status == wanted {
                return body;
            }
            assert!(begun.elapsed() < LONG, "{path}: still {status}: {body}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Status and body of all that a client receives until the connection ends.
fn read(mut client: Client) -> (u16, String) {
    let mut answer = Vec::new();
    // A connection that is broken off has sent its answer.
    let ended = client.read_to_end(&mut answer);
    let is_over = ended.is_ok() || !answer.is_empty();
    assert!(is_over, "the connection is still there");
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.get(9..12).and_then(|code| code.parse().ok());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = status.unwrap_or(0);
    if status >= 400 {
        assert!(head.contains("content-type: application/json"), "{head}");
        let said: ErrorBody = serde_json::from_str(body).unwrap();
        assert!(!said.error.is_empty());
    }
    (status, body.to_owned())
}

fn short() -> Limits {
    let moment = Duration::from_millis(300);
    Limits {
        head: moment,
        body: moment,
        answer: moment,
        unread: moment,
        ..Limits::default()
    }
}

#[test]
fn half_open_connections_are_bounded_logged_and_ended() {
    let api = api(Limits {
        head: Duration::from_secs(8),
        ..short()
    });
    let most = Limits::default().of_user;
    let half_open: Vec<Client> = (0..most).map(|_| api.send("GET / HT")).collect();
    let body = api.until("/", 503);
    assert!(body.contains("connections to terraced already"), "{body}");
    for client in half_open {
        let (status, body) = read(client);
        assert_eq!(status, 408, "{body}");
    }
    assert_eq!(api.until("/", 200), "here");
}

#[test]
fn three_thousand_connections_that_say_nothing_are_not_held() {
    let api = api(short());
    let open: Vec<Client> = (0..300).map(|_| api.send("")).collect();
    for round in 0..10 {
        for client in open.iter().map(|_| api.send("GET")) {
            drop(client);
        }
        assert_eq!(api.until("/", 200), "here", "round {round}");
    }
    for client in open {
        let (status, _) = read(client);
        assert!([408, 503].contains(&status), "{status}");
    }
}

#[test]
fn a_body_is_bounded_in_size_and_time() {
    let api = api(short());
    let post = "POST /post HTTP/1.1\r\nhost: x\r\n";
    let (status, _) = read(api.send(&format!("{post}content-length: 4\r\n\r\nmine")));
    assert_eq!(status, 200);
    let (status, _) = read(api.send(&format!("{post}content-length: 99999999\r\n\r\n")));
    assert_eq!(status, 413);
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    let (status, _) = read(api.send(&format!(
        "{post}transfer-encoding: chunked\r\n\r\n{}",
        chunk.repeat(20)
    )));
    assert_eq!(status, 413);
    let (status, body) = read(api.send(&format!("{post}content-length: 4\r\n\r\nmi")));
    assert_eq!((status, body.contains("did not come")), (408, true));
}

#[test]
fn clients_that_never_read_hold_bounded_memory_and_are_ended() {
    let api = api(Limits {
        answer_bytes: 4 * BIG,
        unread: Duration::from_secs(8),
        ..short()
    });
    let ask = "GET /big HTTP/1.1\r\nhost: x\r\n\r\n";
    let deaf: Vec<Client> = (0..20).map(|_| api.send(ask)).collect();
    let body = api.until("/big", 503);
    assert!(body.contains("do not read"), "{body}");
    // Small requests are served meanwhile, and all are once these were ended.
    let big = api.until("/big", 200);
    assert_eq!(big.len(), BIG);
    let ended = deaf.into_iter().map(|mut client| {
        let mut answer = Vec::new();
        // Broken off in the middle of the answer.
        let _ = client.read_to_end(&mut answer);
        answer.len()
    });
    assert!(ended.filter(|bytes| *bytes < BIG).count() >= 16);
}

#[test]
fn an_answer_that_is_not_ready_in_time_is_given_up() {
    let api = api(short());
    let (status, body) = api.get("/slow");
    assert_eq!((status, body.contains("no answer was ready")), (503, true));
}

#[test]
fn what_is_no_request_is_refused_in_json() {
    let api = api(short());
    for (text, wanted) in [
        ("\x00 nonsense\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 400),
        (
            format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 15)),
            431,
        ),
        (
            format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100)),
            431,
        ),
        ("GET /nowhere HTTP/1.1\r\n\r\n".to_owned(), 404),
        ("DELETE / HTTP/1.1\r\n\r\n".to_owned(), 405),
    ] {
        let (status, body) = read(api.send(&text));
        assert_eq!(status, wanted, "{:.40}: {body}", text);
    }
}

#[test]
fn half_a_request_of_a_half_closed_client_is_answered() {
    let api = api(short());
    let client = api.send("GET / HT");
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read(client).0, 400);
}

/// A client that hangs up leaves its question behind.
#[test]
fn questions_of_vanished_clients_do_not_pile_up() {
    let (inbox, inputs) = channel();
    let asker = Asker::new(inbox);
    let runtime = crate::played::runtime();
    runtime.block_on(async {
        for _ in 0..1000 {
            let question = asker.ask(|_| Ok::<(), Failure>(()));
            let hung_up = timeout(Duration::ZERO, question).await;
            assert!(hung_up.is_err());
        }
    });
    let waiting = inputs.try_iter().count();
    assert!((1..=32).contains(&waiting), "{waiting}");
}
