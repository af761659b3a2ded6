//! The number of pages that changed their tier.

/// 4 KiB pages moved up and down since the counts were last taken.
#[derive(Debug, Default)]
pub(super) struct Moves {
    promoted: u64,
    demoted: u64,
}

impl Moves {
    pub(super) fn count(&mut self, from: u8, to: u8, pages: u64) {
        if to < from {
            self.promoted += pages;
        } else {
            self.demoted += pages;
        }
    }

    /// Takes the counts of promoted and demoted pages, which start from 0 again.
    pub(super) fn take(&mut self) -> (u64, u64) {
        let Self { promoted, demoted } = std::mem::take(self);
        (promoted, demoted)
    }
}
