//! A queue's ring, which messages of the hypervisor change and the device works on, each on a thread of its own.
//!
//! Responsible for: that a ring changes only while no chain of it is worked on. A thread that stops, disables, moves or
//! sets up a ring announces it, waits until the current work has ended, and only then changes the ring; the answer to
//! the hypervisor comes after that. It leaves to others: ending that work soon (`device/pages.rs`).

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vhost_user_backend::{VringRwLock, VringStateGuard, VringStateMutGuard, VringT};
use virtio_queue::{Error as QueueError, QueueT as _};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

/// The guest's memory, as the rings see it.
pub type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// A request that the current work ends; that work polls it.
#[derive(Clone, Debug, Default)]
pub struct Halt(Arc<AtomicUsize>);

impl Halt {
    /// Requests that the work ends, until the result is dropped.
    #[must_use]
    pub fn request(&self) -> HaltRequest<'_> {
        // Relaxed is enough: the lock that is taken next orders the accesses.
        self.0.fetch_add(1, Ordering::Relaxed);
        HaltRequest(&self.0)
    }

    /// Whether a thread requested it and still does.
    #[must_use]
    #[inline]
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// A request that holds until it is dropped.
#[derive(Debug)]
pub struct HaltRequest<'a>(&'a AtomicUsize);

impl Drop for HaltRequest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A ring that stays as it is while it is worked on.
#[derive(Clone)]
pub struct Ring {
    vring: VringRwLock<Memory>,
    halt: Halt,
    work: Arc<Mutex<()>>,
    /// One more than the place of the first chain that was worked on and has no answer yet; 0: there is none. It and
    /// the next one change under the lock above.
    open: Arc<AtomicU32>,
    changes: Arc<AtomicU64>,
}

/// The right to work on a ring: while it is held the ring runs.
#[derive(Debug)]
pub struct Work<'a> {
    _held: MutexGuard<'a, ()>,
}

impl Ring {
    /// Begins to work on it; `None` if it is not set up or not enabled. Check [`Ring::halt`] before and while at work,
    /// so that a thread that changes it comes first.
    #[must_use]
    pub fn work(&self) -> Option<Work<'_>> {
        // The lock comes first: every thread that changes the ring holds it too, so the values read here stay valid.
        let held = self.lock();
        let vring = self.vring.get_ref();
        let runs = vring.get_queue().ready() && vring.is_enabled();
        runs.then_some(Work { _held: held })
    }

    /// The request that work on this ring ends.
    #[must_use]
    pub fn halt(&self) -> &Halt {
        &self.halt
    }

    /// Changes it once no thread works on it. Chains that wait for their answers are in it again as if unread: the
    /// change does not wait for the pin checks that they need.
    fn change<T>(&self, change: impl FnOnce(&VringRwLock<Memory>) -> T) -> T {
        // The request comes before the lock: the chain at hand ends at its next hole, and not with all of its pages.
        let _request = self.halt.request();
        // Waits until that chain is done or undone: the answer to the hypervisor means that the ring is idle (rule
        // 16 of `docs/data-rules.md`).
        let _held = self.lock();
        self.changes.fetch_add(1, Ordering::Relaxed);
        // Before the change, which may itself be a place in the ring: the hypervisor's word counts.
        self.reopen();
        change(&self.vring)
    }

    /// The count of changes: chains that were taken before the last one are in the ring again. To be read at work.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Notes the place of the first chain that has no answer yet. To be called at work.
    pub(crate) fn set_open(&self, position: Option<u16>) {
        let word = position.map_or(0, |position| u32::from(position) + 1);
        self.open.store(word, Ordering::Relaxed);
    }

    fn open(&self) -> Option<u16> {
        let word = self.open.load(Ordering::Relaxed);
        word.checked_sub(1).and_then(|p| u16::try_from(p).ok())
    }

    /// Goes back to the first chain that has no answer.
    pub(crate) fn reopen(&self) {
        if let Some(position) = self.open() {
            self.vring
                .get_mut()
                .get_queue_mut()
                .set_next_avail(position);
            self.set_open(None);
        }
    }

    /// The place of the first chain that has no answer, or of the next one.
    pub(crate) fn unanswered(&self) -> u16 {
        self.open().unwrap_or_else(|| self.vring.queue_next_avail())
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // The lock guards no data that a panic could leave half done, and a ring that cannot be stopped holds up its
        // hypervisor.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> VringStateGuard<'a, Memory> for Ring {
    type G = <VringRwLock<Memory> as VringStateGuard<'a, Memory>>::G;
}

impl<'a> VringStateMutGuard<'a, Memory> for Ring {
    type G = <VringRwLock<Memory> as VringStateMutGuard<'a, Memory>>::G;
}

impl VringT<Memory> for Ring {
    fn new(memory: Memory, max_queue_size: u16) -> Result<Self, QueueError> {
        Ok(Self {
            vring: VringRwLock::new(memory, max_queue_size)?,
            halt: Halt::default(),
            work: Arc::default(),
            open: Arc::default(),
            changes: Arc::default(),
        })
    }

    fn get_ref(&self) -> <Self as VringStateGuard<'_, Memory>>::G {
        self.vring.get_ref()
    }

    fn get_mut(&self) -> <Self as VringStateMutGuard<'_, Memory>>::G {
        self.vring.get_mut()
    }

    fn add_used(&self, head: u16, len: u32) -> Result<(), QueueError> {
        self.vring.add_used(head, len)
    }

    fn signal_used_queue(&self) -> io::Result<()> {
        self.vring.signal_used_queue()
    }

    fn enable_notification(&self) -> Result<bool, QueueError> {
        self.vring.enable_notification()
    }

    fn disable_notification(&self) -> Result<(), QueueError> {
        self.vring.disable_notification()
    }

    fn needs_notification(&self) -> Result<bool, QueueError> {
        self.vring.needs_notification()
    }

    fn set_enabled(&self, enabled: bool) {
        self.change(|vring| vring.set_enabled(enabled));
    }

    fn set_queue_info(&self, table: u64, available: u64, used: u64) -> Result<(), QueueError> {
        self.change(|vring| vring.set_queue_info(table, available, used))
    }

    fn queue_next_avail(&self) -> u16 {
        // The hypervisor keeps it as the ring's base. Chains behind it were read, perhaps, and have no answer: they
        // are read again.
        self.unanswered()
    }

    fn set_queue_next_avail(&self, base: u16) {
        self.change(|vring| vring.set_queue_next_avail(base));
    }

    fn set_queue_next_used(&self, index: u16) {
        self.change(|vring| vring.set_queue_next_used(index));
    }

    fn queue_used_idx(&self) -> Result<u16, QueueError> {
        self.vring.queue_used_idx()
    }

    fn set_queue_size(&self, size: u16) {
        self.change(|vring| vring.set_queue_size(size));
    }

    fn set_queue_event_idx(&self, enabled: bool) {
        self.change(|vring| vring.set_queue_event_idx(enabled));
    }

    fn set_queue_ready(&self, ready: bool) {
        self.change(|vring| vring.set_queue_ready(ready));
    }

    // Descriptors are no part of a chain's work, and the library locks them by itself: no wait is needed.
    fn set_kick(&self, file: Option<File>) {
        self.vring.set_kick(file);
    }

    fn read_kick(&self) -> io::Result<bool> {
        self.vring.read_kick()
    }

    fn set_call(&self, file: Option<File>) {
        self.vring.set_call(file);
    }

    fn set_err(&self, file: Option<File>) {
        self.vring.set_err(file);
    }
}
