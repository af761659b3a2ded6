//! Page-modification logging (Intel): the processor writes down where it sets D in the second stage.

/// The buffer of one vCPU.
#[derive(Clone, Debug)]
pub struct Buffer {
    frames: Vec<u32>,
    entries: usize,
}

impl Buffer {
    /// An empty buffer of so many entries.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        Self {
            frames: Vec::with_capacity(entries),
            entries,
        }
    }

    /// Writes a guest frame down; says whether the buffer is full, which the host must empty then.
    #[must_use]
    pub fn log(&mut self, frame: u32) -> bool {
        self.frames.push(frame);
        self.frames.len() >= self.entries
    }

    /// Takes out what was written down.
    pub fn drain(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.frames.drain(..)
    }
}
