use std::cell::Cell;
use std::sync::atomic::Ordering;

use terrace_pagetable::linux::Kernel;
use terrace_pagetable::{SimulatedMemory, Table};
use terrace_proto::PagingRegisters;

use super::*;

const RANDOM: Kernel = Kernel {
    base: 0xffff_9c40_4000_0000,
    gib: 1,
    giant: false,
};
/// `nokaslr`.
const DEFAULT: Kernel = Kernel {
    base: 0xffff_8880_0000_0000,
    ..RANDOM
};

fn set(memory: &SimulatedMemory, frame: u64, index: usize, value: u64) {
    memory.table(Gfn(frame)).unwrap()[index].store(value, Ordering::Relaxed);
}

fn paging(frame: u64) -> Paging {
    let registers = PagingRegisters {
        cr0: 1 << 31,
        cr3: frame << 12,
        cr4: 1 << 5,
        efer: 1 << 10,
    };
    Paging::from_registers(registers).unwrap()
}

/// Processes at 2, 4 and 6; the kernel's tables from 16, those of another kernel from 40.
fn guest_of(kernel: Kernel) -> SimulatedMemory {
    let mut memory = SimulatedMemory::new(64);
    for frame in (2..8).chain([50]) {
        memory.add_table(Gfn(frame)).unwrap();
    }
    boot(&mut memory, kernel, 16, &[2, 4, 6]);
    for (frame, users) in [(2, 0xa067), (4, 0xb067), (6, 0xc067)] {
        set(&memory, frame, 0, users);
    }
    memory
}

fn guest() -> SimulatedMemory {
    guest_of(RANDOM)
}

/// Gives tables the half of a kernel whose own tables begin at `tables`.
fn boot(memory: &mut SimulatedMemory, kernel: Kernel, tables: u64, roots: &[u64]) {
    for i in 256..512 {
        set(memory, roots[0], i, 0);
    }
    let mut frames = (tables..tables + 8).map(Gfn);
    kernel.map(memory, paging(roots[0]), Gfn(roots[0]), &mut frames);
    for root in roots {
        copy_half(memory, roots[0], *root);
    }
}

fn copy_half(memory: &SimulatedMemory, from: u64, to: u64) {
    for i in 256..512 {
        let entry = memory.table(Gfn(from)).unwrap()[i].load(Ordering::Relaxed);
        set(memory, to, i, entry);
    }
}

fn search(roots: &mut Roots, memory: &SimulatedMemory, in_use: &[u64]) -> Option<Withheld> {
    let pagings: Vec<_> = in_use.iter().map(|frame| paging(*frame)).collect();
    roots.learn(memory, &pagings).unwrap();
    roots.search(memory, [Gfn(0)..Gfn(64)])
}

fn scan(roots: &mut Roots, memory: &SimulatedMemory, in_use: &[u64]) -> Result<Vec<u64>, Unproven> {
    let pagings: Vec<_> = in_use.iter().map(|frame| paging(*frame)).collect();
    roots.learn(memory, &pagings)?;
    Ok(roots.live(memory).iter().map(|frame| frame.0).collect())
}

#[test]
fn tables_of_sleeping_processes_are_found_by_a_proven_half() {
    let memory = guest();
    let mut roots = Roots::default();
    assert_eq!(scan(&mut roots, &memory, &[2]), Ok(vec![2]));
    assert_eq!(search(&mut roots, &memory, &[2]), None);
    assert_eq!(scan(&mut roots, &memory, &[2]), Ok(vec![2, 4, 6]));
    set(&memory, 4, 0, 0);
    assert_eq!(scan(&mut roots, &memory, &[2]), Ok(vec![2, 6]));
    set(&memory, 4, 0, 0xb067);
    assert_eq!(scan(&mut roots, &memory, &[2]), Ok(vec![2, 6]), "it ended");
}

#[test]
fn a_table_that_became_data_before_the_walk_is_not_walked() {
    let memory = guest();
    let mut roots = Roots::default();
    search(&mut roots, &memory, &[2, 4]);
    scan(&mut roots, &memory, &[2, 4]).unwrap();
    set(&memory, 2, 300, 0xdead_beef);
    assert!(!roots.is_live(&memory, Gfn(2)) && roots.is_live(&memory, Gfn(4)));
    assert_eq!(roots.live(&memory), [Gfn(4), Gfn(6)]);
    set(&memory, 4, 0, 0);
    assert_eq!(roots.live(&memory), [Gfn(6)]);
}

#[test]
fn a_nested_guests_register_is_not_walked() {
    let memory = guest();
    let mut roots = Roots::default();
    // Frame 50 resembles a top-level table: one table, in which the word 0x81 maps the first GiB.
    set(&memory, 50, 0, 0xa067);
    set(&memory, 50, 300, 0x3063);
    set(&memory, 3, 9, 0x81);
    for _ in 0..3 {
        assert!(scan(&mut roots, &memory, &[50]).is_err());
        assert_eq!(scan(&mut roots, &memory, &[50, 2]), Ok(vec![2]));
    }
}

#[test]
fn both_tables_of_isolation_lead_to_the_kernels() {
    let memory = guest();
    set(&memory, 3, 0, 0xa067);
    set(&memory, 2, 0, 0xa067 | 1 << 63);
    let text = memory.table(Gfn(2)).unwrap()[511].load(Ordering::Relaxed);
    set(&memory, 3, 511, text);
    let mut roots = Roots::default();
    assert_eq!(search(&mut roots, &memory, &[3]), None);
    assert_eq!(scan(&mut roots, &memory, &[3]), Ok(vec![2, 4, 6]));
    assert_eq!(scan(&mut roots, &memory, &[2]), Ok(vec![2, 4, 6]));
}

#[test]
fn a_guest_without_kaslr_is_not_searched_for_forgeable_tables() {
    let memory = guest_of(DEFAULT);
    // A process that copied the kernel half of another into its own memory.
    copy_half(&memory, 2, 50);
    set(&memory, 50, 0, 0xd067);
    let mut roots = Roots::default();
    for in_use in [[2], [4]] {
        assert_eq!(
            search(&mut roots, &memory, &in_use),
            Some(Withheld::DefaultBase)
        );
        assert_eq!(scan(&mut roots, &memory, &in_use), Ok(in_use.to_vec()));
    }
}

#[test]
fn nothing_found_before_a_reset_counts_after_it() {
    let memory = guest();
    let mut roots = Roots::default();
    search(&mut roots, &memory, &[2]);
    assert_eq!(scan(&mut roots, &memory, &[2]), Ok(vec![2, 4, 6]));
    roots.forget();
    assert_eq!(scan(&mut roots, &memory, &[2]), Ok(vec![2]));
    // The old kernel's half came again: its old tables cannot be distinguished from new ones.
    assert_eq!(
        search(&mut roots, &memory, &[2]),
        Some(Withheld::SeenBeforeReset)
    );
    assert_eq!(scan(&mut roots, &memory, &[2]), Ok(vec![2]));
}

#[test]
fn after_a_reboot_the_old_kernels_tables_are_not_searched_for() {
    let mut memory = guest();
    let mut roots = Roots::default();
    search(&mut roots, &memory, &[2]);
    roots.forget();
    let other = Kernel {
        base: 0xffff_a000_8000_0000,
        ..RANDOM
    };
    boot(&mut memory, other, 40, &[50, 6]);
    set(&memory, 50, 0, 0xa067);
    assert_eq!(search(&mut roots, &memory, &[50]), None);
    assert_eq!(scan(&mut roots, &memory, &[50]), Ok(vec![6, 50]));
}

#[test]
fn another_kernels_tables_are_not_walked_after_kexec() {
    let mut memory = guest();
    let mut roots = Roots::default();
    search(&mut roots, &memory, &[2]);
    boot(&mut memory, RANDOM, 40, &[50]);
    set(&memory, 50, 0, 0xa067);
    assert_eq!(scan(&mut roots, &memory, &[50]), Ok(vec![50]));
}

/// A guest that changes its kernel half often enough makes room for what it shows after the reset.
#[test]
fn a_half_crowded_out_before_a_reset_still_counts_as_old() {
    let memory = guest();
    let mut roots = Roots::default();
    search(&mut roots, &memory, &[2]);
    // Ever other halves: entries that lead to a table that the direct map covers.
    for i in 0..HALVES {
        set(&memory, 4, 300 + i, 0x3063);
        assert_eq!(search(&mut roots, &memory, &[4]), None);
    }
    assert_eq!(search(&mut roots, &memory, &[2]), None, "the same boot");
    for i in 0..HALVES {
        set(&memory, 4, 320 + i, 0x3063);
        search(&mut roots, &memory, &[4]);
    }
    roots.forget();
    assert_eq!(
        search(&mut roots, &memory, &[2]),
        Some(Withheld::SeenBeforeReset)
    );
}

/// Counts what is read.
struct Counted<'a> {
    memory: &'a SimulatedMemory,
    reads: Cell<u64>,
}

impl GuestTables for Counted<'_> {
    fn frames(&self) -> u64 {
        self.memory.frames()
    }

    fn table(&self, frame: Gfn) -> Option<&Table> {
        self.reads.set(self.reads.get() + 1);
        self.memory.table(frame)
    }
}

/// Kernel halves at frames 2 to 9 and 300 to 363 of which thousands of entries offer the true base, each in a table
/// with too little of the map to prove it.
fn hostile() -> SimulatedMemory {
    const SPARE: Range<u64> = 1_000..8_900;
    let mut memory = SimulatedMemory::new(20_000);
    for frame in (2..364).chain([400]).chain(SPARE) {
        memory.add_table(Gfn(frame)).unwrap();
    }
    // Eight leaves of 2 MiB cover the roots and what they name.
    for (slot, leaf) in (0..8_u64).enumerate() {
        set(&memory, 400, slot, leaf << 21 | 0xe3);
    }
    set(&memory, 10, 0, 400 << 12 | 0x63);
    let mut spare = SPARE;
    for (n, upper) in (10..266_u64).enumerate() {
        let gib = |slot: usize| ((upper - 10) * 512 + slot as u64) << 30;
        for slot in 100..115 {
            set(&memory, upper, slot, gib(slot) | 0xe3);
        }
        for (slot, lower) in (1..32).zip(spare.by_ref()) {
            set(&memory, upper, slot, lower << 12 | 0x63);
            set(&memory, lower, 0, gib(slot) | 0xe3);
        }
        set(&memory, 2, 256 + n, upper << 12 | 0x63);
    }
    for (n, root) in (300..364).enumerate() {
        copy_half(&memory, 2, root);
        set(&memory, root, 256 + n, 0);
    }
    memory
}

fn reads_of_learning(memory: &SimulatedMemory, in_use: Range<u64>) -> u64 {
    let reads = Cell::new(0);
    let counted = Counted { memory, reads };
    let pagings: Vec<_> = in_use.map(paging).collect();
    assert!(Roots::default().learn(&counted, &pagings).is_err());
    counted.reads.get()
}

#[test]
fn a_half_that_offers_its_base_again_and_again_is_refused_soon() {
    let reads = reads_of_learning(&hostile(), 2..3);
    assert!(reads < 500_000, "{reads}");
}

#[test]
fn unprovable_halves_cost_no_more_per_vcpu() {
    let memory = hostile();
    let few = reads_of_learning(&memory, 301..301 + MAX_UNPROVEN as u64);
    let many = reads_of_learning(&memory, 301..364);
    assert!(many < few + 1_000, "{few} for some, {many} for more");
    let mut roots = Roots::default();
    let good = guest();
    roots.learn(&good, &[paging(2)]).unwrap();
    let in_use: Vec<u64> = (40..64).chain([4]).collect();
    assert_eq!(scan(&mut roots, &good, &in_use), Ok(vec![4]), "it is known");
}

#[test]
fn what_maps_no_kernel_or_is_no_ram_leads_nowhere() {
    let memory = guest();
    let mut roots = Roots::default();
    let halfless = scan(&mut roots, &memory, &[7, 1 << 20]);
    assert_eq!(halfless, Err(Unproven::NoKernel(Gfn(7))));
    assert!(!roots.knows_any() && roots.live(&memory).is_empty());
}
