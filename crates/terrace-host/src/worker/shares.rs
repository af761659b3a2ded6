//! A pass over a large VM by several threads of its worker, each with a share of the leaf tables.
//!
//! Each share is a part of the tables (`terrace_proto::Part`), the same one in each pass, with a scanner of its own: no two threads read
//! or write an entry of the same leaf table, and what a share's last full pass knew is about that share. Threads live for one
//! pass. They are bound by the sandbox as the thread that starts them is.

use std::time::Duration;

use terrace_pagetable::Scanner;
use terrace_proto::{Part, ScanAnswer, ScanStats, TableFrame};

/// The stack of a thread: a walk is as deep as there are levels, and holds a copy of one table.
const STACK: usize = 256 << 10;

/// The shares of a VM's tables.
pub(super) struct Shares {
    shares: Vec<Share>,
}

/// The state of one thread's work that outlives a pass.
pub(super) struct Share {
    pub(super) part: Part,
    pub(super) scanner: Scanner,
    /// Scratch: a bit for each frame.
    pub(super) bits: Vec<u64>,
}

/// The answer of shares, and the CPU time that threads other than the calling one took.
pub(super) type Scanned = (ScanAnswer, Duration);

impl Shares {
    /// As many shares as so many threads can take: the power of two at or below.
    pub(super) fn new(frames: u64, threads: u8) -> Self {
        let shift = u8::try_from(threads.max(1).ilog2()).unwrap_or(0);
        let parts = (0..1 << shift).filter_map(|index| Part::new(0, shift, index).ok());
        let share = |part| Share {
            part,
            scanner: Scanner::new(frames),
            bits: Vec::new(),
        };
        Self {
            shares: parts.map(share).collect(),
        }
    }

    /// Makes their passes name page tables, or stops that.
    pub(super) fn name_tables(&mut self, on: bool) {
        for share in &mut self.shares {
            share.scanner.name_tables(on);
        }
    }

    /// Adds the page tables that they named, in ascending order. Upper tables are walked by each share; each counts its own leaves.
    pub(super) fn take_tables(&mut self, all: &mut Vec<TableFrame>) {
        for share in &mut self.shares {
            all.append(&mut share.scanner.take_tables());
        }
        TableFrame::join(all);
    }

    /// Scans all of them side by side, and joins what they found.
    pub(super) fn scan(&mut self, scan: impl Fn(&mut Share) -> Scanned + Sync) -> Option<Scanned> {
        let scan = &scan;
        let (own, others) = self.shares.split_first_mut()?;
        std::thread::scope(|threads| {
            // Shares for which the host has no thread to give come after the first one.
            let (mut running, mut left) = (Vec::new(), Vec::new());
            for share in others {
                let (give, take) = std::sync::mpsc::channel::<&mut Share>();
                let body = move || take.recv().ok().map(scan);
                let thread = std::thread::Builder::new().stack_size(STACK);
                match thread.spawn_scoped(threads, body) {
                    Ok(thread) => {
                        // A thread that is gone shows when it is joined.
                        let _ = give.send(share);
                        running.push(thread);
                    }
                    Err(_) => left.push(share),
                }
            }
            // This thread's time is the caller's to count.
            let here = |share: &mut Share| (scan(share).0, Duration::ZERO);
            let mut all = vec![here(own)];
            all.extend(left.into_iter().map(here));
            for thread in running {
                match thread.join() {
                    Ok(scanned) => all.extend(scanned),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            all.into_iter().reduce(joined)
        })
    }
}

fn joined((mut all, cpu): Scanned, (answer, more): Scanned) -> Scanned {
    all.known.add(&answer.known);
    all.accessed.add(&answer.accessed);
    all.huge_leaf.add(&answer.huge_leaf);
    if let (Some(all), Some(written)) = (&mut all.written, &answer.written) {
        all.add(written);
    }
    sum(&mut all.stats, &answer.stats);
    (all, cpu + more)
}

/// Adds counts; times are the caller's. Tables above the leaf tables are read, and count, in each share.
fn sum(all: &mut ScanStats, one: &ScanStats) {
    for (sum, n) in [
        (&mut all.roots, one.roots),
        (&mut all.tables, one.tables),
        (&mut all.leaves, one.leaves),
        (&mut all.accessed, one.accessed),
        (&mut all.cleared, one.cleared),
        (&mut all.lost_races, one.lost_races),
        (&mut all.pruned, one.pruned),
        (&mut all.out_of_ram, one.out_of_ram),
        (&mut all.reserved, one.reserved),
        (&mut all.revisited, one.revisited),
    ] {
        *sum += n;
    }
}
