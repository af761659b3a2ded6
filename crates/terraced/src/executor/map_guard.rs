//! The guard of a VM's memory map, for the threads that go by it: whether the map still holds is checked before they
//! act, and again before the outcome is used.
//!
//! A thread of its own checks, since it reads the VM's monitor: threads that inspect other processes read no peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use terrace_host::memory_map::{MapDoubt, MapWatch};
use terrace_proto::VmId;

use crate::confine::{self, Role};
use crate::messages::Input;

/// Time between two reads of a VM's events while no check is requested.
const EVENTS_EVERY: Duration = Duration::from_secs(1);

/// The extent of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// The whole map; before a round.
    Whole,
    /// The part that can be checked without a question to QEMU, unless that part shows a change.
    Glance,
}

/// A check that another thread waits for, with the channel of its answer.
type CheckRequest = (Extent, SyncSender<Result<(), String>>);

/// The guard of one VM's map, as its threads share it.
#[derive(Clone)]
pub struct MapGuard(Sender<CheckRequest>);

impl MapGuard {
    /// Starts to guard a map; `stop`, which ends moves at their next batch, is set as soon as the map does not hold
    /// any more.
    ///
    /// # Errors
    /// If the guard's thread cannot be started.
    pub fn start(
        vm: VmId,
        watch: Arc<MapWatch>,
        stop: Arc<AtomicBool>,
        inbox: Sender<Input>,
    ) -> std::io::Result<Self> {
        let (asks, queue) = channel();
        let guard = Guard {
            vm,
            watch,
            has_reported: false,
            stop,
            inbox,
        };
        confine::spawn(Role::Map, move || guard.run(&queue))?;
        Ok(Self(asks))
    }

    /// Does something by the map if the map holds before; its result is dropped if the map does not hold after.
    pub fn around<T>(&self, whole: bool, act: impl FnOnce() -> T) -> Result<T, String> {
        self.check(if whole { Extent::Whole } else { Extent::Glance })?;
        let came = act();
        self.check(Extent::Glance)?;
        Ok(came)
    }

    fn check(&self, extent: Extent) -> Result<(), String> {
        let (answer, outcome) = sync_channel(1);
        let asked = self.0.send((extent, answer));
        let outcome = asked.ok().and_then(|()| outcome.recv().ok());
        outcome.unwrap_or_else(|| Err("the thread that checks the VM's memory map ended".into()))
    }
}

struct Guard {
    vm: VmId,
    watch: Arc<MapWatch>,
    /// Whether the daemon's thread was notified that the map changed: once, so that it never takes this map's end for
    /// that of the next one.
    has_reported: bool,
    stop: Arc<AtomicBool>,
    inbox: Sender<Input>,
}

impl Guard {
    fn run(mut self, queue: &Receiver<CheckRequest>) {
        let mut tried = None;
        loop {
            match queue.recv_timeout(EVENTS_EVERY) {
                Ok((extent, answer)) => {
                    // The asking thread may have given up.
                    let _ = answer.send(self.check(extent));
                }
                Err(RecvTimeoutError::Timeout) => self.follow_events(&mut tried),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Checks the map if QEMU sent events since the last check of this kind; asks nothing if it did not.
    fn follow_events(&mut self, tried: &mut Option<u64>) {
        let events = self.watch.events();
        if *tried != Some(events) {
            *tried = Some(events);
            // A check that fails is repeated before anything is done by the map.
            let _ = self.check(Extent::Glance);
        }
    }

    fn check(&mut self, extent: Extent) -> Result<(), String> {
        let outcome = match extent {
            Extent::Whole => self.watch.check(),
            Extent::Glance => self.watch.glance(),
        };
        let doubt = match outcome {
            Ok(()) => return Ok(()),
            Err(doubt) => doubt,
        };
        if let MapDoubt::Changed(text) = &doubt {
            self.stop.store(true, Ordering::Relaxed);
            if !self.has_reported {
                self.has_reported = true;
                // Nobody listens while the daemon ends.
                let _ = self.inbox.send(Input::MapChanged(self.vm, text.clone()));
            }
        }
        Err(doubt.to_string())
    }
}
