//! The control channel's end in L1.
//!
//! One client at a time, one request at a time. The channel outlives its clients: a client that
//! goes away, or a machine that is restored from a snapshot, just means that the next one sends its hello.

use std::fs::File;
use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use terrace_lab_programs::frame::{self, Decoder, Frame, FrameKind};
use terrace_lab_programs::port;

use crate::command;
use crate::store::Storing;

/// The control port, and the bytes read from it but not yet dealt with.
pub struct Channel {
    pub port: File,
    pub decoder: Decoder,
}

impl Channel {
    /// Reads the bytes that are there, waiting for them if there are none; false if no client is connected.
    pub fn read_more(&mut self) -> Result<bool> {
        let mut chunk = vec![0; 256 << 10];
        let read = self
            .port
            .read(&mut chunk)
            .context("reading the control port")?;
        self.decoder.feed(&chunk[..read]);
        Ok(read > 0)
    }

    pub fn send(&mut self, kind: FrameKind, payload: &[u8]) -> Result<()> {
        frame::write(&mut self.port, kind, payload).context("writing to the control port")
    }

    pub fn send_exit(&mut self, code: i32) -> Result<()> {
        self.send(FrameKind::Exit, &code.to_le_bytes())
    }

    /// Answers a hello, so that the client knows where its session starts.
    pub fn send_hello(&mut self, payload: &[u8]) -> Result<()> {
        self.send(FrameKind::Hello, payload)?;
        Ok(self.port.flush()?)
    }
}

/// Serves for ever.
pub fn serve() -> Result<()> {
    let mut channel = Channel {
        port: port::open(port::CONTROL, false)?,
        decoder: Decoder::default(),
    };
    let mut storing = None;
    loop {
        if !channel.read_more()? {
            channel.decoder.reset();
            storing = None;
            thread::sleep(Duration::from_millis(10));
            continue;
        }
        if let Err(error) = handle_all(&mut channel, &mut storing) {
            eprintln!("lab-host: {error:#}");
            channel.decoder.reset();
        }
    }
}

fn handle_all(channel: &mut Channel, storing: &mut Option<Storing>) -> Result<()> {
    while let Some(frame) = channel.decoder.next_frame()? {
        handle(channel, storing, &frame)?;
    }
    Ok(())
}

fn handle(channel: &mut Channel, storing: &mut Option<Storing>, frame: &Frame) -> Result<()> {
    match frame.kind {
        FrameKind::Hello => channel.send_hello(&frame.payload),
        FrameKind::Run => command::run(channel, &serde_json::from_slice(&frame.payload)?),
        FrameKind::Store => match Storing::start(&frame.payload) {
            Ok(started) => {
                *storing = Some(started);
                finish_if_complete(channel, storing)
            }
            Err(error) => fail(channel, &error),
        },
        FrameKind::Data => {
            let Some(current) = storing else {
                return Ok(());
            };
            match current.take(&frame.payload) {
                Ok(()) => finish_if_complete(channel, storing),
                Err(error) => {
                    *storing = None;
                    fail(channel, &error)
                }
            }
        }
        // A kill that comes after its command has ended, or an echo of our own frames.
        FrameKind::Kill | FrameKind::Stdout | FrameKind::Stderr | FrameKind::Exit => Ok(()),
    }
}

fn finish_if_complete(channel: &mut Channel, storing: &mut Option<Storing>) -> Result<()> {
    if let Some(complete) = storing.take_if(|storing| storing.is_complete()) {
        match complete.finish() {
            Ok(()) => channel.send_exit(0)?,
            Err(error) => fail(channel, &error)?,
        }
    }
    Ok(())
}

fn fail(channel: &mut Channel, error: &anyhow::Error) -> Result<()> {
    channel.send(FrameKind::Stderr, format!("{error:#}\n").as_bytes())?;
    channel.send_exit(1)
}
