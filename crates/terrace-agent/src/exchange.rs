//! Symmetric exchange by the kernel's `move_pages`: as many pages go down as come up (HyperTier §4.2.4).
//!
//! Responsible for: batches in which both directions are balanced, so that free memory never falls below
//! the kernel's watermarks and its reclaim is not woken; what is done where a tier is full. It leaves to
//! others: which pages, and a true swap in place, which takes a module in the guest's kernel ([`Pages`] is
//! the seam for it).

use terrace_proto::TierId;
use terrace_sys::{MoveOutcome, MoveScope, SysError, move_pages, query_nodes};

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
    /// Where it is.
    pub tier: TierId,
}

/// The kernel's answers about pages.
pub trait Pages {
    /// On which node each page is, or a negative error number.
    ///
    /// # Errors
    /// Where the process cannot be asked about.
    fn query(&mut self, pid: u32, addresses: &[u64], status: &mut [i32]) -> Result<(), SysError>;

    /// Moves pages to a node.
    ///
    /// # Errors
    /// Where the process's pages cannot be moved.
    fn travel(
        &mut self,
        pid: u32,
        addresses: &[u64],
        node: i32,
        status: &mut [i32],
    ) -> Result<MoveOutcome, SysError>;
}

/// `move_pages(2)`.
#[derive(Debug)]
pub struct Kernel {
    /// Whether pages that several processes map may be moved.
    pub scope: MoveScope,
}

impl Pages for Kernel {
    fn query(&mut self, pid: u32, addresses: &[u64], status: &mut [i32]) -> Result<(), SysError> {
        query_nodes(pid, addresses, status)
    }

    fn travel(
        &mut self,
        pid: u32,
        addresses: &[u64],
        node: i32,
        status: &mut [i32],
    ) -> Result<MoveOutcome, SysError> {
        let nodes = vec![node; addresses.len()];
        move_pages(pid, addresses, &nodes, status, self.scope)
    }
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
    /// Why it ended early, where it did.
    pub stopped: Option<String>,
}

/// One exchange.
pub struct Exchange<'a> {
    pages: &'a mut dyn Pages,
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
    pub fn new(pages: &'a mut dyn Pages, room: &'a Room, free: &'a mut Free) -> Self {
        Self {
            pages,
            room,
            free,
            outcome: Outcome::default(),
        }
    }

    /// Brings `up` to the first tier. `down` makes room for what does not fit into `into_free` pages of it.
    #[must_use]
    pub fn run(mut self, up: &[Piece], down: &[Piece], into_free: u64) -> Outcome {
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
        // What only makes room, where the VM holds more than it may.
        while !down.is_empty() && self.outcome.stopped.is_none() {
            let going = take(&mut down, BATCH);
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
            self.move_up(coming);
        } else if self.free.with_headroom(TierId::FAST) >= wanted {
            // Slow memory is full: what comes up first leaves the room that what goes down needs.
            self.move_up(coming);
            self.move_down(going);
        } else {
            self.stop("neither tier has room for a batch");
        }
    }

    fn move_up(&mut self, pieces: &[Piece]) {
        // What did not go down leaves less room.
        let mut room = self.free.with_headroom(TierId::FAST);
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
        if let Some(node) = self.free.node(TierId::FAST) {
            self.travel(&pieces[..fits], TierId::FAST, node, Way::Up);
        }
    }

    fn move_down(&mut self, pieces: &[Piece]) {
        if pieces.is_empty() {
            return;
        }
        let target = self.free.below(size(pieces));
        let node = target.and_then(|tier| Some((tier, self.free.node(tier)?)));
        match node {
            Some((tier, node)) => self.travel(pieces, tier, node, Way::Down),
            None => self.stop("slow memory has no room"),
        }
    }

    fn travel(&mut self, pieces: &[Piece], to: TierId, node: i32, way: Way) {
        for of_one in pieces.chunk_by(|a, b| a.pid == b.pid) {
            let Some(pid) = of_one.first().map(|piece| piece.pid) else {
                continue;
            };
            let addresses: Vec<u64> = of_one.iter().map(|piece| piece.address).collect();
            let mut status = vec![0; addresses.len()];
            match self.pages.travel(pid, &addresses, node, &mut status) {
                Ok(MoveOutcome::Complete) => {}
                // The kernel's words are incomplete: where the pages are tells what came of it.
                Ok(MoveOutcome::Partial) => self.ask(pid, &addresses, &mut status),
                Err(error) if error.errno() == libc::ENOMEM => {
                    self.ask(pid, &addresses, &mut status);
                    self.stop("the kernel found no free page");
                }
                Err(error) => {
                    self.outcome.failed += size(of_one);
                    // A process that ended takes nothing with it.
                    if error.errno() != libc::ESRCH {
                        self.stop(&error.to_string());
                    }
                    continue;
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
            self.free.moved(piece.tier, to, pages);
            match way {
                Way::Up => self.outcome.promoted += pages,
                Way::Down => self.outcome.demoted += pages,
            }
        } else if status >= 0 || status == -libc::EBUSY || status == -libc::EAGAIN {
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
#[path = "exchange_tests.rs"]
mod tests;
