//! Answers of the daemon's API to clients that ask wrongly, over its socket.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use terrace_api::types::ErrorBody;

use crate::messages::State;
use crate::played::{Served, serve_with};

fn serve() -> Served {
    serve_with(|_| "[vm.web1]\nscan = true\n".to_owned())
}

/// Status, content type and body of the answer to the bytes sent.
fn answer(served: &Served, request: &str) -> (u16, String, String) {
    let mut client = UnixStream::connect(served.folder.path().join("terraced.sock")).unwrap();
    let long = Some(Duration::from_secs(60));
    client.set_read_timeout(long).unwrap();
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let kind = head
        .lines()
        .find_map(|line| line.strip_prefix("content-type: "));
    let status = head[9..12].parse().unwrap();
    (status, kind.unwrap_or("none").to_owned(), body.to_owned())
}

fn request(method: &str, path: &str, more: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{more}content-length: {length}\r\n\r\n{body}"
    )
}

#[test]
fn every_error_of_the_api_is_json_of_one_shape() {
    let served = serve();
    served.find("web1", Some(std::process::id()), State::Ignored);
    let json = "content-type: application/json\r\n";
    for (wanted, method, path, more, body) in [
        (404, "GET", "/nowhere", "", ""),
        (404, "GET", "/v1/vms/none", "", ""),
        (405, "DELETE", "/v1/status", "", ""),
        (405, "POST", "/v1/vms", json, "{}"),
        (415, "POST", "/v1/vms/web1/set", "", "{\"key\": \"a\"}"),
        (400, "POST", "/v1/vms/web1/set", json, "{\"key\": "),
        (422, "POST", "/v1/vms/web1/set", json, "{\"key\": 7}"),
        (422, "POST", "/v1/vms/web1/resize", json, "{\"fast\": 7}"),
        (400, "GET", "/v1/events?after=yesterday", "", ""),
        (400, "GET", "/v1/events?since=1", "", ""),
        (400, "GET", "/v1/vms/web1/map", "", ""),
        (400, "GET", "/v1/vms/%ff", "", ""),
        (410, "GET", "/v1/events?after=999999", "", ""),
        (400, "GET", "/v1/vms/web1/pages/xyz", "", ""),
    ] {
        let (status, kind, body) = answer(&served, &request(method, path, more, body));
        assert_eq!(status, wanted, "{method} {path}: {body}");
        assert_eq!(kind, "application/json", "{method} {path}: {body}");
        let said: ErrorBody = serde_json::from_str(&body).unwrap();
        assert!(said.error.len() > 5, "{method} {path}: {said:?}");
    }
}

#[test]
fn a_file_at_the_path_of_the_apis_socket_is_not_deleted() {
    let served = serve();
    let file = served.folder.path().join("notes.txt");
    std::fs::write(&file, "precious").unwrap();
    let link = served.folder.path().join("link.sock");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link] {
        let error = crate::api::start(path, served.inbox.clone()).unwrap_err();
        assert!(error.to_string().contains("not replaced"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}
