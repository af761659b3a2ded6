//! The daemon's inbox, and the handle that ends the daemon from outside.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::input::Input;

/// The queue of all inputs of the daemon's loop.
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
    /// A handle that ends the loop of this inbox.
    #[must_use]
    pub fn stop(&self) -> Stop {
        Stop(self.sender.clone())
    }
}

/// A handle that ends a daemon.
#[derive(Clone)]
pub struct Stop(Sender<Input>);

impl Stop {
    /// Ends the daemon after its present work. Does nothing if it has ended.
    pub fn stop(&self) {
        let _ = self.0.send(Input::Stop);
    }
}
