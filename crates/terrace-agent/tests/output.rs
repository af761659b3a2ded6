//! What the program prints, on a device without room.

use std::fs::File;
use std::process::Command;

#[test]
fn standard_output_without_room_is_an_error_and_no_panic() {
    for args in [
        &["completions", "bash"][..],
        &["doctor"],
        &["doctor", "--json"],
    ] {
        let full = File::options().write(true).open("/dev/full");
        let output = Command::new(env!("CARGO_BIN_EXE_terrace-agent"))
            .args(args)
            .stdout(full.expect("a device"))
            .output()
            .expect("the program starts");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.starts_with("terrace-agent: standard output cannot be written"),
            "{args:?}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
}
