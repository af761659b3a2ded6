//! The tests' own monitor: stops a guest, so that any change then is not the guest's doing.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

pub struct Qmp(BufReader<UnixStream>);

impl Qmp {
    pub fn new(stream: UnixStream) -> Self {
        let mut qmp = Self(BufReader::new(stream));
        qmp.execute("qmp_capabilities");
        qmp
    }

    /// A command without arguments. Other output of QEMU is not asked for.
    pub fn execute(&mut self, command: &str) {
        self.send(&json!({ "execute": command }));
        while self.next(command).get("return").is_none() {}
    }

    /// Resets the machine, as a button on it would, and returns once that is done. What the guest does by
    /// itself later ends QEMU again.
    pub fn reset(&mut self) {
        self.on_reboot("reset");
        self.send(&json!({ "execute": "system_reset" }));
        let (mut answered, mut reset) = (false, false);
        while !(answered && reset) {
            let said = self.next("system_reset");
            answered |= said.get("return").is_some();
            reset |= said["event"] == "RESET";
        }
        self.on_reboot("shutdown");
    }

    fn on_reboot(&mut self, action: &str) {
        self.send(&json!({ "execute": "set-action", "arguments": { "reboot": action } }));
        while self.next("set-action").get("return").is_none() {}
    }

    fn send(&mut self, command: &Value) {
        let line = format!("{command}\n");
        self.0.get_mut().write_all(line.as_bytes()).unwrap();
    }

    fn next(&mut self, command: &str) -> Value {
        let mut line = String::new();
        assert_ne!(
            self.0.read_line(&mut line).unwrap(),
            0,
            "QEMU ended at {command}"
        );
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert!(answer.get("error").is_none(), "{command}: {answer}");
        answer
    }
}
