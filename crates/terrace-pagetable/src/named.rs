//! The page tables that a pass names: those below which it found accessed leaves.
//!
//! A table is named after its walk, if the way to it still leads there. To name one that the guest frees a moment later does no harm: nobody
//! writes to a page because it was named.

use terrace_proto::{Gfn, TableFrame};

/// The tables of a pass, bounded whatever the guest's tables say.
#[derive(Debug)]
pub(crate) struct Named {
    frames: Vec<TableFrame>,
    most: usize,
}

impl Named {
    /// Of a VM with so many guest pages.
    pub(crate) fn new(pages: u64) -> Self {
        Self {
            frames: Vec::new(),
            most: TableFrame::most(pages),
        }
    }

    /// Adds a table with so many accessed leaves below it.
    pub(crate) fn add(&mut self, frame: Gfn, level: u8, accessed: u64) {
        let Ok(frame) = u32::try_from(frame.0) else {
            return;
        };
        // Seldom, so that to leave some out costs each table the same on the average.
        if self.frames.len() >= self.most.saturating_mul(2) {
            TableFrame::bound(&mut self.frames, self.most);
        }
        self.frames.push(TableFrame {
            frame,
            level,
            accessed: u16::try_from(accessed).unwrap_or(u16::MAX),
        });
    }

    /// The tables, in ascending order; none are left.
    pub(crate) fn take(&mut self) -> Vec<TableFrame> {
        let mut frames = std::mem::take(&mut self.frames);
        TableFrame::bound(&mut frames, self.most);
        frames
    }
}
