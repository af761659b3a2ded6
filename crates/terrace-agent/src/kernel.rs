//! The kernel's side of the controller's requests: where pages are, and moving them.
//!
//! Responsible for: page tables, `move_pages(2)`, the module's exchange and its moves by frame number, and reporting the kernel's answer for each page. It leaves to
//! others: which pages, and when.

use terrace_core::ranges::piece::{self, push};
use terrace_proto::ranges::{
    KernelRefusal, Migration, MigrationOutcome, PieceRun, PieceState, Range, Side, Swap,
};
use terrace_proto::{PAGE_SIZE, PAGES_PER_HUGE};
use terrace_sys::{MoveOutcome, MoveScope, MoveTo, Pagemap, Pages, SysError};

/// The present pages of a range of a process, and their nodes.
///
/// # Errors
/// If the kernel does not answer.
pub fn survey(
    pages: &dyn Pages,
    pid: u32,
    pagemap: &Pagemap,
    range: Range,
) -> Result<Vec<PieceRun>, SysError> {
    let bytes = |page: u64| page.saturating_mul(PAGE_SIZE);
    let runs = pagemap.present(bytes(range.start), bytes(range.end))?;
    let mut addresses = Vec::new();
    let mut sizes = Vec::new();
    for run in runs {
        let mut at = run.start;
        while at < run.end {
            let huge_bytes = bytes(PAGES_PER_HUGE);
            let whole = run.huge && at % huge_bytes == 0 && run.end - at >= huge_bytes;
            let size = if whole { PAGES_PER_HUGE } else { 1 };
            addresses.push(at);
            sizes.push(u16::try_from(size).unwrap_or(1));
            at += bytes(size);
        }
    }
    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let mut status = vec![0; addresses.len()];
    pages.query(pid, &addresses, &mut status)?;
    let mut present = Vec::new();
    for ((address, size), node) in addresses.iter().zip(sizes).zip(status) {
        // A negative number is an error: the page is no longer there.
        if let Ok(node) = u32::try_from(node) {
            push(&mut present, address / PAGE_SIZE, size, node);
        }
    }
    Ok(present)
}

/// Moves pages. If the kernel refused, its words come with the result.
pub fn migrate(pages: &dyn Pages, migration: &Migration) -> (MigrationOutcome, Option<String>) {
    let first = piece::pages(&migration.pieces);
    let addresses: Vec<u64> = first.map(|page| page.saturating_mul(PAGE_SIZE)).collect();
    let mut status = vec![0; addresses.len()];
    let to = MoveTo {
        node: i32::try_from(migration.node).unwrap_or(-1),
        scope: match migration.shared {
            true => MoveScope::Shared,
            false => MoveScope::Exclusive,
        },
    };
    let ask = |status: &mut [i32]| {
        if pages.query(migration.process, &addresses, status).is_err() {
            status.fill(-libc::ESRCH);
        }
    };
    let outcome = pages.call(migration.process, &addresses, Some(to), &mut status);
    let (refusal, text) = match outcome {
        Ok(MoveOutcome::Complete) => (None, None),
        // The kernel's words are incomplete: the pages' places show the outcome.
        Ok(MoveOutcome::Partial) => {
            ask(&mut status);
            (None, None)
        }
        Err(error) => {
            ask(&mut status);
            let refusal = match error.errno() {
                libc::ENOMEM => KernelRefusal::NoMemory,
                _ => KernelRefusal::Process,
            };
            (Some(refusal), Some(error.to_string()))
        }
    };
    let migrated = MigrationOutcome {
        id: migration.id,
        states: states(&status),
        refusal,
    };
    (migrated, text)
}

/// Result of a move of frames.
#[derive(Debug)]
pub struct FramesMoved {
    /// Places of the frames' pages now.
    pub outcome: MigrationOutcome,
    /// The module's word on each frame.
    pub statuses: Vec<i32>,
    /// The module's words, if it refused.
    pub refused: Option<String>,
}

/// Moves frames, whoever has them.
pub fn migrate_frames(pages: &dyn Pages, migration: &Migration) -> FramesMoved {
    let frames: Vec<u64> = piece::pages(&migration.pieces).collect();
    let mut statuses = vec![0; frames.len()];
    let done = pages.migrate(migration.node, &frames, &mut statuses);
    let node = i32::try_from(migration.node).unwrap_or(i32::MAX);
    let places: Vec<i32> = statuses
        .iter()
        .map(|status| match status.saturating_neg() {
            0 | libc::EEXIST => node,
            _ => *status,
        })
        .collect();
    let refusal = match &done {
        Err(_) => Some(KernelRefusal::Process),
        Ok(()) if statuses.contains(&-libc::ENOMEM) => Some(KernelRefusal::NoMemory),
        Ok(()) => None,
    };
    FramesMoved {
        outcome: MigrationOutcome {
            id: migration.id,
            states: states(&places),
            refusal,
        },
        statuses,
        refused: done.err().map(|error| error.to_string()),
    }
}

/// Result of an exchange in place.
#[derive(Debug)]
pub struct Swapped {
    /// Places of the pages now.
    pub outcome: MigrationOutcome,
    /// Pairs that changed places.
    pub pairs: u64,
    /// The kernel's words, if it refused.
    pub refused: Option<String>,
}

/// Exchanges pages in place.
pub fn swap(pages: &dyn Pages, swap: &Swap) -> Swapped {
    let addresses = |side: &Side| -> Vec<u64> {
        let pages = piece::pages(&side.pieces);
        pages.map(|page| page.saturating_mul(PAGE_SIZE)).collect()
    };
    let (up, down) = (addresses(&swap.up), addresses(&swap.down));
    let pairs = up.len().min(down.len());
    let sides = [
        (swap.up.process, &up[..pairs]),
        (swap.down.process, &down[..pairs]),
    ];
    let mut status = vec![0; pairs];
    let done = pages.swap(sides[0], sides[1], &mut status);
    let pairs = status.iter().filter(|status| **status == 0).count() as u64;
    // Where they are now is the kernel's word, also of a pair that failed by half.
    let states = sides.into_iter().flat_map(|(process, addresses)| {
        let mut status = vec![0; addresses.len()];
        if pages.query(process, addresses, &mut status).is_err() {
            status.fill(-libc::ESRCH);
        }
        states(&status)
    });
    let refusal = done.as_ref().err().map(|error| match error.errno() {
        libc::ESRCH | libc::EINTR => KernelRefusal::Process,
        _ => KernelRefusal::NotSupported,
    });
    let outcome = MigrationOutcome {
        id: swap.id,
        states: states.collect(),
        refusal,
    };
    Swapped {
        outcome,
        pairs,
        refused: done.err().map(|error| error.to_string()),
    }
}

/// The states of pages by their statuses from `move_pages(2)`.
fn states(status: &[i32]) -> Vec<(u32, PieceState)> {
    let mut states: Vec<(u32, PieceState)> = Vec::new();
    for status in status {
        let state = match (u32::try_from(*status), status.saturating_neg()) {
            (Ok(node), _) => PieceState::On(node),
            (_, libc::EBUSY | libc::EAGAIN) => PieceState::Busy,
            (_, libc::ENOENT | libc::ESRCH | libc::EFAULT) => PieceState::Absent,
            _ => PieceState::Refused,
        };
        match states.last_mut() {
            Some((n, last)) if *last == state => *n += 1,
            _ => states.push((1, state)),
        }
    }
    states
}

#[cfg(test)]
mod tests {
    use terrace_testkit::pages::{FakePage, FakePages};

    use super::*;

    fn kernel() -> FakePages {
        let kernel = FakePages::default();
        let mut state = kernel.state();
        state.others_on = Some(1);
        state.room = [(0, 1 << 30), (1, 1 << 30)].into();
        drop(state);
        kernel
    }

    fn four() -> Migration {
        Migration {
            id: 5,
            process: 7,
            node: 0,
            shared: false,
            pieces: vec![PieceRun {
                page: 100,
                pieces: 4,
                pages_each: 1,
                node: 1,
            }],
        }
    }

    #[test]
    fn each_page_has_the_state_that_the_kernel_told() {
        let kernel = kernel();
        let shared = FakePage {
            others: true,
            ..FakePage::base(1)
        };
        kernel.state().put(7, 102 * PAGE_SIZE, shared);
        let (migrated, text) = migrate(&kernel, &four());
        let states = [
            (2, PieceState::On(0)),
            (1, PieceState::Refused),
            (1, PieceState::On(0)),
        ];
        assert_eq!((migrated.id, &migrated.states[..]), (5, &states[..]));
        assert_eq!((migrated.refusal, text), (None, None));
    }

    #[test]
    fn incomplete_kernel_answers_are_completed_by_a_query() {
        let kernel = kernel();
        let busy = FakePage {
            busy: 9,
            ..FakePage::base(1)
        };
        kernel.state().put(7, 101 * PAGE_SIZE, busy);
        let (migrated, _) = migrate(&kernel, &four());
        let states = [
            (1, PieceState::On(0)),
            (1, PieceState::On(1)),
            (2, PieceState::On(0)),
        ];
        assert_eq!(migrated.states, states);
    }

    fn pair(page: u64, node: u32) -> Side {
        let pieces = vec![PieceRun {
            page,
            pieces: 2,
            pages_each: 1,
            node,
        }];
        Side { process: 7, pieces }
    }

    #[test]
    fn pages_change_places_and_each_is_where_the_kernel_says() {
        let kernel = kernel();
        for (page, node) in [(10, 1), (11, 1), (20, 0)] {
            kernel
                .state()
                .put(7, page * PAGE_SIZE, FakePage::base(node));
        }
        let order = Swap {
            id: 6,
            up: pair(10, 1),
            // Page 21 is on node 1 now: it left meanwhile.
            down: pair(20, 0),
        };
        let refused = swap(&kernel, &order);
        assert_eq!(refused.outcome.refusal, Some(KernelRefusal::NotSupported));
        assert!(refused.pairs == 0 && refused.refused.is_some());
        kernel.state().swaps = true;
        let swapped = swap(&kernel, &order);
        let on = |node| (1, PieceState::On(node));
        assert_eq!(
            swapped.outcome.states,
            [on(0), on(1), (2, PieceState::On(1))]
        );
        assert_eq!((swapped.outcome.id, swapped.pairs), (6, 1));
        assert_eq!((swapped.outcome.refusal, swapped.refused), (None, None));
        kernel.state().ended.insert(7);
        let ended = swap(&kernel, &order);
        assert_eq!(ended.outcome.refusal, Some(KernelRefusal::Process));
        assert_eq!(ended.outcome.states, [(2, PieceState::Absent); 2]);
    }

    #[test]
    fn a_refusal_says_why_and_where_the_pages_are() {
        let refused = |errno, refusal| {
            let kernel = kernel();
            kernel.state().refuses = [(7, errno)].into();
            let (migrated, text) = migrate(&kernel, &four());
            assert_eq!(migrated.refusal, Some(refusal));
            assert_eq!(migrated.states, [(4, PieceState::On(1))]);
            assert!(text.is_some());
        };
        for errno in [libc::EACCES, libc::EPERM, libc::EINVAL] {
            refused(errno, KernelRefusal::Process);
        }
        refused(libc::ENOMEM, KernelRefusal::NoMemory);
        let kernel = kernel();
        kernel.state().ended.insert(7);
        let (migrated, _) = migrate(&kernel, &four());
        assert_eq!(migrated.states, [(4, PieceState::Absent)]);
        assert_eq!(migrated.refusal, Some(KernelRefusal::Process));
    }
}
