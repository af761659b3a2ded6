//! Scans of guest page tables: memory from bytes, a few scans, and checks of what must hold whatever the bytes are.
//! Panics if it does not.

use std::sync::atomic::Ordering::Relaxed;

use terrace_pagetable::entry::{ACCESSED, ADDRESS, PRESENT, USER};
use terrace_pagetable::{GuestTables, Paging, Scanner, SimulatedMemory};
use terrace_proto::{
    Gfn, PageBitmap, PagingRegisters, Part, PartAnswer, PartRequest, Rearm, RequestId, ScanAnswer,
    ScanRequest, ScanStats, Space, TableFrame, VmId,
};

/// Room for one 1 GiB leaf and a bit, ending inside a 2 MiB block and inside a bitmap's word.
const FRAMES: u64 = (1 << 18) + 1_000;
const TABLES: u64 = 16;
const RECORD: usize = 11;

/// Scans a guest whose memory `data` describes.
///
/// Three bytes of header (shape; address width; kinds of scans), then records of eleven: table (its top
/// bit asks for the address to be that of a table), index, entry.
///
/// # Panics
/// If a scan breaks one of its promises.
pub fn fuzz_scan(data: &[u8]) {
    let Some((header, records)) = data.split_first_chunk::<3>() else {
        return;
    };
    let memory = memory(records);
    let paging = paging(header[0], header[1]);
    let mut scanner = Scanner::new(FRAMES);
    let mut of_shares = [Scanner::new(FRAMES), Scanner::new(FRAMES)];
    let roots = [paging.root(), Gfn(u64::from(header[0] >> 4)), Gfn(FRAMES)];
    for turn in 0..3 {
        let kind = header[2] >> (2 * turn);
        let before = entries(&memory);
        scanner.name_tables(turn != 1);
        let answer = scanner.scan(&memory, paging, &roots, &request(kind, turn));
        check_answer(&answer);
        check_tables(&scanner.take_tables(), answer.stats, turn != 1);
        check_memory(&before, &entries(&memory), kind & 2 == 0);
        let before = entries(&memory);
        let request = part_request(header[0], kind, turn);
        let answer = scanner.scan_part(&memory, paging, &roots, &request, |_| true);
        check_part(&answer);
        check_tables(&scanner.take_tables(), answer.stats, turn != 1);
        check_memory(&before, &entries(&memory), kind & 2 == 0);
        // Once, since it takes as long as the rest of a turn.
        let of_this_turn = (0..).zip(&mut of_shares).filter(|_| turn == 1);
        for (share, scanner) in of_this_turn {
            let before = entries(&memory);
            let part = Part::new(0, 1, share).expect("a part that exists");
            let request = self::request(kind, turn);
            let work = (&request, part);
            let answer = scanner.scan_share(&memory, paging, &roots, work, |_| true);
            check_answer(&answer);
            check_memory(&before, &entries(&memory), kind & 2 == 0);
        }
    }
}

fn paging(shape: u8, width: u8) -> Paging {
    let registers = PagingRegisters {
        cr0: 1 << 31,
        cr3: 0,
        cr4: 1 << 5 | u64::from(shape & 1) << 12,
        efer: 1 << 10,
    };
    let paging = Paging::from_registers(registers).expect("long mode");
    paging.with_physical_bits(width).unwrap_or(paging)
}

fn memory(records: &[u8]) -> SimulatedMemory {
    let mut memory = SimulatedMemory::new(FRAMES);
    for frame in 0..TABLES {
        memory.add_table(Gfn(frame)).expect("a new table");
    }
    for record in records.as_chunks::<RECORD>().0 {
        let [table, low, high, entry @ ..] = *record;
        let index = usize::from(u16::from_le_bytes([low, high])) % 512;
        let mut entry = u64::from_le_bytes(entry);
        if table & 0x80 != 0 {
            entry = entry & !ADDRESS | ((entry >> 12) % TABLES) << 12;
        }
        if let Some(table) = memory.table(Gfn(u64::from(table) % TABLES)) {
            table[index].store(entry, Relaxed);
        }
    }
    memory
}

fn request(kind: u8, turn: u64) -> ScanRequest {
    let mut some = PageBitmap::new(FRAMES);
    some.set_range(0, 700);
    ScanRequest {
        id: RequestId(turn),
        space: Space::Guest(VmId(1)),
        rearm: match (kind & 2 == 0, turn) {
            (true, _) => Rearm::None,
            (false, 0) => Rearm::All,
            (false, _) => Rearm::Only(some),
        },
        prune: kind & 1 == 1,
        discover: false,
    }
}

fn part_request(shape: u8, kind: u8, turn: u64) -> PartRequest {
    let shift = shape % 4;
    let index = u32::from(shape) % (1 << shift);
    PartRequest {
        id: RequestId(turn),
        space: Space::Guest(VmId(1)),
        part: Part::new(turn, shift, index).expect("a part that exists"),
        clear: kind & 2 != 0,
        prune: kind & 1 == 1,
        discover: false,
    }
}

/// The words of all tables, one table after the other.
fn entries(memory: &SimulatedMemory) -> Vec<u64> {
    let tables = (0..TABLES).filter_map(|frame| memory.table(Gfn(frame)));
    tables.flatten().map(|word| word.load(Relaxed)).collect()
}

fn check_answer(answer: &ScanAnswer) {
    let stats = answer.stats;
    assert!(stats.tables <= TABLES, "a table was read twice");
    assert!(stats.leaves <= TABLES * 512 && stats.accessed <= stats.leaves);
    assert!(stats.cleared <= stats.accessed);
    let (known, accessed) = (answer.known.words(), answer.accessed.words());
    assert!(known.iter().zip(accessed).all(|(k, a)| a & !k == 0));
    for block in answer.huge_leaf.iter() {
        let first = usize::try_from(block).expect("a block of memory") * 8;
        let words = first..first + 8;
        assert!(known[words].iter().all(|w| *w == u64::MAX));
    }
}

/// Each named table was read as one, once, and has accessed leaves.
fn check_tables(named: &[TableFrame], stats: ScanStats, asked: bool) {
    assert!(TableFrame::fit(named, FRAMES));
    assert!(named.len() as u64 <= stats.tables && (asked || named.is_empty()));
    assert!(named.iter().all(|t| u64::from(t.frame) < TABLES));
    assert!(
        named
            .iter()
            .all(|t| t.accessed > 0 && (1..=5).contains(&t.level))
    );
    let leaves = named.iter().filter(|t| t.level == 1);
    let accessed: u64 = leaves.map(|t| u64::from(t.accessed)).sum();
    assert!(accessed <= stats.accessed, "leaves that no table has");
}

fn check_part(answer: &PartAnswer) {
    let stats = answer.stats;
    assert!(
        answer.fits(FRAMES),
        "an answer that no VM of this size gives"
    );
    assert!(stats.tables <= TABLES, "a table was read twice");
    assert!(stats.cleared <= stats.accessed && stats.accessed <= stats.leaves);
    assert!(answer.cells.iter().all(|cell| cell.mapped != 0));
    assert!(stats.accessed > 0 || answer.cells.iter().all(|cell| cell.accessed == 0));
    for block in &answer.huge {
        let of_block = answer.cells.iter().filter(|cell| cell.at / 8 == *block);
        assert_eq!(of_block.filter(|cell| cell.mapped == u64::MAX).count(), 8);
    }
}

fn check_memory(before: &[u64], after: &[u64], read_only: bool) {
    for (at, (old, new)) in before.iter().zip(after).enumerate() {
        let changed = old ^ new;
        let (table, index) = (at / 512, at % 512);
        assert!(
            changed & !ACCESSED == 0,
            "table {table}, entry {index}: {old:#x} became {new:#x}"
        );
        let ours = old & (PRESENT | USER) == PRESENT | USER && !read_only;
        assert!(
            changed == 0 || ours,
            "table {table}, entry {index}: {old:#x} is not the scan's to change"
        );
    }
}
