//! The device: one turn over its queues.
//!
//! Responsible for: which queue is served next and for how long, restarts of the guest, targets. Time is an argument.
//! Page queues are in `pages.rs`, the memory behind them in `ram.rs`, events and statistics in `messages.rs`. It leaves
//! to others: the vhost-user protocol, the clock, and the control socket.
//!
//! Nothing that a guest puts into a ring makes a turn fail: it is counted and answered, or the queue rests until the
//! next kick.

mod balloons;
mod leased;
mod messages;
mod notifications;
mod pages;
mod ram;
mod statistics;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use terrace_proto::PageBitmap;
use vhost_user_backend::VringT as _;
use virtio_queue::QueueT as _;

use crate::abi::{self, MAX_TIERS, QueueRole, STATISTIC_TAGS, TierConfigSpace, queues};
use crate::config::Config;
use crate::counters::Counters;
use crate::error::FlexError;
use crate::memory::{Backing, GuestFiles};
use crate::rate::Throttle;
use crate::ring::{Halt, Memory, Ring};
use crate::state::State;
use crate::tier::{Admit, Run, TierMap};
use balloons::Balloons;
use leased::Leasing;
use notifications::Notifications;
use ram::Ram;
use statistics::Statistics;

/// Chains of one page queue in one turn, before the others have theirs.
const CHAINS_PER_TURN: usize = 16;

/// A guest's statistics of a tier, by tag, untrusted.
pub type GuestStatistics = [Option<u64>; STATISTIC_TAGS];

/// The device of a VM.
pub struct Device<B = GuestFiles> {
    config: Config,
    state: Arc<State>,
    balloons: Balloons,
    ram: Ram<B>,
    stop: Stop,
    counters: Counters,
    throttle: Throttle,
    leasing: Leasing,
    notifications: Notifications,
    sent_generation: Option<u32>,
    statistics: Statistics,
    scratch: Scratch,
}

/// The reasons to end work.
#[derive(Default)]
struct Stop {
    halt: Halt,
    /// Whether the hypervisor has gone.
    has_ended: bool,
}

impl Stop {
    /// Whether a thread waits for the work on a ring to end.
    #[inline]
    fn is_requested(&self, ring: &Ring) -> bool {
        self.halt.is_requested() || ring.halt().is_requested()
    }
}

/// Buffers of a turn, reused so that no chain allocates.
#[derive(Debug, Default)]
struct Scratch {
    bytes: Vec<u8>,
    runs: Vec<(usize, Run)>,
}

impl<B: Backing> Device<B> {
    /// A device with the balloons of `state`.
    #[must_use]
    pub fn new(config: Config, state: Arc<State>, backing: B) -> Self {
        let count = config.tiers().len();
        let limits = config.limits();
        let mut device = Self {
            balloons: Balloons::new(&config, Arc::clone(&state)),
            state,
            ram: Ram::new(&config, backing),
            stop: Stop::default(),
            counters: Counters::default(),
            throttle: Throttle::new(limits.entries_per_s),
            leasing: Leasing::new(count, config.needs_leases().then(now_ns)),
            notifications: Notifications::new(queues(count)),
            sent_generation: None,
            statistics: Statistics::new(count),
            scratch: Scratch::default(),
            config,
        };
        // A process that was killed may have punched pages that no pin check has cleared.
        device.leasing.find_undone(&device.state);
        device
    }

    /// Replaces the rule of admission, so that tests show that a wrong one is found.
    pub fn set_admit(&mut self, admit: Admit) {
        self.balloons.set_admit(admit);
    }

    /// The VM as the command line describes it.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The state that survives this process.
    #[must_use]
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// The ranges of the tiers.
    #[must_use]
    pub fn tier_maps(&self) -> &[TierMap] {
        self.balloons.tiers()
    }

    /// Counts since the process started.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Pages in each balloon.
    #[must_use]
    pub fn actual(&self) -> &[u64] {
        self.balloons.actual()
    }

    /// The last statistics of the guest, per tier.
    #[must_use]
    pub fn statistics(&self) -> &[GuestStatistics] {
        self.statistics.said()
    }

    /// Whether the driver knows the targets of now.
    #[must_use]
    pub fn has_sent_targets(&self) -> bool {
        self.sent_generation == Some(self.state.generation())
    }

    /// Memory for rings alone; a device over files takes it by [`Device::set_memory`].
    pub fn set_ring_memory(&mut self, memory: Memory) {
        self.ram.set_memory(memory);
    }

    /// Sets whether the driver negotiated event indices.
    pub fn set_event_idx(&mut self, on: bool) {
        self.notifications.event_idx = on;
    }

    /// Whether the hypervisor shares memory.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.ram.memory().is_some()
    }

    /// The request of a thread that waits for the device that its turn ends.
    #[must_use]
    pub fn halt(&self) -> &Halt {
        &self.stop.halt
    }

    /// The hypervisor went away: from here on no queue is served.
    pub fn end(&mut self) {
        self.stop.has_ended = true;
    }

    /// Any part of the configuration space.
    #[must_use]
    pub fn config_space(&self, offset: u32, len: u32) -> Vec<u8> {
        let targets = self.state.targets();
        let tiers = self.config.tiers().iter().zip(targets).zip(self.actual());
        let tiers: Vec<TierConfigSpace> = tiers
            .map(|((tier, target_pages), actual_pages)| TierConfigSpace {
                target_pages,
                actual_pages: *actual_pages,
                node: tier.node,
            })
            .collect();
        let seconds = self.config.limits().statistics_s;
        abi::part_of(
            &abi::config_space(self.config.orders(), seconds, &tiers),
            offset,
            len,
        )
    }

    /// New targets, in place of those before; `now_s` is the time of day.
    ///
    /// # Errors
    /// If they are against the limits of the VM.
    pub fn set_targets(&mut self, targets: &[u64], now_s: u32) -> Result<(), FlexError> {
        self.config.check_targets(targets)?;
        self.state.set_targets(targets, now_s);
        Ok(())
    }

    /// Takes over the balloons of a VM that comes from elsewhere.
    ///
    /// # Errors
    /// If they are of another size, against the limits, or the VM runs here already.
    pub fn take_over(
        &mut self,
        targets: &[u64],
        balloons: &[PageBitmap],
        now_s: u32,
    ) -> Result<(), FlexError> {
        if self.is_connected() {
            return Err(FlexError::Refused(
                "the VM runs here already: import before the hypervisor connects".into(),
            ));
        }
        let fits = balloons.len() == self.tier_maps().len()
            && (balloons.iter().zip(self.config.tiers())).all(|(b, t)| b.pages() == t.pages());
        if !fits {
            return Err(FlexError::Refused(
                "the balloons are of a VM with other tiers".into(),
            ));
        }
        // Targets may be refused: nothing else has changed by then.
        self.set_targets(targets, now_s)?;
        // With places of before, rings that begin at 0 would be those of a guest that starts anew, which empties the
        // balloons.
        self.state.forget_rings();
        self.balloons.take_over(balloons);
        Ok(())
    }

    /// Resets the device after the guest started anew: the guest owns all of its memory, and was sent nothing yet.
    pub fn reset(&mut self) {
        let held: u64 = self.actual().iter().sum();
        tracing::info!("the guest started anew; balloons with {held} pages are empty now");
        // Before the state is emptied, which has the pages that are to be logged.
        self.forget_open();
        self.balloons.reset();
        // The next driver knows neither the targets nor the messages to the one before.
        self.sent_generation = None;
        self.statistics.forget();
        self.throttle.forget();
    }

    /// Notes that a queue has something, or may have.
    pub fn kick(&mut self, queue: usize) {
        self.notifications.kick(queue);
    }

    /// Serves the rings' chains; returns when it wants to be called again without a kick, if ever. A time in the past
    /// means at once.
    pub fn turn(&mut self, now_ns: u64, rings: &[Ring]) -> Option<u64> {
        // A timer may come after the hypervisor went away: nothing is freed in its name then.
        let memory = self.ram.memory().filter(|_| !self.stop.has_ended)?.clone();
        let mut again: Option<u64> = None;
        let mut want = |at: Option<u64>| {
            again = match (again, at) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        };
        for (queue, ring) in rings.iter().enumerate() {
            let Some(role) = abi::role(queue, self.tier_maps().len()) else {
                break;
            };
            // Who waits comes first: this thread could have the lock again before the one that waits for it wakes.
            // The rest is served in the next turn, as no kick may come for it.
            if self.stop.is_requested(ring) {
                want(Some(now_ns));
                continue;
            }
            // A ring that is started or enabled again brings an event of its own, and its kick is remembered.
            let Some(_work) = ring.work() else {
                continue;
            };
            // The work on this ring is held by now: it cannot start anew between this check and its first chain.
            self.follow_rings(rings);
            want(match role {
                QueueRole::Inflate(_) | QueueRole::Deflate(_) => {
                    self.page_queue(now_ns, queue, role, ring, &memory)
                }
                QueueRole::Events => {
                    self.tell(queue, ring, &memory);
                    None
                }
                QueueRole::Statistics => self.hear(now_ns, queue, ring, &memory),
            });
        }
        again
    }

    /// Tells by the places of the rings whether they are those of before. A ring that is back at 0 belongs to a
    /// driver that started anew; any other place is set by the hypervisor after a restart of this process. Rings
    /// may start while others are served, so this comes before each of them.
    fn follow_rings(&mut self, rings: &[Ring]) {
        let stand: [Option<Stand>; queues(MAX_TIERS)] =
            std::array::from_fn(|queue| rings.get(queue).and_then(Stand::of));
        let is_new = |(queue, stand): (usize, &Option<Stand>)| {
            let (Some(stand), Some(before)) = (stand, self.state.position(queue)) else {
                return false;
            };
            // One further: this process was killed between its answer and its note of it.
            stand.next == 0 && before != 0 && before != u16::MAX
        };
        if stand.iter().enumerate().any(is_new) {
            // Comes before places are noted, since it forgets them.
            self.reset();
        }
        for (queue, stand) in stand.iter().enumerate() {
            // A ring that is not enabled may be one of before a reset.
            let Some(stand) = stand.filter(|stand| stand.is_enabled) else {
                continue;
            };
            if self.state.position(queue) != Some(stand.next) {
                self.state.set_position(queue, stand.next);
            }
        }
    }

    /// Notes a chain as begun; whether a process before this one had begun it.
    fn begin(&mut self, queue: usize, role: QueueRole, position: u16) -> bool {
        let begun = self.state.in_flight(queue) == Some(position);
        if let QueueRole::Inflate(tier) = role {
            if begun && self.state.is_from_empty(queue) {
                // The first chain of a driver, and now perhaps that of the next one, whose pages the marks are not.
                self.balloons.empty(tier);
            }
            let is_empty = self.actual().get(tier) == Some(&0);
            // Noted before the chain is: a process that is killed in between leaves no chain with the note of
            // another.
            self.state.set_from_empty(queue, is_empty);
        }
        self.state.set_in_flight(queue, Some(position));
        begun
    }

    /// Leaves a chain that was undone in its ring, as if unread.
    fn leave(&mut self, queue: usize, ring: &Ring, position: u16) {
        ring.get_mut().get_queue_mut().set_next_avail(position);
        // Nothing of it is done, so nothing of it may count as done if this process is killed now.
        self.state.set_in_flight(queue, None);
        self.counters.undone_chains += 1;
    }

    /// Answers a chain and notes how far the ring is; false if the ring is not there.
    fn finish(&self, queue: usize, ring: &Ring, head: u16, len: u32) -> bool {
        // Answered first. A process that is killed in between leaves a ring one further than its note, which
        // `follow_rings` knows. The other way round the chain would be taken for a new one, whose pages are refused
        // as in the balloon already.
        let answered = ring.add_used(head, len).is_ok();
        self.note_position(queue, ring);
        answered
    }

    fn note_position(&self, queue: usize, ring: &Ring) {
        let next = ring.unanswered();
        self.state.set_position(queue, next);
        self.state.set_in_flight(queue, None);
    }
}

/// The time of day, ns: a number that no device before this one came to.
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

/// The place of a ring that is set up.
#[derive(Clone, Copy)]
struct Stand {
    next: u16,
    is_enabled: bool,
}

impl Stand {
    fn of(ring: &Ring) -> Option<Self> {
        let next = ring.unanswered();
        let ring = ring.get_ref();
        ring.get_queue().ready().then(|| Self {
            next,
            is_enabled: ring.is_enabled(),
        })
    }
}
