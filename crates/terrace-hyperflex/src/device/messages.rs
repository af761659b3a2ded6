//! Targets to the driver, statistics from it.

use std::ops::Deref as _;

use vhost_user_backend::VringT as _;
use virtio_queue::{DescriptorChain, QueueOwnedT as _, QueueT as _};
use vm_memory::atomic::GuestMemoryLoadGuard;
use vm_memory::{GuestAddressSpace as _, GuestMemoryMmap};

use super::{Device, Memory};
use crate::abi::{self, MAX_STATISTICS, STATISTIC_BYTES};
use crate::chain;
use crate::memory::Backing;
use crate::ring::Ring;

type Chain = DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>;

const NS_PER_S: u64 = 1_000_000_000;

impl<B: Backing> Device<B> {
    /// Sends the current targets, if the driver does not know them and has a buffer for it. Older ones that were never
    /// sent are not sent later.
    pub(super) fn tell(&mut self, queue: usize, ring: &Ring, memory: &Memory) {
        if self.has_sent_targets() {
            return;
        }
        let memory = memory.memory();
        let event = abi::targets_event(self.state.generation(), &self.state.targets());
        let mut answered = false;
        // Each round answers a chain of the ring or is the last.
        let most = ring.get_ref().get_queue().size();
        for _ in 0..most {
            if self.has_sent_targets() {
                break;
            }
            // A buffer that is posted from here on brings a kick.
            let _ = ring.enable_notification();
            let Some(chain) = self.next_chain(ring, memory.clone()) else {
                break;
            };
            let head = chain.head_index();
            let written = chain::writable(chain, memory.deref())
                .and_then(|buffers| buffers.write(memory.deref(), &event));
            // A buffer that is of no use is answered too: the driver has it back, and the next one is tried.
            let len = if written.is_ok() {
                self.sent_generation = Some(self.state.generation());
                self.counters.events += 1;
                u32::try_from(event.len()).unwrap_or(0)
            } else {
                self.counters.bad_event_buffers += 1;
                0
            };
            answered = true;
            if !self.finish(queue, ring, head, len) {
                self.counters.broken_rings += 1;
                break;
            }
        }
        if answered {
            self.notifications.signal(ring);
        }
    }

    /// Reads the statistics that the driver posted, without taking the buffer, and answers it when the next ones are
    /// wanted; returns when that is.
    pub(super) fn hear(
        &mut self,
        now_ns: u64,
        queue: usize,
        ring: &Ring,
        memory: &Memory,
    ) -> Option<u64> {
        let interval_s = self.config.limits().statistics_s;
        if interval_s == 0 {
            return None;
        }
        // The driver posts anew only after an answer: its buffer is held until new statistics are wanted.
        let due = self.statistics.due_ns.is_some_and(|at| now_ns >= at);
        let kicked = self.notifications.rest(queue);
        if !due && !kicked {
            return self.statistics.due_ns;
        }
        // A buffer that is posted from here on brings a kick.
        let _ = ring.enable_notification();
        let memory = memory.memory();
        let Some(chain) = self.next_chain(ring, memory.clone()) else {
            self.statistics.due_ns = None;
            return None;
        };
        let head = chain.head_index();
        // The statistics in it were read when it was posted.
        if due {
            self.statistics.due_ns = None;
            if !self.finish(queue, ring, head, 0) {
                self.counters.broken_rings += 1;
                return None;
            }
            // The driver posts in return, which brings a kick only if the ring's notifications are on by now; another
            // one may be there already.
            let _ = ring.enable_notification();
            self.notifications.signal(ring);
            return self.next_is_there(queue, ring, memory).then_some(now_ns);
        }
        self.read_statistics(chain, memory.deref());
        {
            let mut state = ring.get_mut();
            let ring = state.get_queue_mut();
            // Not taken: a ring that stops or a process that ends meanwhile finds it at the place of the driver's post.
            // Places in a ring begin at 0 again after 65,535.
            let back = ring.next_avail().wrapping_sub(1);
            ring.set_next_avail(back);
        }
        let at = now_ns.saturating_add(u64::from(interval_s) * NS_PER_S);
        // A driver that kicks once more does not put that off.
        Some(*self.statistics.due_ns.get_or_insert(at))
    }

    fn next_is_there(
        &mut self,
        queue: usize,
        ring: &Ring,
        memory: GuestMemoryLoadGuard<GuestMemoryMmap>,
    ) -> bool {
        let next = ring.get_ref().get_queue().next_avail();
        let there = self.next_chain(ring, memory).is_some();
        if there {
            ring.get_mut().get_queue_mut().set_next_avail(next);
            // It may have been posted while notifications were off.
            self.kick(queue);
        }
        there
    }

    fn read_statistics(&mut self, chain: Chain, memory: &GuestMemoryMmap) {
        let mut bytes = std::mem::take(&mut self.scratch.bytes);
        let most = MAX_STATISTICS * STATISTIC_BYTES;
        match chain::request(chain, memory, most, &mut bytes) {
            // A driver expects no answer here: a chain with room for one is no buffer of statistics.
            Ok(None) => {
                for said in abi::statistics(&bytes, self.tier_maps().len()) {
                    let pages = self.config.tiers().get(said.tier).map_or(0, |t| t.pages());
                    // Sums over tiers and VMs are made of these: with a bound for each none overflows.
                    let plausible = said.value <= abi::most_of_statistic(said.tag, pages);
                    self.counters.implausible_statistics += u64::from(!plausible);
                    self.statistics.take(said, plausible);
                }
                self.counters.statistics += 1;
            }
            _ => self.counters.bad_statistics += 1,
        }
        self.scratch.bytes = bytes;
    }

    fn next_chain(
        &mut self,
        ring: &Ring,
        memory: GuestMemoryLoadGuard<GuestMemoryMmap>,
    ) -> Option<Chain> {
        let mut state = ring.get_mut();
        let chain = state
            .get_queue_mut()
            .iter(memory)
            .map(|mut heads| heads.next());
        drop(state);
        chain.unwrap_or_else(|_| {
            self.counters.broken_rings += 1;
            None
        })
    }
}
