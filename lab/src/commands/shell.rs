//! A shell in L1, for people and for scripts.

use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::control::lab::Lab;
use crate::machine::options::CONSOLE;
use crate::machine::process::Process;

/// Ctrl-], as in telnet: ends the shell's connection, not the shell.
const ESCAPE: u8 = 0x1d;

/// Whether a person sits at standard input.
pub fn is_interactive() -> bool {
    io::stdin().is_terminal()
}

/// Connects the terminal with L1's console until Ctrl-].
pub fn interactive(process: &Process) -> Result<()> {
    let console = process.connect(CONSOLE)?;
    println!("L1's console; Ctrl-] leaves it");
    let before = stty(&["-g"])?;
    stty(&["raw", "-echo"])?;
    let result = relay(console);
    stty(&[before.trim()])?;
    println!();
    result
}

/// Runs standard input as a script in L1, with its output here.
pub fn script(lab: &mut Lab) -> Result<()> {
    let mut script = String::new();
    io::stdin().read_to_string(&mut script)?;
    let exit = lab.stream(&script, Duration::from_secs(3600), |line| {
        println!("{line}")
    })?;
    if exit != 0 {
        bail!("the script ended with {exit}");
    }
    Ok(())
}

fn relay(mut console: UnixStream) -> Result<()> {
    let mut from_console = console.try_clone()?;
    // Ends with the task: nothing is lost if it is cut off while it waits.
    std::thread::spawn(move || copy_to_terminal(&mut from_console));
    // A prompt, so that the reader sees where he is.
    console.write_all(b"\n")?;
    let mut input = io::stdin().lock();
    let mut chunk = [0; 1024];
    loop {
        let read = input.read(&mut chunk)?;
        let typed = &chunk[..read];
        if read == 0 || typed.contains(&ESCAPE) {
            return Ok(());
        }
        console.write_all(typed).context("L1's console is gone")?;
    }
}

fn copy_to_terminal(console: &mut UnixStream) {
    let mut chunk = [0; 4096];
    let mut terminal = io::stdout();
    while let Ok(read @ 1..) = console.read(&mut chunk) {
        if terminal.write_all(&chunk[..read]).is_err() || terminal.flush().is_err() {
            return;
        }
    }
}

fn stty(arguments: &[&str]) -> Result<String> {
    let output = Command::new("stty")
        .args(arguments)
        .stdin(std::process::Stdio::inherit())
        .output()
        .context("cannot start stty")?;
    if !output.status.success() {
        bail!("stty {} failed", arguments.join(" "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
