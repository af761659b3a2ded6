//! Tests on records of the running kernel: page faults of the test's own thread, which every PMU-less machine has and
//! which `kernel.perf_event_paranoid` up to 2 permits to everybody.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;

use super::*;
use crate::{SharedMapping, SysError};

/// `PERF_COUNT_SW_PAGE_FAULTS_MIN`: faults that needed no disk.
const MINOR_FAULTS: u64 = 5;
/// The scope of this thread, wherever it runs.
const HERE: Scope = Scope::Process { pid: 0, cpu: None };

fn faults(config: u64, fields: Fields) -> EventAttr {
    EventAttr {
        pmu: SOFTWARE,
        config,
        period: 1,
        fields,
        exclude_kernel: true,
        exclude_hypervisor: true,
        ..EventAttr::default()
    }
}

/// Opens an event. `None` if this machine permits none; the test prints so past the harness's capture.
fn open(test: &str, attr: &EventAttr) -> Option<Event> {
    match Event::open(attr, HERE, None) {
        Ok(event) => Some(event),
        Err(error) if matches!(error.errno(), libc::EACCES | libc::EPERM | libc::ENOSYS) => {
            let text = format!("\nSKIPPED {test}: NOT TESTED, since {error}\n");
            std::io::stderr().write_all(text.as_bytes()).unwrap();
            assert!(
                std::env::var_os("TERRACE_NEEDS_PERF").is_none(),
                "{text}, but TERRACE_NEEDS_PERF is set"
            );
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Pages of this thread alone, to be touched.
struct Memory {
    mapping: SharedMapping,
    pages: usize,
}

impl Memory {
    fn new(pages: usize) -> Self {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(pages as u64 * 4096).unwrap();
        let mapping = SharedMapping::new(file.as_fd(), 0, pages * 4096).unwrap();
        Self { mapping, pages }
    }

    /// Writes to the first so many pages, each of which faults once.
    fn touch(&self, pages: usize) {
        self.mapping.forget_pages(0, u64::MAX).unwrap();
        for page in 0..pages {
            // SAFETY: inside of the mapping.
            unsafe { self.mapping.as_ptr().add(page * 4096).write_volatile(1) };
        }
    }

    /// The page of this memory that an address is in.
    fn page(&self, address: u64) -> Option<usize> {
        let offset = address.checked_sub(self.mapping.as_ptr() as u64)?;
        let page = usize::try_from(offset / 4096).unwrap();
        (page < self.pages).then_some(page)
    }
}

/// The contents of a ring: pages of `memory` in order, and lost records.
fn drained(ring: &mut Ring, memory: &Memory, fields: Fields) -> (Vec<usize>, u64) {
    let mut bytes = Vec::new();
    assert_eq!(ring.drain(&mut bytes), Some(bytes.len()));
    let (mut pages, mut lost) = (Vec::new(), 0);
    for record in Records::new(&bytes, fields) {
        match record.expect("the kernel's records are whole") {
            Record::Sample(sample) => {
                assert_eq!(sample.pid, std::process::id());
                pages.extend(memory.page(sample.address));
            }
            Record::Lost(more) | Record::LostSamples(more) => lost += more,
            other => panic!("{other:?}"),
        }
    }
    (pages, lost)
}

const TID_ADDRESS: Fields = Fields::TID.and(Fields::ADDRESS);

#[test]
fn each_touched_page_comes_as_one_record_and_none_twice() {
    let attr = faults(SOFTWARE_PAGE_FAULTS, TID_ADDRESS);
    let Some(event) = open(
        "each_touched_page_comes_as_one_record_and_none_twice",
        &attr,
    ) else {
        return;
    };
    let mut ring = Ring::new(&event, 8).unwrap();
    assert_eq!(ring.bytes(), 9 * 4096);
    let memory = Memory::new(256);
    memory.touch(256);
    assert_eq!(drained(&mut ring, &memory, TID_ADDRESS), (vec![], 0));
    event.enable().unwrap();
    memory.touch(200);
    event.disable().unwrap();
    memory.touch(256);
    let expected: Vec<usize> = (0..200).collect();
    assert_eq!(drained(&mut ring, &memory, TID_ADDRESS), (expected, 0));
    assert_eq!(drained(&mut ring, &memory, TID_ADDRESS), (vec![], 0));
    let times = event.times().unwrap();
    assert!(times.count >= 200 && times.running_ns > 0 && times.running_ns <= times.enabled_ns);
}

#[test]
fn records_across_the_rings_end_are_whole() {
    let attr = faults(SOFTWARE_PAGE_FAULTS, TID_ADDRESS);
    let Some(event) = open("records_across_the_rings_end_are_whole", &attr) else {
        return;
    };
    // 4,096 is no multiple of a record's 24 bytes.
    let mut ring = Ring::new(&event, 1).unwrap();
    let memory = Memory::new(101);
    event.enable().unwrap();
    let expected: Vec<usize> = (0..101).collect();
    for _ in 0..50 {
        memory.touch(101);
        assert_eq!(
            drained(&mut ring, &memory, TID_ADDRESS),
            (expected.clone(), 0)
        );
    }
}

#[test]
fn an_overrun_is_counted_and_sampling_goes_on() {
    let attr = faults(SOFTWARE_PAGE_FAULTS, TID_ADDRESS);
    let Some(event) = open("an_overrun_is_counted_and_sampling_goes_on", &attr) else {
        return;
    };
    let mut ring = Ring::new(&event, 1).unwrap();
    let memory = Memory::new(1000);
    event.enable().unwrap();
    memory.touch(1000);
    let (first, lost) = drained(&mut ring, &memory, TID_ADDRESS);
    assert_eq!(first, (0..first.len()).collect::<Vec<_>>());
    assert!(first.len() >= 100 && first.len() < 1000, "{}", first.len());
    // The kernel reports what it left out with the next record that fits.
    assert_eq!(lost, 0);
    memory.touch(100);
    let (second, lost) = drained(&mut ring, &memory, TID_ADDRESS);
    assert_eq!(second, (0..100).collect::<Vec<_>>());
    // A few faults of the thread's own stack and heap may be among them.
    let missing = (1000 - first.len()) as u64;
    assert!((missing..missing + 50).contains(&lost), "{lost}");
    memory.touch(100);
    assert_eq!(drained(&mut ring, &memory, TID_ADDRESS).1, 0);
}

fn readable(event: &Event, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd {
        fd: event.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&raw mut poll, 1, timeout_ms) > 0 }
}

#[test]
fn the_watermark_wakes_and_single_records_do_not() {
    let mut attr = faults(SOFTWARE_PAGE_FAULTS, TID_ADDRESS);
    attr.wakeup_bytes = 100 * 24;
    let Some(event) = open("the_watermark_wakes_and_single_records_do_not", &attr) else {
        return;
    };
    let mut ring = Ring::new(&event, 4).unwrap();
    let memory = Memory::new(150);
    event.enable().unwrap();
    memory.touch(20);
    assert!(!readable(&event, 0));
    memory.touch(150);
    // It comes soon or never.
    assert!(readable(&event, 60_000));
    let (pages, lost) = drained(&mut ring, &memory, TID_ADDRESS);
    assert_eq!((pages.len(), lost), (170, 0));
}

#[test]
fn two_events_share_a_ring_and_are_told_apart() {
    let fields = TID_ADDRESS | Fields::IDENTIFIER;
    let attr = faults(SOFTWARE_PAGE_FAULTS, fields);
    let Some(all) = open("two_events_share_a_ring_and_are_told_apart", &attr) else {
        return;
    };
    let minor = Event::open(&faults(MINOR_FAULTS, fields), HERE, None).unwrap();
    let mut ring = Ring::new(&all, 8).unwrap();
    minor.output_to(&all).unwrap();
    let memory = Memory::new(50);
    for event in [&all, &minor] {
        event.enable().unwrap();
    }
    memory.touch(50);
    let mut bytes = Vec::new();
    ring.drain(&mut bytes).unwrap();
    let of = |event: &Event| {
        Records::new(&bytes, fields)
            .filter_map(|record| match record {
                Ok(Record::Sample(sample)) if sample.identifier == event.id() => {
                    memory.page(sample.address)
                }
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    let expected: Vec<usize> = (0..50).collect();
    assert_ne!(all.id(), minor.id());
    assert_eq!(of(&all), expected);
    assert_eq!(of(&minor), expected);
}

#[test]
fn what_cannot_be_is_refused_with_the_kernels_number() {
    let errno = |result: Result<Event, SysError>| result.map_or_else(|e| e.errno(), |_| 0);
    let attr = faults(SOFTWARE_PAGE_FAULTS, TID_ADDRESS);
    let Some(event) = open("what_cannot_be_is_refused_with_the_kernels_number", &attr) else {
        return;
    };
    let unknown = EventAttr {
        pmu: u32::MAX,
        ..attr
    };
    assert_eq!(errno(Event::open(&unknown, HERE, None)), libc::ENOENT);
    // Linux keeps process numbers below 2^22.
    let nobody = Scope::Process {
        pid: 1 << 22,
        cpu: None,
    };
    assert_eq!(errno(Event::open(&attr, nobody, None)), libc::ESRCH);
    let nowhere = Scope::Cpu(u32::MAX);
    assert_eq!(errno(Event::open(&attr, nowhere, None)), libc::EINVAL);
    for pages in [0, 3, 1 << 17] {
        assert!(matches!(Ring::new(&event, pages), Err(RingError::Pages(_))));
    }
    let elsewhere = Scope::Process {
        pid: 0,
        cpu: Some(0),
    };
    let other = Event::open(&attr, elsewhere, None).unwrap();
    let refused = event.output_to(&other).unwrap_err();
    assert_eq!(refused.errno(), libc::EINVAL);
}
