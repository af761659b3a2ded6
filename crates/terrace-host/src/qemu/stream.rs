//! The monitor's connection: whole lines within limits of length and time, events left out and resets counted.

use std::io::{self, BufRead, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::Deserialize;

/// Longest line that is believed if the answer is long by nature: registers of some thousand virtual CPUs.
pub(super) const LONG_LINE: usize = 16 << 20;
/// Longest line else, events and greetings among them.
pub(super) const SHORT_LINE: usize = 1 << 20;
const CHUNK: usize = 16 << 10;
/// Chunks of events that are taken in at once while nothing is asked.
const MAX_CHUNKS: usize = 64;

/// QMP lines over a socket. Events are dropped here, so that one that this program does not know is no
/// error, and a flood of them takes no memory; only resets of the VM and changes of its memory are counted. The end of
/// the connection is an error, never an empty line.
#[derive(Debug)]
pub(super) struct LineStream {
    socket: UnixStream,
    received: Vec<u8>,
    /// The line handed out, newline included, and how much of it was taken.
    line: Vec<u8>,
    taken: usize,
    output: Vec<u8>,
    deadline: Instant,
    /// Events [`RESET`] among the lines read so far.
    resets: u64,
    /// Events of [`MEMORY`] among them.
    memory_events: u64,
    /// Events of [`RUN`] among them, and resets.
    run_events: u64,
    /// Bytes of a line at most.
    most: usize,
}

/// The VM was reset, by whomever: its guest, a triple fault, a user of the monitor. QEMU 7.2 sends no event of this
/// kind of a snapshot that was loaded, only STOP and RESUME.
const RESET: &str = "RESET";

/// The VM was stopped, or runs again: a snapshot may have been loaded meanwhile.
const RUN: [&str; 2] = ["STOP", "RESUME"];

/// After these the guest's RAM may be another one: a virtio-mem device plugged or unplugged; a device, perhaps a DIMM,
/// is out; the guest said what came of a plug or an unplug, or that it does not let go. That a DIMM was put in is not
/// reported before the guest speaks of it.
const MEMORY: [&str; 5] = [
    "MEMORY_DEVICE_SIZE_CHANGE",
    "DEVICE_DELETED",
    "ACPI_DEVICE_OST",
    "DEVICE_UNPLUG_GUEST_ERROR",
    "MEM_UNPLUG_ERROR",
];

#[derive(Deserialize)]
struct Kind {
    event: Option<serde_json::Value>,
}

impl LineStream {
    pub(super) fn new(socket: UnixStream, deadline: Instant) -> Self {
        Self {
            socket,
            received: Vec::new(),
            line: Vec::new(),
            taken: 0,
            output: Vec::new(),
            deadline,
            resets: 0,
            memory_events: 0,
            run_events: 0,
            most: SHORT_LINE,
        }
    }

    /// Number of resets in the lines that were read since this was last asked. Lines come in the order of what
    /// they report, so once an answer was read these are the resets before it.
    pub(super) fn take_resets(&mut self) -> u64 {
        std::mem::take(&mut self.resets)
    }

    /// The same of events after which the guest's RAM may be another one.
    pub(super) fn take_memory_events(&mut self) -> u64 {
        std::mem::take(&mut self.memory_events)
    }

    /// The same of events after which the guest's memory may have other contents: resets, and stops.
    pub(super) fn take_run_events(&mut self) -> u64 {
        std::mem::take(&mut self.run_events)
    }

    /// Takes in the events that came while nothing was asked; never waits. Returns whether these are all: of a flood the rest is
    /// read with the next call.
    pub(super) fn take_in_events(&mut self) -> io::Result<bool> {
        self.socket.set_nonblocking(true)?;
        let received = self.receive_what_is_there();
        self.socket.set_nonblocking(false)?;
        received
    }

    fn receive_what_is_there(&mut self) -> io::Result<bool> {
        for _ in 0..MAX_CHUNKS {
            while let Some(line) = self.whole_line() {
                self.count(&line);
            }
            let len = self.received.len();
            if len > SHORT_LINE {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.received.resize(len + CHUNK, 0);
            let got = self.socket.read(&mut self.received[len..]);
            self.received.truncate(len + got.as_ref().map_or(0, |n| *n));
            match got {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn whole_line(&mut self) -> Option<Vec<u8>> {
        let at = self.received.iter().position(|b| *b == b'\n')?;
        let rest = self.received.split_off(at + 1);
        Some(std::mem::replace(&mut self.received, rest))
    }

    /// Whether a line is an event; those that matter are counted.
    fn count(&mut self, line: &[u8]) -> bool {
        let kind = serde_json::from_slice::<Kind>(line);
        let Some(event) = kind.ok().and_then(|kind| kind.event) else {
            return false;
        };
        let is_reset = event == RESET;
        self.resets += u64::from(is_reset);
        self.run_events += u64::from(is_reset || RUN.iter().any(|name| event == *name));
        self.memory_events += u64::from(MEMORY.iter().any(|name| event == *name));
        true
    }

    /// Sets the time by which everything that is sent and received from now on must be done.
    pub(super) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Lines from now on have so many bytes at most.
    pub(super) fn set_most(&mut self, bytes: usize) {
        self.most = bytes;
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    fn time_left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            Ok(left)
        }
    }

    fn next_line(&mut self) -> io::Result<()> {
        loop {
            let line = self.receive_line()?;
            if !self.count(&line) {
                self.line = line;
                self.taken = 0;
                return Ok(());
            }
        }
    }

    fn receive_line(&mut self) -> io::Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.received[searched..].iter().position(|b| *b == b'\n') {
                let rest = self.received.split_off(searched + at + 1);
                return Ok(std::mem::replace(&mut self.received, rest));
            }
            searched = self.received.len();
            if searched > self.most {
                let what = format!("a line of more than {} bytes", self.most);
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            self.receive_some()?;
        }
    }

    fn receive_some(&mut self) -> io::Result<()> {
        self.socket.set_read_timeout(Some(self.time_left()?))?;
        let len = self.received.len();
        self.received.resize(len + CHUNK, 0);
        let got = self.socket.read(&mut self.received[len..]);
        self.received.truncate(len + got.as_ref().map_or(0, |n| *n));
        match got {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}

impl Read for LineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.fill_buf()?.read(buffer)?;
        self.consume(got);
        Ok(got)
    }
}

impl BufRead for LineStream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.taken == self.line.len() {
            self.next_line()?;
        }
        Ok(&self.line[self.taken..])
    }

    fn consume(&mut self, amount: usize) {
        self.taken = (self.taken + amount).min(self.line.len());
    }
}

impl Write for LineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let output = std::mem::take(&mut self.output);
        let mut sent = 0;
        while sent < output.len() {
            self.socket.set_write_timeout(Some(self.time_left()?))?;
            match self.socket.write(&output[sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => sent += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(limit: Duration) -> (LineStream, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        (LineStream::new(here, Instant::now() + limit), there)
    }

    #[test]
    fn lines_come_whole_and_events_do_not_come() {
        let (mut stream, mut there) = pair(Duration::from_secs(10));
        there
            .write_all(b"{\"event\": \"NEW_IN_QEMU_99\", \"data\": 1}\n{\"return\"")
            .unwrap();
        let writer = std::thread::spawn(move || {
            there.write_all(b": {}}\nsecond\n").unwrap();
            there
        });
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert_eq!(line, "{\"return\": {}}\n");
        line.clear();
        stream.read_line(&mut line).unwrap();
        assert_eq!(line, "second\n");
        drop(writer.join().unwrap());
        let end = stream.read_line(&mut line).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn resets_before_an_answer_are_counted_and_no_other_event() {
        let (mut stream, mut there) = pair(Duration::from_secs(10));
        let reset = r#"{"timestamp": {"seconds": 1}, "event": "RESET", "data": {"guest": true}}"#;
        let stop = r#"{"event": "STOP", "data": {"event": "RESET"}}"#;
        let odd = r#"{"event": ["RESET"]}"#;
        writeln!(
            there,
            "{reset}\n{stop}\n{odd}\n{reset}\nfirst\n{reset}\nsecond"
        )
        .unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert_eq!((line.as_str(), stream.take_resets()), ("first\n", 2));
        line.clear();
        stream.read_line(&mut line).unwrap();
        assert_eq!((line.as_str(), stream.take_resets()), ("second\n", 1));
        assert_eq!(stream.take_resets(), 0);
    }

    #[test]
    fn events_about_memory_are_counted_and_no_others() {
        let (mut stream, mut there) = pair(Duration::from_secs(10));
        let event = |name: &str| format!("{{\"event\": \"{name}\", \"data\": {{}}}}\n");
        for name in MEMORY {
            there.write_all(event(name).as_bytes()).unwrap();
        }
        there.write_all(event("BALLOON_CHANGE").as_bytes()).unwrap();
        there.write_all(event(RESET).as_bytes()).unwrap();
        there.write_all(b"{\"event\": \"DEVICE_").unwrap();
        stream.take_in_events().unwrap();
        assert_eq!((stream.take_memory_events(), stream.take_resets()), (5, 1));
        there.write_all(b"DELETED\"}\nanswer\n").unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert_eq!(
            (line.as_str(), stream.take_memory_events()),
            ("answer\n", 1)
        );
        stream.take_in_events().unwrap();
        drop(there);
        assert!(stream.take_in_events().is_err(), "the connection is lost");
    }

    #[test]
    fn an_endless_flood_of_events_is_not_read_for_ever() {
        let (mut stream, mut there) = pair(Duration::from_secs(10));
        let writer = std::thread::spawn(move || {
            let flood = "{\"event\": \"DEVICE_DELETED\"}\n".repeat(1000);
            while there.write_all(flood.as_bytes()).is_ok() {}
        });
        for _ in 0..3 {
            stream.take_in_events().unwrap();
        }
        assert!(stream.received.len() <= SHORT_LINE);
        drop(stream);
        writer.join().unwrap();
    }

    #[test]
    fn a_flood_of_events_takes_no_memory_and_meets_the_deadline() {
        let (mut stream, mut there) = pair(Duration::from_millis(200));
        let writer = std::thread::spawn(move || {
            let flood = "{\"event\": \"RESET\"}\n".repeat(1000);
            while there.write_all(flood.as_bytes()).is_ok() {}
        });
        let error = stream.read_line(&mut String::new()).unwrap_err();
        assert!(matches!(
            error.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
        ));
        assert!(stream.take_resets() > 1000, "the flood was read");
        assert!(stream.received.capacity() < 64 * CHUNK && stream.line.is_empty());
        drop(stream);
        writer.join().unwrap();
    }

    #[test]
    fn qmp_that_trickles_meets_the_deadline() {
        let (mut stream, mut there) = pair(Duration::from_millis(40));
        let writer = std::thread::spawn(move || {
            while there.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let error = stream.read_line(&mut String::new()).unwrap_err();
        assert!(matches!(
            error.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
        ));
        drop(stream);
        writer.join().unwrap();
    }

    #[test]
    fn qmp_that_sends_an_endless_line_meets_the_limit() {
        let (mut stream, mut there) = pair(Duration::from_secs(60));
        let writer = std::thread::spawn(move || {
            let chunk = vec![b'x'; 1 << 20];
            while there.write_all(&chunk).is_ok() {}
        });
        let error = stream.read_line(&mut String::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(stream);
        writer.join().unwrap();
    }
}
