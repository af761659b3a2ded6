//! The daemon's inbox, and what ends it from outside.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::input::Input;

/// Where all that happens comes in.
pub struct Inbox {
    pub(crate) sender: Sender<Input>,
    pub(crate) inputs: Receiver<Input>,
}

impl Default for Inbox {
    fn default() -> Self {
        let (sender, inputs) = channel();
        Self { sender, inputs }
    }
}

impl Inbox {
    /// Ends whoever works by this inbox.
    #[must_use]
    pub fn stop(&self) -> Stop {
        Stop(self.sender.clone())
    }
}

/// Ends a daemon.
#[derive(Clone)]
pub struct Stop(Sender<Input>);

impl Stop {
    /// After what it is at. Of one that has ended there is nothing left to end.
    pub fn stop(&self) {
        let _ = self.0.send(Input::Stop);
    }
}
