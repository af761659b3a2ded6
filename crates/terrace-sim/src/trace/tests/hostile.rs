//! Tests of bad input: every fault has a clear error; broken records are skipped and counted if asked.

use std::io::{Cursor, Read};

use proptest::prelude::*;

use super::super::input::MAX_LINE;
use super::super::{Format, OnBroken, Op, Reader, Tally, TraceError, load};
use super::formats::{PERF, log};
use super::{read, record, refused, request, zstd};

#[test]
fn an_empty_file_is_refused() {
    assert_eq!(refused(b""), "t: the file is empty");
    assert_eq!(refused(&zstd(b"")), "t: the file is empty");
}

#[test]
fn a_file_that_is_no_trace_is_refused_with_its_first_bytes() {
    for bytes in [
        &b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0>\0\x01\0\0\0"[..],
        b"GIF89a\0",
        b"# A readme\n\nabout nothing\n",
        b"\n\n\n",
    ] {
        let error = refused(bytes);
        assert!(
            error.starts_with("t: not a trace that is known here"),
            "{error}"
        );
        assert!(error.contains("oraclegeneral"), "{error}");
    }
    assert!(refused(b"GIF89a\0").contains(r#"starts with "GIF89a\x00""#));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let path = std::path::Path::new("/nonexistent/x.trace");
    let error = Reader::open(path, None, OnBroken::Stop)
        .err()
        .expect("an error");
    assert!(error.to_string().starts_with("/nonexistent/x.trace: "));
}

#[test]
fn a_broken_line_is_named_with_what_was_expected() {
    let error = refused(b" L 10,8\n\n L 10,8,9\n L 10,8\n");
    assert_eq!(
        error,
        "t:3: \" L 10,8,9\": expected lackey's ` L ADDR,SIZE`, ` S ADDR,SIZE` or ` M ADDR,SIZE` \
         (address hexadecimal, size 1 to 65536)"
    );
}

#[test]
fn the_text_of_a_broken_line_is_shortened() {
    let long = [b" L 10,8\n".to_vec(), vec![0xff; 3000]].concat();
    let error = refused(&long);
    assert!(
        error.starts_with(r#"t:2: "\xff\xff"#) && error.contains("…\""),
        "{error}"
    );
    assert!(error.len() < 400, "{error}");
}

#[test]
fn broken_lines_are_skipped_and_counted_where_asked() {
    let text = b" L 10,8\nnonsense\n L 20,0\n S 30,1\n L 20,70000\n L ffffffffffffffff,2\n L 1f,\n";
    let (got, skipped) = read(text, None, OnBroken::Skip).expect("a trace");
    assert_eq!(got, [record(Op::Load, 0x10, 8), record(Op::Store, 0x30, 1)]);
    assert_eq!(skipped, 5);
}

#[test]
fn sizes_and_ends_out_of_bounds_are_refused() {
    for (line, expected) in [
        (&b" L 10,0"[..], "a size of 1 to 65536"),
        (b" S 10,65537", "a size of 1 to 65536"),
        (b" S 10,99999999999", "size 1 to 65536"),
        (b" M ffffffffffffffff,2", "ends within 64 bits"),
        (b" L 1ffffffffffffffff,2", "lackey's"),
    ] {
        let error = refused(&[b" L 10,8\n", line].concat());
        assert!(
            error.starts_with("t:2: ") && error.contains(expected),
            "{error}"
        );
    }
    let last = read(b" L ffffffffffffffff,1", None, OnBroken::Stop);
    assert_eq!(last.expect("the last byte").0[0].last(), u64::MAX);
}

#[test]
fn an_endless_line_is_refused_even_if_records_are_skipped() {
    for on_broken in [OnBroken::Stop, OnBroken::Skip] {
        // A source that never ends: reading on would hang.
        let endless = Cursor::new(b" L 1,1\n".to_vec()).chain(std::io::repeat(0));
        let mut reader =
            Reader::from_bytes("t", Box::new(endless), Some(Format::Lackey), on_broken)
                .expect("a trace");
        assert_eq!(
            reader.next_record().expect("a record").map(|r| r.addr),
            Some(1)
        );
        let error = reader.next_record().expect_err("no end").to_string();
        assert!(error.starts_with("t:2: \"\\x00"), "{error}");
        assert!(error.contains("no end within 65536 bytes"), "{error}");
    }
    let long = |spaces| {
        [
            b" L 1,1\n".to_vec(),
            vec![b' '; spaces],
            b"\n L 2,1\n".to_vec(),
        ]
        .concat()
    };
    assert!(refused(&long(MAX_LINE + 1)).contains("no end within 65536 bytes"));
    assert!(read(&long(MAX_LINE), None, OnBroken::Stop).is_ok());
}

#[test]
fn a_zstd_bomb_of_one_line_is_refused_at_its_beginning() {
    let bomb = zstd(&vec![b'x'; 8 << 20]);
    for on_broken in [OnBroken::Stop, OnBroken::Skip] {
        let error = read(&bomb, Some(Format::Lackey), on_broken).expect_err("a bomb");
        assert!(
            error.to_string().contains("no end within 65536 bytes"),
            "{error}"
        );
    }
}

#[test]
fn truncated_zstd_data_is_an_error_even_if_records_are_skipped() {
    let text: Vec<u8> = (0..3000_u32)
        .flat_map(|n| format!(" L {:x},8\n", n.wrapping_mul(2_654_435_761)).into_bytes())
        .collect();
    let whole = zstd(&text);
    assert!(read(&whole, None, OnBroken::Stop).is_ok());
    for end in (5..whole.len())
        .step_by(whole.len() / 40)
        .chain([whole.len() - 1])
    {
        let error = read(&whole[..end], None, OnBroken::Skip).expect_err("an error");
        let said = error.to_string();
        assert!(
            said.contains("zstd data are cut off or damaged"),
            "{end}: {said}"
        );
    }
}

#[test]
fn damaged_zstd_data_are_an_error() {
    let mut bytes = zstd(&b" L 12345,8\n L 777,8\n".repeat(40));
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert!(refused(&bytes).contains("checksum"), "{}", refused(&bytes));
    let behind = [zstd(b" L 1,1\n"), b"garbage".to_vec()].concat();
    assert!(refused(&behind).contains("no zstd frame"));
}

#[test]
fn a_zstd_frame_that_asks_for_too_much_memory_is_refused() {
    let descriptor = 20 << 3;
    let bytes = [0x28, 0xb5, 0x2f, 0xfd, 0, descriptor, 1, 0, 0];
    let error = refused(&bytes);
    assert!(error.contains("window of 1073741824 bytes"), "{error}");
}

#[test]
fn a_binary_record_that_is_cut_off_is_an_error_with_its_place() {
    let whole = [request(5, 900, 100, -1), request(5, 800, 64, -1)].concat();
    for end in 25..48 {
        let error = refused(&whole[..end]);
        let place = format!(
            "t: record 2 at byte 24: the file ends after {} of its 24",
            end - 24
        );
        assert!(error.starts_with(&place), "{error}");
        let (got, skipped) = read(&whole[..end], None, OnBroken::Skip).expect("a trace");
        assert_eq!((got.len(), skipped), (1, 1));
    }
}

#[test]
fn an_object_of_no_size_or_an_absurd_one_is_broken() {
    let mut bytes = request(5, 900, 100, -1).repeat(70);
    bytes.extend(request(5, 900, 0, -1));
    bytes.extend(request(5, 900, u32::MAX, -1));
    let error = refused(&bytes);
    assert!(
        error.contains("record 71 at byte 1680") && error.contains("size is 0"),
        "{error}"
    );
    let (got, skipped) = read(&bytes, None, OnBroken::Skip).expect("a trace");
    assert_eq!((got.len(), skipped), (70, 2));
}

#[test]
fn a_log_that_is_cut_off_is_an_error_or_skipped() {
    let whole = log();
    let cut = &whole[..whole.len() - 1];
    assert!(
        refused(cut).contains("record 5: the log ends in the middle"),
        "{}",
        refused(cut)
    );
    let (got, skipped) = read(cut, None, OnBroken::Skip).expect("a trace");
    assert_eq!((got.len(), skipped), (5, 1));
}

#[test]
fn a_trace_without_a_data_access_is_an_error() {
    let error = refused(b"==1== Lackey\nI  1000,4\n");
    assert!(error.contains("no memory access is in it"), "{error}");
    assert!(error.contains("without an access: 2"), "{error}");
    let all_broken = read(b"x\ny\n", Some(Format::Lackey), OnBroken::Skip);
    let error = all_broken.expect_err("an error").to_string();
    assert!(error.contains("that were skipped: 2"), "{error}");
}

#[test]
fn a_trace_that_touches_too_much_memory_is_refused() {
    let text: Vec<u8> = (0..(1_u64 << 17) + 1)
        .flat_map(|n| format!(" L {:x},8\n", n << 21).into_bytes())
        .collect();
    let reader = || {
        let bytes = Box::new(Cursor::new(text.clone()));
        Reader::from_bytes("t", bytes, None, OnBroken::Stop).expect("a trace")
    };
    let error = load(reader(), None).expect_err("an error").to_string();
    assert!(
        error.contains("2 MiB regions: more than the limit of 131072"),
        "{error}"
    );
    let mut tally = Tally::new("t".into());
    let mut reader = reader();
    let counted = std::iter::from_fn(|| reader.next_record().expect("a record"))
        .try_for_each(|record| tally.add(&record));
    assert!(matches!(counted, Err(TraceError::TooLarge { .. })));
}

/// Random bytes, or a valid trace with some bytes changed, perhaps compressed.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let random = prop::collection::vec(any::<u8>(), 0..400);
    let textish = prop::collection::vec(
        prop::sample::select(b" LSMI,0189afx\n\r:=#./|".to_vec()),
        0..400,
    );
    let valid = prop::sample::select(vec![
        b" L 1ffe,8\n S 20,4\nI  1,2\n".repeat(9),
        PERF.to_vec(),
        request(5, 900, 100, -1).repeat(9),
        log(),
    ]);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let changed = |bytes: Vec<u8>, changes: Vec<(prop::sample::Index, u8)>| {
        let mut bytes = bytes;
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        bytes
    };
    let base = prop_oneof![random, textish, valid];
    (base, any::<bool>(), changes).prop_map(move |(bytes, compressed, changes)| {
        if bytes.is_empty() {
            return bytes;
        }
        changed(if compressed { zstd(&bytes) } else { bytes }, changes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_reader_panics_on_hostile_bytes(
        bytes in hostile(),
        format in prop::option::of(prop::sample::select(Format::ALL.to_vec())),
        skip in any::<bool>(),
    ) {
        let on_broken = if skip { OnBroken::Skip } else { OnBroken::Stop };
        let mut touched = 0;
        match read(&bytes, format, on_broken) {
            Ok((records, _)) => {
                prop_assert!(records.iter().all(|r| r.bytes > 0 && r.last() >= r.addr));
                touched = records.iter().map(|r| u64::from(r.bytes)).sum();
            }
            Err(error) => prop_assert!(error.to_string().starts_with("t:")),
        }
        // Loading takes time by the line.
        if touched < 1 << 20
            && let Ok(reader) = Reader::from_bytes("t", Box::new(Cursor::new(bytes)), format, on_broken)
            && let Ok(loaded) = load(reader, Some(1024))
        {
            prop_assert!(loaded.accesses().iter().all(|access| access.page() < loaded.pages));
        }
    }
}
