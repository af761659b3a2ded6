//! Tests that each format is read as it is meant, and recognised by its content.

use terrace_proto::log::{LogWriter, Record as LogRecord};
use terrace_proto::{Event, PageBitmap, RequestId, ScanAnswer, ScanStats, Space, Tick, VmId};

use super::super::{Format, OnBroken, Op, Reader, Record};
use super::{read, record, records, request, zstd};

const LACKEY: &[u8] = b"==12== Lackey, an example Valgrind tool\n\
    I  0023C790,2\n L 1ffeffe7e8,8\n S 7fff0ff8,16\r\n\n M 0421c7cc,4\n==12== \n--12-- x\n L ff,1";

pub(super) const PERF: &[u8] = b"# comment\n\
  redis-server  1234 98.765432:  cpu/mem-loads,ldlat=30/P:     7f0012345678\n\
  my prog 77/78 [001] 98.8:     1 mem-stores:P:   0x7f0012345680  |OP STORE|LVL L1 hit| 55aa main+0x1 (/bin/x)\n\
  x 5 99.000000001: cpu/mem-loads,ldlat=30/P:                0 \n\
  x 5 99.5: ibs_op//: ffff888000000040 1e05080021 |OP LOAD|LVL L2 hit\n\
  x 5 mem_inst_retired.all_stores:pp: 1000\n";

pub(super) fn log() -> Vec<u8> {
    let scan = |space, accessed: &[u64], written: Option<&[u64]>| {
        let map = |pages: &[u64]| {
            let mut map = PageBitmap::new(200);
            pages.iter().for_each(|page| map.set(*page));
            map
        };
        LogRecord::Event(Event::Scanned(Box::new(ScanAnswer {
            id: RequestId(1),
            space,
            known: PageBitmap::full(200),
            accessed: map(accessed),
            written: written.map(map),
            huge_leaf: PageBitmap::new(1),
            stats: ScanStats::default(),
        })))
    };
    let (first, second) = (Space::Guest(VmId(7)), Space::Guest(VmId(3)));
    let mut log = LogWriter::new(Vec::new(), 1 << 20).unwrap();
    for (at, record) in [
        (1, LogRecord::Event(Event::Timer)),
        (2, scan(first, &[0, 63, 64, 199], Some(&[64]))),
        (3, scan(second, &[], None)),
        (4, scan(second, &[5], None)),
        (5, scan(first, &[1], Some(&[1]))),
    ] {
        assert!(log.append(Tick(at), &record).unwrap());
    }
    log.finish().unwrap()
}

#[test]
fn lackeys_data_accesses_are_read_and_the_rest_is_left_out() {
    let expected = [
        record(Op::Load, 0x1f_feff_e7e8, 8),
        record(Op::Store, 0x7fff_0ff8, 16),
        record(Op::Modify, 0x0421_c7cc, 4),
        record(Op::Load, 0xff, 1),
    ];
    assert_eq!(records(LACKEY), expected);
    let writes = expected.map(|r| r.writes());
    assert_eq!(writes, [false, true, true, false]);
}

#[test]
fn lines_without_an_access_are_counted() {
    let mut reader =
        Reader::from_bytes("t", Box::new(LACKEY), None, OnBroken::Stop).expect("a trace");
    while reader.next_record().expect("a record").is_some() {}
    assert_eq!((reader.records(), reader.ignored()), (4, 5));
}

#[test]
fn perf_samples_of_several_shapes_are_read() {
    let sample = |op, addr, time_ns| Record {
        addr,
        bytes: 1,
        op,
        time_ns,
    };
    let expected = [
        sample(Op::Load, 0x7f00_1234_5678, Some(98_765_432_000)),
        sample(Op::Store, 0x7f00_1234_5680, Some(98_800_000_000)),
        sample(Op::Load, 0xffff_8880_0000_0040, Some(99_500_000_000)),
        sample(Op::Store, 0x1000, None),
    ];
    assert_eq!(records(PERF), expected);
}

#[test]
fn a_perf_event_without_data_src_is_broken_not_guessed() {
    let text = [PERF, b"x 5 99.5: ibs_op//: 1000\n"].concat();
    let error = super::refused(&text);
    assert!(error.starts_with("t:7: "), "{error}");
    assert!(error.contains("data_src"), "{error}");
}

#[test]
fn objects_get_dense_line_aligned_places_in_order_of_sight() {
    let bytes = [
        request(5, 900, 100, 3),
        request(5, 800, 64, -1),
        request(6, 900, 65, 4),
        request(7, 900, 129, -1),
        request(8, 1, 1, i64::MAX),
    ]
    .concat();
    let load = |addr, bytes, seconds: u64| Record {
        addr,
        bytes,
        op: Op::Load,
        time_ns: Some(seconds * 1_000_000_000),
    };
    let expected = [
        load(0, 100, 5),
        load(128, 64, 5),
        load(0, 65, 6),
        load(192, 129, 7),
        load(384, 1, 8),
    ];
    assert_eq!(records(&bytes), expected);
}

#[test]
fn each_accessed_page_of_a_scan_is_one_record() {
    let page = |space: u64, page: u64, op, at| Record {
        addr: space << 48 | page << 12,
        bytes: 64,
        op,
        time_ns: Some(at),
    };
    let expected = [
        page(0, 0, Op::Load, 2),
        page(0, 63, Op::Load, 2),
        page(0, 64, Op::Store, 2),
        page(0, 199, Op::Load, 2),
        page(1, 5, Op::Load, 4),
        page(0, 1, Op::Store, 5),
    ];
    assert_eq!(records(&log()), expected);
}

#[test]
fn every_format_is_recognised_by_content_plain_and_compressed() {
    let objects = [request(5, 900, 100, -1), request(5, 800, 64, -1)].concat();
    for (bytes, format) in [
        (LACKEY, Format::Lackey),
        (b" L zzz\nI  12,3\n L 1,1\n", Format::Lackey),
        (PERF, Format::PerfScript),
        (&objects, Format::OracleGeneral),
        (&log(), Format::TerraceLog),
    ] {
        for bytes in [bytes.to_vec(), zstd(bytes)] {
            let bytes = Box::new(std::io::Cursor::new(bytes));
            let reader = Reader::from_bytes("t", bytes, None, OnBroken::Stop).expect("a trace");
            assert_eq!(reader.format(), format);
        }
    }
}

#[test]
fn a_format_that_is_given_is_not_asked_for() {
    let error = read(LACKEY, Some(Format::PerfScript), OnBroken::Stop).expect_err("no samples");
    assert!(error.to_string().contains("perf script"), "{error}");
    let one = request(0, 0, 1, 77);
    let read = read(&one, Some(Format::OracleGeneral), OnBroken::Stop).expect("a record");
    assert_eq!(read.0.len(), 1);
}

#[test]
fn names_of_formats_are_read_back() {
    for format in Format::ALL {
        assert_eq!(format.name().parse(), Ok(format));
        assert_eq!(serde_json::to_value(format).unwrap(), format.name());
    }
    let error = "vscsi".parse::<Format>().unwrap_err();
    assert!(error.contains("lackey, perf-script, oraclegeneral, terrace-log"));
}

#[test]
fn frames_and_skippable_frames_follow_each_other() {
    let skippable = [&[0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let bytes = [zstd(b" L 1,1\n L "), skippable, zstd(b"2,1\n")].concat();
    assert_eq!(
        records(&bytes),
        [record(Op::Load, 1, 1), record(Op::Load, 2, 1)]
    );
}
