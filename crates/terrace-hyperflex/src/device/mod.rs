//! The device: what happens in a turn over its queues.
//!
//! Responsible for: which queue is served next and for how long, restarts of the guest, targets. Time is an
//! argument. Page queues are in `pages.rs`, the memory behind them in `files.rs`, events and statistics in `messages.rs`. It leaves to others: the
//! vhost-user protocol, the clock, and the control socket.
//!
//! Nothing that a guest puts into a ring makes a turn fail: it is counted and answered, or the queue rests until the
//! next kick.

mod files;
mod leased;
mod messages;
mod pages;
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
use crate::lease::Leases;
use crate::memory::{Backing, GuestFiles};
use crate::policy::NodePolicy;
use crate::rate::Bucket;
use crate::ring::{Halt, Memory, Ring};
use crate::state::State;
use crate::tier::{Admit, Run, TierMap, admit};

/// Chains of one page queue in one turn, before the others have theirs.
const CHAINS_PER_TURN: usize = 16;

/// What the guest said of a tier, by tag, untrusted.
pub type GuestStatistics = [Option<u64>; STATISTIC_TAGS];

/// The device of a VM.
pub struct Device<B = GuestFiles> {
    config: Config,
    state: Arc<State>,
    tiers: Vec<TierMap>,
    backing: B,
    memory: Option<Memory>,
    admit: Admit,
    halt: Halt,
    /// No hypervisor is there any more.
    ended: bool,
    /// Pages in each balloon: what the bits add up to.
    actual: Vec<u64>,
    counters: Counters,
    /// What became of each tier's host node, where it has one.
    node_policies: Vec<Option<NodePolicy>>,
    /// Why a tier cannot be resized.
    problems: Vec<Option<String>>,
    bucket: Bucket,
    /// None where nobody pins the memory, by the operator's word.
    leases: Option<Leases>,
    /// Of each tier: what was punched and is not answered.
    open: Vec<leased::OpenChains>,
    throttled: bool,
    event_idx: bool,
    /// Queues that have something, as far as is known.
    kicked: Vec<bool>,
    told_generation: Option<u32>,
    statistics: Vec<GuestStatistics>,
    statistics_due_ns: Option<u64>,
    scratch: Scratch,
}

/// Buffers of a turn, kept so that no chain allocates.
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
            tiers: config.tiers().iter().map(TierMap::new).collect(),
            actual: Vec::new(),
            state,
            backing,
            memory: None,
            admit,
            halt: Halt::default(),
            ended: false,
            counters: Counters::default(),
            node_policies: (config.tiers().iter())
                .map(|tier| tier.host_node.map(|_| NodePolicy::Waiting))
                .collect(),
            problems: vec![None; count],
            bucket: Bucket::new(limits.entries_per_s),
            leases: config.needs_leases().then(|| Leases::new(now_ns())),
            open: (0..count).map(|_| leased::OpenChains::default()).collect(),
            throttled: false,
            event_idx: false,
            kicked: vec![false; queues(count)],
            told_generation: None,
            statistics: vec![GuestStatistics::default(); count],
            statistics_due_ns: None,
            scratch: Scratch::default(),
            config,
        };
        device.recount();
        device.find_undone();
        device
    }

    fn recount(&mut self) {
        let state = &self.state;
        self.actual = (0..state.tiers()).map(|i| state.pages_in(i)).collect();
    }

    /// Replaces the rule of what is admitted, so that tests see a wrong one found.
    pub fn set_admit(&mut self, admit: Admit) {
        self.admit = admit;
    }

    /// Its description.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What survives this process.
    #[must_use]
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Where its tiers are.
    #[must_use]
    pub fn tier_maps(&self) -> &[TierMap] {
        &self.tiers
    }

    /// Its counts.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Pages in each balloon.
    #[must_use]
    pub fn actual(&self) -> &[u64] {
        &self.actual
    }

    /// What the guest said last, per tier.
    #[must_use]
    pub fn statistics(&self) -> &[GuestStatistics] {
        &self.statistics
    }

    /// Whether the driver knows the targets of now.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.told_generation == Some(self.state.generation())
    }

    /// Memory for rings alone; a device over files takes it by [`Device::set_memory`].
    pub fn set_ring_memory(&mut self, memory: Memory) {
        self.memory = Some(memory);
    }

    /// Says whether the driver asked for event indices.
    pub fn set_event_idx(&mut self, on: bool) {
        self.event_idx = on;
    }

    /// Whether the hypervisor shares memory.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.memory.is_some()
    }

    /// The wish of who waits for the device that its turn ends.
    #[must_use]
    pub fn halt(&self) -> &Halt {
        &self.halt
    }

    /// The hypervisor went away: from here on no queue is served.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Any part of the configuration space.
    #[must_use]
    pub fn config_space(&self, offset: u32, len: u32) -> Vec<u8> {
        let targets = self.state.targets();
        let tiers = self.config.tiers().iter().zip(targets).zip(&self.actual);
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
    /// Where they are against the limits of the VM.
    pub fn set_targets(&mut self, targets: &[u64], now_s: u32) -> Result<(), FlexError> {
        self.config.check_targets(targets)?;
        self.state.set_targets(targets, now_s);
        Ok(())
    }

    /// Takes over the balloons of a VM that comes from elsewhere.
    ///
    /// # Errors
    /// Where they are of another size, against the limits, or the VM runs here already.
    pub fn take_over(
        &mut self,
        targets: &[u64],
        balloons: &[PageBitmap],
        now_s: u32,
    ) -> Result<(), FlexError> {
        if self.memory.is_some() {
            return Err(FlexError::Refused(
                "the VM runs here already: import before the hypervisor connects".into(),
            ));
        }
        let fits = balloons.len() == self.tiers.len()
            && (balloons.iter().zip(self.config.tiers())).all(|(b, t)| b.pages() == t.pages());
        if !fits {
            return Err(FlexError::Refused(
                "the balloons are of a VM with other tiers".into(),
            ));
        }
        self.set_targets(targets, now_s)?;
        self.state.forget_rings();
        for (tier, balloon) in balloons.iter().enumerate() {
            // Sizes were compared above.
            let _ = self.state.set_bitmap(tier, balloon);
        }
        self.recount();
        Ok(())
    }

    /// The guest started anew: it owns all of its memory, and nobody has told it anything.
    pub fn reset(&mut self) {
        let held: u64 = self.actual.iter().sum();
        tracing::info!("the guest started anew; balloons with {held} pages are empty now");
        self.forget_open();
        self.state.reset();
        self.recount();
        self.told_generation = None;
        self.statistics.fill(GuestStatistics::default());
        self.statistics_due_ns = None;
        self.throttled = false;
    }

    /// Notes that a queue has something, or may have.
    pub fn kick(&mut self, queue: usize) {
        if let Some(kicked) = self.kicked.get_mut(queue) {
            *kicked = true;
        }
    }

    /// Serves what is there; returns when it wants to be called again without a kick, if ever. A time in the past
    /// means at once.
    pub fn turn(&mut self, now_ns: u64, rings: &[Ring]) -> Option<u64> {
        let memory = self.memory.clone().filter(|_| !self.ended)?;
        let mut again: Option<u64> = None;
        let mut want = |at: Option<u64>| {
            again = match (again, at) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        };
        for (queue, ring) in rings.iter().enumerate() {
            let Some(role) = abi::role(queue, self.tiers.len()) else {
                break;
            };
            if self.must_end(ring) {
                want(Some(now_ns));
                continue;
            }
            let Some(_work) = ring.work() else {
                continue;
            };
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

    /// Whether somebody waits for the work on a ring to end.
    #[inline]
    fn must_end(&self, ring: &Ring) -> bool {
        self.halt.is_wished() || ring.halt().is_wished()
    }

    /// Sees from where the rings stand whether they are those of before. A ring that is back at 0 belongs to a
    /// driver that started anew; any other place is what the hypervisor says after a restart of this process. Rings
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

    /// A chain is about to be worked on: whether a process before this one had begun it.
    fn begin(&mut self, queue: usize, role: QueueRole, position: u16) -> bool {
        let begun = self.state.in_flight(queue) == Some(position);
        if let QueueRole::Inflate(tier) = role {
            if begun && self.state.is_from_empty(queue) {
                // The first chain of a driver, and now perhaps that of the next one, whose pages the marks are not.
                self.state.put_all(tier, 0, u64::MAX, false);
                self.recount();
            }
            let is_empty = self.actual.get(tier) == Some(&0);
            self.state.set_from_empty(queue, is_empty);
        }
        self.state.set_in_flight(queue, Some(position));
        begun
    }

    /// Leaves a chain that was undone in its ring, as if it had not been looked at.
    fn leave(&mut self, queue: usize, ring: &Ring, position: u16) {
        ring.get_mut().get_queue_mut().set_next_avail(position);
        self.state.set_in_flight(queue, None);
        self.counters.undone_chains += 1;
    }

    /// Answers a chain and notes how far the ring is; false where the ring is not there.
    fn finish(&self, queue: usize, ring: &Ring, head: u16, len: u32) -> bool {
        let answered = ring.add_used(head, len).is_ok();
        self.note_position(queue, ring);
        answered
    }

    fn note_position(&self, queue: usize, ring: &Ring) {
        let next = ring.unanswered();
        self.state.set_position(queue, next);
        self.state.set_in_flight(queue, None);
    }

    /// Interrupts the guest where it asked for that.
    fn signal(&self, ring: &Ring) {
        let wanted = !self.event_idx || ring.needs_notification().unwrap_or(true);
        if wanted {
            // A full eventfd is a signal that was not looked at yet.
            let _ = ring.signal_used_queue();
        }
    }
}

/// The time of day, ns: a number that no device before this one came to.
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

/// Where a ring that is set up stands.
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
