//! A monitor of QEMU that a test plays.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

/// The line that QEMU sends first.
pub const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}"#;

/// An answer that closes the connection instead.
pub const CLOSE: &str = "close";

/// Serves connections until the test ends, one at a time as QEMU does: each line is answered by `answer`; `None`: not at
/// all.
pub fn serve(socket: &Path, answer: impl FnMut(&str) -> Option<String> + Send + 'static) {
    let listener = UnixListener::bind(socket).unwrap();
    let mut answer = answer;
    thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that gives up early is what some tests are about.
            let _ = converse(stream.unwrap(), &mut answer);
        }
    });
}

fn converse(
    mut stream: UnixStream,
    answer: &mut impl FnMut(&str) -> Option<String>,
) -> std::io::Result<()> {
    writeln!(stream, "{GREETING}")?;
    for line in BufReader::new(stream.try_clone()?).lines() {
        match answer(&line?) {
            Some(answer) if answer == CLOSE => break,
            Some(answer) => writeln!(stream, "{answer}")?,
            None => {}
        }
    }
    Ok(())
}

/// A QMP answer with this output of the human monitor.
pub fn human(text: &str) -> Option<String> {
    Some(serde_json::json!({ "return": text }).to_string())
}
