//! Which side of the second stage does something.

/// Who moves pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The guest's kernel: it flushes by interrupts of its own, and remaps at once.
    Guest,
    /// The host: it makes vCPUs exit, and the next access to a page faults in the second stage.
    Host,
}

impl Side {
    /// As people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Host => "host",
        }
    }
}
