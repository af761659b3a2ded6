use std::sync::{Arc, Mutex};

use super::*;

/// A module that keeps what it was asked, and answers the same to all.
#[derive(Debug, Default)]
struct Played {
    asked: Arc<Mutex<Vec<String>>>,
    fails: Errno,
    status: i32,
    info: abi::Info,
}

impl Calls for Played {
    fn carry_out(&self, call: Call<'_>) -> Result<(), Errno> {
        let text = match call {
            Call::Info(info) => {
                *info = self.info;
                "info".into()
            }
            Call::Scan(scan, entries) => {
                scan.present = u64::MAX;
                scan.accessed = u64::MAX;
                format!("scan {} of {}", entries.len(), scan.pid)
            }
            Call::Consolidate(call, addresses, statuses) => {
                statuses.fill(self.status);
                format!("consolidate {} to {}", addresses.len(), call.node)
            }
            Call::Exchange(call, [first, second], statuses) => {
                statuses.fill(self.status);
                call.halves = u32::MAX;
                format!(
                    "exchange {} of {}, {} of {}",
                    first.len(),
                    call.pid,
                    second.len(),
                    call.other
                )
            }
            Call::Migrate(call, frames, statuses) => {
                statuses.fill(self.status);
                format!("migrate {} to {}", frames.len(), call.node)
            }
        };
        self.asked.lock().unwrap().push(text);
        match self.fails {
            0 => Ok(()),
            errno => Err(errno),
        }
    }
}

fn played(played: Played) -> (GuestModule, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::clone(&played.asked);
    (GuestModule::of(Box::new(played)), asked)
}

#[test]
fn long_lists_are_cut_into_batches() {
    let (module, asked) = played(Played::default());
    let pages = vec![4096; 300];
    let mut statuses = vec![9; 300];
    module.consolidate(7, None, &pages, &mut statuses).unwrap();
    module.migrate(1, &pages, &mut statuses).unwrap();
    let halves = module.exchange((7, &pages), (8, &pages), &mut statuses);
    assert_eq!(halves.unwrap(), 300, "no more halves than pairs");
    assert!(statuses.iter().all(|status| *status == 0));
    let asked = asked.lock().unwrap();
    assert_eq!(
        asked[..3],
        [
            "consolidate 128 to -1",
            "consolidate 128 to -1",
            "consolidate 44 to -1"
        ]
    );
    assert_eq!(asked[5], "migrate 44 to 1");
    assert_eq!(asked[8], "exchange 44 of 7, 44 of 8");
}

#[test]
fn senseless_ranges_are_refused_before_the_module_is_asked() {
    let (module, asked) = played(Played::default());
    let mut entries = Vec::new();
    let senseless = [
        (1, 4096),
        (0, 4095),
        (4096, 4096),
        (8192, 4096),
        (0, u64::MAX - 4095),
    ];
    for (start, end) in senseless {
        let error = module.scan(7, start..end, true, &mut entries).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
    }
    let error = module.scan(u32::MAX, 0..4096, true, &mut entries);
    assert_eq!(error.unwrap_err().errno(), libc::EINVAL);
    assert!(asked.lock().unwrap().is_empty());
}

#[test]
fn counts_are_no_more_than_pages() {
    let (module, _) = played(Played::default());
    let mut entries = vec![3; 99];
    let scanned = module.scan(7, 0..3 * 4096, true, &mut entries).unwrap();
    assert_eq!(
        (scanned.present, scanned.accessed, entries.len()),
        (3, 3, 3)
    );
}

#[test]
fn statuses_that_are_no_error_numbers_are_not_taken_for_success() {
    for status in [1, i32::MAX, i32::MIN, -4096] {
        let (module, _) = played(Played {
            status,
            ..Played::default()
        });
        let mut statuses = [0; 2];
        module.migrate(1, &[5, 6], &mut statuses).unwrap();
        assert_eq!(statuses, [-libc::EPROTO; 2]);
    }
}

#[test]
fn a_call_that_fails_leaves_no_answer_of_the_pages() {
    let (module, asked) = played(Played {
        fails: libc::ESRCH,
        ..Played::default()
    });
    let mut statuses = vec![0; 200];
    let error = module.exchange((7, &[0; 200]), (8, &[0; 200]), &mut statuses);
    let error = error.unwrap_err();
    assert_eq!(error.errno(), libc::ESRCH);
    assert!(
        error
            .to_string()
            .contains("ioctl(EXCHANGE) on processes 7 and 8")
    );
    assert_eq!(asked.lock().unwrap().len(), 1, "no further batch");
    assert!(statuses.iter().all(|status| *status == NOT_ANSWERED));
}

#[test]
fn each_call_that_does_not_work_has_its_reason() {
    let mut info = abi::Info::default();
    info.call[0].error = libc::EOPNOTSUPP;
    info.call[0].why[..12].copy_from_slice(b"no\x1b[31m flag");
    info.call[2].error = libc::EOPNOTSUPP;
    info.pages[3] = 5;
    let (module, _) = played(Played {
        info,
        ..Played::default()
    });
    let states = module.states().unwrap();
    assert_eq!(states[0].missing.as_deref(), Some("no [31m flag"));
    assert_eq!((states[1].name, &states[1].missing), ("CONSOLIDATE", &None));
    assert!(
        states[2]
            .missing
            .as_deref()
            .unwrap()
            .contains("not supported")
    );
    assert_eq!(states[3].pages, 5);
}

#[test]
fn a_missing_module_differs_from_a_device_that_does_not_answer() {
    let root = tempfile::tempdir().unwrap();
    let open = || GuestModule::open(&HostRoot::new(root.path())).unwrap_err();
    assert!(matches!(open(), ModuleError::NotLoaded));
    std::fs::create_dir(root.path().join("dev")).unwrap();
    std::fs::write(root.path().join(DEVICE), "").unwrap();
    let error = open();
    assert!(
        matches!(&error, ModuleError::Failed(e) if e.errno() == libc::ENOTTY),
        "{error}"
    );
}
