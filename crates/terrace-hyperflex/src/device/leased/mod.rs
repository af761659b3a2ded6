//! Inflation under leases, as another process may have pinned the memory: chains are punched under a lease, and
//! answered after a pin check that began later (`lease.rs`).
//!
//! Chains of a queue are answered in their order. One that was punched and not answered is in no balloon; its pages are
//! noted as not proven, in the state too, so that a process that is killed loses none of them. If its ring is stopped
//! or changed it is in the ring again at once, without a wait for a pin check. The next pin check after that covers its
//! pages as well: if it finds another process, they are withheld, and with them the queue ends, so that no answer ever
//! gives them back; the driver owns them again when it starts anew, and not before.

use std::collections::VecDeque;
use std::ops::Deref;

use vhost_user_backend::VringT as _;
use virtio_queue::{DescriptorChain, QueueOwnedT as _, QueueT as _};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::Device;
use super::pages::{Drained, Taken, groups, write_answer};
use crate::abi::{ENTRY_BYTES, Entry, MAX_ENTRIES, QueueRole};
use crate::chain;
use crate::lease::{Holders, Leases, May};
use crate::memory::Backing;
use crate::ring::Ring;
use crate::state::State;
use crate::tier::{EntryRefusal, Run};

/// Chains of a queue that are punched and not answered, at most.
const MAX_OPEN: usize = 16;

/// A chain that is not answered yet.
#[derive(Debug)]
struct Open {
    /// The chain's number by the leases' count.
    number: u64,
    position: u16,
    head: u16,
    answer: Option<GuestAddress>,
    /// As it was read: a guest may write to it since. Empty: it is no chain of entries.
    bytes: Vec<u8>,
    /// The runs that the kernel did not take.
    failed_runs: Vec<Run>,
}

/// The chains of a tier that are not answered yet, in their order.
#[derive(Debug, Default)]
struct OpenChains {
    chains: VecDeque<Open>,
    /// The ring's count of changes when they were taken from it.
    changes: u64,
    /// The last chain that was punched and is in its ring again.
    undone: Option<u64>,
}

/// The leases of a device, and the chains that wait for pin checks.
pub(super) struct Leasing {
    /// `None` if no process pins the memory, by the operator's word.
    leases: Option<Leases>,
    /// Of each tier: the chains that were punched and are not answered.
    open: Vec<OpenChains>,
}

impl Leasing {
    /// Leases without waiting chains; `first`: the number of the first pin check, if pin checks are needed.
    pub fn new(tiers: usize, first: Option<u64>) -> Self {
        Self {
            leases: first.map(Leases::new),
            open: (0..tiers).map(|_| OpenChains::default()).collect(),
        }
    }

    /// Whether memory is given back only after pin checks.
    pub fn is_needed(&self) -> bool {
        self.leases.is_some()
    }

    /// Notes the tiers of which a process before this one punched pages that no pin check has cleared.
    pub fn find_undone(&mut self, state: &State) {
        for (tier, open) in self.open.iter_mut().enumerate() {
            // Chains are numbered from 1, so the first pin check of this process that finds no other process clears
            // these pages.
            open.undone = (state.unproven(tier) > 0).then_some(0);
        }
    }

    /// Whether a tier has chains that are punched and not proven.
    fn is_unproven(&self, tier: usize) -> bool {
        let open = self.open.get(tier);
        open.is_some_and(|open| !open.chains.is_empty() || open.undone.is_some())
    }

    /// How many chains of a tier are punched and not answered.
    fn count(&self, tier: usize) -> usize {
        self.open.get(tier).map_or(0, |open| open.chains.len())
    }

    /// Whether a chain may be punched now.
    fn may(&mut self, now_ns: u64) -> May {
        match &mut self.leases {
            Some(leases) => leases.may(now_ns),
            None => May::Punch,
        }
    }

    /// The place in its ring of the first chain of a tier that is not answered.
    fn first_position(&self, tier: usize) -> Option<u16> {
        let open = self.open.get(tier)?;
        open.chains.front().map(|first| first.position)
    }

    /// Adds a chain that is punched and waits.
    fn push(&mut self, tier: usize, chain: Open) {
        if let Some(open) = self.open.get_mut(tier) {
            open.chains.push_back(chain);
        }
    }

    /// Takes out the first chain of a tier, if it is proven: it waits no more.
    fn pop_proven(&mut self, tier: usize) -> Option<Open> {
        let proven = self.leases.as_ref().map_or(u64::MAX, Leases::proven);
        let chains = &mut self.open.get_mut(tier)?.chains;
        let is_proven = chains.front()?.number <= proven;
        is_proven.then(|| chains.pop_front())?
    }

    /// Drops all that waits: the guest started anew.
    fn forget(&mut self) {
        for open in &mut self.open {
            open.chains.clear();
            open.undone = None;
        }
    }
}

impl<B: Backing> Device<B> {
    /// The number of the next pin check, if pin checks are needed.
    pub fn next_pin_check(&mut self, now_ns: u64) -> Option<u64> {
        let leases = self.leasing.leases.as_mut();
        leases.map(|leases| leases.give(now_ns))
    }

    /// Takes in the result of the pin check of this number; `false` if it does not count.
    pub fn pin_checked(&mut self, number: u64, found: Holders, now_ns: u64) -> bool {
        let Some(leases) = &mut self.leasing.leases else {
            return false;
        };
        let is_nobody = found == Holders::Nobody;
        // `Unknown` proves nothing and names no process: punched pages wait for the next pin check.
        let who = match &found {
            Holders::Somebody(who) => Some(who.clone()),
            Holders::Nobody | Holders::Unknown(_) => None,
        };
        if !leases.answer(number, found, now_ns) {
            self.counters.stale_pin_checks += 1;
            return false;
        }
        // All that was punched before this pin check began, if it found no other process; else as of earlier ones.
        let proven = leases.proven();
        for tier in 0..self.tier_maps().len() {
            if is_nobody {
                self.prove_undone(tier, proven);
            } else if let Some(who) = &who {
                self.withhold(tier, proven, who);
            }
        }
        true
    }

    /// Whether chains wait for a pin check.
    #[must_use]
    pub fn awaits_pin_check(&self) -> bool {
        let waits = self.leases().is_some_and(Leases::is_waited_for);
        let tiers = 0..self.tier_maps().len();
        waits || tiers.into_iter().any(|tier| self.needs_proof(tier))
    }

    fn needs_proof(&self, tier: usize) -> bool {
        // No pin check can clear pages that are withheld, so none is requested.
        self.leasing.is_unproven(tier) && !self.state.is_withheld(tier)
    }

    /// The leases, if holes need them.
    #[must_use]
    pub(crate) fn leases(&self) -> Option<&Leases> {
        self.leasing.leases.as_ref()
    }

    /// Notes the pages of chains that were undone as proven, if the pin check clears them.
    fn prove_undone(&mut self, tier: usize, proven: u64) {
        let Some(open) = self.leasing.open.get_mut(tier) else {
            return;
        };
        // This pin check does not show a process that appeared between its beginning and the last hole.
        if self.state.is_withheld(tier) || open.undone.is_none_or(|number| number > proven) {
            return;
        }
        open.undone = None;
        self.state.put_unproven(tier, 0, u64::MAX, false);
        // The bits do not distinguish chains: all are cleared, and those of chains that still wait are set again.
        self.note_open(tier, true, |_| true);
    }

    /// Notes the pages of open chains as not proven, or as proven.
    fn note_open(&self, tier: usize, on: bool, which: impl Fn(&Open) -> bool) {
        let chains = self
            .leasing
            .open
            .get(tier)
            .into_iter()
            .flat_map(|o| &o.chains);
        for chain in chains.filter(|chain| which(chain)) {
            for run in self.balloons.runs_of(tier, &chain.bytes) {
                self.state.put_unproven(tier, run.first, run.pages, on);
            }
        }
    }

    /// Withholds all pages that are not proven, as another process appeared.
    fn withhold(&mut self, tier: usize, proven: u64, who: &str) {
        // An earlier pin check found no other process after these were punched: they will be answered.
        self.note_open(tier, false, |chain| chain.number <= proven);
        let pages = self.state.unproven(tier);
        if pages == 0 || self.state.is_withheld(tier) {
            return;
        }
        // In the state, so that a new process does not hand them back either.
        self.state.withhold(tier);
        // No later pin check can clear them.
        let chains = self.leasing.open.get_mut(tier).map(|open| &mut open.chains);
        for chain in chains.into_iter().flatten() {
            if chain.number > proven {
                chain.number = u64::MAX;
            }
        }
        self.counters.withheld_pages += pages;
        tracing::warn!(
            "tier {tier}: {pages} pages were given back while {who} came, which may have pinned them before: \
             they stay \
             out of use, and this tier shrinks no more until the guest's driver starts anew"
        );
    }

    /// Forgets chains that are in their ring again.
    fn follow_changes(&mut self, tier: usize, ring: &Ring) {
        let Some(open) = self.leasing.open.get_mut(tier) else {
            return;
        };
        // The chains are in the ring again, and are read anew: answered from here they would be answered twice.
        if open.changes != ring.changes() {
            open.changes = ring.changes();
            self.counters.undone_chains += open.chains.len() as u64;
            if let Some(last) = open.chains.back() {
                // Their pages are punched all the same: a pin check that began after the last of them has to cover
                // all.
                open.undone = Some(last.number);
            }
            open.chains.clear();
        }
        // No chain is known here, as after a reset of the device: the ring goes back to the first that has no answer.
        if open.chains.is_empty() {
            ring.reopen();
        }
    }

    /// Serves an inflate queue: answers the chains that are proven, then punches those that may be.
    pub(super) fn drain_leased<M>(
        &mut self,
        now_ns: u64,
        (queue, tier): (usize, usize),
        ring: &Ring,
        memory: &M,
        left: &mut usize,
    ) -> Drained
    where
        M: Deref<Target = GuestMemoryMmap> + Clone,
    {
        self.follow_changes(tier, ring);
        loop {
            if let Some(ended) = self.before_next(now_ns, (queue, tier), ring, memory, left) {
                return ended;
            }
            let open = self.leasing.count(tier);
            let mut state = ring.get_mut();
            let position = state.get_queue().next_avail();
            let chain = match state.get_queue_mut().iter(memory.clone()) {
                Ok(mut heads) => heads.next(),
                Err(_) => return Drained::Broken,
            };
            drop(state);
            let Some(chain) = chain else {
                return if open == 0 {
                    Drained::Empty
                } else {
                    Drained::Open
                };
            };
            // Queried only now that there is a chain: the call begins the half second after which the chain is refused.
            let may = self.leasing.may(now_ns);
            let put_back = || ring.get_mut().get_queue_mut().set_next_avail(position);
            match may {
                May::Wait(until) => {
                    put_back();
                    return Drained::Waiting(Some(until));
                }
                // Its turn comes after those before it. A chain that was punched and undone is this one, or stands
                // behind it: if refused, its pages would be the guest's again while another process may have pinned
                // those of before.
                May::Refuse if open > 0 || self.needs_proof(tier) => {
                    put_back();
                    return Drained::Waiting(None);
                }
                May::Punch | May::Refuse => {}
            }
            let mut chain = self.read((queue, tier), position, chain, memory);
            // The guest's driver keeps the memory and posts it again.
            if may == May::Refuse {
                *left -= 1;
                let len = self.refuse(&chain, memory);
                if !self.settle(queue, ring, &chain, len) {
                    return Drained::Broken;
                }
                continue;
            }
            if !self.punch(tier, ring, &mut chain) {
                put_back();
                return Drained::Halted;
            }
            self.leasing.push(tier, chain);
            // Who stops the ring has it go back to the first chain that has no answer.
            ring.set_open(self.leasing.first_position(tier));
        }
    }

    /// Answers the chains that are proven; returns the reason why no chain may be begun after that, if so.
    fn before_next<M>(
        &mut self,
        now_ns: u64,
        (queue, tier): (usize, usize),
        ring: &Ring,
        memory: &M,
        left: &mut usize,
    ) -> Option<Drained>
    where
        M: Deref<Target = GuestMemoryMmap>,
    {
        // First, also in a tier that is withheld: proven pages belong to no other process.
        if !self.answer_proven((queue, tier), ring, memory, left) {
            return Some(Drained::Broken);
        }
        if self.state.is_withheld(tier) {
            return Some(Drained::Ended);
        }
        if *left == 0 {
            return Some(Drained::More);
        }
        if self.stop.is_requested(ring) {
            return Some(Drained::Halted);
        }
        // No list grows with a guest's posts. The next pin check brings a turn.
        if self.leasing.count(tier) >= MAX_OPEN {
            return Some(Drained::Waiting(None));
        }
        self.throttle(now_ns).map(Drained::Throttled)
    }

    /// Reads a chain. Pages that a process before this one marked as taken, in a chain that it did not answer, are not
    /// taken.
    fn read<M>(
        &mut self,
        (queue, tier): (usize, usize),
        position: u16,
        chain: DescriptorChain<M>,
        memory: &GuestMemoryMmap,
    ) -> Open
    where
        M: Deref<Target = GuestMemoryMmap> + Clone,
    {
        let head = chain.head_index();
        let mut bytes = Vec::new();
        let read = chain::request(chain, memory, MAX_ENTRIES * ENTRY_BYTES, &mut bytes);
        // A chain that is none waits like the others, since they are answered in their order.
        if read.is_err() || !bytes.len().is_multiple_of(ENTRY_BYTES) {
            bytes.clear();
        }
        // The previous process of the device marked these pages, and died before it answered the chain. With the marks
        // left, they would be refused as in the balloon already: the chain begins anew, under this process's leases.
        if self.state.in_flight(queue) == Some(position) {
            self.begin(queue, QueueRole::Inflate(tier), position);
            let runs: Vec<Run> = self.balloons.runs_of(tier, &bytes).collect();
            for run in &runs {
                self.balloons.mark(tier, run, false);
            }
            self.state.set_in_flight(queue, None);
        }
        self.throttle.take(1 + (bytes.len() / ENTRY_BYTES) as u64);
        Open {
            number: 0,
            position,
            head,
            answer: read.ok().flatten(),
            bytes,
            failed_runs: Vec::new(),
        }
    }

    /// Refuses all of a chain; returns the length of its answer.
    fn refuse(&mut self, chain: &Open, memory: &GuestMemoryMmap) -> u32 {
        if chain.bytes.is_empty() {
            self.counters.malformed_chains += 1;
            return 0;
        }
        let refused = u32::try_from(chain.bytes.len() / ENTRY_BYTES).unwrap_or(u32::MAX);
        self.counters.chains += 1;
        self.counters.refused_pinned += u64::from(refused);
        let taken = Taken { taken: 0, refused };
        chain.answer.map_or(0, |at| write_answer(memory, at, taken))
    }

    /// Punches the holes of a chain; false if it was stopped: the chain is to be put back.
    fn punch(&mut self, tier: usize, ring: &Ring, chain: &mut Open) -> bool {
        chain.number = self.leasing.leases.as_mut().map_or(0, Leases::punch);
        let mut runs = std::mem::take(&mut self.scratch.runs);
        runs.clear();
        runs.extend(self.balloons.runs_of(tier, &chain.bytes).filter_map(|run| {
            // Pages that are in the balloon already are refused when the chain is answered: they are not punched again.
            let is_out = self.state.all_are(tier, run.first, run.pages, false);
            let region = is_out.then(|| self.ram.region_of(&run))??;
            Some((region, run))
        }));
        runs.sort_unstable_by_key(|(_, run)| run.gpa);
        let mut is_done = true;
        for (region, whole, _) in groups(&runs) {
            if self.stop.is_requested(ring) {
                // A ring that is stopped is idle at once, and waits for no pin check (rule 16 of `docs/data-rules.md`).
                is_done = false;
                break;
            }
            // Before the hole: a process that is killed in between leaves a page too many as not proven, and none too
            // few.
            self.state
                .put_unproven(tier, whole.first, whole.pages, true);
            self.counters.holes += 1;
            if !self.ram.free(region, &whole) {
                // Only noted: the outcome of the entries is in the chain's answer.
                chain.failed_runs.push(whole);
            }
        }
        self.scratch.runs = runs;
        if !is_done {
            self.counters.undone_chains += 1;
            if let Some(open) = self.leasing.open.get_mut(tier) {
                // Holes that were punched stay so, and a pin check has to clear them.
                open.undone = Some(chain.number);
            }
        }
        is_done
    }

    /// Answers the chains whose pages are proven; false if the ring is not there.
    fn answer_proven<M>(
        &mut self,
        (queue, tier): (usize, usize),
        ring: &Ring,
        memory: &M,
        left: &mut usize,
    ) -> bool
    where
        M: Deref<Target = GuestMemoryMmap>,
    {
        while *left > 0 {
            let Some(chain) = self.leasing.pop_proven(tier) else {
                break;
            };
            *left -= 1;
            let len = self.take_all((queue, tier), &chain, memory);
            let runs: Vec<Run> = self.balloons.runs_of(tier, &chain.bytes).collect();
            for run in &runs {
                self.state.put_unproven(tier, run.first, run.pages, false);
            }
            ring.set_open(self.leasing.first_position(tier));
            if !self.settle(queue, ring, &chain, len) {
                return false;
            }
        }
        true
    }

    /// Takes a chain's entries into the balloon; returns the length of its answer.
    fn take_all(
        &mut self,
        (queue, tier): (usize, usize),
        chain: &Open,
        memory: &GuestMemoryMmap,
    ) -> u32 {
        if chain.bytes.is_empty() {
            self.counters.malformed_chains += 1;
            return 0;
        }
        let begun = self.begin(queue, QueueRole::Inflate(tier), chain.position);
        let mut taken = Taken::default();
        for word in chain.bytes.as_chunks::<ENTRY_BYTES>().0 {
            // Checked now and not when it was punched: pages may have come out of the balloon since, or gone into it.
            let entry = self.entry(tier, true, begun, Entry(u64::from_le_bytes(*word)));
            let entry = entry.and_then(|(_, run)| {
                let covers_run = |failed: &Run| {
                    failed.first <= run.first
                        && run.first + run.pages <= failed.first + failed.pages
                };
                // The kernel did not take them, so the guest has them still.
                if chain.failed_runs.iter().any(covers_run) {
                    self.balloons.mark(tier, &run, false);
                    return Err(EntryRefusal::Punch);
                }
                Ok(run)
            });
            match entry {
                Ok(run) => {
                    taken.taken += 1;
                    self.counters.inflated_pages += run.pages;
                }
                Err(why) => {
                    taken.refused += 1;
                    self.counters.refuse(why, 1);
                }
            }
        }
        self.counters.chains += 1;
        chain.answer.map_or(0, |at| write_answer(memory, at, taken))
    }

    fn settle(&mut self, queue: usize, ring: &Ring, chain: &Open, len: u32) -> bool {
        let answered = ring.add_used(chain.head, len).is_ok();
        // The ring is ahead: chains behind this one were taken from it and wait.
        let next = chain.position.wrapping_add(1);
        self.state.set_position(queue, next);
        self.state.set_in_flight(queue, None);
        answered
    }

    /// Drops all waiting chains: the guest owns all of its memory again, unproven and withheld pages included.
    pub(super) fn forget_open(&mut self) {
        let pages: u64 = (0..self.tier_maps().len())
            .map(|tier| self.state.unproven(tier))
            .sum();
        if pages > 0 {
            self.counters.retaken_pages += pages;
            tracing::warn!(
                "{pages} pages that may be pinned are the guest's again: restart the process that came and \
                 maps its memory, for its devices may write to other pages"
            );
        }
        self.leasing.forget();
    }
}

#[cfg(test)]
mod tests;
