//! The top-level tables that a scan starts from.
//!
//! A scan writes where it walks, so a table is walked only while it has the kernel half of one that a register of
//! this very request names, and only if Linux's direct map proves that half ([`terrace_pagetable::prove`]). That
//! holds for tables found earlier and for those that registers name: by the time of the walk, a process that ran when
//! the registers were read may have ended and its table may be data.
//!
//! A reset of the VM forgets nothing: RAM keeps its bytes. So nothing found before one counts after it. If a table in
//! use cannot be distinguished from one of an earlier boot, or from one that a process wrote, nothing is searched
//! ([`Withheld`]).

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use terrace_pagetable::{
    DirectMap, GuestTables, KernelHalf, Paging, Proven, Unproven, find_roots, maps_users, prove,
};
use terrace_proto::Gfn;
use terrace_proto::worker::Withheld;

/// Kernel halves of which the direct map is remembered.
const HALVES: usize = 8;
/// Kernel halves of before the last reset that are remembered, as digests of 8 bytes; as many of those since.
const EARLIER: usize = 4_096;
/// Virtual CPUs of one request for which a direct map is searched for in vain, each within milliseconds. Of the others
/// only those count that a known one proves.
const MAX_UNPROVEN: usize = 8;

/// A kernel half that was proven.
#[derive(Debug)]
struct Kernel {
    half: KernelHalf,
    map: DirectMap,
    /// A register of the last request names a table with it.
    in_use: bool,
}

/// Top-level tables of one guest, from one scan to the next.
#[derive(Debug, Default)]
pub(super) struct Roots {
    /// Kernels that were seen, the latest first.
    kernels: VecDeque<Kernel>,
    /// Digests of halves that were seen before the last reset.
    earlier: VecDeque<u64>,
    /// Digests of halves that were proven since, and for which there is no room among `kernels`.
    crowded_out: VecDeque<u64>,
    /// The roots that the registers of the last request named; the kernel's table if isolation has two.
    in_use: Vec<Gfn>,
    /// Found by searches since the last reset.
    found: Vec<Gfn>,
}

impl Roots {
    /// Takes what the registers of one request name, as soon as they came.
    ///
    /// # Errors
    /// If none of them is proven: why the first one is not.
    pub(super) fn learn(
        &mut self,
        memory: &impl GuestTables,
        pagings: &[Paging],
    ) -> Result<(), Unproven> {
        self.in_use.clear();
        self.kernels
            .iter_mut()
            .for_each(|kernel| kernel.in_use = false);
        let (mut first_error, mut unproven) = (None, 0);
        let mut seen = HashSet::new();
        for paging in pagings.iter().filter(|paging| seen.insert(paging.root())) {
            if unproven >= MAX_UNPROVEN && !self.inherits(memory, paging.root()) {
                continue;
            }
            let known = |half: &KernelHalf| self.map_of(half);
            match prove(memory, *paging, paging.root(), known) {
                Ok(proven) => self.note(proven),
                Err(error) => {
                    first_error = first_error.or(Some(error));
                    unproven += 1;
                }
            }
        }
        match first_error {
            Some(error) if self.in_use.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether a direct map that is known proves it, without a search for another.
    fn inherits(&self, memory: &impl GuestTables, root: Gfn) -> bool {
        let half = memory.table(root).and_then(KernelHalf::of);
        half.is_some_and(|half| {
            let map = self.map_of(&half);
            map.is_some_and(|map| map.covers(memory, &half, root))
        })
    }

    fn map_of(&self, half: &KernelHalf) -> Option<DirectMap> {
        let known = self.kernels.iter().find(|known| known.half == *half);
        known.map(|known| known.map)
    }

    fn note(&mut self, proven: Proven) {
        let Proven { root, half, map } = proven;
        self.in_use.push(root);
        self.kernels.retain(|known| known.half != half);
        self.make_room();
        self.kernels.push_front(Kernel {
            half,
            map,
            in_use: true,
        });
    }

    /// Lets go of the halves that were seen longest ago, but for their digests.
    fn make_room(&mut self) {
        while self.kernels.len() >= HALVES {
            let last = self.kernels.pop_back();
            let last = last.map(|kernel| digest(&kernel.half));
            let is_new = |digest: &u64| !self.crowded_out.contains(digest);
            if let Some(last) = last.filter(is_new) {
                self.crowded_out.push_back(last);
            }
        }
        let over = self.crowded_out.len().saturating_sub(EARLIER);
        self.crowded_out.drain(..over);
    }

    /// Searches `extents` for tables like those that the last request's registers named; returns why it does not for
    /// some of them, if so.
    pub(super) fn search(
        &mut self,
        memory: &impl GuestTables,
        extents: impl IntoIterator<Item = Range<Gfn>>,
    ) -> Option<Withheld> {
        let mut withheld = None;
        let mut halves = Vec::new();
        for kernel in self.kernels.iter().filter(|kernel| kernel.in_use) {
            match self.withheld(kernel) {
                None => halves.push(&kernel.half),
                why => withheld = why,
            }
        }
        let found = if halves.is_empty() {
            Vec::new()
        } else {
            find_roots(memory, extents, &halves)
        };
        self.found = found;
        withheld
    }

    /// The reason why tables with this half are not searched for.
    fn withheld(&self, kernel: &Kernel) -> Option<Withheld> {
        if kernel.map.is_at_default_base() {
            Some(Withheld::DefaultBase)
        } else if self.earlier.contains(&digest(&kernel.half)) {
            Some(Withheld::SeenBeforeReset)
        } else {
            None
        }
    }

    /// Forgets what was found and learned: the VM was reset, or another kernel is on its way.
    pub(super) fn forget(&mut self) {
        self.earlier.append(&mut self.crowded_out);
        let seen = self.kernels.drain(..).map(|kernel| digest(&kernel.half));
        self.earlier.extend(seen);
        let over = self.earlier.len().saturating_sub(EARLIER);
        self.earlier.drain(..over);
        self.found.clear();
        self.in_use.clear();
    }

    /// Whether any kernel half is remembered.
    pub(super) fn knows_any(&self) -> bool {
        !self.kernels.is_empty()
    }

    /// The tables in use and those found that can be walked now, ascending, each once; to be asked right
    /// before the walk. Found ones that are dead are forgotten.
    pub(super) fn live(&mut self, memory: &impl GuestTables) -> Vec<Gfn> {
        let mut found = std::mem::take(&mut self.found);
        found.retain(|frame| self.is_proven(memory, *frame));
        self.found.clone_from(&found);
        let mut roots = found;
        roots.extend(
            self.in_use
                .iter()
                .filter(|frame| self.is_live(memory, **frame)),
        );
        roots.sort_unstable();
        roots.dedup();
        roots
    }

    /// Whether a frame still resembles a top-level table of the kernel in use that maps something for
    /// users; asked again and again during a walk.
    pub(super) fn is_live(&self, memory: &impl GuestTables, frame: Gfn) -> bool {
        self.kernel_of(memory, frame).is_some()
    }

    /// The same, and the direct map has it: equal halves inherit the proof but for the table itself.
    fn is_proven(&self, memory: &impl GuestTables, frame: Gfn) -> bool {
        let kernel = self.kernel_of(memory, frame);
        kernel.is_some_and(|kernel| kernel.map.maps_to_itself(memory, &kernel.half, frame))
    }

    fn kernel_of(&self, memory: &impl GuestTables, frame: Gfn) -> Option<&Kernel> {
        let table = memory.table(frame)?;
        if !maps_users(table, memory.frames()) {
            return None;
        }
        let mut in_use = self.kernels.iter().filter(|kernel| kernel.in_use);
        in_use.find(|kernel| kernel.half.is_in(table))
    }
}

fn digest(half: &KernelHalf) -> u64 {
    let mut hasher = DefaultHasher::new();
    half.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
