//! One shell command: its output as it comes, then its exit code.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};
use terrace_lab_programs::frame::{FrameKind, Run};

use crate::poll;
use crate::serve::Channel;

/// Runs the command to its end, or until the client kills it or goes away.
///
/// The end of the shell ends the command: what it left in the background may keep the pipes open.
pub fn run(channel: &mut Channel, request: &Run) -> Result<()> {
    let mut child = match spawn(request) {
        Ok(child) => child,
        Err(error) => {
            channel.send(FrameKind::Stderr, format!("{error:#}\n").as_bytes())?;
            return channel.send_exit(127);
        }
    };
    let mut stdout = child.stdout.take().context("no pipe")?;
    let mut stderr = child.stderr.take().context("no pipe")?;
    poll::set_nonblocking(stdout.as_fd())?;
    poll::set_nonblocking(stderr.as_fd())?;
    let end = poll::process_end(child.id()).context("pidfd_open")?;
    let mut open = (true, true);
    loop {
        // A closed pipe is always ready; the end of the process takes its place.
        let out_fd = if open.0 { stdout.as_fd() } else { end.as_fd() };
        let err_fd = if open.1 { stderr.as_fd() } else { end.as_fd() };
        let [ended, _, _, client] =
            poll::wait([end.as_fd(), out_fd, err_fd, channel.port.as_fd()], -1)?;
        // The end is checked before the pipes are read: what was written before it is then there.
        open.0 = open.0 && forward(channel, FrameKind::Stdout, &mut stdout)?;
        open.1 = open.1 && forward(channel, FrameKind::Stderr, &mut stderr)?;
        if ended.readable {
            return channel.send_exit(exit_code(child.wait()?));
        }
        if (client.readable || client.hung_up) && is_unwanted(channel)? {
            kill_group(&child)?;
        }
    }
}

fn spawn(request: &Run) -> Result<Child> {
    Command::new("/bin/sh")
        .args(["-c", &request.command])
        .env("PATH", "/bin:/sbin:/usr/bin:/usr/sbin")
        .env("HOME", "/root")
        .stdin(input_of(request)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("cannot start /bin/sh in L1")
}

/// The command's standard input: a file, as a pipe would have to be fed while the output is read.
fn input_of(request: &Run) -> Result<Stdio> {
    if request.input.is_empty() {
        return Ok(Stdio::null());
    }
    let path = "/tmp/lab-input";
    std::fs::write(path, &request.input).with_context(|| format!("cannot write {path} in L1"))?;
    let file = File::open(path)?;
    std::fs::remove_file(path)?;
    Ok(Stdio::from(file))
}

/// Sends on the bytes that are in the pipe; false at its end.
fn forward(channel: &mut Channel, kind: FrameKind, pipe: &mut impl Read) -> Result<bool> {
    let mut chunk = vec![0; 64 << 10];
    loop {
        match pipe.read(&mut chunk) {
            Ok(0) => return Ok(false),
            Ok(read) => channel.send(kind, &chunk[..read])?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error).context("reading the command's output"),
        }
    }
}

/// Whether the client asks for the command's end, has gone, or has been replaced by another.
fn is_unwanted(channel: &mut Channel) -> Result<bool> {
    if !channel.read_more()? {
        return Ok(true);
    }
    while let Some(frame) = channel.decoder.next_frame()? {
        match frame.kind {
            FrameKind::Kill => return Ok(true),
            FrameKind::Hello => {
                channel.send_hello(&frame.payload)?;
                return Ok(true);
            }
            _ => {}
        }
    }
    Ok(false)
}

fn kill_group(child: &Child) -> Result<()> {
    let group = libc::pid_t::try_from(child.id())?;
    // SAFETY: plain numbers; the child has not been waited for, so the group is still its own.
    unsafe { libc::kill(-group, libc::SIGKILL) };
    Ok(())
}

fn exit_code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
