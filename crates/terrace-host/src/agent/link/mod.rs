//! The connection to one VM's agent.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use terrace_proto::Tick;
use terrace_proto::agent::{
    AgentMessage, Allowance, Budgets, Decoder, Frames, Gather, HostMessage, Message as _, Mode,
};
use terrace_sys::connect_unix;

use super::watch::{AgentView, AgentWatch, WatchConfig};

/// Bytes read at once; bytes read in a second, and at most after a rest. More has to wait in the socket.
const CHUNK: usize = 16 << 10;
const BYTES_PER_S: u64 = 256 << 10;
const BYTES_AT_ONCE: u64 = 512 << 10;
/// Bytes that wait to be written; what is wanted then is said later.
const MAX_WAITING: usize = 256 << 10;
/// Time between two messages with the wanted state for the agent, so that it knows of this end.
const ORDERS_EVERY: Duration = Duration::from_secs(1);
/// After how long half a frame is taken for one that will never be whole.
const FRAME_PATIENCE: Duration = Duration::from_secs(2);
/// Time that QEMU may take to answer, and pauses between attempts.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(100);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(4);

/// The host's orders to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orders {
    /// The mode: who does what for the guest's memory.
    pub mode: Mode,
    /// Neither sample nor move.
    pub paused: bool,
    /// The agent's budgets.
    pub budgets: Budgets,
}

impl Orders {
    fn messages(self) -> [HostMessage; 3] {
        [
            HostMessage::Mode(self.mode),
            HostMessage::Pause(self.paused),
            HostMessage::Budgets(self.budgets),
        ]
    }
}

/// The connection to one VM's agent, and the watch over it.
#[derive(Debug)]
pub struct AgentLink {
    socket: PathBuf,
    stream: Option<UnixStream>,
    decoder: Decoder<AgentMessage>,
    bytes: Allowance,
    watch: AgentWatch,
    orders: Orders,
    /// The time when the orders were last sent over this connection.
    said_at: Option<Tick>,
    out: Vec<u8>,
    waits_since: Option<Tick>,
    again_at: Tick,
    pause: Duration,
}

impl AgentLink {
    /// A link to QEMU's chardev socket; [`AgentLink::step`] connects it.
    #[must_use]
    pub fn new(socket: PathBuf, watch: WatchConfig, orders: Orders, now: Tick) -> Self {
        Self {
            socket,
            stream: None,
            decoder: Decoder::default(),
            bytes: Allowance::new(BYTES_PER_S, BYTES_AT_ONCE, now),
            watch: AgentWatch::new(watch, now),
            orders,
            said_at: None,
            out: Vec::new(),
            waits_since: None,
            again_at: now,
            pause: FIRST_PAUSE,
        }
    }

    /// To be called several times a second: connects, reads, answers, and decides. Never fails, and holds up
    /// the caller no longer than connecting may take.
    pub fn step(&mut self, now: Tick) {
        if self.stream.is_none() && now >= self.again_at {
            self.connect(now);
        }
        self.exchange(now)
            .unwrap_or_else(|why| self.lose(now, &why));
        self.watch.tick(now);
    }

    fn connect(&mut self, now: Tick) {
        let connected = connect_unix(&self.socket, CONNECT_TIMEOUT);
        match connected.map_err(|e| e.source).and_then(|stream| {
            stream.set_nonblocking(true)?;
            Ok(stream)
        }) {
            Ok(stream) => {
                self.stream = Some(stream);
                self.decoder = Decoder::default();
                self.watch.connected();
            }
            Err(error) => {
                let why = format!("{}: {error}", self.socket.display());
                self.lose(now, &why);
            }
        }
    }

    fn exchange(&mut self, now: Tick) -> Result<(), String> {
        if self.stream.is_none() {
            return Ok(());
        }
        self.read(now)?;
        self.queue_orders(now);
        self.write()
    }

    fn read(&mut self, now: Tick) -> Result<(), String> {
        let mut buffer = [0; CHUNK];
        let mut allowed = usize::try_from(self.bytes.left(now)).unwrap_or(CHUNK);
        while allowed > 0 {
            let Some(stream) = &mut self.stream else {
                return Ok(());
            };
            let room = allowed.min(CHUNK);
            match stream.read(&mut buffer[..room]) {
                Ok(0) => return Err("QEMU closed the connection".to_owned()),
                Ok(len) => {
                    self.bytes.take(now, len as u64);
                    allowed -= len;
                    let messages = self.decoder.push(&buffer[..len]);
                    self.hear(now, messages);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("reading from QEMU: {error}")),
            }
        }
        if self.decoder.pending() == 0 {
            self.waits_since = None;
        } else if now.since(*self.waits_since.get_or_insert(now)) >= FRAME_PATIENCE {
            self.waits_since = None;
            let messages = self.decoder.cut();
            self.hear(now, messages);
        }
        Ok(())
    }

    fn hear(&mut self, now: Tick, messages: Vec<AgentMessage>) {
        for message in messages {
            let hello = matches!(message, AgentMessage::Hello(_));
            if let Some(answer) = self.watch.hear(now, message) {
                self.queue(&answer);
            } else {
                self.pause = FIRST_PAUSE;
            }
            if hello {
                self.said_at = None;
            }
        }
        self.watch
            .met(now, self.decoder.counts(), self.decoder.broken());
    }

    /// Nothing is said before the agent's hello: it would wait in QEMU until an agent comes, and be old then.
    fn queue_orders(&mut self, now: Tick) {
        let due = self.said_at.is_none_or(|at| now.since(at) >= ORDERS_EVERY);
        if due && self.watch.is_welcome() {
            self.said_at = Some(now);
            for message in self.orders.messages() {
                self.queue(&message);
            }
        }
    }

    /// Puts a message into the bytes to be written; `false` if too many wait there.
    fn queue(&mut self, message: &HostMessage) -> bool {
        match message.encode() {
            Ok(frame) if self.out.len() + frame.len() <= MAX_WAITING => {
                self.out.extend(frame);
                true
            }
            _ => false,
        }
    }

    fn write(&mut self) -> Result<(), String> {
        let Some(stream) = &mut self.stream else {
            return Ok(());
        };
        while !self.out.is_empty() {
            match stream.write(&self.out) {
                Ok(0) => return Err("QEMU takes nothing".to_owned()),
                Ok(len) => drop(self.out.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("writing to QEMU: {error}")),
            }
        }
        Ok(())
    }

    fn lose(&mut self, now: Tick, why: &str) {
        self.stream = None;
        self.out.clear();
        self.said_at = None;
        self.waits_since = None;
        self.watch.disconnected(why);
        self.again_at = now.after(self.pause);
        self.pause = (self.pause * 2).min(MAX_PAUSE);
    }

    /// Sets the agent's orders from now on.
    pub fn order(&mut self, orders: Orders) {
        if self.orders != orders {
            self.orders = orders;
            self.said_at = None;
        }
    }

    /// The VM's RAM, as the hypervisor reports it now. A lie stays one.
    pub fn know_ram(&mut self, bytes: Option<u64>) {
        self.watch.know_ram(bytes);
    }

    /// Hands pages to an agent in coordinated mode; `false` if it is not there, or does not keep up.
    pub fn send_frames(&mut self, frames: Frames) -> bool {
        self.orders.mode == Mode::Coordinated
            && self.watch.is_welcome()
            && self.queue(&HostMessage::Frames(frames))
    }

    /// Names hot pages to an agent, in any mode; `false` if it is not there, or does not keep up.
    pub fn send_hot(&mut self, part: Gather) -> bool {
        self.watch.is_welcome() && self.queue(&HostMessage::Gather(part))
    }

    /// An operator's decision to believe an agent that lied again: it is connected anew.
    pub fn forgive(&mut self, now: Tick) {
        self.lose(now, "to be connected again");
        self.again_at = now;
        self.pause = FIRST_PAUSE;
        self.watch.forgive(now);
    }

    /// The state of the agent as of the last step.
    #[must_use]
    pub fn view(&self) -> AgentView {
        self.watch.view()
    }
}

#[cfg(test)]
mod tests;
