//! The threads that open what belongs to others: the daemon's [`Opener`] of today.
//!
//! They hold the capabilities for it, and hand descriptors out. A process of its own that passes them over a socket can
//! take their place (docs/decisions/0014-opener.md).

use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use terrace_sys::opener::{Ask, Given, Itself, Opener};

/// So many, because one may have to wait for a file system.
pub const THREADS: usize = 4;

type Job = (Ask, SyncSender<io::Result<Given>>);

/// What is asked for.
pub type Asks = Receiver<Job>;

struct ByThreads(Sender<Job>);

impl Opener for ByThreads {
    fn ask(&self, ask: Ask) -> io::Result<Given> {
        let gone = || io::Error::other("the threads that open files are gone");
        let (answer, given) = sync_channel(1);
        self.0.send((ask, answer)).map_err(|_| gone())?;
        given.recv().map_err(|_| gone())?
    }
}

/// An opener, and what it is asked.
pub fn pair() -> (Asks, Arc<dyn Opener>) {
    let (sender, asks) = channel();
    (asks, Arc::new(ByThreads(sender)))
}

/// One of the threads: opens what it is asked for until nobody asks any more.
pub fn run(asks: &Mutex<Asks>) {
    while let Some((ask, answer)) = next(asks) {
        // Who asked may have ended.
        let _ = answer.send(Itself.ask(ask));
    }
}

fn next(asks: &Mutex<Asks>) -> Option<Job> {
    asks.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .recv()
        .ok()
}
