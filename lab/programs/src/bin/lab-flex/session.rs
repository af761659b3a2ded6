//! One hypervisor's vhost-user session: its messages, and the queues that it hands over.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result};

use crate::balloon::{Balloons, Manner};
use crate::memory::Memory;
use crate::ring::Ring;
use crate::wire::{self, Message};

const VERSION_1: u64 = 1 << 32;
const PROTOCOL_FEATURES: u64 = 1 << 30;
/// The protocol features MQ, REPLY_ACK and CONFIG.
const FEATURES: u64 = 1 | 1 << 3 | 1 << 9;

/// The bits of a message's first number that name the queue, and the bit that shows that no file comes with it.
const QUEUE_MASK: u64 = 0xff;
const NO_FILE: u64 = 0x100;

pub struct Session {
    stream: UnixStream,
    pub memory: Memory,
    pub balloons: Balloons,
    rings: Vec<Ring>,
    /// The statistics buffer that the device holds back until it wants the next.
    statistics: Option<u16>,
}

impl Session {
    pub fn new(stream: UnixStream, balloons: Balloons) -> Self {
        let queues = 2 * balloons.tiers.len() + 2;
        Self {
            stream,
            memory: Memory::default(),
            rings: (0..queues).map(|_| Ring::default()).collect(),
            balloons,
            statistics: None,
        }
    }

    pub fn descriptors(&self) -> Vec<RawFd> {
        let kicks = self.rings.iter().filter_map(|ring| ring.kick.as_ref());
        let kicks = kicks.map(AsRawFd::as_raw_fd);
        kicks.chain([self.stream.as_raw_fd()]).collect()
    }

    /// Deals with the descriptors that are ready; false if the hypervisor has gone.
    pub fn serve(&mut self, ready: &[RawFd]) -> Result<bool> {
        if ready.contains(&self.stream.as_raw_fd()) {
            let Some(message) = wire::receive(&mut self.stream)? else {
                return Ok(false);
            };
            self.handle(message)?;
        }
        for ring in &mut self.rings {
            if let Some(kick) = &mut ring.kick
                && ready.contains(&kick.as_raw_fd())
            {
                kick.read_exact(&mut [0; 8])?;
            }
        }
        self.work()?;
        Ok(true)
    }

    /// Does all that can be done on the queues now.
    pub fn work(&mut self) -> Result<()> {
        let pages = 2 * self.balloons.tiers.len();
        for queue in 0..pages {
            while self.balloons.manner != Manner::Silent
                && let Some(chain) = self.rings[queue].pop(&self.memory)?
            {
                let written = self.balloons.request(
                    &self.memory,
                    &chain,
                    queue / 2,
                    queue.is_multiple_of(2),
                )?;
                self.rings[queue].push(&self.memory, chain.head, written)?;
            }
        }
        if self.balloons.has_news
            && let Some(chain) = self.rings[pages].pop(&self.memory)?
        {
            let event = self.balloons.event();
            self.memory.write(chain.buffers[0].address, &event)?;
            self.rings[pages].push(&self.memory, chain.head, u32::try_from(event.len())?)?;
            self.balloons.has_news = false;
        }
        if let Some(chain) = self.rings[pages + 1].pop(&self.memory)? {
            self.balloons.take_statistics(&self.memory, &chain)?;
            self.statistics = Some(chain.head);
        }
        Ok(())
    }

    /// Lets the guest send its next statistics.
    pub fn ask_for_statistics(&mut self) -> Result<()> {
        let queue = 2 * self.balloons.tiers.len() + 1;
        match self.statistics.take() {
            Some(head) => self.rings[queue].push(&self.memory, head, 0),
            None => Ok(()),
        }
    }

    fn handle(&mut self, mut message: Message) -> Result<()> {
        match message.request {
            1 => return self.answer(&message, &(VERSION_1 | PROTOCOL_FEATURES).to_le_bytes()),
            5 => self.memory = Memory::new(&mut message)?,
            8 => self.ring(&message)?.size = u16::try_from(message.u32(4)?)?,
            9 => {
                let (descriptors, used, available) =
                    (message.u64(8)?, message.u64(16)?, message.u64(24)?);
                let ring = self.ring(&message)?;
                (ring.descriptors, ring.used, ring.available) = (descriptors, used, available);
            }
            10 => self.ring(&message)?.next = u16::try_from(message.u32(4)?)?,
            11 => return self.stop_ring(&message),
            12 => {
                let file = file(&mut message)?;
                self.ring(&message)?.kick = file;
            }
            13 => {
                let file = file(&mut message)?;
                self.ring(&message)?.call = file;
            }
            15 => return self.answer(&message, &FEATURES.to_le_bytes()),
            17 => return self.answer(&message, &(self.rings.len() as u64).to_le_bytes()),
            24 => return self.answer_config(&message),
            _ => {}
        }
        if message.needs_reply {
            self.answer(&message, &0_u64.to_le_bytes())?;
        }
        Ok(())
    }

    fn answer(&mut self, message: &Message, payload: &[u8]) -> Result<()> {
        wire::reply(&mut self.stream, message.request, payload)
    }

    fn answer_config(&mut self, message: &Message) -> Result<()> {
        let (offset, size) = (message.u32(0)? as usize, message.u32(4)? as usize);
        let mut payload = message.payload[..12].to_vec();
        let mut space = self.balloons.config();
        space.resize(offset + size, 0);
        payload.extend(&space[offset..]);
        self.answer(message, &payload)
    }

    /// Takes a queue back from the device: the hypervisor stops the device, as a reset of it does.
    fn stop_ring(&mut self, message: &Message) -> Result<()> {
        let ring = self.ring(message)?;
        let next = u32::from(ring.next);
        *ring = Ring::default();
        self.statistics = None;
        if message.u32(0)? == 0 {
            self.balloons.reset();
        }
        let payload = [message.u32(0)?, next].map(u32::to_le_bytes).concat();
        self.answer(message, &payload)
    }

    /// The queue that a message is about; its number comes first, and of a file's message in its low byte.
    fn ring(&mut self, message: &Message) -> Result<&mut Ring> {
        let index = u64::from(message.u32(0)?) & QUEUE_MASK;
        self.rings
            .get_mut(usize::try_from(index)?)
            .with_context(|| format!("no queue {index}"))
    }
}

fn file(message: &mut Message) -> Result<Option<File>> {
    if message.u64(0)? & NO_FILE != 0 {
        return Ok(None);
    }
    Ok(message.files.pop().map(File::from))
}
