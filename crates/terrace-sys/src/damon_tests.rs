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
}

/// Of an interface that holds `SLOTS` kdamonds, one of them with a context that bears a mark.
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
    let kdamond = tree.damon().start(42, &ranges, ATTRS).unwrap();
    let context = |file: &str| tree.get(&format!("0/contexts/0/{file}"));
    assert_eq!(tree.get("nr_kdamonds"), SLOTS.to_string());
    assert_eq!(tree.get("0/state"), "on");
    assert_eq!(context("operations"), "fvaddr");
    assert_eq!(context("targets/0/pid_target"), "42");
    assert_eq!(context("targets/0/regions/nr_regions"), "2");
    let end = context("targets/0/regions/1/end");
    assert_eq!(end, 0x7030_0000_u64.to_string());
    assert_eq!(context("schemes/0/action"), "stat");
    assert_eq!(context("schemes/0/access_pattern/nr_accesses/min"), "1");
    // Another VM's beside it, and the interface stays until both are gone.
    let second = tree.damon().start(43, &ranges, ATTRS).unwrap();
    assert_eq!(tree.get("1/contexts/0/targets/0/pid_target"), "43");
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
    let kdamond = tree.damon().start(42, &ranges, ATTRS).unwrap();
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
        let error = damon.start(42, &[(0, 4096)], ATTRS).unwrap_err();
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
    let kdamond = tree.damon().start(42, &[(0, 4096)], ATTRS).unwrap();
    assert_eq!(kdamond.slot, 1);
}

#[test]
fn a_setting_that_is_refused_leaves_nothing_behind() {
    let tree = Tree::new(0);
    fs::remove_file(tree.path("0/contexts/0/operations")).unwrap();
    let error = tree.damon().start(42, &[(0, 4096)], ATTRS).unwrap_err();
    assert!(error.to_string().contains("operations"), "{error}");
    assert_eq!(tree.get("0/contexts/nr_contexts"), "0");
    assert_eq!(tree.get("nr_kdamonds"), "0");
}

#[test]
fn a_kernel_without_damon_is_named() {
    let empty = tempfile::tempdir().unwrap();
    let damon = Damon::new(empty.path());
    let error = damon.start(42, &[(0, 4096)], ATTRS).unwrap_err();
    assert!(error.to_string().contains("CONFIG_DAMON_SYSFS"), "{error}");
    assert!(damon.stop_leftovers().is_ok());
}
