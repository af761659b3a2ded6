//! The tests' own monitor: stops a guest, so that whatever changes then is somebody else's doing.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;

pub struct Qmp(BufReader<UnixStream>);

impl Qmp {
    pub fn new(stream: UnixStream) -> Self {
        let mut qmp = Self(BufReader::new(stream));
        qmp.execute("qmp_capabilities");
        qmp
    }

    /// A command without arguments. What else QEMU has to say is not asked for.
    pub fn execute(&mut self, command: &str) {
        let line = format!("{{\"execute\": \"{command}\"}}\n");
        self.0.get_mut().write_all(line.as_bytes()).unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(
                self.0.read_line(&mut line).unwrap(),
                0,
                "QEMU ended at {command}"
            );
            let answer: Value = serde_json::from_str(&line).unwrap();
            assert!(answer.get("error").is_none(), "{command}: {answer}");
            if answer.get("return").is_some() {
                return;
            }
        }
    }
}
