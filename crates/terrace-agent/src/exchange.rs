//! Symmetric exchange by the kernel's `move_pages`: as many pages go down as come up (HyperTier §4.2.4).
//!
//! Responsible for: batches in which both directions are balanced, so that free memory never falls below
//! the kernel's watermarks and its reclaim is not woken; what is done where a tier is full. It leaves to
//! others: which pages, and a true swap in place, which takes a module in the guest's kernel ([`Pages`] is
//! the seam for it).

use std::collections::BTreeMap;

use terrace_proto::TierId;
pub use terrace_sys::{KernelPages, Pages};
use terrace_sys::{MoveOutcome, MoveScope, MoveTo};

use crate::room::{Free, Room};

/// Pages of one batch: a call holds the process's map lock for its whole length.
const BATCH: u64 = 512;

/// What moves as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    /// Whose.
    pub pid: u32,
    /// Virtual address.
    pub address: u64,
    /// 4 KiB pages: 1, or 512 for a huge page.
    pub pages: u16,
    /// The node where it is.
    pub node: i32,
    /// That node's tier.
    pub tier: TierId,
    /// Other processes may map it, and it is moved for them, too.
    pub shared: bool,
}

/// What came of it, in 4 KiB pages.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Came up.
    pub promoted: u64,
    /// Went down.
    pub demoted: u64,
    /// Pinned or in use; they stay where they are.
    pub busy: u64,
    /// Gone meanwhile, or refused.
    pub failed: u64,
    /// Pieces that could not be moved: process and address.
    pub stuck: Vec<(u32, u64)>,
    /// Processes whose pages the kernel refuses to move, and its words.
    pub refused: BTreeMap<u32, String>,
    /// Why it ended early, where it did.
    pub stopped: Option<String>,
}

/// One exchange.
pub struct Exchange<'a> {
    pages: &'a dyn Pages,
    room: &'a Room,
    free: &'a mut Free,
    outcome: Outcome,
}

/// A direction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

impl<'a> Exchange<'a> {
    /// Nothing has moved yet.
    pub fn new(pages: &'a dyn Pages, room: &'a Room, free: &'a mut Free) -> Self {
        Self {
            pages,
            room,
            free,
            outcome: Outcome::default(),
        }
    }

    /// Brings `up` to the first tier. `down` makes room for what does not fit into `into_free` pages of it, and
    /// so many more pages of it go down whatever comes up.
    #[must_use]
    pub fn run(mut self, up: &[Piece], down: &[Piece], into_free: u64, more_down: u64) -> Outcome {
        let (mut up, mut down) = (up, down);
        let mut into_free = into_free;
        while !up.is_empty() && self.outcome.stopped.is_none() {
            let coming = take(&mut up, BATCH);
            let wanted = size(coming);
            let taken = wanted.min(into_free).min(self.free.pages(TierId::FAST));
            into_free -= taken;
            let going = take(&mut down, wanted - taken);
            self.batch(coming, going, wanted);
        }
        let mut more = take(&mut down, more_down);
        while !more.is_empty() && self.outcome.stopped.is_none() {
            let going = take(&mut more, BATCH);
            self.move_down(going);
        }
        self.outcome
    }

    fn batch(&mut self, coming: &[Piece], going: &[Piece], wanted: u64) {
        let leaving = size(going);
        if leaving == 0 && self.free.pages(TierId::FAST) < wanted {
            self.stop("fast memory is full and nothing colder is in it");
        } else if leaving == 0 || self.free.below(leaving).is_some() {
            self.move_down(going);
            if self.outcome.stopped.is_none() {
                self.move_up(coming);
            }
        } else if self.free.with_headroom(TierId::FAST) >= wanted {
            // Slow memory is full: what comes up first leaves the room that what goes down needs.
            self.move_up(coming);
            self.move_down(going);
        } else {
            self.stop("neither tier has room for a batch");
        }
    }

    fn move_up(&mut self, pieces: &[Piece]) {
        let Some((node, mut room)) = self.free.node(TierId::FAST) else {
            return;
        };
        // What did not go down leaves less room.
        let fits = pieces.iter().take_while(|piece| {
            let pages = u64::from(piece.pages);
            let fits = pages <= room;
            room = room.saturating_sub(pages);
            fits
        });
        let fits = fits.count();
        if fits < pieces.len() {
            self.stop("fast memory has no room");
        }
        self.travel(&pieces[..fits], TierId::FAST, node, Way::Up);
    }

    fn move_down(&mut self, pieces: &[Piece]) {
        if pieces.is_empty() {
            return;
        }
        match self.free.below(size(pieces)) {
            Some((tier, node)) => self.travel(pieces, tier, node, Way::Down),
            None => self.stop("slow memory has no room"),
        }
    }

    fn travel(&mut self, pieces: &[Piece], to: TierId, node: i32, way: Way) {
        for of_one in pieces.chunk_by(|a, b| (a.pid, a.shared) == (b.pid, b.shared)) {
            let Some(first) = of_one.first() else {
                continue;
            };
            let (pid, scope) = match first.shared {
                true => (first.pid, MoveScope::Shared),
                false => (first.pid, MoveScope::Exclusive),
            };
            if self.outcome.refused.contains_key(&pid) {
                self.outcome.failed += size(of_one);
                continue;
            }
            let addresses: Vec<u64> = of_one.iter().map(|piece| piece.address).collect();
            let mut status = vec![0; addresses.len()];
            let to_node = Some(MoveTo { node, scope });
            match self.pages.call(pid, &addresses, to_node, &mut status) {
                Ok(MoveOutcome::Complete) => {}
                // The kernel's words are incomplete: where the pages are tells what came of it.
                Ok(MoveOutcome::Partial) => self.ask(pid, &addresses, &mut status),
                Err(error) => {
                    // Of one process's cpuset, policy or end the others know nothing: they go on.
                    self.ask(pid, &addresses, &mut status);
                    if error.errno() == libc::ENOMEM {
                        self.stop("the kernel found no free page");
                    }
                    self.outcome.refused.insert(pid, error.to_string());
                }
            }
            for (piece, status) in of_one.iter().zip(&status) {
                self.count(piece, *status, to, way);
            }
        }
    }

    fn ask(&mut self, pid: u32, addresses: &[u64], status: &mut [i32]) {
        if self.pages.query(pid, addresses, status).is_err() {
            status.fill(-libc::ESRCH);
        }
    }

    fn count(&mut self, piece: &Piece, status: i32, to: TierId, way: Way) {
        let pages = u64::from(piece.pages);
        if self.room.tier(status) == Some(to) {
            self.free.moved(piece.node, status, pages);
            match way {
                Way::Up => self.outcome.promoted += pages,
                Way::Down => self.outcome.demoted += pages,
            }
            return;
        }
        self.outcome.stuck.push((piece.pid, piece.address));
        if status >= 0 || status == -libc::EBUSY || status == -libc::EAGAIN {
            self.outcome.busy += pages;
        } else {
            self.outcome.failed += pages;
        }
    }

    fn stop(&mut self, why: &str) {
        self.outcome.stopped.get_or_insert_with(|| why.to_owned());
    }
}

/// Takes pieces of about so many pages together: at least one, unless none are wanted.
fn take<'a>(pieces: &mut &'a [Piece], pages: u64) -> &'a [Piece] {
    let mut sum = 0;
    let enough = pieces.iter().take_while(|piece| {
        let more = sum < pages;
        sum += u64::from(piece.pages);
        more
    });
    let (taken, rest) = pieces.split_at(enough.count());
    *pieces = rest;
    taken
}

fn size(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.pages)).sum()
}

#[cfg(test)]
mod tests;
