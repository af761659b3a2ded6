//! Arguments of calls to the guest's kernel module, whatever they are, against a module that checks each argument and
//! answers as it likes. Panics if an argument is one that the module refuses, or an answer is believed that cannot be.

use std::sync::{Arc, Mutex};

use terrace_sys::NOT_ANSWERED;
use terrace_sys::guest_module::{Call, Calls, Errno, GuestModule, abi};

const PAGE: u64 = 4096;
/// Most pages of a list here: more than two batches.
const MAX_LIST: usize = 300;
const MAX_ERRNO: i32 = 4095;

/// Makes the calls that `data` describes.
///
/// # Panics
/// If a promise of the wrapper is broken.
pub fn fuzz_guest_module(data: &[u8]) {
    let source = Arc::new(Mutex::new(Bytes(data.to_vec().into())));
    let module = GuestModule::of(Box::new(Liar(Arc::clone(&source))));
    for _ in 0..8 {
        let (kind, pid, place, pages) = {
            let mut bytes = source.lock().expect("one thread");
            (
                bytes.byte() % 5,
                number(&mut bytes),
                bytes.word(),
                usize::from(bytes.byte()) * 2,
            )
        };
        let addresses: Vec<u64> = (0..pages.min(MAX_LIST) as u64)
            .map(|n| place.wrapping_add(n * PAGE))
            .collect();
        let mut statuses = vec![7; addresses.len()];
        let answer = match kind {
            0 => {
                check_states(&module);
                continue;
            }
            1 => {
                check_scan(&module, pid, place, pages as u64);
                continue;
            }
            2 => {
                let node = (place & 1 == 1).then_some(pid);
                module
                    .consolidate(pid, node, &addresses, &mut statuses)
                    .map(drop)
            }
            3 => {
                let sides = (pid, &addresses[..]);
                let halves = module.exchange(sides, sides, &mut statuses);
                halves.map(|halves| {
                    assert!(halves <= addresses.len() as u64, "more halves than pairs")
                })
            }
            _ => module.migrate(pid, &addresses, &mut statuses),
        };
        for status in &statuses {
            let is_answer = (-MAX_ERRNO..=0).contains(status);
            // After a failure it is open what was done, but never something that nobody understands.
            assert!(
                is_answer || (answer.is_err() && *status == NOT_ANSWERED),
                "{status}"
            );
        }
    }
}

fn check_states(module: &GuestModule) {
    for state in module.states().into_iter().flatten() {
        assert!(abi::CALLS.contains(&state.name));
        let why = state.missing.unwrap_or_else(|| "works".into());
        assert!(
            !why.is_empty() && !why.contains(char::is_control),
            "{why:?}"
        );
    }
}

fn check_scan(module: &GuestModule, pid: u32, start: u64, pages: u64) {
    let mut entries = vec![1; 3];
    let end = start.wrapping_add(pages.wrapping_mul(PAGE));
    if let Ok(found) = module.scan(pid, start..end, pid & 1 == 0, &mut entries) {
        assert_eq!(entries.len() as u64, pages);
        assert!(found.accessed <= found.present && found.present <= pages);
    }
}

/// Mostly small numbers.
fn number(bytes: &mut Bytes) -> u32 {
    match bytes.byte() {
        small @ 0..240 => small.into(),
        _ => u32::try_from(bytes.word() >> 32).unwrap_or(u32::MAX),
    }
}

/// The rest of the input; zeros after its end.
#[derive(Debug)]
struct Bytes(std::collections::VecDeque<u8>);

impl Bytes {
    fn byte(&mut self) -> u8 {
        self.0.pop_front().unwrap_or(0)
    }

    fn word(&mut self) -> u64 {
        let bytes = [(); 8].map(|()| self.byte());
        // Mostly whole pages.
        let word = u64::from_le_bytes(bytes);
        if bytes[7] < 200 {
            word & ((1 << 47) - PAGE)
        } else {
            word
        }
    }
}

/// A module that checks what it is asked, and answers from the input.
struct Liar(Arc<Mutex<Bytes>>);

impl Liar {
    fn fill(bytes: &mut Bytes, statuses: &mut [i32]) {
        let pattern = [bytes.byte(), bytes.byte(), bytes.byte()];
        for (n, status) in statuses.iter_mut().enumerate() {
            *status = match pattern[n % 3] {
                0..128 => 0,
                errno @ 128..250 => -i32::from(errno),
                250..252 => i32::MIN,
                252..254 => 1,
                _ => i32::MAX,
            };
        }
    }
}

fn check_list(version: u32, zeros: u32, pid: i32, count: u32, lengths: &[usize]) {
    assert_eq!((version, zeros), (abi::VERSION, 0));
    assert!(pid >= 0, "no negative number");
    assert!(
        (1..=abi::MAX_BATCH).contains(&(count as usize)),
        "{count} pages"
    );
    assert!(
        lengths.iter().all(|length| *length == count as usize),
        "lists of this length"
    );
}

impl Calls for Liar {
    fn carry_out(&self, call: Call<'_>) -> Result<(), Errno> {
        let mut bytes = self.0.lock().expect("one thread");
        match call {
            Call::Info(info) => {
                for call in &mut info.call {
                    call.error = bytes.byte().into();
                    call.why[..4].fill_with(|| bytes.byte());
                }
            }
            Call::Scan(scan, entries) => {
                let pages = (scan.end - scan.start) / PAGE;
                assert_eq!(
                    (scan.version, scan.zero, scan.flags & !3),
                    (abi::VERSION, 0, 0)
                );
                assert!((scan.start | scan.end).is_multiple_of(PAGE) && scan.start < scan.end);
                assert!(scan.pid >= 0 && entries.len() as u64 == pages);
                (scan.present, scan.accessed) = (bytes.word(), bytes.word());
            }
            Call::Consolidate(call, addresses, statuses) => {
                let lengths = [addresses.len(), statuses.len()];
                assert!(call.node >= abi::ANY_NODE);
                check_list(
                    call.version,
                    call.zero | call.flags,
                    call.pid,
                    call.count,
                    &lengths,
                );
                Self::fill(&mut bytes, statuses);
                (call.moved, call.left, call.block) = (u32::MAX, u32::MAX, bytes.word());
            }
            Call::Exchange(call, [first, second], statuses) => {
                let lengths = [first.len(), second.len(), statuses.len()];
                assert!(call.other >= 0);
                check_list(
                    call.version,
                    call.zero | call.flags,
                    call.pid,
                    call.count,
                    &lengths,
                );
                Self::fill(&mut bytes, statuses);
                call.halves = u32::MAX;
            }
            Call::Migrate(call, frames, statuses) => {
                let lengths = [frames.len(), statuses.len()];
                check_list(
                    call.version,
                    call.zero | call.flags,
                    call.node,
                    call.count,
                    &lengths,
                );
                Self::fill(&mut bytes, statuses);
            }
        }
        match bytes.byte() {
            0..200 => Ok(()),
            errno => Err(errno.into()),
        }
    }
}
