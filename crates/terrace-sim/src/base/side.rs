//! The two sides of the second stage: guest and host.

/// The side that moves pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The guest's kernel: it flushes by interrupts of its own, and remaps at once.
    Guest,
    /// The host: it makes vCPUs exit, and the next access to a page faults in the second stage.
    Host,
}

impl Side {
    /// The side's name in scenarios.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Host => "host",
        }
    }
}
