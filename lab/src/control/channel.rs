//! The control channel: commands run in L1 and files stored there.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use terrace_lab_programs::frame::{self, Decoder, Frame, FrameKind, Run, Store};
use terrace_lab_programs::port;

use crate::machine::process::Process;
use crate::progress::Wait;

/// Time between two checks of a wait whether the machine is still alive.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Time that L1 has to kill a command.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes of a file per frame.
const PIECE: usize = 256 << 10;

/// A session with `lab-host serve`.
pub struct Control {
    stream: UnixStream,
    decoder: Decoder,
}

impl Control {
    /// Connects and waits until L1 answers.
    pub fn connect(process: &Process, mut wait: Wait) -> Result<Self> {
        let stream = process.connect(port::CONTROL)?;
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        let mut control = Self {
            stream,
            decoder: Decoder::default(),
        };
        let hello = frame::hello(fresh_number()?);
        let mut next_hello = Instant::now();
        loop {
            // Bytes that were sent before L1 listens may be lost.
            if Instant::now() >= next_hello {
                control.stream.write_all(&hello)?;
                next_hello = Instant::now() + Duration::from_secs(2);
            }
            process.check_alive()?;
            control.read_more()?;
            if control.decoder.skip_past(&hello) {
                return Ok(control);
            }
            wait.go_on()?;
        }
    }

    /// Runs a shell command, handing on its output piece by piece; returns its exit code.
    ///
    /// # Errors
    /// If it takes longer than `timeout` (it is killed then) or the machine is gone.
    pub fn run(
        &mut self,
        process: &Process,
        request: &Run,
        timeout: Duration,
        mut on_output: impl FnMut(FrameKind, &[u8]),
    ) -> Result<i32> {
        let payload = serde_json::to_vec(request)?;
        self.send(process, FrameKind::Run, &payload)?;
        let mut deadline = Instant::now() + timeout;
        let mut killed = false;
        loop {
            match self.next(process, deadline)? {
                Some(frame) if frame.kind == FrameKind::Exit && killed => {
                    bail!(
                        "killed after {timeout:?} without an end: {}",
                        request.command
                    )
                }
                Some(frame) if frame.kind == FrameKind::Exit => return exit_code(&frame),
                Some(frame) => on_output(frame.kind, &frame.payload),
                None if killed => bail!("L1 does not answer any more"),
                None => {
                    self.send(process, FrameKind::Kill, &[])?;
                    killed = true;
                    deadline = Instant::now() + KILL_TIMEOUT;
                }
            }
        }
    }

    /// Stores a file of this machine in L1, with its permissions.
    pub fn store(&mut self, process: &Process, file: &Path, path: &str) -> Result<()> {
        let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        let request = Store {
            path: path.to_owned(),
            mode: fs::metadata(file)?.permissions().mode() & 0o7777,
            size: bytes.len() as u64,
        };
        self.send(process, FrameKind::Store, &serde_json::to_vec(&request)?)?;
        for piece in bytes.chunks(PIECE) {
            self.send(process, FrameKind::Data, piece)?;
        }
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut message = String::new();
        while let Some(frame) = self.next(process, deadline)? {
            if frame.kind == FrameKind::Exit {
                if exit_code(&frame)? != 0 {
                    bail!("cannot store {path}: {}", message.trim_end());
                }
                return Ok(());
            }
            message.push_str(&String::from_utf8_lossy(&frame.payload));
        }
        bail!("L1 did not confirm that {path} is stored")
    }

    fn send(&mut self, process: &Process, kind: FrameKind, payload: &[u8]) -> Result<()> {
        let sent = frame::write(&mut self.stream, kind, payload);
        if sent.is_err() {
            // The machine's way of ending is the better error than a closed channel. It may still be ending.
            let patience = Instant::now() + Duration::from_secs(5);
            while Instant::now() < patience {
                process.check_alive()?;
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        sent.context("control channel of L1")
    }

    /// The next frame. `None` if the deadline comes first.
    fn next(&mut self, process: &Process, deadline: Instant) -> Result<Option<Frame>> {
        loop {
            match self.decoder.next_frame()? {
                // The echo of a hello that was said more than once.
                Some(frame) if frame.kind == FrameKind::Hello => {}
                Some(frame) => return Ok(Some(frame)),
                None if Instant::now() >= deadline => return Ok(None),
                None => {
                    self.read_more()?;
                    process.check_alive()?;
                }
            }
        }
    }

    fn read_more(&mut self) -> Result<()> {
        let mut chunk = vec![0; 256 << 10];
        match self.stream.read(&mut chunk) {
            Ok(0) => bail!("L1's QEMU closed the control channel"),
            Ok(read) => self.decoder.feed(&chunk[..read]),
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error).context("control channel of L1"),
        }
        Ok(())
    }
}

/// Whether a read ended because nothing came in time.
pub fn is_timeout(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// A number that no other session uses.
pub fn fresh_number() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(now.as_secs() << 30 | u64::from(now.subsec_nanos()))
}

fn exit_code(frame: &Frame) -> Result<i32> {
    let (code, _) = frame
        .payload
        .split_first_chunk()
        .context("an exit frame without a code")?;
    Ok(i32::from_le_bytes(*code))
}
