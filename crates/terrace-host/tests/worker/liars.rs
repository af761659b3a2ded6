//! Workers that a guest has taken over: what they answer about a part is refused, and costs the daemon no memory.
//!
//! Started with the argument `liar` and the name of a lie, this program is such a worker.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use terrace_host::worker::{WorkerCommand, WorkerError, WorkerHandle};
use terrace_proto::worker::{Request, Response, body_len, decode, encode};
use terrace_proto::{
    Part, PartAnswer, PartCell, PartRequest, Pass, Passed, RequestId, ScanStats, Space, TableFrame,
    VmId,
};
use terrace_sys::monotonic_now;

use crate::{Guest, HIGH_GFN, HIGH_PAGES, SECONDS, vcpu};

pub const TESTS: [(&str, fn()); 4] = [
    (
        "a_lying_worker_is_refused_whatever_it_says_of_a_part",
        a_lying_worker_is_refused_whatever_it_says_of_a_part,
    ),
    (
        "counts_that_a_worker_makes_up_are_no_reason_to_refuse_it",
        counts_that_a_worker_makes_up_are_no_reason_to_refuse_it,
    ),
    (
        "a_part_that_is_answered_too_late_is_never_taken",
        a_part_that_is_answered_too_late_is_never_taken,
    ),
    (
        "a_second_answer_about_a_part_is_not_taken_for_the_next",
        a_second_answer_about_a_part_is_not_taken_for_the_next,
    ),
];

/// Cells of the guest's memory.
const CELLS: u32 = 16_385;
/// Far less than what any of the lies announces.
const FEW_KIB: u64 = 64 << 10;

type Lie = fn(PartAnswer) -> Vec<u8>;

/// Lies: their names, their frames, and what the daemon says of them.
const LIES: [(&str, Lie, &str); 20] = [
    (
        "beyond-the-end",
        |a| with(a, &[cell(CELLS, 1, 0)]),
        "out of order, or beyond",
    ),
    (
        "the-last-cell-of-all",
        |a| with(a, &[cell(u32::MAX, 1, 1)]),
        "out of order, or beyond",
    ),
    (
        "nothing-beyond-the-end",
        |a| with(a, &[cell(u32::MAX, 0, 0)]),
        "out of order, or beyond",
    ),
    (
        "not-in-order",
        |a| with(a, &[cell(2, 1, 1), cell(1, 1, 1)]),
        "out of order, or beyond",
    ),
    (
        "twice",
        |a| with(a, &[cell(1, 1, 1), cell(1, 2, 2)]),
        "out of order, or beyond",
    ),
    (
        "accessed-and-not-mapped",
        |a| with(a, &[cell(1, 1, 3)]),
        "out of order, or beyond",
    ),
    (
        "written-and-not-mapped",
        |a| writes(a, &[2]),
        "out of order, or beyond",
    ),
    (
        "writes-of-fewer-cells",
        |a| writes(a, &[]),
        "out of order, or beyond",
    ),
    (
        "writes-of-more-cells",
        |a| writes(a, &[1, 1]),
        "out of order, or beyond",
    ),
    (
        "a-block-beyond-the-end",
        |a| blocks(a, &[CELLS / 8]),
        "out of order, or beyond",
    ),
    (
        "blocks-not-in-order",
        |a| blocks(a, &[3, 3]),
        "out of order, or beyond",
    ),
    (
        "another-part",
        |a| {
            PartAnswer {
                part: a.part.next().unwrap(),
                ..a
            }
            .framed()
        },
        "an answer to request",
    ),
    (
        "another-vm",
        |a| {
            PartAnswer {
                space: Space::Guest(VmId(9)),
                ..a
            }
            .framed()
        },
        "an answer to request",
    ),
    (
        "another-request",
        |a| {
            PartAnswer {
                id: RequestId(9),
                ..a
            }
            .framed()
        },
        "an answer to request",
    ),
    (
        "tables-that-nobody-asked-for",
        |a| {
            let table = TableFrame {
                frame: 1,
                accessed: 1,
                level: 1,
            };
            let passed = Passed::Part(Box::new(a));
            encode(&Response::Scanned(passed, vec![table])).unwrap()
        },
        "page tables that are none",
    ),
    (
        "a-search",
        |_| encode(&Response::Searched { withheld: None }).unwrap(),
        "no answer to the question",
    ),
    (
        "as-many-cells-as-an-answer-has-room-for",
        |a| with(a, &vec![cell(0, 0, 0); 200_000]),
        "out of order, or beyond",
    ),
    ("more-cells-than-bytes", endless, "malformed"),
    (
        "longer-than-such-an-answer-is",
        |_| (600_u32 << 20).to_le_bytes().to_vec(),
        "are allowed",
    ),
    (
        "longer-than-any-frame",
        |_| u32::MAX.to_le_bytes().to_vec(),
        "over the limit",
    ),
];

trait Framed {
    fn framed(self) -> Vec<u8>;
}

impl Framed for PartAnswer {
    fn framed(self) -> Vec<u8> {
        encode(&Response::Scanned(Passed::Part(Box::new(self)), Vec::new())).unwrap()
    }
}

fn cell(at: u32, mapped: u64, accessed: u64) -> PartCell {
    PartCell {
        at,
        mapped,
        accessed,
    }
}

fn with(answer: PartAnswer, cells: &[PartCell]) -> Vec<u8> {
    PartAnswer {
        cells: cells.to_vec(),
        ..answer
    }
    .framed()
}

fn writes(answer: PartAnswer, written: &[u64]) -> Vec<u8> {
    let written = Some(written.to_vec());
    with(PartAnswer { written, ..answer }, &[cell(1, 1, 1)])
}

fn blocks(answer: PartAnswer, huge: &[u32]) -> Vec<u8> {
    let huge = huge.to_vec();
    PartAnswer { huge, ..answer }.framed()
}

/// A list that says of itself that it has 2^40 cells.
fn endless(answer: PartAnswer) -> Vec<u8> {
    let (none, one) = (answer.clone().framed(), with(answer, &[cell(0, 0, 0)]));
    // The header's length differs, too.
    let differs = |at: &usize| none[*at] != one[*at];
    let count = (4..none.len()).find(differs).unwrap();
    let body = [
        &none[4..count],
        &[0x80, 0x80, 0x80, 0x80, 0x80, 0x20],
        &none[count + 1..],
    ]
    .concat();
    let len = u32::try_from(body.len()).unwrap();
    [&len.to_le_bytes()[..], &body].concat()
}

fn nothing(request: &PartRequest) -> PartAnswer {
    PartAnswer {
        id: request.id,
        space: request.space,
        part: request.part,
        cells: Vec::new(),
        huge: Vec::new(),
        written: None,
        stats: ScanStats::default(),
    }
}

/// The lying worker's main.
pub fn lie(name: &str) {
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut header = [0; 4];
    // The descriptors that come with the first message are not wanted.
    while socket.read_exact(&mut header).is_ok() {
        let mut body = vec![0; body_len(header).unwrap()];
        socket.read_exact(&mut body).unwrap();
        let frame = match decode(&body).unwrap() {
            Request::Scan {
                pass: Pass::Part(request),
                ..
            } => frame_of(name, nothing(&request)),
            _ => encode(&Response::Attached {
                sandbox_gaps: Vec::new(),
            })
            .unwrap(),
        };
        socket.write_all(&frame).unwrap();
    }
}

fn frame_of(name: &str, honest: PartAnswer) -> Vec<u8> {
    let lie = LIES.iter().find(|lie| lie.0 == name);
    match (lie, name) {
        (Some((_, lie, _)), _) => lie(honest),
        (None, "counts") => made_up(honest).framed(),
        (None, "late") => {
            std::thread::sleep(Duration::from_millis(300));
            honest.framed()
        }
        (None, "two") => [honest.clone().framed(), honest.framed()].concat(),
        _ => panic!("no lie is named {name}"),
    }
}

fn made_up(answer: PartAnswer) -> PartAnswer {
    const MOST: u64 = u64::MAX;
    PartAnswer {
        stats: ScanStats {
            leaves: MOST,
            tables: MOST,
            accessed: MOST,
            cleared: MOST,
            lost_races: MOST,
            elapsed_ns: MOST,
            cpu_ns: MOST,
            ..answer.stats
        },
        cells: vec![cell(1, u64::MAX, 0)],
        // A leaf may have been written before its accessed bit was cleared.
        written: Some(vec![u64::MAX]),
        ..answer
    }
}

fn liar(guest: &Guest, name: &str) -> WorkerHandle {
    let command = WorkerCommand::this_program(&["liar", name]);
    let mut worker = WorkerHandle::spawn(&command).unwrap();
    worker.attach(&guest.memory, SECONDS).unwrap();
    worker
}

fn ask(
    worker: &mut WorkerHandle,
    index: u32,
    timeout: Duration,
) -> Result<PartAnswer, WorkerError> {
    let request = PartRequest {
        id: RequestId(1 + u64::from(index)),
        space: Space::Guest(VmId(1)),
        part: Part::new(7, 2, index).unwrap(),
        clear: true,
        prune: false,
        discover: false,
    };
    let until = monotonic_now().after(SECONDS);
    match worker
        .scan(
            Pass::Part(request),
            vcpu(),
            until,
            (false, 1, false),
            timeout,
        )
        .map(|(passed, _)| passed)?
    {
        Passed::Part(answer) => Ok(*answer),
        Passed::All(_) => panic!("an answer about all"),
    }
}

/// The most memory that this process had at once, KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse().unwrap()
}

fn a_lying_worker_is_refused_whatever_it_says_of_a_part() {
    assert_eq!(u64::from(CELLS) * 64, HIGH_GFN + HIGH_PAGES);
    let guest = Guest::new();
    let before = peak_kib();
    for (name, _, why) in LIES {
        let mut worker = liar(&guest, name);
        match ask(&mut worker, 0, SECONDS) {
            Err(WorkerError::Protocol { what, .. }) => {
                assert!(what.contains(why), "{name}: {what}")
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    let more = peak_kib() - before;
    assert!(more < FEW_KIB, "lies took {more} KiB");
}

fn counts_that_a_worker_makes_up_are_no_reason_to_refuse_it() {
    let guest = Guest::new();
    let answer = ask(&mut liar(&guest, "counts"), 0, SECONDS).unwrap();
    assert_eq!(answer.stats.cpu_ns, u64::MAX);
}

fn a_part_that_is_answered_too_late_is_never_taken() {
    let guest = Guest::new();
    let mut worker = liar(&guest, "late");
    let error = ask(&mut worker, 0, Duration::from_millis(20)).unwrap_err();
    assert!(matches!(error, WorkerError::TimedOut { .. }), "{error}");
    let next = ask(&mut worker, 1, SECONDS).unwrap_err();
    assert!(matches!(next, WorkerError::Died { .. }), "{next}");
}

fn a_second_answer_about_a_part_is_not_taken_for_the_next() {
    let guest = Guest::new();
    let mut worker = liar(&guest, "two");
    assert!(ask(&mut worker, 0, SECONDS).is_ok());
    let next = ask(&mut worker, 1, SECONDS).unwrap_err();
    assert!(matches!(next, WorkerError::Protocol { .. }), "{next}");
}
