//! Logs on disks that are full, slow or shared.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::sync::Mutex;
use std::time::Instant;

use terrace_proto::Event;
use terrace_proto::log::LogReader;

use super::*;

const LONG: Duration = Duration::from_secs(60);

fn timer() -> Record {
    Record::Event(Event::Timer)
}

/// The number of a log's whole records, the reason why it was given up, and whether it ends in the middle of a
/// record.
fn read(path: &Path) -> (u64, Option<String>, bool) {
    let mut reader = LogReader::new(File::open(path).unwrap()).unwrap();
    let mut records = 0;
    while reader.next_record().unwrap().is_some() {
        records += 1;
    }
    let why = reader.given_up().map(str::to_owned);
    (records, why, reader.cut_off())
}

/// The records and the reason of a log that was given up, once the thread that writes is done.
fn read_given_up(path: &Path) -> (u64, String) {
    let begun = Instant::now();
    loop {
        // The log's beginning may not be written yet.
        let begins = LogReader::new(File::open(path).unwrap()).is_ok();
        if begins && let (records, Some(why), false) = read(path) {
            return (records, why);
        }
        assert!(begun.elapsed() < LONG, "its end does not say why");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_log_at_its_limit_says_so_once_and_stays_readable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let mut recorder = Recorder::start(&path, 60, "{}".into()).unwrap();
    assert_eq!(recorder.record(Tick(1), &timer()), None);
    let said = recorder.record(Tick(2), &timer()).unwrap();
    assert!(said.contains("size limit of 60 bytes"), "{said}");
    assert_eq!(recorder.record(Tick(3), &timer()), None);
    assert_eq!(recorder.ended(), Some(said.as_str()));
    assert_eq!(read_given_up(&path), (2, said), "its end says why");
}

#[test]
fn a_restart_keeps_the_previous_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("terrace.trlog");
    Recorder::start(&path, 1 << 20, "{\"first\": 1}".into())
        .and_then(|mut log| log.finish())
        .unwrap();
    let first = fs::read(&path).unwrap();
    Recorder::start(&path, 1 << 20, "{}".into()).unwrap();
    let previous = fs::read(dir.path().join("terrace.previous")).unwrap();
    assert_eq!(previous, first);
}

#[test]
fn a_log_cut_in_a_record_is_read_to_its_last_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("terrace.trlog");
    let mut recorder = Recorder::start(&path, 1 << 20, "{}".into()).unwrap();
    for i in 0..2000 {
        assert_eq!(recorder.record(Tick(i), &timer()), None);
    }
    recorder.finish().unwrap();
    assert_eq!(read(&path), (2001, None, false));
    // Records that a killed process has not written out are lost, in the middle of a record.
    let length = fs::metadata(&path).unwrap().len() - 5;
    let cut = OpenOptions::new().write(true).open(&path).unwrap();
    cut.set_len(length).unwrap();
    assert_eq!(read(&path), (2000, None, true));
    let mut next = Recorder::start(&path, 1 << 20, "{}".into()).unwrap();
    assert_eq!(next.record(Tick(1), &timer()), None);
    next.finish().unwrap();
    let previous = dir.path().join("terrace.previous");
    assert_eq!(fs::metadata(previous).unwrap().len(), length);
}

#[test]
fn a_log_is_for_its_owner_alone_and_no_link_leads_it_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let (path, victim) = (dir.path().join("log"), dir.path().join("victim"));
    fs::write(&victim, "precious").unwrap();
    let refused = |path: &Path| {
        let error = Recorder::start(path, 1 << 20, "{}".into()).unwrap_err();
        format!("{error:#}")
    };
    for target in [victim.as_path(), Path::new("nothing")] {
        symlink(target, &path).unwrap();
        let error = refused(&path);
        assert!(error.contains("is not replaced"), "{error}");
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert!(refused(Path::new("/dev/null")).contains("another kind"));
    Recorder::start(&path, 1 << 20, "{}".into()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(refused(&path).contains("others may write"));
}

/// A disk that takes `room` bytes and no more.
struct Full {
    file: File,
    room: u64,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let most = usize::try_from(self.room).unwrap().min(bytes.len());
        if most == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room -= most as u64;
        self.file.write(&bytes[..most])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogSink for Full {
    fn cut(&mut self, whole: u64) {
        self.room += self.file.metadata().unwrap().len() - whole;
        self.file.cut(whole);
    }
}

/// Appends until the log is given up.
fn fill(recorder: &mut Recorder) -> String {
    let begun = Instant::now();
    loop {
        if let Some(said) = recorder.record(Tick(1), &timer()) {
            return said;
        }
        assert!(begun.elapsed() < LONG, "nothing is said");
    }
}

#[test]
fn a_full_disk_ends_the_log_and_not_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let file = File::create(&path).unwrap();
    let disk = Full { file, room: 1000 };
    let mut recorder = Recorder::to(disk, u64::MAX, u64::MAX, "{}".into()).unwrap();
    let said = fill(&mut recorder);
    assert!(said.contains("could not be written"), "{said}");
    assert!(!recorder.is_on());
    let (records, why, cut_off) = read(&path);
    assert!(records > 40, "{records} of about 68 records are kept");
    assert!(!cut_off, "half a record was taken away again");
    assert!(why.is_none_or(|why| said.contains(&why)), "{said}");
}

/// A disk that takes nothing until it is let go.
struct Slow(Arc<Mutex<()>>, Arc<Mutex<Vec<u8>>>);

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        drop(self.0.lock().unwrap());
        self.1.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogSink for Slow {
    fn cut(&mut self, _whole: u64) {}
}

#[test]
fn a_hung_disk_delays_no_decision_and_ends_a_late_log() {
    let (held, disk) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(Vec::new())));
    let hangs = held.lock().unwrap();
    let slow = Slow(Arc::clone(&held), Arc::clone(&disk));
    // All of this while the disk hangs; in a thread, as one that waits for it waits for ever.
    let (done, filled) = channel();
    std::thread::spawn(move || {
        let mut recorder = Recorder::to(slow, u64::MAX, 100_000, "{}".into()).unwrap();
        let said = fill(&mut recorder);
        done.send((recorder, said)).unwrap();
    });
    let filled = filled.recv_timeout(LONG);
    let (recorder, said) = filled.expect("a decision waits for the disk");
    assert!(said.contains("the disk is too slow"), "{said}");
    assert_eq!(recorder.ended(), Some(said.as_str()));
    drop(hangs);
    let begun = Instant::now();
    loop {
        let bytes = disk.lock().unwrap().clone();
        if let Ok(mut reader) = LogReader::new(&bytes[..]) {
            while reader.next_record().unwrap().is_some() {}
            if let Some(why) = reader.given_up() {
                assert_eq!(why, said);
                assert!(bytes.len() < 101_000, "{}", bytes.len());
                break;
            }
        }
        assert!(begun.elapsed() < LONG, "its end does not say why");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_log_whose_file_was_removed_ends_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let mut recorder = Recorder::start(&path, 1 << 30, "{}".into()).unwrap();
    assert_eq!(recorder.record(Tick(1), &timer()), None);
    fs::remove_file(&path).unwrap();
    let begun = Instant::now();
    let said = loop {
        if let Some(said) = recorder.record(Tick(2), &timer()) {
            break said;
        }
        assert!(begun.elapsed() < LONG, "it goes on into nothing");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(said.contains("its file was removed"), "{said}");
}

#[test]
fn a_log_with_its_predecessors_name_is_refused_at_second_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("terrace.previous");
    fs::write(&path, "kept").unwrap();
    let refused = Recorder::start(&path, 1 << 20, "{}".into()).unwrap_err();
    assert!(
        refused.to_string().contains("name another file"),
        "{refused}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
}
