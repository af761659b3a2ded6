//! The locations of all pages of a VM.
//!
//! Responsible for: asking the kernel about every page of a VM, as fast as it answers: absent pages are
//! skipped by the process's page map, a huge page is one question. It leaves to others: moving them.
//!
//! A page counts as part of a huge one if the process maps it by a huge entry (`PAGEMAP_SCAN`, Linux 6.7; before that
//! no page does). A huge page that the process maps by small entries counts as 512 small ones: the kernel moves the
//! whole of it with any of them, so the report of a move asks for every page again.

use terrace_proto::action::PlacementQuery;
use terrace_proto::{Gfn, PAGE_SIZE, PAGES_PER_HUGE, PageCode, PlacementReport};
use terrace_sys::{NOT_ANSWERED, SysError};

use crate::HostRoot;
use crate::memory_map::{GuestMemory, Range};
use crate::mover::{Kernel, LiveKernel, Target};
use crate::topology::{NodeId, Topology};

/// Most codes in one report.
pub const MAX_CODES: u64 = 1 << 20;
/// Addresses in one question; the kernel takes the map lock for 16 of them at a time.
const QUESTIONS: usize = 1 << 14;
const HUGE: u64 = PAGE_SIZE * PAGES_PER_HUGE;

/// Placement that could not be found out.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// A system call failed.
    #[error("{0}: querying the placement of another user's pages needs CAP_SYS_PTRACE")]
    Sys(#[from] SysError),
    /// The VM ended.
    #[error("the VM's process {0} has ended")]
    Gone(u32),
}

/// Asks the kernel about every page. Reports are ascending, of at most [`MAX_CODES`] codes, without
/// those parts of the guest's address space that are no RAM; the last one is marked. No page is
/// faulted in. A VM without RAM gets one empty report.
///
/// # Errors
/// If the process is gone or may not be inspected.
pub fn query(
    root: &HostRoot,
    topology: &Topology,
    target: &Target,
    query: PlacementQuery,
) -> Result<Vec<PlacementReport>, PlacementError> {
    let kernel = LiveKernel::open(root, &target.process);
    if !kernel.is_alive() {
        return Err(PlacementError::Gone(target.process.pid()));
    }
    reports(&kernel, topology, &target.memory, query)
}

fn reports(
    kernel: &impl Kernel,
    topology: &Topology,
    memory: &GuestMemory,
    query: PlacementQuery,
) -> Result<Vec<PlacementReport>, PlacementError> {
    let mut reports = Vec::new();
    for range in memory.ranges() {
        let pages = range.len / PAGE_SIZE;
        for first in (0..pages).step_by(1 << 20) {
            let count = (pages - first).min(MAX_CODES);
            reports.push(PlacementReport {
                id: query.id,
                vm: query.vm,
                start: Gfn(range.gpa.gfn().0 + first),
                codes: codes(kernel, topology, range, first, count)?,
                last: false,
            });
        }
    }
    match reports.last_mut() {
        Some(report) => report.last = true,
        None => reports.push(PlacementReport {
            id: query.id,
            vm: query.vm,
            start: Gfn(0),
            codes: Vec::new(),
            last: true,
        }),
    }
    Ok(reports)
}

/// A question and how many pages its answer holds for.
struct Question {
    address: u64,
    pages: u64,
    huge: bool,
}

fn codes(
    kernel: &impl Kernel,
    topology: &Topology,
    range: &Range,
    first: u64,
    count: u64,
) -> Result<Vec<PageCode>, PlacementError> {
    let start = range.hva.0 + first * PAGE_SIZE;
    let end = start + count * PAGE_SIZE;
    let mut codes = vec![PageCode::ABSENT; usize::try_from(count).unwrap_or(0)];
    let mut asked = Vec::with_capacity(QUESTIONS);
    for run in kernel.present(start, end)? {
        let mut address = run.start.max(start);
        while address < run.end.min(end) {
            let next = if run.huge {
                address / HUGE * HUGE + HUGE
            } else {
                address + PAGE_SIZE
            };
            let next = next.min(run.end).min(end);
            asked.push(Question {
                address,
                pages: (next - address) / PAGE_SIZE,
                huge: run.huge,
            });
            address = next;
            if asked.len() == QUESTIONS {
                answer(kernel, topology, start, &asked, &mut codes)?;
                asked.clear();
            }
        }
    }
    answer(kernel, topology, start, &asked, &mut codes)?;
    Ok(codes)
}

fn answer(
    kernel: &impl Kernel,
    topology: &Topology,
    start: u64,
    asked: &[Question],
    codes: &mut [PageCode],
) -> Result<(), PlacementError> {
    let addresses: Vec<u64> = asked.iter().map(|q| q.address).collect();
    let mut nodes = vec![NOT_ANSWERED; asked.len()];
    kernel.query(kernel.pid(), &addresses, &mut nodes)?;
    let mut last = (NOT_ANSWERED, None);
    for (question, node) in asked.iter().zip(nodes) {
        if node != last.0 {
            let tier = u32::try_from(node)
                .ok()
                .and_then(|n| topology.tier_of(NodeId(n)));
            last = (node, tier);
        }
        let Some(tier) = last.1 else { continue };
        let at = usize::try_from((question.address - start) / PAGE_SIZE).unwrap_or(usize::MAX);
        let pages = usize::try_from(question.pages).unwrap_or(0);
        if let Some(codes) = codes.get_mut(at..at.saturating_add(pages)) {
            codes.fill(PageCode::new(tier, question.huge));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use terrace_proto::{Gpa, Hva, RequestId, TierId, VmId};
    use terrace_testkit::pages::{FakePage, FakePages};

    use super::*;
    use crate::mover::fake::PID;
    use crate::topology::{Tier, TierSource};

    fn topology() -> Topology {
        let tier = |id, node| Tier {
            id: TierId(id),
            name: String::new(),
            nodes: vec![NodeId(node)],
            total_bytes: 0,
        };
        Topology {
            nodes: vec![],
            tiers: vec![tier(0, 0), tier(1, 1)],
            source: TierSource::Operator,
            findings: vec![],
        }
    }

    const QUERY: PlacementQuery = PlacementQuery {
        id: RequestId(5),
        vm: VmId(2),
    };

    #[test]
    fn base_huge_absent_and_foreign_pages_get_their_codes() {
        let base = 1 << 30;
        let kernel = FakePages::default();
        for (address, page) in [
            (base, FakePage::base(0)),
            (base + PAGE_SIZE, FakePage::base(9)),
            (base + 3 * PAGE_SIZE, FakePage::base(1)),
            (base + HUGE, FakePage::huge(1)),
        ] {
            kernel.state().put(PID, address, page);
        }
        let memory = GuestMemory::of_ranges(vec![
            Range {
                gpa: Gpa(0),
                len: 2 * HUGE,
                hva: Hva(base),
                file_index: 0,
                file_offset: 0,
                shared: true,
            },
            Range {
                gpa: Gpa(1 << 32),
                len: PAGE_SIZE,
                hva: Hva(base + 4 * HUGE),
                file_index: 0,
                file_offset: 0,
                shared: true,
            },
        ]);
        let reports = reports(&kernel, &topology(), &memory, QUERY).unwrap();
        assert_eq!(reports.len(), 2);
        assert!(!reports[0].last && reports[1].last);
        assert_eq!(
            (reports[1].start, reports[1].codes.len()),
            (Gfn(1 << 20), 1)
        );
        let codes = &reports[0].codes;
        assert_eq!(codes.len(), 1024);
        let (fast, slow) = (TierId(0), TierId(1));
        assert_eq!(codes[0], PageCode::new(fast, false));
        assert_eq!(codes[1..3], [PageCode::ABSENT; 2]);
        assert_eq!(codes[3], PageCode::new(slow, false));
        assert!(codes[4..512].iter().all(|c| *c == PageCode::ABSENT));
        assert!(codes[512..].iter().all(|c| *c == PageCode::new(slow, true)));
    }

    #[test]
    fn a_vm_without_ram_gets_one_empty_report() {
        let kernel = FakePages::default();
        let memory = GuestMemory::of_ranges(vec![]);
        let reports = reports(&kernel, &topology(), &memory, QUERY).unwrap();
        assert!(reports.len() == 1 && reports[0].last && reports[0].codes.is_empty());
    }
}
