//! Page-modification logging (Intel): the processor logs each frame whose D bit it sets in the second stage.

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

    /// Logs a guest frame; returns whether the buffer is full, so that the host must empty it.
    #[must_use]
    pub fn log(&mut self, frame: u32) -> bool {
        self.frames.push(frame);
        self.frames.len() >= self.entries
    }

    /// Takes out the logged frames.
    pub fn drain(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.frames.drain(..)
    }
}

/// The frames that full buffers gave to the host, of all vCPUs of a VM.
#[derive(Clone, Debug, Default)]
pub struct Log {
    on: bool,
    frames: Vec<u32>,
}

impl Log {
    /// Whether logging is on: the processor logs each D bit that it sets in the second stage.
    #[must_use]
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Switches logging on or off.
    pub fn switch(&mut self, on: bool) {
        self.on = on;
    }

    /// Appends the frames of a full buffer.
    pub fn take_in(&mut self, frames: impl Iterator<Item = u32>) {
        self.frames.extend(frames);
    }

    /// Takes out the frames that were logged so far.
    pub fn take(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.frames)
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.frames.capacity() * size_of::<u32>()
    }
}
