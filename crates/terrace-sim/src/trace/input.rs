//! A trace's bytes: opened, decompressed, and split into lines of bounded length.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::unzstd::{MAGIC, Unzstd};

/// Longest line that is read, bytes.
pub(super) const MAX_LINE: usize = 64 << 10;
const BUFFER: usize = 4 * MAX_LINE;

/// The bytes of a trace, decompressed.
pub(super) struct Input {
    source: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    ended: bool,
}

/// A line without its end.
pub(super) enum Line<'a> {
    /// The whole line.
    Whole(&'a [u8]),
    /// The first bytes of a line that is longer than [`MAX_LINE`].
    TooLong(&'a [u8]),
}

impl Input {
    /// Opens a file, compressed or not.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Self::new(Box::new(File::open(path)?))
    }

    /// Takes bytes, compressed or not.
    pub(super) fn new(source: Box<dyn Read + Send>) -> io::Result<Self> {
        let mut plain = Self::plain(source);
        while plain.end < MAGIC.len() && plain.fill()? {}
        if plain.buffer[..plain.end].starts_with(&MAGIC) {
            return Ok(Self::plain(Box::new(Unzstd::new(plain))));
        }
        Ok(plain)
    }

    fn plain(source: Box<dyn Read + Send>) -> Self {
        Self {
            source,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            ended: false,
        }
    }

    /// Reads more bytes behind those that are there; `false` at the end, or if no room is left.
    fn fill(&mut self) -> io::Result<bool> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.ended || self.end == self.buffer.len() {
            return Ok(false);
        }
        let got = loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.end += got;
        self.ended = got == 0;
        Ok(!self.ended)
    }

    /// The first bytes, up to some 64 KiB, and whether they are all bytes of the input; they stay in it.
    pub(super) fn peek(&mut self) -> io::Result<(&[u8], bool)> {
        while self.end - self.start < MAX_LINE && self.fill()? {}
        Ok((&self.buffer[self.start..self.end], self.ended))
    }

    /// The next line; `None` at the end. A line that is too long stays where it is, its rest unread: it may have no end.
    pub(super) fn line(&mut self) -> io::Result<Option<Line<'_>>> {
        let mut searched = 0;
        loop {
            let here = &self.buffer[self.start..self.end];
            let end = here[searched..].iter().position(|b| *b == b'\n');
            searched = end.map_or(here.len(), |at| searched + at);
            if searched > MAX_LINE {
                return Ok(Some(Line::TooLong(&self.buffer[self.start..self.end])));
            }
            if end.is_some() {
                let line = self.start..self.start + searched;
                self.start = line.end + 1;
                return Ok(Some(Line::Whole(trimmed(&self.buffer[line]))));
            }
            if !self.fill()? {
                break;
            }
        }
        let line = self.start..self.end;
        self.start = self.end;
        Ok((!line.is_empty()).then(|| Line::Whole(trimmed(&self.buffer[line]))))
    }
}

/// The line without the carriage return that some systems put at its end.
fn trimmed(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

impl Read for Input {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end && !self.fill()? {
            return Ok(0);
        }
        let got = to.len().min(self.end - self.start);
        to[..got].copy_from_slice(&self.buffer[self.start..self.start + got]);
        self.start += got;
        Ok(got)
    }
}
