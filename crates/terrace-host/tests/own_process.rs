//! Placement and moves on this process's own memory, by the real kernel.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use terrace_host::HostRoot;
use terrace_host::memory_map::{GuestMemory, Range};
use terrace_host::mover::{Mover, MoverConfig, Target};
use terrace_host::placement::{self, MAX_CODES};
use terrace_host::topology::Topology;
use terrace_proto::action::PlacementQuery;
use terrace_proto::{
    Gfn, Gpa, Hva, MovePlan, MoveStatus, PAGE_SIZE, PageCode, PageMove, PageSize, PlanId,
    RequestId, VmId,
};
use terrace_sys::{Process, SharedMapping};

/// "Guest RAM" with two runs, of which every third page was touched.
struct Ram {
    file: File,
    _mapping: SharedMapping,
    target: Target,
}

const PAGES: u64 = 300;

fn ram() -> Ram {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(PAGES * PAGE_SIZE).unwrap();
    let len = usize::try_from(PAGES * PAGE_SIZE).unwrap();
    let mapping = SharedMapping::new(file.as_fd(), 0, len).unwrap();
    for page in (0..len / 4096).step_by(3) {
        // SAFETY: inside of the mapping.
        unsafe { mapping.as_ptr().add(page * 4096).write_volatile(1) };
    }
    let half = PAGES / 2 * PAGE_SIZE;
    let range = |gpa, offset| Range {
        gpa: Gpa(gpa),
        len: half,
        hva: Hva(mapping.as_ptr() as u64 + offset),
        file_index: 0,
        file_offset: offset,
        shared: true,
    };
    let ranges = vec![range(0, 0), range(1 << 32, half)];
    let memory = GuestMemory::new(ranges, vec![file.try_clone().unwrap().into()]).unwrap();
    let process = Process::open("/proc".as_ref(), std::process::id()).unwrap();
    Ram {
        file,
        _mapping: mapping,
        target: Target {
            process: Arc::new(process),
            memory: Arc::new(memory),
            unit: PageSize::Base,
            others_map: false,
        },
    }
}

fn blocks(file: &File) -> u64 {
    use std::os::unix::fs::MetadataExt;
    file.metadata().unwrap().blocks()
}

#[test]
fn placement_tells_present_pages_and_allocates_nothing() {
    let ram = ram();
    let root = HostRoot::default();
    let topology = Topology::read(&root, &[]).unwrap();
    let query = PlacementQuery {
        id: RequestId(1),
        vm: VmId(1),
    };
    let before = blocks(&ram.file);
    let reports = placement::query(&root, &topology, &ram.target, query).unwrap();
    assert_eq!(blocks(&ram.file), before);
    assert_eq!(reports.len(), 2);
    assert!(reports.iter().all(|r| r.codes.len() as u64 <= MAX_CODES));
    let codes: Vec<PageCode> = reports.iter().flat_map(|r| r.codes.clone()).collect();
    let present: Vec<usize> = (0..codes.len())
        .filter(|i| codes[*i] != PageCode::ABSENT)
        .collect();
    assert_eq!(present, (0..codes.len()).step_by(3).collect::<Vec<_>>());
    assert_eq!(reports[1].start, Gfn(1 << 20));
    assert!(reports[1].last && !reports[0].last);
}

#[test]
fn a_move_in_place_is_reported_and_absent_pages_stay_absent() {
    let ram = ram();
    let root = HostRoot::default();
    let topology = Arc::new(Topology::read(&root, &[]).unwrap());
    let query = PlacementQuery {
        id: RequestId(1),
        vm: VmId(1),
    };
    let reports = placement::query(&root, &topology, &ram.target, query).unwrap();
    let to = reports[0].codes[0].tier().unwrap();
    let mover = Mover::new(root.clone(), topology.clone(), MoverConfig::default());
    let plan = MovePlan {
        id: PlanId(1),
        vm: VmId(1),
        moves: [0, 1, (1 << 20) + 3]
            .map(|gfn| PageMove { gfn: Gfn(gfn), to })
            .to_vec(),
    };
    let outcome = mover.execute(&ram.target, &plan, &AtomicBool::new(false));
    let statuses: Vec<_> = outcome.report.results.iter().map(|r| r.status).collect();
    assert_eq!(statuses[1], MoveStatus::Absent);
    // On hosts with several nodes another page may be elsewhere and be moved.
    assert_eq!(statuses[0], MoveStatus::AlreadyThere);
    assert_eq!(outcome.report.results[2].now.tier(), Some(to));
}
