//! Frames, and the decoder that finds them in any stream of bytes.

use std::marker::PhantomData;

use serde::Serialize;

/// First bytes of every frame.
pub const MARK: [u8; 4] = [0xd7, b'T', b'g', 0x0a];
/// Bytes before a frame's body.
pub const HEADER: usize = 12;
/// Longest body that either end sends or accepts, bytes.
pub const MAX_BODY: usize = 64 << 10;
/// Bytes that are part of no frame, between two good ones, that a link survives. An agent that was killed
/// leaves half a frame behind.
const MAX_GARBAGE: u64 = 2 * MAX_BODY as u64;
/// Frames with a wrong check, between two good ones, that a link survives. Each may cost a pass over
/// [`MAX_BODY`].
const MAX_BAD_FRAMES: u32 = 16;

/// A message that cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The frame's body is longer than [`MAX_BODY`].
    #[error("a message of {0} bytes is over the limit of {MAX_BODY}")]
    TooLong(usize),
    /// The message cannot be encoded.
    #[error("a message cannot be encoded: {0}")]
    Encode(#[from] postcard::Error),
}

/// Kind and postcard of a message.
#[derive(Debug)]
pub struct Body(Vec<u8>);

impl Body {
    pub(super) fn of<T: Serialize>(kind: u16, message: &T) -> Result<Self, postcard::Error> {
        postcard::to_extend(message, kind.to_le_bytes().to_vec()).map(Self)
    }
}

/// A message of one direction.
pub trait Message: Sized {
    /// The message's body.
    ///
    /// # Errors
    /// If it cannot be encoded.
    fn body(&self) -> Result<Body, postcard::Error>;

    /// The message of this kind; `None` if the kind is unknown.
    fn decode(kind: u16, body: &[u8]) -> Option<Result<Self, postcard::Error>>;

    /// The whole frame.
    ///
    /// # Errors
    /// If it is too long or cannot be encoded.
    fn encode(&self) -> Result<Vec<u8>, FrameError> {
        let Body(body) = self.body()?;
        let len = body.len();
        let header = u32::try_from(len).ok().filter(|_| len <= MAX_BODY);
        let header = header.ok_or(FrameError::TooLong(len))?;
        let mut frame = Vec::with_capacity(HEADER + len);
        frame.extend(MARK);
        frame.extend(header.to_le_bytes());
        frame.extend(crc32(&body).to_le_bytes());
        frame.extend(body);
        Ok(frame)
    }
}

/// Counters of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Messages.
    pub messages: u64,
    /// Frames of unknown kinds, skipped.
    pub unknown: u64,
    /// Frames whose check is right and whose message is not.
    pub malformed: u64,
    /// Frames whose check is wrong.
    pub bad_checks: u64,
    /// Frames that would be too long.
    pub too_long: u64,
    /// Bytes that are part of no frame.
    pub garbage_bytes: u64,
}

/// The reason why nothing more is to be expected of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Too much that is no frame.
    #[error("{0} bytes without a frame in them")]
    Garbage(u64),
    /// Too many frames whose check is wrong.
    #[error("{0} frames with a wrong check")]
    BadChecks(u32),
}

/// Finds the messages in a stream of bytes, in pieces of any size. After garbage it continues at the
/// next mark; after too much of it it is broken and takes no more. It holds at most one frame.
#[derive(Debug)]
pub struct Decoder<M> {
    pending: Vec<u8>,
    max_body: usize,
    counts: Counts,
    garbage_since_frame: u64,
    bad_since_frame: u32,
    broken: Option<Broken>,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Default for Decoder<M> {
    fn default() -> Self {
        Self::bounded(MAX_BODY)
    }
}

/// The result of a check of the beginning of the pending bytes.
enum Step<M> {
    /// Too few bytes to decide.
    Wait,
    /// So many bytes that are no frame.
    Skip(usize),
    /// A frame of so many bytes, with the message in it if there is one.
    Frame(usize, Option<M>),
}

impl<M: Message> Decoder<M> {
    /// A decoder with another bound of a message's length than [`MAX_BODY`], in bytes.
    #[must_use]
    pub fn bounded(max_body: usize) -> Self {
        Self {
            pending: Vec::new(),
            max_body,
            counts: Counts::default(),
            garbage_since_frame: 0,
            bad_since_frame: 0,
            broken: None,
            message: PhantomData,
        }
    }

    /// Takes bytes in and hands out the messages that are complete.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<M> {
        let mut messages = Vec::new();
        let mut rest = bytes;
        while self.broken.is_none() && !rest.is_empty() {
            // Whole frames leave, so there is room: the pending bytes never fill it.
            let room = HEADER.saturating_add(self.max_body) - self.pending.len();
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.pending.extend_from_slice(now);
            rest = later;
            self.work(&mut messages);
        }
        messages
    }

    /// Drops the pending frame, which will not be completed: its sender was killed in the middle of it. Bytes that came
    /// after that are in its place, and are searched for messages.
    pub fn cut(&mut self) -> Vec<M> {
        let mut messages = Vec::new();
        if !self.pending.is_empty() && self.broken.is_none() {
            self.skip(1);
            self.pending.drain(..1);
            self.work(&mut messages);
        }
        messages
    }

    fn work(&mut self, messages: &mut Vec<M>) {
        let mut at = 0;
        while self.broken.is_none() {
            match self.step(at) {
                Step::Wait => break,
                Step::Skip(len) => {
                    self.skip(len);
                    at += len;
                }
                Step::Frame(len, message) => {
                    (self.garbage_since_frame, self.bad_since_frame) = (0, 0);
                    self.counts.messages += u64::from(message.is_some());
                    messages.extend(message);
                    at += len;
                }
            }
        }
        if self.broken.is_some() {
            self.pending = Vec::new();
        } else {
            self.pending.drain(..at);
        }
    }

    fn step(&mut self, at: usize) -> Step<M> {
        let bytes = &self.pending[at..];
        let Some(first) = bytes.first() else {
            return Step::Wait;
        };
        let seen = bytes.len().min(MARK.len());
        if *first != MARK[0] || bytes[..seen] != MARK[..seen] {
            let next = bytes[1..].iter().position(|b| *b == MARK[0]);
            return Step::Skip(next.map_or(bytes.len(), |next| next + 1));
        }
        let Some(len) = word(bytes, 4).map(|len| len as usize) else {
            return Step::Wait;
        };
        if !(2..=self.max_body).contains(&len) {
            self.counts.too_long += 1;
            return Step::Skip(1);
        }
        let (Some(check), Some(body)) = (word(bytes, 8), bytes.get(HEADER..HEADER + len)) else {
            return Step::Wait;
        };
        if crc32(body) != check {
            self.counts.bad_checks += 1;
            self.bad_since_frame += 1;
            if self.bad_since_frame > MAX_BAD_FRAMES {
                self.broken = Some(Broken::BadChecks(self.bad_since_frame));
            }
            return Step::Skip(1);
        }
        let kind = u16::from_le_bytes([body[0], body[1]]);
        let message = match M::decode(kind, &body[2..]) {
            Some(Ok(message)) => Some(message),
            Some(Err(_)) => {
                self.counts.malformed += 1;
                None
            }
            None => {
                self.counts.unknown += 1;
                None
            }
        };
        Step::Frame(HEADER + len, message)
    }

    fn skip(&mut self, len: usize) {
        let len = len as u64;
        self.counts.garbage_bytes += len;
        self.garbage_since_frame += len;
        if self.garbage_since_frame > MAX_GARBAGE && self.broken.is_none() {
            self.broken = Some(Broken::Garbage(self.garbage_since_frame));
        }
    }

    /// The decoder's counters so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The reason why the decoder takes no more bytes; `None` if it still does.
    #[must_use]
    pub fn broken(&self) -> Option<Broken> {
        self.broken
    }

    /// Bytes that wait for the rest of their frame.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Bytes that it would come to hold before it hands out or drops the frame that is pending.
    #[must_use]
    pub fn wants(&self) -> usize {
        let body = word(&self.pending, 4).map_or(0, |len| len as usize);
        HEADER.saturating_add(body)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// CRC-32 of IEEE 802.3, four bits at a time.
fn crc32(bytes: &[u8]) -> u32 {
    const fn table() -> [u32; 16] {
        let mut table = [0; 16];
        let (mut i, mut value) = (0, 0_u32);
        while i < 16 {
            let mut rest = value;
            let mut bit = 0;
            while bit < 4 {
                rest = if rest & 1 == 1 {
                    (rest >> 1) ^ 0xedb8_8320
                } else {
                    rest >> 1
                };
                bit += 1;
            }
            table[i] = rest;
            i += 1;
            value += 1;
        }
        table
    }
    const TABLE: [u32; 16] = table();
    let nibble = |crc: u32, value: u32| (crc >> 4) ^ TABLE[((crc ^ value) & 0xf) as usize];
    let byte = |crc, b: &u8| nibble(nibble(crc, u32::from(*b)), u32::from(*b >> 4));
    !bytes.iter().fold(!0, byte)
}

#[cfg(test)]
mod tests;
