use std::process::Command;

use super::*;

#[test]
fn one_census_serves_all_who_ask_for_what_is_not_newer() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("proc")).unwrap();
    let (root, lookout) = (HostRoot::new(folder.path()), Lookout::default());
    let file = |inode| BTreeSet::from([FileId::new(0, 1, inode)]);
    let census =
        |reconciler, files, since| lookout.census(&root, reconciler, &files, since).unwrap();
    let start = Instant::now();
    let first = census(1, file(1), start);
    let again = census(1, file(1), start);
    assert!(Arc::ptr_eq(&first.census, &again.census));
    // The census has neither another VM's files nor anything newer.
    let other = census(2, file(2), start);
    assert!(!Arc::ptr_eq(&first.census, &other.census));
    let both = census(1, file(1), start);
    assert!(Arc::ptr_eq(&both.census, &other.census));
    let later = census(1, file(1), Instant::now());
    assert!(!Arc::ptr_eq(&both.census, &later.census));
}

/// Another user's process whose mappings cannot be read, as one that maps a file of a FUSE server that does not
/// answer.
#[test]
fn an_unreadable_process_delays_no_vm_and_no_worker() {
    let folder = tempfile::tempdir().unwrap();
    let process = folder.path().join("proc/7");
    std::fs::create_dir_all(process.join("fd")).unwrap();
    let maps = process.join("maps");
    // Opening it waits for a writer.
    assert!(
        Command::new("mkfifo")
            .arg(&maps)
            .status()
            .unwrap()
            .success()
    );
    let root = HostRoot::new(folder.path());
    let lookout = Lookout {
        most: Duration::from_millis(200),
        ..Lookout::default()
    };
    let file = BTreeSet::from([FileId::new(0, 1, 1)]);
    let ask = |reconciler| {
        let (done, answer) = sync_channel(1);
        let (lookout, root, file) = (lookout.clone(), root.clone(), file.clone());
        std::thread::spawn(move || {
            let census = lookout.census(&root, reconciler, &file, Instant::now());
            let _ = done.send(census.map(drop));
        });
        answer
    };
    let hangs = ask(1);
    // The first to ask would be the one that hangs.
    let is_at = |running: &Running| running.at.load(Ordering::Relaxed) == 7;
    while !lookout.board.lock().running.as_ref().is_some_and(is_at) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Two reconcilers of other VMs, one after the other.
    for reconciler in 2..4 {
        let waited = ask(reconciler).recv_timeout(Duration::from_secs(60));
        let why = waited
            .expect("another VM's reconciler hangs too")
            .unwrap_err();
        assert!(why.contains("process 7"), "{why}");
    }
    // Workers can be started.
    let (done, workers) = sync_channel(1);
    std::thread::spawn(move || done.send(worker::started().len()));
    let started = workers.recv_timeout(Duration::from_secs(60));
    started.expect("no worker can be started while a look hangs");
    // The census continues when the read that held it up has ended.
    assert!(hangs.try_recv().is_err());
    std::fs::write(&maps, "").unwrap();
    hangs
        .recv_timeout(Duration::from_secs(60))
        .unwrap()
        .unwrap();
    std::fs::remove_dir_all(&process).unwrap();
    lookout.census(&root, 2, &file, Instant::now()).unwrap();
}
