//! Whether a VM's memory map still holds, for the threads that go by it: looked at before they act, and again before
//! what came of it is believed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use terrace_host::memory_map::{MapDoubt, MapWatch};
use terrace_proto::VmId;

use crate::daemon::Input;

/// One VM's map, as its threads share it.
#[derive(Clone)]
pub struct MapGuard {
    vm: VmId,
    watch: Arc<MapWatch>,
    /// The daemon's thread was told that the map changed: once, so that it never takes this map's end for that of the
    /// next one.
    told: Arc<AtomicBool>,
    /// Ends moves at their next batch.
    stop: Arc<AtomicBool>,
    inbox: Sender<Input>,
}

impl MapGuard {
    /// Guards a map; `stop` is set as soon as it does not hold any more.
    pub fn new(
        vm: VmId,
        watch: Arc<MapWatch>,
        stop: Arc<AtomicBool>,
        inbox: Sender<Input>,
    ) -> Self {
        Self {
            vm,
            watch,
            told: Arc::default(),
            stop,
            inbox,
        }
    }

    /// Looks at the whole map; before a round.
    pub fn look(&self) -> Result<(), String> {
        self.tell(self.watch.look())
    }

    /// Looks at what can be looked at without a question to QEMU, unless that tells of a change.
    pub fn glance(&self) -> Result<(), String> {
        self.tell(self.watch.glance())
    }

    /// Does something by the map where it holds before and after; what came of it is dropped where it does not.
    pub fn around<T>(&self, whole: bool, act: impl FnOnce() -> T) -> Result<T, String> {
        if whole {
            self.look()?;
        } else {
            self.glance()?;
        }
        let came = act();
        self.glance()?;
        Ok(came)
    }

    /// Looks where QEMU told of something since the map was found as it was; asks nothing where it did not.
    pub fn follow_events(&self, tried: &mut Option<u64>) {
        let events = self.watch.events();
        if *tried != Some(events) {
            *tried = Some(events);
            // What is not known now is asked again before anything is done by the map.
            let _ = self.glance();
        }
    }

    fn tell(&self, looked: Result<(), MapDoubt>) -> Result<(), String> {
        let doubt = match looked {
            Ok(()) => return Ok(()),
            Err(doubt) => doubt,
        };
        if let MapDoubt::Changed(words) = &doubt {
            self.stop.store(true, Ordering::Relaxed);
            if !self.told.swap(true, Ordering::AcqRel) {
                // Nobody listens while the daemon ends.
                let _ = self.inbox.send(Input::MapChanged(self.vm, words.clone()));
            }
        }
        Err(doubt.to_string())
    }
}
