//! The kernel's side of the controller's requests: where pages are, and moving them.
//!
//! Responsible for: page tables and `move_pages(2)`, and reporting the kernel's answer for each page. It leaves to
//! others: which pages, and when.

use terrace_core::ranges::piece::{self, push};
use terrace_proto::ranges::{
    KernelRefusal, Migration, MigrationOutcome, PieceRun, PieceState, Range,
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
