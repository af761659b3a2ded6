//! Tiers on hugetlbfs, if the machine has huge pages to spare.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::Stdio;

use crate::process::Device;
use terrace_hyperflex::abi::Entry;
use terrace_hyperflex::control::Client;
use terrace_hyperflex::policy::NodePolicy;
use terrace_sys::{backing_page_bytes, huge_memory_file, memory_file};
use terrace_testkit::front_end::{Hypervisor, PAGE};
use terrace_testkit::mock::{MIB, MockVm};

const POOL: &str = "/proc/sys/vm/nr_hugepages";
const HUGE: u64 = 2 * MIB;
const TIER: u64 = 8 * MIB;
/// Those of a tier, and one that comes again.
const PAGES: u64 = TIER / HUGE + 1;

/// Huge pages that were added to the kernel's pool for a test; one test of this machine at a time.
struct Pool(File);

impl Pool {
    /// `None` if the machine has none to give, which is printed past the test harness's capture.
    fn new(test: &str) -> Option<Self> {
        let why = match Self::add() {
            Err(error) => error.to_string(),
            Ok(pool) if free() >= PAGES => return Some(pool),
            Ok(_) => format!("of {PAGES} huge pages this machine has {} free", free()),
        };
        let message = format!("\nSKIPPED {test}: NOT TESTED, since {POOL}: {why}\n");
        std::io::stderr().write_all(message.as_bytes()).unwrap();
        None
    }

    fn add() -> std::io::Result<Self> {
        let lock = File::create(std::env::temp_dir().join("terrace-huge-pages.lock"))?;
        lock.lock()?;
        Self::change(|now| now + PAGES)?;
        Ok(Self(lock))
    }

    fn change(new: impl Fn(u64) -> u64) -> std::io::Result<()> {
        let now = fs::read_to_string(POOL)?;
        let now = now.trim().parse().map_err(std::io::Error::other)?;
        fs::write(POOL, new(now).to_string())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Others may have changed it meanwhile.
        let _ = Self::change(|now| now.saturating_sub(PAGES));
        let _ = self.0.unlock();
    }
}

fn free() -> u64 {
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// A VM whose second tier is on hugetlbfs, and its file; nothing of that tier is touched.
fn vm() -> (MockVm, File) {
    let huge = huge_memory_file(c"huge", TIER).unwrap();
    let files = vec![
        memory_file(c"guest", TIER).unwrap(),
        huge.try_clone().unwrap(),
    ];
    let limits = MockVm::two_tiers().config().limits();
    (MockVm::over(files, 0x201, limits).unwrap(), huge)
}

const TIERS: [&str; 4] = [
    "--tier",
    "node=0,size=8MiB",
    "--tier",
    "node=1,size=8MiB,host-node=0",
];

#[test]
fn small_pages_of_hugetlbfs_are_refused_with_the_option() {
    let folder = tempfile::tempdir().unwrap();
    // Needs no page of the pool: nothing of that tier is touched.
    let (vm, huge) = vm();
    assert_eq!(backing_page_bytes(huge.as_fd()).unwrap(), HUGE);
    let mut device = Device::start_with(folder.path(), &TIERS, Stdio::piped());
    let mut host = Hypervisor::connect(&folder.path().join("hypervisor"), &vm, None);
    let base = vm.tier(1).start;
    assert_eq!(host.entries(2, &[Entry::new(base, 0)]), (0, 1));
    let client = Client::new(&folder.path().join("control"));
    let status = client.status(false).unwrap();
    assert_eq!(status.counters.refused_backing, 1);
    assert_eq!(status.tiers[0].problem, None);
    let pages: Vec<_> = (status.tiers.iter())
        .map(|tier| (tier.block_bytes, tier.page_bytes))
        .collect();
    assert_eq!(pages, [(PAGE, PAGE), (PAGE, HUGE)]);
    let problem = status.tiers[1].problem.clone().unwrap();
    assert!(
        problem.contains("start the device with --pages 2MiB"),
        "{problem}"
    );
    let refused = client.resize(&[None, Some(TIER - HUGE)]).unwrap_err();
    assert_eq!(refused.to_string(), problem);
    // The other tier can be resized, and this one be left as it is.
    client.resize(&[Some(TIER - HUGE), Some(TIER)]).unwrap();
    drop(host.disconnect());
    assert!(device.0.wait().unwrap().success());
    let mut said = String::new();
    device
        .0
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(said.matches(&problem).count(), 1, "{said}");
}

#[test]
fn huge_pages_of_hugetlbfs_go_to_the_host_and_return() {
    let test = "huge_pages_of_hugetlbfs_go_to_the_host_and_return";
    let Some(_pool) = Pool::new(test) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (vm, huge) = vm();
    vm.fill();
    let bytes = || huge.metadata().unwrap().blocks() * 512;
    assert_eq!(bytes(), TIER);
    let args = [&TIERS[..], &["--pages", "2MiB"]].concat();
    let mut device = Device::start_with(folder.path(), &args, Stdio::inherit());
    let mut host = Hypervisor::connect(&folder.path().join("hypervisor"), &vm, None);
    let base = vm.tier(1).start;
    let entries = [
        Entry::new(base + HUGE, 9),
        Entry::new(base + 2 * HUGE, 0),
        Entry::new(base + 2 * HUGE + PAGE, 9),
    ];
    assert_eq!(host.entries(2, &entries), (1, 2));
    assert_eq!(bytes(), TIER - HUGE);
    let client = Client::new(&folder.path().join("control"));
    let status = client.status(true).unwrap();
    let tier = &status.tiers[1];
    assert_eq!(
        (tier.size_bytes, tier.verified_ratio),
        (TIER - HUGE, Some(1.0))
    );
    // Linux keeps no policy with such a file, and the status does not claim it.
    assert_eq!(tier.node_policy, Some(NodePolicy::Refused));
    assert_eq!(host.entries(3, &[Entry::new(base + HUGE, 9)]), (1, 0));
    vm.touch(base + HUGE, 1);
    assert_eq!(bytes(), TIER);
    drop(host.disconnect());
    assert!(device.0.wait().unwrap().success());
}
