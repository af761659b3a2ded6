//! The QEMU process of L1 and its folder of sockets and logs.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::emulator;
use super::options::{CONSOLE_LOG, Machine, QMP, RESETS_LOG};
use super::qmp::Qmp;
use crate::children::Guarded;
use crate::progress::Wait;
use crate::{host, places};

const QEMU_LOG: &str = "qemu.log";
const PID: &str = "pid";

/// A running L1, ours or left running by an earlier task.
pub struct Process {
    folder: PathBuf,
    child: Option<Guarded>,
    /// Lock that keeps other tasks from using the folder. `None` for a machine of an earlier task.
    _lock: Option<File>,
}

/// The lifetime of a machine: it ends with this task or stays in the background.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    Task,
    Background,
}

impl Process {
    /// Starts L1's QEMU in a fresh folder called `name`, with `extra` options.
    pub fn start(name: &str, machine: &Machine, life: Lifetime, extra: &[String]) -> Result<Self> {
        let mut command = emulator::command()?;
        command.args(machine.options()).args(extra);
        Self::start_command(name, command, life)
    }

    /// Starts any QEMU in a fresh folder called `name`.
    pub fn start_command(name: &str, command: Command, life: Lifetime) -> Result<Self> {
        let lock = places::lock(name)?;
        let folder = places::lab("run")?.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let mut command = outliving_nothing(command, life);
        command
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.join(QEMU_LOG))?)
            // Ctrl-C in the terminal is for this task; it ends the machine in its own way.
            .process_group(0);
        let child = Guarded::spawn(&mut command)?;
        fs::write(folder.join(PID), child.pid().to_string())?;
        Ok(Self {
            folder,
            child: Some(child),
            _lock: Some(lock),
        })
    }

    /// The machine's folder of sockets, logs and counters.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The machine that an earlier task left running under this name, if it still runs.
    pub fn find(name: &str) -> Result<Option<Self>> {
        let folder = places::lab("run")?.join(name);
        let process = Self {
            folder,
            child: None,
            _lock: None,
        };
        Ok(process.running_pid().map(|_| process))
    }

    /// The process id, if the process is there and is the one that was started in this folder.
    pub fn running_pid(&self) -> Option<u32> {
        let pid = fs::read_to_string(self.folder.join(PID))
            .ok()?
            .parse()
            .ok()?;
        // The program may run by a loader of its own.
        let command_line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let folder = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        let is_qemu = String::from_utf8_lossy(&command_line).contains("qemu-system");
        (is_qemu && folder == self.folder.canonicalize().ok()?).then_some(pid)
    }

    /// Connects to one of the machine's sockets.
    pub fn connect(&self, socket: &str) -> Result<UnixStream> {
        let mut wait = Wait::begin_silently("waiting for QEMU", Duration::from_secs(60));
        loop {
            // Socket addresses hold 107 bytes, a path in a target folder may be longer.
            let folder = File::open(&self.folder)?;
            let path = format!("/proc/self/fd/{}/{socket}", folder.as_raw_fd());
            match UnixStream::connect(&path) {
                Ok(stream) => return Ok(stream),
                Err(error) => {
                    self.check_alive()?;
                    let place = self.folder.join(socket);
                    wait.go_on()
                        .with_context(|| format!("{}: {error}", place.display()))?;
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A QMP connection; QEMU serves one at a time, so keep it no longer than needed.
    pub fn qmp(&self) -> Result<Qmp> {
        Qmp::start(self.connect(QMP)?)
    }

    /// Fails, with the messages of QEMU and L1, if the machine has ended.
    pub fn check_alive(&self) -> Result<()> {
        if let Some(child) = &self.child
            && let Some(status) = child.ended()?
        {
            bail!(
                "L1's QEMU ended ({status})\n{}\n{}\n{}",
                tail(&self.folder.join(QEMU_LOG), 20),
                tail(&self.folder.join(RESETS_LOG), 30),
                self.console_tail()
            );
        }
        Ok(())
    }

    /// The last lines of L1's console.
    pub fn console_tail(&self) -> String {
        tail(&self.folder.join(CONSOLE_LOG), 40)
    }

    /// What each processor executes, by the word of QEMU: evidence about a machine that hangs. (L1's kernel is not
    /// relocated, so that its /proc/kallsyms names the addresses.)
    pub fn processors(&self) -> String {
        let registers = || {
            let arguments = json!({ "command-line": "info registers -a" });
            let answer = self.qmp()?.execute("human-monitor-command", &arguments)?;
            Ok::<_, anyhow::Error>(answer.as_str().unwrap_or_default().to_owned())
        };
        match registers() {
            Ok(text) => format!("--- registers of L1 ---\n{text}"),
            Err(error) => format!("(QEMU does not tell its registers: {error:#})"),
        }
    }

    /// Lets the machine run on after this task.
    pub fn leave_running(mut self) {
        if let Some(child) = self.child.take() {
            child.release();
        }
    }

    /// Ends a machine that an earlier task left running.
    pub fn end(self) -> Result<()> {
        let Some(pid) = self.running_pid() else {
            return Ok(());
        };
        host::output(Command::new("kill").arg(pid.to_string()))?;
        let mut wait = Wait::begin_silently("ending L1", Duration::from_secs(30));
        while self.running_pid().is_some() {
            if wait.go_on().is_err() {
                host::output(Command::new("kill").args(["-KILL", &pid.to_string()]))?;
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        fs::remove_dir_all(&self.folder)?;
        Ok(())
    }
}

/// A command whose machine the kernel kills if its task is killed without a chance to do it.
fn outliving_nothing(qemu: Command, life: Lifetime) -> Command {
    if life == Lifetime::Background {
        return qemu;
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(qemu.get_program())
        .args(qemu.get_args());
    for (name, value) in qemu.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command
}

fn tail(path: &Path, lines: usize) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().map(str::trim_end).collect();
    let last = &all[all.len().saturating_sub(lines)..];
    format!("--- end of {} ---\n{}", path.display(), last.join("\n"))
}
