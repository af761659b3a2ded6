//! Which top-level tables a scan starts from.
//!
//! A scan writes where it walks, so a page is only walked while it still looks like a top-level table:
//! its user half is not empty and its kernel half is a trusted one. That holds for tables found earlier
//! and for those that registers name: by the time of the walk, a process that ran when the registers
//! were read may have ended and its table may be data.
//!
//! For the same reason what a register names may be data already when it is read here. A kernel half is
//! trusted only once it is plausible (all that it maps are tables in RAM) and confirmed: seen on two
//! frames, or named by the registers of two requests. With page-table isolation a virtual CPU shows one
//! of two kinds of table at a time, so both kinds are remembered and trusted one by one.
//!
//! After a reboot or kexec the old kernel's tables are data. So once no virtual CPU shows a half that is
//! remembered, or one left long mode, nothing is trusted and all found tables are forgotten.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

use terrace_pagetable::{GuestTables, Table, entry, find_roots};
use terrace_proto::Gfn;

/// Differ between tables of one kernel.
const ACCESSED_DIRTY: u64 = entry::ACCESSED | entry::DIRTY;
/// Set by page-table isolation in the user half of the kernel's table, not in that of its partner.
const NO_EXECUTE: u64 = 1 << 63;
/// Kernel halves that are remembered: two kinds of table, and what changed in them lately.
const HALVES: usize = 8;

type Half = [u64; 256];

/// A kernel half that registers led to.
#[derive(Debug)]
struct Known {
    half: Box<Half>,
    /// Where and in which request it was seen first; `None` where that counts no longer.
    seen: Option<(Gfn, u64)>,
    trusted: bool,
}

impl Known {
    /// Notes a sighting; one on another frame or in another request than the first confirms.
    fn saw(&mut self, frame: Gfn, request: u64) {
        let first = *self.seen.get_or_insert((frame, request));
        self.trusted |= first != (frame, request);
    }
}

/// Top-level tables of one guest, from one scan to the next.
#[derive(Debug, Default)]
pub(super) struct Roots {
    /// Those seen last first.
    halves: VecDeque<Known>,
    found: Vec<Gfn>,
    /// Number of the request.
    request: u64,
}

impl Roots {
    /// Takes what the registers of one request name, as soon as they came.
    pub(super) fn learn(&mut self, memory: &impl GuestTables, in_use: &[Gfn]) {
        self.request += 1;
        let seen: Vec<(Gfn, Half)> = in_use
            .iter()
            .filter_map(|frame| Some((*frame, plausible(memory, *frame)?)))
            .collect();
        if !seen.iter().any(|(_, half)| self.knows(half)) {
            self.distrust();
        }
        for (frame, half) in seen {
            self.saw(frame, half);
            let partner = Gfn(frame.0 ^ 1);
            if let Some(half) = partner_half(memory, frame, partner, &half) {
                self.saw(partner, half);
            }
        }
    }

    /// Looks for the top-level tables in `extents` that are like those in use.
    pub(super) fn discover(
        &mut self,
        memory: &impl GuestTables,
        extents: Vec<Range<Gfn>>,
        in_use: &[Gfn],
    ) {
        let mut references = in_use.to_vec();
        references.retain(|frame| plausible(memory, *frame).is_some_and(|half| self.knows(&half)));
        // Without a usable reference (all virtual CPUs in firmware, say) nothing found is known to live.
        self.found = find_roots(memory, extents, &references).unwrap_or_default();
        for frame in &self.found {
            let half = memory.table(*frame).map(kernel_half);
            let known = half.and_then(|half| self.halves.iter_mut().find(|k| *k.half == half));
            if let Some(known) = known.filter(|known| known.seen.is_some()) {
                known.saw(*frame, self.request);
            }
        }
    }

    /// Forgets everything: another kernel is on its way.
    pub(super) fn forget(&mut self) {
        self.halves.clear();
        self.found.clear();
    }

    /// Whether any kernel half is remembered, trusted or not.
    pub(super) fn knows_any(&self) -> bool {
        !self.halves.is_empty()
    }

    /// The tables in use and those found that can be walked now, ascending, each once; to be asked right
    /// before the walk. Found ones that are dead are forgotten. `None`: no kernel half is trusted yet.
    pub(super) fn live(&mut self, memory: &impl GuestTables, in_use: &[Gfn]) -> Option<Vec<Gfn>> {
        if !self.halves.iter().any(|known| known.trusted) {
            return None;
        }
        let mut found = std::mem::take(&mut self.found);
        found.retain(|frame| self.is_live(memory, *frame));
        self.found.clone_from(&found);
        let mut roots = found;
        roots.extend(in_use.iter().filter(|frame| self.is_live(memory, **frame)));
        roots.sort_unstable();
        roots.dedup();
        Some(roots)
    }

    /// Whether a frame still looks like a top-level table of a trusted kernel that maps something for
    /// users; asked again and again during a walk.
    pub(super) fn is_live(&self, memory: &impl GuestTables, frame: Gfn) -> bool {
        memory.table(frame).is_some_and(|table| {
            let mut trusted = self.halves.iter().filter(|known| known.trusted);
            maps_users(table) && trusted.any(|known| has_half(table, &known.half))
        })
    }

    fn knows(&self, half: &Half) -> bool {
        self.halves.iter().any(|known| *known.half == *half)
    }

    fn saw(&mut self, frame: Gfn, half: Half) {
        let known = self.halves.iter().position(|known| *known.half == half);
        let mut known = match known.and_then(|at| self.halves.remove(at)) {
            Some(known) => known,
            None => Known {
                half: Box::new(half),
                seen: None,
                trusted: false,
            },
        };
        known.saw(frame, self.request);
        self.halves.truncate(HALVES - 1);
        self.halves.push_front(known);
    }

    /// No half in use is remembered: this is another kernel, or the other kind of table. The halves stay
    /// remembered, so that two kinds that take turns do not push each other out, but have to be confirmed
    /// again.
    fn distrust(&mut self) {
        self.found.clear();
        for known in &mut self.halves {
            known.seen = None;
            known.trusted = false;
        }
    }
}

/// The kernel half of a table, if it can be one: it maps something, and only tables in RAM.
fn plausible(memory: &impl GuestTables, frame: Gfn) -> Option<Half> {
    let half = kernel_half(memory.table(frame)?);
    let mut present = half.iter().filter(|e| **e & entry::PRESENT != 0).peekable();
    present.peek()?;
    // Address bits above the processor's width are reserved; those that are in RAM are not.
    let is_table = |e: &u64| {
        let frame = Gfn((e & entry::ADDRESS) >> 12);
        e & entry::LARGE == 0 && memory.table(frame).is_some()
    };
    present.all(is_table).then_some(half)
}

/// The kernel half of the table beside `frame`, if the two are a pair of Linux's page-table isolation:
/// they map the same for users. Knowing it keeps a virtual CPU that shows only the other kind next time
/// from being taken for one that runs another kernel.
fn partner_half(memory: &impl GuestTables, frame: Gfn, partner: Gfn, half: &Half) -> Option<Half> {
    let users = user_half(memory.table(frame)?);
    let mapped = users.iter().any(|e| e & entry::PRESENT != 0);
    let pair = mapped && user_half(memory.table(partner)?) == users;
    let other = pair.then(|| plausible(memory, partner)).flatten()?;
    // Without isolation the table beside it may be a forked one's; that is no other kind.
    (other != *half).then_some(other)
}

fn kernel_half(table: &Table) -> Half {
    std::array::from_fn(|i| table[256 + i].load(Ordering::Relaxed) & !ACCESSED_DIRTY)
}

/// Whether a table's kernel half is this one; ends at the first difference.
fn has_half(table: &Table, half: &Half) -> bool {
    let mut slots = table[256..].iter().zip(half);
    slots.all(|(slot, entry)| slot.load(Ordering::Relaxed) & !ACCESSED_DIRTY == *entry)
}

fn user_half(table: &Table) -> Half {
    std::array::from_fn(|i| table[i].load(Ordering::Relaxed) & !(ACCESSED_DIRTY | NO_EXECUTE))
}

fn maps_users(table: &Table) -> bool {
    let present = |slot: u64| slot & entry::PRESENT != 0;
    table[..256]
        .iter()
        .any(|slot| present(slot.load(Ordering::Relaxed)))
}

#[cfg(test)]
#[path = "roots_tests.rs"]
mod tests;
