//! Tests that need to see every process there is, as a daemon on a host does. In a container the first process is
//! beyond what may be inspected; there such a test runs among processes of its own (a pid namespace).

use std::fs::{self, File};
use std::io::ErrorKind;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::children::Guarded;
use crate::places;
use crate::progress::say;

/// Environment variable of the task that runs among processes of its own.
const ALONE: &str = "TERRACE_LAB_ALONE";

/// Runs a task of the lab here, or by another run of this program with these arguments that sees all processes.
///
/// # Errors
/// If the task fails, or there can be no such run.
pub fn seeing_all_processes(arguments: &[&str], task: impl FnOnce() -> Result<()>) -> Result<()> {
    let Some(beyond) = unseen()? else {
        return task();
    };
    ensure!(
        std::env::var_os(ALONE).is_none(),
        "process {beyond} cannot be looked at among processes of our own either"
    );
    let name = arguments.join(" ");
    say(&format!(
        "process {beyond} cannot be looked at here: `{name}` runs among processes of its own"
    ));
    // Not by /proc/self, which is another program there, nor by its path, where a later build may have put another one.
    let program = places::lab("run")?.join("xtask");
    fs::copy("/proc/self/exe", &program).context("a copy of this program")?;
    let mut command = Command::new("setpriv");
    command
        .args([
            "--pdeathsig",
            "KILL",
            "--",
            "unshare",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .arg(program)
        .args(arguments)
        .env(ALONE, "1");
    let status = Guarded::spawn(&mut command)?.wait()?;
    ensure!(
        status.success(),
        "{name} failed, or `unshare` may not ({status}); the output is above"
    );
    Ok(())
}

/// A process whose memory map this user may not read.
fn unseen() -> Result<Option<String>> {
    for entry in fs::read_dir("/proc").context("/proc")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        match File::open(format!("/proc/{name}/maps")) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(Some(name)),
            _ => {}
        }
    }
    Ok(None)
}
