//! The threads that open other users' files: the present [`Opener`] of the daemon.
//!
//! They hold the capabilities for it, and hand descriptors out. A separate process that passes descriptors over a
//! socket can take their place (docs/decisions/0014-opener.md).

use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use terrace_sys::opener::{Ask, Given, Itself, Opener};

/// Number of opener threads: several, because one may have to wait for a file system.
pub const THREADS: usize = 4;

type Job = (Ask, SyncSender<io::Result<Given>>);

/// The queue of requests to the opener.
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

/// An opener and its queue of requests.
pub fn pair() -> (Asks, Arc<dyn Opener>) {
    let (sender, asks) = channel();
    (asks, Arc::new(ByThreads(sender)))
}

/// The body of one opener thread: serves requests until no sender is left.
pub fn run(asks: &Mutex<Asks>) {
    while let Some((ask, answer)) = next(asks) {
        // The asking thread may have ended.
        let _ = answer.send(Itself.ask(ask));
    }
}

fn next(asks: &Mutex<Asks>) -> Option<Job> {
    asks.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .recv()
        .ok()
}
