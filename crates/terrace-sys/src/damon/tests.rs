use std::fs;
use std::process::{Child, Command};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::*;

const ATTRS: DamonAttrs = DamonAttrs {
    sample_us: 5_000,
    aggregation_us: 100_000,
    min_regions: 10,
    max_regions: 1_000,
};

/// A tree with as many kdamonds as the kernel would make. Files keep what is written to them.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new(kdamonds: u64) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.put("nr_kdamonds", kdamonds);
        for slot in 0..SLOTS {
            tree.put(&format!("{slot}/state"), "off");
            tree.put(&format!("{slot}/contexts/nr_contexts"), 0);
        }
        for slot in 0..2 {
            tree.context(slot);
        }
        tree
    }

    fn context(&self, slot: u64) {
        let context = format!("{slot}/contexts/0");
        for file in [
            "operations",
            "monitoring_attrs/intervals/update_us",
            "monitoring_attrs/intervals/sample_us",
            "monitoring_attrs/intervals/aggr_us",
            "monitoring_attrs/nr_regions/min",
            "monitoring_attrs/nr_regions/max",
            "targets/nr_targets",
            "targets/0/pid_target",
            "targets/0/regions/nr_regions",
            "targets/0/regions/0/start",
            "targets/0/regions/0/end",
            "targets/0/regions/1/start",
            "targets/0/regions/1/end",
            "schemes/nr_schemes",
            "schemes/0/action",
            "schemes/0/access_pattern/sz/min",
            "schemes/0/access_pattern/sz/max",
            "schemes/0/access_pattern/nr_accesses/min",
            "schemes/0/access_pattern/nr_accesses/max",
            "schemes/0/access_pattern/age/min",
            "schemes/0/access_pattern/age/max",
            "schemes/0/tried_regions/total_bytes",
        ] {
            self.put(&format!("{context}/{file}"), "");
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        let kdamonds = self.0.path().join("sys/kernel/mm/damon/admin/kdamonds");
        kdamonds.join(file)
    }

    fn put(&self, file: &str, value: impl ToString) {
        fs::create_dir_all(self.path(file).parent().unwrap()).unwrap();
        fs::write(self.path(file), value.to_string()).unwrap();
    }

    fn get(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap()
    }

    fn damon(&self) -> Arc<Damon> {
        Damon::new(self.0.path())
    }

    fn served_by(&self, kernel: &Kernel) -> Arc<Damon> {
        Damon::by(self.0.path(), Box::new(kernel.clone()), MARK)
    }
}

/// A kernel that serves one request at a time, and refuses others at once.
#[derive(Clone, Debug, Default)]
struct Kernel(Arc<Behaviour>);

#[derive(Debug, Default)]
struct Behaviour {
    /// Whether a request for regions is being served.
    serving: AtomicBool,
    /// The number of requests that still find it busy with another's.
    busy: AtomicU32,
    /// The number of requests that were refused.
    refused: AtomicU32,
    pauses: AtomicU32,
    /// The ending of file names to which writes fail.
    fails: Mutex<Option<&'static str>>,
    /// Whether they fail because the kdamond ends just now.
    ended: AtomicBool,
}

impl Kernel {
    fn enter(&self) -> io::Result<()> {
        let others = self
            .0
            .busy
            .try_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if others.is_ok() || self.0.serving.load(Ordering::SeqCst) {
            self.0.refused.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        Ok(())
    }
}

impl Files for Kernel {
    fn read(&self, path: &Path) -> io::Result<String> {
        self.enter()?;
        Sysfs.read(path)
    }

    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        self.enter()?;
        let fails = *self.0.fails.lock().unwrap();
        if fails.is_some_and(|file| path.ends_with(file)) {
            if self.0.ended.load(Ordering::SeqCst) {
                Sysfs.write(path, "off")?;
            }
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        if value != "update_schemes_tried_regions" {
            return Sysfs.write(path, value);
        }
        self.0.serving.store(true, Ordering::SeqCst);
        // Long enough for others to come.
        std::thread::sleep(Duration::from_millis(20));
        self.0.serving.store(false, Ordering::SeqCst);
        Ok(())
    }

    fn pause(&self) {
        self.0.pauses.fetch_add(1, Ordering::SeqCst);
    }
}

fn me() -> Process {
    Process::open(Path::new("/proc"), std::process::id()).unwrap()
}

/// Another process, which ends with this.
struct Other(Child, Process);

impl Other {
    fn new() -> Self {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(Path::new("/proc"), child.id()).unwrap();
        Self(child, process)
    }

    fn end(&mut self) {
        // Once it was waited for, both do nothing.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.end();
    }
}

/// A tree of an interface that holds `SLOTS` kdamonds, one of them with a context that bears a mark.
fn used(mark: u64) -> Tree {
    let tree = Tree::new(SLOTS);
    tree.put("0/state", "on");
    tree.put("0/contexts/nr_contexts", 1);
    tree.put("0/contexts/0/monitoring_attrs/intervals/update_us", mark);
    tree
}

#[test]
fn a_process_is_watched_and_the_interface_given_back() {
    let tree = Tree::new(0);
    let ranges = [(0x7000_0000, 0x7010_0000), (0x7020_0000, 0x7030_0000)];
    let damon = tree.damon();
    let kdamond = damon.start(&me(), &ranges, ATTRS).unwrap();
    let context = |file: &str| tree.get(&format!("0/contexts/0/{file}"));
    assert_eq!(tree.get("nr_kdamonds"), SLOTS.to_string());
    assert_eq!(tree.get("0/state"), "on");
    assert_eq!(context("operations"), "fvaddr");
    let pid = std::process::id().to_string();
    assert_eq!(context("targets/0/pid_target"), pid);
    assert_eq!(context("targets/0/regions/nr_regions"), "2");
    let end = context("targets/0/regions/1/end");
    assert_eq!(end, 0x7030_0000_u64.to_string());
    assert_eq!(context("schemes/0/action"), "stat");
    assert_eq!(context("schemes/0/access_pattern/nr_accesses/min"), "1");
    // Another VM's beside it, and the interface stays until both are gone.
    let other = Other::new();
    let second = damon.start(&other.1, &ranges, ATTRS).unwrap();
    let pid = other.1.pid().to_string();
    assert_eq!(tree.get("1/contexts/0/targets/0/pid_target"), pid);
    drop(kdamond);
    assert_eq!(
        (tree.get("0/state"), tree.get("nr_kdamonds")),
        ("off".into(), SLOTS.to_string())
    );
    drop(second);
    assert_eq!(
        (tree.get("1/state"), tree.get("nr_kdamonds")),
        ("off".into(), "0".into())
    );
}

#[test]
fn accessed_regions_are_read_in_order() {
    let tree = Tree::new(0);
    let ranges = [(0x7000_0000, 0x7010_0000)];
    let kdamond = tree.damon().start(&me(), &ranges, ATTRS).unwrap();
    let tried = "0/contexts/0/schemes/0/tried_regions";
    for (number, start) in [(10, 8192), (9, 4096)] {
        tree.put(&format!("{tried}/{number}/start"), start);
        tree.put(&format!("{tried}/{number}/end"), start + 4096);
        tree.put(&format!("{tried}/{number}/nr_accesses"), "7\n");
    }
    let region = |start| DamonRegion {
        start,
        end: start + 4096,
        nr_accesses: 7,
    };
    assert_eq!(kdamond.accessed().unwrap(), [region(4096), region(8192)]);
    assert_eq!(tree.get("0/state"), "update_schemes_tried_regions");
    tree.put(&format!("{tried}/9/start"), "nonsense");
    assert!(
        kdamond
            .accessed()
            .unwrap_err()
            .to_string()
            .contains("'nonsense' is no number")
    );
}

#[test]
fn kdamonds_of_others_are_never_touched() {
    for (tree, what) in [
        (Tree::new(1), "nr_kdamonds = 1"),
        (used(1_000_000), "kdamond 0 is not ours"),
    ] {
        tree.put("0/state", "on");
        let damon = tree.damon();
        let error = damon.start(&me(), &[(0, 4096)], ATTRS).unwrap_err();
        assert!(matches!(error, DamonError::Foreign(_)), "{error}");
        assert!(error.to_string().contains(what), "{error}");
        damon.stop_leftovers().unwrap();
        assert_eq!(tree.get("0/state"), "on");
        assert_ne!(tree.get("nr_kdamonds"), "0");
    }
}

#[test]
fn what_a_crashed_predecessor_left_is_stopped() {
    let tree = used(MARK);
    tree.damon().stop_leftovers().unwrap();
    assert_eq!(tree.get("0/state"), "off");
    assert_eq!(tree.get("nr_kdamonds"), "0");
    // Without that, a start takes the next one: it is ours.
    let tree = used(MARK);
    let kdamond = tree.damon().start(&me(), &[(0, 4096)], ATTRS).unwrap();
    assert_eq!(kdamond.slot, 1);
}

#[test]
fn a_setting_that_is_refused_leaves_nothing_behind() {
    let tree = Tree::new(0);
    fs::remove_file(tree.path("0/contexts/0/operations")).unwrap();
    let error = tree.damon().start(&me(), &[(0, 4096)], ATTRS).unwrap_err();
    assert!(error.to_string().contains("operations"), "{error}");
    assert_eq!(tree.get("0/contexts/nr_contexts"), "0");
    assert_eq!(tree.get("nr_kdamonds"), "0");
}

#[test]
fn a_kernel_without_damon_is_named() {
    let empty = tempfile::tempdir().unwrap();
    let damon = Damon::new(empty.path());
    let error = damon.start(&me(), &[(0, 4096)], ATTRS).unwrap_err();
    assert!(error.to_string().contains("CONFIG_DAMON_SYSFS"), "{error}");
    assert!(damon.stop_leftovers().is_ok());
}

#[test]
fn two_vms_that_scan_at_once_do_not_meet_in_the_kernel() {
    let (tree, kernel, other) = (Tree::new(0), Kernel::default(), Other::new());
    let damon = tree.served_by(&kernel);
    let barrier = Barrier::new(2);
    std::thread::scope(|threads| {
        for process in [&me(), &other.1] {
            let kdamond = damon.start(process, &[(0, 4096)], ATTRS).unwrap();
            let barrier = &barrier;
            threads.spawn(move || {
                for _ in 0..3 {
                    barrier.wait();
                    // A failure is counted by the kernel; the other one must not wait for ever.
                    let _ = kdamond.accessed();
                }
                // Neither is stopped while the other one is asked.
                barrier.wait();
            });
        }
    });
    assert_eq!(kernel.0.refused.load(Ordering::SeqCst), 0);
    assert_eq!(tree.get("nr_kdamonds"), "0");
}

#[test]
fn a_busy_kernel_is_retried_and_no_kdamond_leaks() {
    let (tree, kernel) = (Tree::new(0), Kernel::default());
    let busy = || kernel.0.busy.store(RETRIES, Ordering::SeqCst);
    let damon = tree.served_by(&kernel);
    busy();
    let kdamond = damon.start(&me(), &[(0, 4096)], ATTRS).unwrap();
    busy();
    assert_eq!(kdamond.accessed().unwrap(), []);
    busy();
    drop(kdamond);
    assert_eq!(tree.get("0/state"), "off");
    assert_eq!(tree.get("0/contexts/nr_contexts"), "0");
    assert_eq!(tree.get("nr_kdamonds"), "0");
    assert_eq!(kernel.0.refused.load(Ordering::SeqCst), 3 * RETRIES);
}

#[test]
fn a_kernel_that_stays_busy_is_given_up_in_bounded_time() {
    let (tree, kernel) = (Tree::new(0), Kernel::default());
    let kdamond = tree.served_by(&kernel).start(&me(), &[(0, 4096)], ATTRS);
    let kdamond = kdamond.unwrap();
    kernel.0.busy.store(u32::MAX, Ordering::SeqCst);
    let error = kdamond.accessed().unwrap_err();
    assert!(matches!(error, DamonError::Busy(_)), "{error}");
    assert_eq!(kernel.0.pauses.load(Ordering::SeqCst), RETRIES);
    // All slots together wait no longer.
    assert!(tree.served_by(&kernel).stop_leftovers().is_err());
    assert_eq!(kernel.0.pauses.load(Ordering::SeqCst), 2 * RETRIES);
    kernel.0.busy.store(0, Ordering::SeqCst);
    assert_eq!(kdamond.accessed().unwrap(), []);
}

#[test]
fn a_stale_handle_leaves_anothers_kdamond_alone() {
    let mark = mark(0);
    let pid = "0/contexts/0/targets/0/pid_target";
    for (file, value) in [
        ("nr_kdamonds", 1),
        ("0/contexts/nr_contexts", 2),
        (&mark, 1_000_000),
        (pid, 1),
    ] {
        let tree = Tree::new(0);
        let kernel = Kernel::default();
        let damon = tree.served_by(&kernel);
        let kdamond = damon.start(&me(), &[(0, 4096)], ATTRS).unwrap();
        tree.put(file, value);
        *kernel.0.fails.lock().unwrap() = Some("state");
        let error = kdamond.accessed().unwrap_err();
        assert!(matches!(error, DamonError::Lost(0, _)), "{error}");
        assert!(error.to_string().contains(file), "{error}");
        *kernel.0.fails.lock().unwrap() = None;
        let before = tree.get("0/contexts/nr_contexts");
        drop(kdamond);
        assert_eq!(tree.get("0/state"), "on", "{file}");
        assert_eq!(tree.get("0/contexts/nr_contexts"), before, "{file}");
        assert_ne!(tree.get("nr_kdamonds"), "0", "{file}");
    }
}

#[test]
fn a_slot_that_fails_does_not_keep_other_leftovers_running() {
    let (tree, kernel) = (used(MARK), Kernel::default());
    tree.put("1/state", "on");
    tree.put("1/contexts/nr_contexts", 1);
    tree.put(&mark(1), MARK);
    *kernel.0.fails.lock().unwrap() = Some("0/state");
    let error = tree.served_by(&kernel).stop_leftovers().unwrap_err();
    assert!(error.to_string().contains("0/state"), "{error}");
    assert_eq!(tree.get("0/state"), "on");
    assert_eq!(tree.get("1/state"), "off");
    assert_eq!(tree.get("1/contexts/nr_contexts"), "0");
    assert_eq!(tree.get("nr_kdamonds"), SLOTS.to_string());
}

#[test]
fn a_kdamond_that_ended_with_its_process_gives_its_slot_back() {
    let (tree, kernel) = (Tree::new(0), Kernel::default());
    let damon = tree.served_by(&kernel);
    let kdamond = damon.start(&me(), &[(0, 4096)], ATTRS).unwrap();
    *kernel.0.fails.lock().unwrap() = Some("0/state");
    kernel.0.ended.store(true, Ordering::SeqCst);
    drop(kdamond);
    assert_eq!(tree.get("0/contexts/nr_contexts"), "0");
    assert_eq!(tree.get("nr_kdamonds"), "0");
}

#[test]
fn no_kdamond_is_started_after_the_last_ones_were_stopped() {
    let tree = Tree::new(0);
    let damon = tree.damon();
    let kdamond = damon.start(&me(), &[(0, 4096)], ATTRS).unwrap();
    damon.shut_down().unwrap();
    assert_eq!(tree.get("0/state"), "off");
    assert_eq!(tree.get("nr_kdamonds"), "0");
    assert!(matches!(kdamond.accessed(), Err(DamonError::Lost(0, _))));
    let error = damon.start(&me(), &[(0, 4096)], ATTRS).unwrap_err();
    assert!(matches!(error, DamonError::Stopping), "{error}");
    drop(kdamond);
    assert_eq!(tree.get("0/contexts/nr_contexts"), "0");
    assert_eq!(tree.get("nr_kdamonds"), "0");
}

#[test]
fn a_process_that_ended_is_not_watched_under_its_old_number() {
    let (tree, mut other) = (Tree::new(0), Other::new());
    other.end();
    let error = tree.damon().start(&other.1, &[(0, 4096)], ATTRS);
    assert!(matches!(error, Err(DamonError::Ended(_))), "{error:?}");
    assert_eq!(tree.get("0/state"), "off");
    assert_eq!(tree.get("0/contexts/nr_contexts"), "0");
    assert_eq!(tree.get("nr_kdamonds"), "0");
}

#[test]
fn the_ranges_of_a_running_kdamond_are_replaced() {
    let tree = Tree::new(0);
    let kdamond = tree
        .damon()
        .start(&me(), &[(0x1000, 0x3000)], ATTRS)
        .unwrap();
    kdamond
        .set_ranges(&[(0x1000, 0x2000), (0x8000, 0x9000)])
        .unwrap();
    let regions = "0/contexts/0/targets/0/regions";
    assert_eq!(tree.get(&format!("{regions}/nr_regions")), "2");
    assert_eq!(tree.get(&format!("{regions}/1/end")), "36864");
    assert_eq!(tree.get("0/state"), "commit");
}

#[test]
fn the_agent_and_the_daemon_leave_each_others_kdamonds_alone() {
    let tree = Tree::new(0);
    let (daemon, agent) = (tree.damon(), Damon::of_agent(tree.0.path()));
    let _held = daemon.start(&me(), &[(0, 4096)], ATTRS).unwrap();
    let refused = agent.start(&me(), &[(0, 4096)], ATTRS).unwrap_err();
    assert!(matches!(refused, DamonError::Foreign(_)), "{refused}");
    agent.shut_down().unwrap();
    assert_eq!(tree.get("0/state"), "on");
}
