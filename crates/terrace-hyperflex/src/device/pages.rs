//! The queues by which pages enter and leave a balloon.

use std::ops::Deref;

use vhost_user_backend::VringT as _;
use virtio_queue::{DescriptorChain, QueueOwnedT as _, QueueT as _};
use vm_memory::{Bytes as _, GuestAddress, GuestAddressSpace as _, GuestMemoryMmap};

use super::{CHAINS_PER_TURN, Device, Memory};
use crate::abi::{ENTRY_BYTES, Entry, MAX_ENTRIES, QueueRole};
use crate::chain::{self, Malformed};
use crate::memory::Backing;
use crate::ring::Ring;
use crate::tier::{EntryRefusal, Run};

/// No hole crosses a multiple of it, so that each is punched within about a millisecond. A power of two, and no less
/// than the largest page.
const HOLE_BYTES: u64 = 8 << 20;

/// How a round over a ring ended.
pub(super) enum Drained {
    /// Nothing was left.
    Empty,
    /// No chain was left but those that wait for a pin check.
    Open,
    /// No more chains before a pin check, or this time.
    Waiting(Option<u64>),
    /// The queue is served no more until the guest starts anew.
    Ended,
    /// Chains were served, and there may be more.
    More,
    /// The ring makes no sense.
    Broken,
    /// A thread waits for the ring or the device; the chains that were not served are still in the ring.
    Halted,
    /// The guest has had its rate; more from this time on.
    Throttled(u64),
}

/// The outcome of a chain's entries.
#[derive(Clone, Copy, Default)]
pub(super) struct Taken {
    pub taken: u32,
    pub refused: u32,
}

impl<B: Backing> Device<B> {
    /// Serves a page queue that was kicked; returns when it wants to continue without a kick.
    pub(super) fn page_queue(
        &mut self,
        now_ns: u64,
        queue: usize,
        role: QueueRole,
        ring: &Ring,
        memory: &Memory,
    ) -> Option<u64> {
        if !self.notifications.is_kicked(queue) {
            return None;
        }
        let memory = memory.memory();
        // A queue that never empties keeps the others waiting no longer than this.
        let mut left = CHAINS_PER_TURN;
        let mut served = false;
        let again = loop {
            // A ring out of reach is seen by the drain.
            let _ = ring.disable_notification();
            let before = left;
            let drained = match role {
                QueueRole::Inflate(tier) if self.leasing.is_needed() => {
                    self.drain_leased(now_ns, (queue, tier), ring, &memory, &mut left)
                }
                _ => self.drain(now_ns, queue, role, ring, &memory, &mut left),
            };
            served |= left < before;
            match drained {
                // The queue stays kicked here and in the next two: chains are left for which no kick may come.
                Drained::More | Drained::Halted => break Some(now_ns),
                Drained::Throttled(at) => break Some(at),
                Drained::Waiting(at) => break at,
                // The queue stays kicked: the result of a pin check brings a turn, in which its chains are answered.
                Drained::Open if !ring.enable_notification().unwrap_or(false) => break None,
                Drained::Ended => {
                    self.notifications.rest(queue);
                    break None;
                }
                Drained::Broken => {
                    self.counters.broken_rings += 1;
                    self.notifications.rest(queue);
                    break None;
                }
                // The driver may have posted while notifications were off: without a second check the queue stalls.
                Drained::Empty if !ring.enable_notification().unwrap_or(false) => {
                    self.notifications.rest(queue);
                    break None;
                }
                Drained::Empty | Drained::Open => {}
            }
        };
        if served {
            // Once for all chains of the turn, which is one interrupt in the guest.
            self.notifications.signal(ring);
        }
        again
    }

    /// Serves chains until there are none, `left` is used up, or the guest has had its rate.
    fn drain<M>(
        &mut self,
        now_ns: u64,
        queue: usize,
        role: QueueRole,
        ring: &Ring,
        memory: &M,
        left: &mut usize,
    ) -> Drained
    where
        M: Deref<Target = GuestMemoryMmap> + Clone,
    {
        loop {
            // All that may end the round comes before a chain is taken: nothing has to be put back.
            if *left == 0 {
                return Drained::More;
            }
            if self.stop.is_requested(ring) {
                return Drained::Halted;
            }
            if let Some(at) = self.throttle(now_ns) {
                return Drained::Throttled(at);
            }
            let mut state = ring.get_mut();
            // The chain is known by this place if it is put back, or if this process is killed.
            let position = state.get_queue().next_avail();
            let chain = match state.get_queue_mut().iter(memory.clone()) {
                Ok(mut heads) => heads.next(),
                Err(_) => return Drained::Broken,
            };
            // The answer takes this lock again.
            drop(state);
            let Some(chain) = chain else {
                return Drained::Empty;
            };
            let head = chain.head_index();
            let begun = self.begin(queue, role, position);
            let Some(len) = self.chain(role, ring, chain, memory, begun) else {
                self.leave(queue, ring, position);
                return Drained::Halted;
            };
            // A chain that was undone is none of these: it will be served again.
            *left -= 1;
            if !self.finish(queue, ring, head, len) {
                return Drained::Broken;
            }
        }
    }

    /// The time from which on the guest may have more, if it has had its rate.
    pub(super) fn throttle(&mut self, now_ns: u64) -> Option<u64> {
        let was = self.throttle.is_on();
        let at = self.throttle.next_ns(now_ns);
        self.counters.throttled += u64::from(at.is_some() && !was);
        at
    }

    /// Works on a chain; returns the length of its answer, or `None` if it was stopped and undid all of it.
    fn chain<M>(
        &mut self,
        role: QueueRole,
        ring: &Ring,
        chain: DescriptorChain<M>,
        memory: &GuestMemoryMmap,
        begun: bool,
    ) -> Option<u32>
    where
        M: Deref<Target = GuestMemoryMmap> + Clone,
    {
        let most = MAX_ENTRIES * ENTRY_BYTES;
        let mut bytes = std::mem::take(&mut self.scratch.bytes);
        let len = match chain::request(chain, memory, most, &mut bytes) {
            Ok(answer) if bytes.len().is_multiple_of(ENTRY_BYTES) && !bytes.is_empty() => {
                let before = self.counters;
                let taken = self.entries(role, ring, &bytes, begun);
                if taken.is_none() {
                    // They will be counted when it is done.
                    self.counters = before;
                }
                self.counters.chains += u64::from(taken.is_some());
                taken.map(|taken| answer.map_or(0, |at| write_answer(memory, at, taken)))
            }
            Ok(_) | Err(Malformed) => {
                self.counters.malformed_chains += 1;
                // Nonsense is paid for too: it costs the device a read of the chain.
                self.throttle.take(1);
                Some(0)
            }
        };
        self.scratch.bytes = bytes;
        len
    }

    /// Takes entries into the balloon or out of it, or none if it is stopped. `begun`: a process before this one may
    /// have done part of it, so that an entry that is done already counts as taken.
    fn entries(
        &mut self,
        role: QueueRole,
        ring: &Ring,
        bytes: &[u8],
        begun: bool,
    ) -> Option<Taken> {
        let (tier, inflate) = match role {
            QueueRole::Inflate(tier) => (tier, true),
            QueueRole::Deflate(tier) => (tier, false),
            QueueRole::Events | QueueRole::Statistics => return Some(Taken::default()),
        };
        let mut taken = Taken::default();
        let mut runs = std::mem::take(&mut self.scratch.runs);
        runs.clear();
        // By entries and not by pages: each may be a hole of its own, of any size.
        self.throttle.take(1 + (bytes.len() / ENTRY_BYTES) as u64);
        for word in bytes.as_chunks::<ENTRY_BYTES>().0 {
            match self.entry(tier, inflate, begun, Entry(u64::from_le_bytes(*word))) {
                Ok((region, run)) => {
                    taken.taken += 1;
                    runs.push((region, run));
                }
                Err(why) => {
                    taken.refused += 1;
                    self.counters.refuse(why, 1);
                }
            }
        }
        let pages: u64 = runs.iter().map(|(_, run)| run.pages).sum();
        let done = if inflate {
            self.free(tier, ring, &mut runs).map(|failed| {
                let lost = failed.entries;
                // They were marked, and are out of the balloon again: the answer must give them back to the driver.
                taken.taken -= lost;
                taken.refused += lost;
                self.counters.refuse(EntryRefusal::Punch, lost.into());
                self.counters.inflated_pages += pages - failed.pages;
            })
        } else {
            // Nothing is done to the memory: the host gives pages anew when the guest uses them.
            self.counters.deflated_pages += pages;
            Some(())
        };
        self.scratch.runs = runs;
        done.map(|()| taken)
    }

    /// Checks an entry and marks its pages.
    pub(super) fn entry(
        &mut self,
        tier: usize,
        inflate: bool,
        begun: bool,
        entry: Entry,
    ) -> Result<(usize, Run), EntryRefusal> {
        let run = self.balloons.admit(tier, entry)?;
        // Of a huge page no part can be given back, and a hole is in one file.
        let region = self.ram.region_of(&run).ok_or(EntryRefusal::Backing)?;
        // A process may have been killed in the middle of marking them.
        if begun || self.state.all_are(tier, run.first, run.pages, !inflate) {
            // Entry by entry: a page that a new chain names twice is refused the second time.
            self.balloons.mark(tier, &run, inflate);
            Ok((region, run))
        } else {
            Err(EntryRefusal::Duplicate)
        }
    }

    /// Gives runs back to the host, neighbours together; returns the runs that the kernel did not take, out of the
    /// balloon again. If it is stopped, it takes all of them out, for those that are gone already are the guest's
    /// still: `None`.
    fn free(
        &mut self,
        tier: usize,
        ring: &Ring,
        runs: &mut [(usize, Run)],
    ) -> Option<PunchFailures> {
        // Neighbours become one hole, in any order in which the guest names them: one call of the kernel instead of one
        // for each page.
        runs.sort_unstable_by_key(|(_, run)| run.gpa);
        let mut failed = PunchFailures::default();
        for (region, whole, entries) in groups(runs) {
            if self.stop.is_requested(ring) {
                // All of them: a driver that starts anew finds nothing of the chain, and one that continues has it done
                // anew.
                for (_, run) in runs.iter() {
                    self.balloons.mark(tier, run, false);
                }
                return None;
            }
            self.counters.holes += 1;
            if !self.ram.free(region, &whole) {
                // A page that has its memory still is in no balloon, or the guest would be reported as dishonest.
                self.balloons.mark(tier, &whole, false);
                failed.entries += u32::try_from(entries).unwrap_or(u32::MAX);
                failed.pages += whole.pages;
            }
        }
        Some(failed)
    }
}

/// The holes that ascending runs come to, neighbours together: region, pages, and how many runs they are.
pub(super) fn groups(runs: &[(usize, Run)]) -> impl Iterator<Item = (usize, Run, usize)> {
    let touching = |(a, left): &(usize, Run), (b, right): &(usize, Run)| {
        let adjacent = left.gpa + left.bytes() == right.gpa;
        let one_hole = left.gpa / HOLE_BYTES == right.gpa / HOLE_BYTES;
        a == b && adjacent && one_hole && left.first + left.pages == right.first
    };
    runs.chunk_by(touching).filter_map(|group| {
        let (region, head) = *group.first()?;
        let pages = group.iter().map(|(_, run)| run.pages).sum();
        Some((region, Run { pages, ..head }, group.len()))
    })
}

/// The part of a chain that the host did not get back.
#[derive(Default)]
struct PunchFailures {
    entries: u32,
    pages: u64,
}

pub(super) fn write_answer(memory: &GuestMemoryMmap, at: GuestAddress, taken: Taken) -> u32 {
    let answer = [taken.taken.to_le_bytes(), taken.refused.to_le_bytes()];
    match memory.write_slice(answer.as_flattened(), at) {
        Ok(()) => 8,
        // The memory may be another one since the chain was read, if the chain waited for a pin check.
        Err(_) => 0,
    }
}
