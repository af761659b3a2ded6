//! Passes over parts that follow each other closely start from the same registers: what a guest may have become meanwhile.

use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use terrace_host::tracker::GuestTables;
use terrace_host::vm::Vm;
use terrace_proto::{
    PAGE_SIZE, Part, PartAnswer, PartRequest, Pass, Passed, RequestId, ScanFailure, Space, VmId,
};

use crate::{
    ACCESSED, Guest, HIGH_GFN, HIGH_PAGES, LOW_PAGES, PRESENT_USER, monitor, vm_with_monitor,
};

pub const TESTS: [(&str, fn()); 6] = [
    (
        "a_reset_between_two_parts_costs_no_byte",
        a_reset_between_two_parts_costs_no_byte,
    ),
    (
        "a_snapshot_loaded_between_two_parts_costs_no_byte",
        a_snapshot_loaded_between_two_parts_costs_no_byte,
    ),
    (
        "parts_and_threads_change_nothing_but_accessed_bits",
        parts_and_threads_change_nothing_but_accessed_bits,
    ),
    (
        "parts_that_follow_each_other_share_registers",
        parts_that_follow_each_other_share_registers,
    ),
    (
        "registers_of_a_while_ago_start_no_part",
        registers_of_a_while_ago_start_no_part,
    ),
    (
        "a_part_goes_on_when_the_process_of_before_has_ended",
        a_part_goes_on_when_the_process_of_before_has_ended,
    ),
];

const RESET: &str = r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "RESET", "data": {"guest": true}}"#;
/// As long as passes over parts share registers, and more.
const A_WHILE: Duration = Duration::from_millis(150);

/// A VM whose registers are told by `registers`, which gets how often they were asked for, and what comes after them.
fn vm(
    mut registers: impl FnMut(usize) -> (String, String) + Send + 'static,
) -> (tempfile::TempDir, Vm, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let (dir, vm) = vm_with_monitor(move |line| {
        if !line.contains("info registers") {
            return monitor(line);
        }
        let (text, after) = registers(count.fetch_add(1, Ordering::SeqCst));
        let answer = serde_json::json!({ "return": text }).to_string();
        if after.is_empty() {
            answer
        } else {
            format!("{answer}\n{after}")
        }
    });
    (dir, vm, asked)
}

fn long_mode(root: u64) -> String {
    format!(
        "CPU#0\nCR0=80050033 CR2=0 CR3={root:016x} CR4=00000020\nEFER=0000000000000d01\n",
        root = root << 12
    )
}

fn pass(tables: &mut GuestTables, vm: &mut Vm) -> Result<PartAnswer, ScanFailure> {
    part_pass(tables, vm, Part::new(0, 0, 0).unwrap())
}

fn part_pass(tables: &mut GuestTables, vm: &mut Vm, part: Part) -> Result<PartAnswer, ScanFailure> {
    let request = PartRequest {
        id: RequestId(3),
        space: Space::Guest(VmId(1)),
        part,
        clear: true,
        prune: false,
        discover: false,
    };
    match tables.make(vm, Pass::Part(request))? {
        Passed::Part(answer) => Ok(*answer),
        Passed::All(_) => panic!("an answer about all"),
    }
}

/// Puts data that looks like a leaf table in the place of one; all above it is as it was.
fn start_anew(guest: &Guest) -> Vec<u8> {
    (0..512).for_each(|word| guest.set(5, word, (word + 1) << 12 | PRESENT_USER | ACCESSED));
    data(guest)
}

fn data(guest: &Guest) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    guest.file.read_exact_at(&mut bytes, 5 * PAGE_SIZE).unwrap();
    bytes
}

/// After this event, which came right behind the first pass's registers, all is data.
fn costs_no_byte(event: &'static str) {
    let (_dir, mut vm, _) = vm(move |asked| match asked {
        0 => (long_mode(1), event.into()),
        _ => (
            "CPU#0\nCR0=60000010 CR2=0 CR3=0 CR4=0\nEFER=0\n".into(),
            String::new(),
        ),
    });
    let guest = Guest::new();
    let mut tables = guest.tables();
    assert_eq!(pass(&mut tables, &mut vm).unwrap().stats.cleared, 5);
    let before = start_anew(&guest);
    let failure = pass(&mut tables, &mut vm).unwrap_err();
    assert!(failure.reason.contains("paging"), "{}", failure.reason);
    assert!(
        data(&guest) == before,
        "a pass changed data of the guest that started anew"
    );
}

fn a_reset_between_two_parts_costs_no_byte() {
    costs_no_byte(RESET);
}

/// QEMU reports no more of it than that the VM stopped and runs again.
fn a_snapshot_loaded_between_two_parts_costs_no_byte() {
    costs_no_byte(r#"{"event": "STOP"}"#);
    costs_no_byte(r#"{"event": "RESUME"}"#);
}

fn parts_that_follow_each_other_share_registers() {
    const PASSES: usize = 100;
    let (_dir, mut vm, asked) = vm(|_| (long_mode(1), String::new()));
    let guest = Guest::new();
    let mut tables = guest.tables();
    (0..PASSES).for_each(|_| drop(pass(&mut tables, &mut vm).unwrap()));
    // However busy the machine is, some two came close after each other.
    assert!(asked.load(Ordering::SeqCst) < PASSES);
}

fn registers_of_a_while_ago_start_no_part() {
    let (_dir, mut vm, asked) = vm(|_| (long_mode(1), String::new()));
    let guest = Guest::new();
    let mut tables = guest.tables();
    for passes in 1..=3 {
        pass(&mut tables, &mut vm).unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), passes);
        std::thread::sleep(A_WHILE);
    }
}

/// The one process that ran when registers were read has ended, and its top-level table maps nothing.
fn a_part_goes_on_when_the_process_of_before_has_ended() {
    let (_dir, mut vm, _) = vm(|asked| (long_mode(1 + u64::from(asked > 0)), String::new()));
    let guest = Guest::new();
    let mut tables = guest.tables();
    assert_eq!(pass(&mut tables, &mut vm).unwrap().stats.cleared, 5);
    (0..512).for_each(|entry| guest.set(1, entry, 0));
    let answer = pass(&mut tables, &mut vm).unwrap();
    assert_eq!((answer.stats.roots, answer.stats.cleared), (1, 1));
}

const USED: u64 = PRESENT_USER | ACCESSED;

/// A guest of which tables name themselves, each other, memory that the guest never touched, the hole between its two runs of RAM,
/// what is beyond, and pages of data.
fn hostile() -> Guest {
    let guest = Guest::new();
    let named = |n: u64| match n % 8 {
        0 => 1,
        1 => 3 + n % 3,
        2 => HIGH_GFN + n % HIGH_PAGES,
        3 => LOW_PAGES + n,
        4 => HIGH_GFN + HIGH_PAGES + n,
        5 => 1 << 39,
        _ => 20 + n % 10,
    };
    for index in 1..512 {
        // A top-level table of Linux names nothing beyond the last page.
        guest.set(1, index % 250 + 1, named(index & !4) << 12 | USED);
        let large = |of: u64| (index % of / (of - 1)) << 7;
        guest.set(3, index, named(index * 7) << 12 | USED | large(5));
        guest.set(4, index, named(index * 5) << 12 | USED | large(7));
        // Data that resembles entries for users and of the kernel.
        let data = (index << 12 | USED) ^ (index / 10 % 2) << 2;
        guest.set(20 + index % 10, index, data);
    }
    guest
}

/// The guest's low memory, as entries.
fn entries(guest: &Guest) -> Vec<u64> {
    let mut bytes = vec![0; usize::try_from(LOW_PAGES * PAGE_SIZE).unwrap()];
    guest.file.read_exact_at(&mut bytes, 0).unwrap();
    let entries = bytes.as_chunks().0.iter();
    entries.map(|entry| u64::from_le_bytes(*entry)).collect()
}

fn parts_and_threads_change_nothing_but_accessed_bits() {
    let guest = hostile();
    let blocks = || guest.file.metadata().unwrap().blocks();
    let (before, allocated) = (entries(&guest), blocks());
    let (_dir, mut vm, _) = vm(|_| (long_mode(1), String::new()));
    let mut tables = guest.tables();
    let mut cleared = 0;
    for index in 0..4 {
        let part = Part::new(3, 2, index).unwrap();
        cleared += part_pass(&mut tables, &mut vm, part).unwrap().stats.cleared;
    }
    tables.use_threads(16);
    for _ in 0..2 {
        let request = crate::request(terrace_proto::Rearm::All, false);
        cleared += tables.scan(&mut vm, request).unwrap().stats.cleared;
    }
    assert!(cleared > 0);
    assert_eq!(blocks(), allocated, "memory that the guest never touched");
    let after = entries(&guest);
    for (at, (old, new)) in before.iter().zip(&after).enumerate() {
        let (page, index) = (at / 512, at % 512);
        // A page in which the kernel has entries is none of its tables for users.
        let is_data = (20..30).contains(&page);
        let may_lose = if old & 5 == 5 && !is_data {
            ACCESSED
        } else {
            0
        };
        assert_eq!((old ^ new) & !may_lose, 0, "page {page}, entry {index}");
    }
}
