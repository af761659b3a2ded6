use super::*;
use crate::{Command, ScanSpent, VmId};

fn sample() -> Vec<(Tick, Record)> {
    vec![
        (
            Tick(0),
            Record::Start(Start {
                version: "0.1.0".into(),
                config: "{}".into(),
            }),
        ),
        (
            Tick(5),
            Record::Event(Event::Command(Command::RoundNow(VmId(1)))),
        ),
        (Tick(9), Record::Event(Event::Timer)),
        (
            Tick(10),
            Record::Event(Event::ScanSpent(ScanSpent {
                vm: VmId(1),
                cpu_ns: 300,
            })),
        ),
        (Tick(u64::MAX), Record::Event(Event::VmDeparted(VmId(1)))),
    ]
}

fn written(records: &[(Tick, Record)]) -> Vec<u8> {
    let mut w = LogWriter::new(Vec::new(), 1 << 20).unwrap();
    for (tick, r) in records {
        assert!(w.append(*tick, r).unwrap());
    }
    w.finish().unwrap()
}

fn read(bytes: &[u8]) -> (Vec<(Tick, Record)>, u64, bool) {
    let mut reader = LogReader::new(bytes).unwrap();
    let mut out = Vec::new();
    while let Some(r) = reader.next_record().unwrap() {
        out.push(r);
    }
    (out, reader.skipped(), reader.cut_off())
}

#[test]
fn what_was_written_is_read_back() {
    assert_eq!(read(&written(&sample())), (sample(), 0, false));
}

/// One action of each kind.
fn ranges_actions(run: crate::ranges::PieceRun) -> [crate::ranges::RangesAction; 5] {
    use crate::ranges::*;
    let side = Side {
        process: 7,
        pieces: vec![run],
    };
    [
        RangesAction::ReadFree,
        RangesAction::Survey(Survey {
            id: 1,
            process: 7,
            range: Range { start: 0, end: 512 },
        }),
        RangesAction::Migrate(Migration {
            id: 2,
            process: 7,
            node: 0,
            shared: true,
            pieces: vec![run],
        }),
        RangesAction::EpochOver(EpochSummary {
            exchanged: Some(Exchanged::default()),
            ..EpochSummary::default()
        }),
        RangesAction::Swap(Swap {
            id: 3,
            up: side.clone(),
            down: side,
        }),
    ]
}

#[test]
fn a_log_of_ranges_is_read_back() {
    use crate::ranges::*;
    let run = PieceRun {
        page: 512,
        pieces: 3,
        pages_each: 1,
        node: 1,
    };
    let events = [
        RangesEvent::Mapped(Mappings::default()),
        RangesEvent::Gone(7),
        RangesEvent::Restarted(Params::paper(4)),
        RangesEvent::Budget(RangesBudget {
            bytes_per_s: 1 << 20,
            cpu_percent: 5,
        }),
        RangesEvent::Sampled(vec![RangeSample {
            process: 7,
            page: 1 << 35,
            pages: 1,
            accesses: 2,
        }]),
        RangesEvent::EpochEnded,
        RangesEvent::Free(vec![NodeFree { node: 1, pages: 9 }]),
        RangesEvent::Surveyed(Surveyed {
            id: 1,
            present: Some(vec![run]),
            cpu_ns: 5,
        }),
        RangesEvent::Migrated(MigrationOutcome {
            id: 2,
            states: vec![(3, PieceState::Busy)],
            refusal: Some(KernelRefusal::NoMemory),
        }),
        RangesEvent::Named(Named {
            up: vec![Side {
                process: 7,
                pieces: vec![run],
            }],
            down: Vec::new(),
        }),
    ];
    let start = Start {
        version: "0.1.0".into(),
        config: "{}".into(),
    };
    let events = events.map(RangesRecord::Event).into_iter();
    let all = events.chain(ranges_actions(run).into_iter().map(RangesRecord::Action));
    let all = std::iter::once(RangesRecord::Start(start)).chain(all);
    let all: Vec<_> = all.map(|r| (Tick(3), Record::Ranges(r))).collect();
    assert_eq!(read(&written(&all)), (all, 0, false));
}

#[test]
fn records_of_demand_are_read_back() {
    use crate::{FaultReport, Protection, VmStatistics};
    let vm = VmId(3);
    let all = [
        Record::Event(Event::Faulted(FaultReport {
            vm,
            accesses: 9,
            blocks: vec![4, 2, 300],
        })),
        Record::Event(Event::Statistics(VmStatistics {
            vm,
            accesses: 1,
            walks: 2,
            tracking_ns: 3,
            cpu_ns: 4,
            total_bytes: 5,
            free_bytes: 6,
            used_swap_bytes: 7,
        })),
        Record::Action(Action::Protect(Protection {
            vm,
            blocks: vec![5, 1],
        })),
        Record::Action(Action::Unprotect(vm)),
    ];
    let all: Vec<_> = all.into_iter().map(|record| (Tick(3), record)).collect();
    assert_eq!(read(&written(&all)), (all.clone(), 0, false));
    // Their kinds stay: a log is read by later versions.
    let kinds = all.iter().map(|(_, record)| record.encode().unwrap().0);
    assert_eq!(kinds.collect::<Vec<_>>(), [0x113, 0x114, 0x208, 0x209]);
}

#[test]
fn records_of_huge_pages_are_read_back() {
    use crate::ProviderId;
    use crate::provision::*;
    let outcome = |block, status| BlockOutcome { block, status };
    let backing = |huge_bytes| HugeBacking {
        present_bytes: 300,
        huge_bytes,
    };
    let collapsed = Collapsed {
        before: Some(backing(1)),
        after: None,
        blocks: vec![
            outcome(7, BlockStatus::Collapsed),
            outcome(8, BlockStatus::Busy),
            outcome(9, BlockStatus::Failed(22)),
            outcome(10, BlockStatus::NoHugePage),
        ],
        next: Some(10),
    };
    let report = |result| {
        Record::Event(Event::Collapsed(Box::new(CollapseReport {
            provider: ProviderId(3),
            number: 4,
            result,
            elapsed_ns: 5,
        })))
    };
    let all = [
        report(Ok(collapsed)),
        report(Err(NotCollapsed::NotNow("it is stopped".into()))),
        report(Err(NotCollapsed::Never("no such call".into()))),
        Record::Action(Action::Collapse(CollapseRequest {
            provider: ProviderId(3),
            number: 4,
            from: 7,
            blocks: 32,
            leave: vec![8, 300],
            host_reserve_percent: 5,
            is_first: true,
        })),
    ];
    let all: Vec<_> = all.into_iter().map(|record| (Tick(3), record)).collect();
    assert_eq!(read(&written(&all)), (all.clone(), 0, false));
    let kinds = all.iter().map(|(_, record)| record.encode().unwrap().0);
    assert_eq!(kinds.collect::<Vec<_>>(), [0x11f, 0x11f, 0x11f, 0x20a]);
}

#[test]
fn commands_keep_their_numbers() {
    let commands = [
        Command::Pause(None),
        Command::Resume(None),
        Command::Moves(VmId(1), true),
        Command::Limits(VmId(1), vec![]),
        Command::RoundNow(VmId(1)),
        Command::FastSize(VmId(1), 300),
        Command::Weight(VmId(1), 300),
    ];
    for (number, command) in (0_u8..).zip(commands) {
        assert_eq!(postcard::to_allocvec(&command).unwrap()[0], number);
    }
}

#[test]
fn unknown_kinds_are_skipped_by_length_and_counted() {
    let mut bytes = written(&[]);
    bytes.extend([0x77, 0x77, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
    bytes.extend(&written(&sample())[10..]);
    assert_eq!(read(&bytes), (sample(), 1, false));
}

#[test]
fn a_log_that_was_given_up_says_why_and_keeps_its_records() {
    let mut bytes = written(&sample());
    bytes.extend(end_frame(Tick(9), "the disk\x1b[2J is full").unwrap());
    let mut reader = LogReader::new(&bytes[..]).unwrap();
    let mut got = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        got.push(record);
    }
    assert_eq!(got, sample());
    assert_eq!(reader.given_up(), Some("the disk\\u{1b}[2J is full"));
    assert_eq!((reader.skipped(), reader.cut_off()), (0, false));
}

#[test]
fn a_log_cut_anywhere_gives_its_whole_records_and_says_so() {
    let bytes = written(&sample());
    let whole = read(&bytes).0;
    for end in 10..bytes.len() {
        let (got, _, cut) = read(&bytes[..end]);
        assert_eq!(got[..], whole[..got.len()]);
        assert!(got.len() < whole.len());
        assert!(cut || written(&whole[..got.len()]).len() == end);
    }
}

#[test]
fn the_size_limit_stops_the_log_between_records() {
    let mut w = LogWriter::new(Vec::new(), 40).unwrap();
    let timer = Record::Event(Event::Timer);
    assert!(w.append(Tick(1), &timer).unwrap() && w.append(Tick(2), &timer).unwrap());
    assert!(!w.append(Tick(3), &timer).unwrap());
    assert_eq!(read(&w.finish().unwrap()).0.len(), 2);
}

#[test]
fn foreign_files_newer_versions_and_absurd_lengths_are_named() {
    let picture = LogReader::new(&b"GIF89a....."[..]);
    assert!(matches!(picture, Err(LogError::Magic(_))));
    let mut newer = written(&[]);
    newer[8] = 2;
    assert!(matches!(
        LogReader::new(&newer[..]),
        Err(LogError::Version(2))
    ));
    let mut long = written(&[]);
    long.extend([1, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]);
    let err = LogReader::new(&long[..])
        .unwrap()
        .next_record()
        .unwrap_err();
    assert!(matches!(err, LogError::TooLong { offset: 10, .. }), "{err}");
}

fn of_part(shift: u8, index: u32) -> Record {
    Record::Action(Action::ScanPart(crate::PartRequest {
        id: crate::RequestId(1),
        space: crate::Space::Guest(VmId(1)),
        part: crate::Part::new(0, shift, index).unwrap(),
        clear: true,
        prune: false,
        discover: false,
    }))
}

/// The one byte in which two bodies of the same length differ.
fn difference(one: &Record, other: &Record) -> usize {
    let bodies = [one, other].map(|record| record.encode().unwrap().1);
    let differ = |at: &usize| bodies[0][*at] != bodies[1][*at];
    (0..bodies[0].len()).find(differ).unwrap()
}

fn error_of(kind: u16, body: &[u8]) -> LogError {
    let mut bytes = header();
    bytes.extend(framed(Tick(1), (kind, body.to_vec())).unwrap());
    let mut reader = LogReader::new(&bytes[..]).unwrap();
    reader.next_record().unwrap_err()
}

#[test]
fn a_part_that_does_not_exist_is_named_where_the_log_has_it() {
    let record = of_part(1, 0);
    let (kind, body) = record.encode().unwrap();
    let (shift, index) = (
        difference(&of_part(0, 0), &record),
        difference(&record, &of_part(1, 1)),
    );
    for (at, byte) in [
        (shift, 17),
        (shift, 64),
        (shift, 255),
        (index, 2),
        (index, 127),
    ] {
        let mut body = body.clone();
        body[at] = byte;
        let error = error_of(kind, &body);
        assert!(
            matches!(
                error,
                LogError::Body {
                    record: 0,
                    offset: 10,
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn a_list_of_cells_that_the_record_cannot_hold_takes_no_memory() {
    let with = |cells: usize| {
        Record::Event(Event::ScannedPart(Box::new(crate::PartAnswer {
            id: crate::RequestId(1),
            space: crate::Space::Guest(VmId(1)),
            part: crate::Part::new(0, 0, 0).unwrap(),
            cells: vec![
                crate::PartCell {
                    at: 0,
                    mapped: 0,
                    accessed: 0
                };
                cells
            ],
            huge: Vec::new(),
            written: None,
            stats: crate::ScanStats::default(),
        })))
    };
    let (kind, body) = with(0).encode().unwrap();
    let count = difference(&with(0), &with(1));
    // 2^62 cells: a reader that made room for them would end here.
    let many = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40];
    let lying = [&body[..count], &many, &body[count + 1..]].concat();
    assert!(matches!(error_of(kind, &lying), LogError::Body { .. }));
}

#[test]
fn the_kinds_of_named_page_tables_stay() {
    let space = crate::Space::Guest(VmId(1));
    let all = [
        Record::Event(Event::Tables(Box::new(crate::TablesAnswer {
            id: crate::RequestId(7),
            space,
            frames: vec![crate::TableFrame {
                frame: 4_000_000_000,
                accessed: 512,
                level: 1,
            }],
        }))),
        Record::Action(Action::NameTables(space)),
    ];
    let kinds = [0x124, 0x20c];
    for (record, kind) in all.iter().zip(kinds) {
        let (encoded, body) = record.encode().unwrap();
        assert_eq!(encoded, kind);
        assert_eq!(&Record::decode(kind, &body).unwrap().unwrap(), record);
    }
}
