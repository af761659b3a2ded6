use terrace_pagetable::SimulatedMemory;

use super::*;

fn set(memory: &SimulatedMemory, frame: u64, index: usize, value: u64) {
    memory.table(Gfn(frame)).unwrap()[index].store(value, Ordering::Relaxed);
}

/// Processes at 1, 2 and 4; the user-mode tables of page-table isolation of the last two are 3 and 5.
/// Tables below are at 8 to 12.
fn guest() -> SimulatedMemory {
    let mut memory = SimulatedMemory::new(16);
    for frame in 1..14 {
        memory.add_table(Gfn(frame)).unwrap();
    }
    for (frame, users) in [
        (1, 0x8067),
        (2, 0x9067),
        (3, 0x9067),
        (4, 0xa067),
        (5, 0xa067),
    ] {
        set(&memory, frame, 0, users);
    }
    for frame in [1, 2, 4] {
        set(&memory, frame, 511, 0xb063 & !(frame << 5 & ACCESSED_DIRTY));
    }
    for frame in [3, 5] {
        set(&memory, frame, 508, 0xc063);
    }
    memory
}

fn all() -> Vec<Range<Gfn>> {
    vec![Gfn(0)..Gfn(16)]
}

fn gfns(frames: &[u64]) -> Vec<Gfn> {
    frames.iter().map(|frame| Gfn(*frame)).collect()
}

/// One request.
fn scan(
    roots: &mut Roots,
    memory: &SimulatedMemory,
    in_use: &[u64],
    discover: bool,
) -> Option<Vec<u64>> {
    let in_use = gfns(in_use);
    roots.learn(memory, &in_use);
    if discover {
        roots.discover(memory, all(), &in_use);
    }
    let live = roots.live(memory, &in_use)?;
    Some(live.iter().map(|frame| frame.0).collect())
}

#[test]
fn a_table_in_use_that_became_data_before_the_walk_is_not_walked() {
    let memory = guest();
    let mut roots = Roots::default();
    let in_use = gfns(&[1, 2]);
    roots.learn(&memory, &in_use);
    roots.discover(&memory, all(), &in_use);
    set(&memory, 1, 300, 0xdead_beef);
    assert_eq!(roots.live(&memory, &in_use), Some(gfns(&[2, 4])));
    set(&memory, 2, 0, 0);
    assert_eq!(roots.live(&memory, &in_use), Some(gfns(&[4])));
}

#[test]
fn data_that_registers_still_name_is_never_trusted() {
    let memory = guest();
    let data: [(usize, u64); 3] = [
        (300, 0xdead_beef),
        // A large page at the top level, and one that points outside of RAM.
        (300, 0x80e3),
        (300, 0xffff_f063),
    ];
    for (index, value) in data {
        let mut roots = Roots::default();
        set(&memory, 1, index, value);
        for _ in 0..3 {
            assert_eq!(scan(&mut roots, &memory, &[1], true), None, "{value:#x}");
        }
    }
}

#[test]
fn one_sighting_is_no_proof_two_requests_are_in_a_guest_with_one_process() {
    let memory = guest();
    for other in [2, 4] {
        set(&memory, other, 0, 0);
    }
    let mut roots = Roots::default();
    assert_eq!(scan(&mut roots, &memory, &[1], true), None);
    assert_eq!(scan(&mut roots, &memory, &[1], false), Some(vec![1]));
}

#[test]
fn another_frame_with_the_same_half_is_proof_at_once() {
    let memory = guest();
    let mut roots = Roots::default();
    assert_eq!(scan(&mut roots, &memory, &[1], true), Some(vec![1, 2, 4]));
    let mut roots = Roots::default();
    assert_eq!(scan(&mut roots, &memory, &[1, 4], false), Some(vec![1, 4]));
}

#[test]
fn tables_of_an_ended_process_are_forgotten() {
    let memory = guest();
    let mut roots = Roots::default();
    assert_eq!(scan(&mut roots, &memory, &[1], true), Some(vec![1, 2, 4]));
    set(&memory, 2, 0, 0);
    assert_eq!(scan(&mut roots, &memory, &[1], false), Some(vec![1, 4]));
    set(&memory, 2, 0, 0x9067);
    assert_eq!(scan(&mut roots, &memory, &[1], false), Some(vec![1, 4]));
}

#[test]
fn both_kinds_of_page_table_isolation_become_trusted() {
    let memory = guest();
    let mut roots = Roots::default();
    assert_eq!(scan(&mut roots, &memory, &[2], true), Some(vec![1, 2, 4]));
    assert_eq!(
        scan(&mut roots, &memory, &[3], false),
        Some(vec![1, 2, 3, 4])
    );
    assert_eq!(scan(&mut roots, &memory, &[2], false), Some(vec![1, 2, 4]));
}

#[test]
fn both_kinds_that_take_turns_become_trusted_without_being_recognised_as_a_pair() {
    let memory = guest();
    set(&memory, 3, 1, 0x8067);
    let mut roots = Roots::default();
    assert_eq!(scan(&mut roots, &memory, &[2], true), Some(vec![1, 2, 4]));
    let turns = [3, 2, 3, 2, 3, 2].map(|frame| scan(&mut roots, &memory, &[frame], false));
    assert_eq!(turns[0], None);
    assert_eq!(turns[4..], [Some(vec![3]), Some(vec![2])]);
}

/// Gives tables a kernel half of another kernel.
fn boot_another_kernel(memory: &SimulatedMemory, frames: &[u64]) {
    for frame in frames {
        set(memory, *frame, 511, 0xd063);
    }
}

#[test]
fn after_a_reboot_the_old_kernels_tables_are_not_live() {
    let memory = guest();
    let mut roots = Roots::default();
    assert_eq!(scan(&mut roots, &memory, &[1], true), Some(vec![1, 2, 4]));
    boot_another_kernel(&memory, &[1]);
    assert_eq!(scan(&mut roots, &memory, &[1], false), None);
    assert_eq!(scan(&mut roots, &memory, &[1], false), Some(vec![1]));
}

#[test]
fn a_search_that_fails_leaves_no_found_tables() {
    let memory = guest();
    let mut roots = Roots::default();
    assert_eq!(scan(&mut roots, &memory, &[1], true), Some(vec![1, 2, 4]));
    set(&memory, 1, 511, 0);
    roots.discover(&memory, all(), &gfns(&[1]));
    assert_eq!(roots.live(&memory, &[]), Some(vec![]));
}

#[test]
fn what_is_forgotten_has_to_be_confirmed_again() {
    let memory = guest();
    let mut roots = Roots::default();
    assert!(scan(&mut roots, &memory, &[1], true).is_some() && roots.knows_any());
    roots.forget();
    assert!(!roots.knows_any());
    assert_eq!(scan(&mut roots, &memory, &[1], false), None);
}

#[test]
fn what_maps_no_kernel_or_is_no_ram_is_no_reference() {
    let memory = guest();
    let mut roots = Roots::default();
    set(&memory, 1, 511, 0);
    for _ in 0..3 {
        assert_eq!(scan(&mut roots, &memory, &[1, 15, 1 << 40], true), None);
    }
    assert!(!roots.knows_any());
}
