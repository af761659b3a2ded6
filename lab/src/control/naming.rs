//! The host's end of an agent's port, as a host that names frames has it: it welcomes the agent, says `coordinated` once a
//! second, and takes down what the agent reports.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use terrace_proto::Gfn;
use terrace_proto::agent::{
    AgentMessage, Budgets, Decoder, Frames, HostMessage, Message as _, Mode, Report, Versions,
};

use super::channel::is_timeout;

/// Time between two orders.
const EVERY: Duration = Duration::from_secs(1);
/// Time without a heartbeat after which nothing more is said: it would wait for the next agent.
const SILENCE: Duration = Duration::from_secs(3);
/// Time between two looks whether they are due.
const LOOK: Duration = Duration::from_millis(50);

/// A host that names frames; it is silent once this value is gone.
pub struct NamingHost {
    shared: Arc<Shared>,
    generation: u64,
    thread: Option<JoinHandle<Result<()>>>,
}

struct Shared {
    stream: Mutex<UnixStream>,
    report: Mutex<Option<Report>>,
    is_over: AtomicBool,
}

impl NamingHost {
    /// Begins to speak on the host's end of the port.
    pub fn start(stream: UnixStream) -> Result<Self> {
        let reader = stream.try_clone()?;
        reader.set_read_timeout(Some(LOOK))?;
        let shared = Arc::new(Shared {
            stream: Mutex::new(stream),
            report: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.speak(reader)
        });
        Ok(Self {
            shared,
            generation: 0,
            thread: Some(thread),
        })
    }

    /// Names frames of a new decision.
    pub fn name(&mut self, promote: &[u64], demote: &[u64]) -> Result<()> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            bail!("the host's end of the agent's port is closed");
        }
        let gfns = |frames: &[u64]| frames.iter().copied().map(Gfn).collect();
        self.generation += 1;
        let frames = Frames::new(self.generation, gfns(promote), gfns(demote))?;
        self.shared.send(&HostMessage::Frames(frames))
    }

    /// Takes the agent's last report.
    pub fn take_report(&self) -> Option<Report> {
        self.shared.report().take()
    }
}

impl Drop for NamingHost {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its error was said by `name`, or concerns nobody any more.
            thread.join().ok();
        }
    }
}

impl Shared {
    fn report(&self) -> std::sync::MutexGuard<'_, Option<Report>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, message: &HostMessage) -> Result<()> {
        let bytes = message.encode()?;
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(&bytes).context("the agent's port")
    }

    fn speak(&self, mut reader: UnixStream) -> Result<()> {
        let mut decoder: Decoder<AgentMessage> = Decoder::default();
        let mut bytes = [0; 4096];
        let mut heard: Option<Instant> = None;
        let mut due = Instant::now();
        while !self.is_over.load(Ordering::Relaxed) {
            let count = match reader.read(&mut bytes) {
                Ok(0) => bail!("QEMU closed the agent's port"),
                Ok(count) => count,
                Err(error) if is_timeout(&error) => 0,
                Err(error) => return Err(error).context("the agent's port"),
            };
            for message in decoder.push(&bytes[..count]) {
                match message {
                    AgentMessage::Hello(hello) => {
                        let version = Versions::OURS.common(hello.versions);
                        self.send(&HostMessage::Welcome {
                            version: version.context("no common version")?,
                            session: hello.session,
                        })?;
                        heard = Some(Instant::now());
                    }
                    AgentMessage::Heartbeat(beat) => {
                        *self.report() = Some(beat.report().clone());
                        heard = heard.map(|_| Instant::now());
                    }
                }
            }
            heard = heard.filter(|at| at.elapsed() < SILENCE);
            if heard.is_some() && Instant::now() >= due {
                due = Instant::now() + EVERY;
                self.send(&HostMessage::Mode(Mode::Coordinated))?;
                self.send(&HostMessage::Pause(false))?;
                self.send(&HostMessage::Budgets(Budgets::default()))?;
            }
        }
        Ok(())
    }
}
