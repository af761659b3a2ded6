//! The real program in its sandbox, killed under a running VM and started again.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use terrace_hyperflex::abi::Entry;
use terrace_hyperflex::control::Client;
use terrace_hyperflex::policy::NodePolicy;
use terrace_sys::file_prefers;
use terrace_testkit::front_end::{Hypervisor, PAGE, wait_for};
use terrace_testkit::mock::{MIB, MockVm};

/// The program; ended with its owner.
pub struct Device(pub Child);

impl Device {
    pub fn start(folder: &Path) -> Self {
        let tiers = ["--tier", "node=0,size=8MiB", "--tier", "node=1,size=8MiB"];
        Self::start_with(folder, &tiers, Stdio::inherit())
    }

    pub fn start_with(folder: &Path, more: &[&str], said: Stdio) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_terrace-hyperflex"))
            .args([
                "--socket",
                "hypervisor",
                "--control",
                "control",
                "--state",
                "state",
                "--nobody-pins",
            ])
            .args(more)
            .current_dir(folder)
            .stderr(said)
            .spawn()
            .unwrap();
        Self(child)
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.0.id())).unwrap()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_program_is_locked_in_and_its_balloons_survive_its_death() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, control) = (
        folder.path().join("hypervisor"),
        folder.path().join("control"),
    );
    let vm = MockVm::two_tiers();
    vm.fill();
    let client = Client::new(&control);
    let mut device = Device::start(folder.path());
    let mut host = Hypervisor::connect(&socket, &vm, None);
    let base = vm.tier(1).start;
    let targets = client.resize(&[None, Some(5 * MIB)]).unwrap();
    let at = host.post_event_buffer(100);
    assert_eq!(host.event(at), (targets, [0, 768]));
    for i in 0..256 {
        assert_eq!(
            host.entries(2, &[Entry::new(base + 2 * i * PAGE, 0)]),
            (1, 0)
        );
    }
    let status = client.status(true).unwrap();
    assert_eq!(status.tiers[1].verified.unwrap().absent_pages, 256);

    wait_for("who connected", || {
        client.status(false).unwrap().hypervisor_pid == Some(std::process::id())
    });
    assert_eq!(status.tiers[1].page_bytes, 4096);
    assert!(status.tiers[1].verified_age_s.is_some());

    let proc_status = device.proc("status");
    let field = |name: &str| {
        let line = proc_status.lines().find(|line| line.starts_with(name));
        line.unwrap().split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(field("Seccomp:"), "2");
    assert_eq!(field("NoNewPrivs:"), "1");
    for set in ["CapEff:", "CapPrm:", "CapInh:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }

    device.0.kill().unwrap();
    device.0.wait().unwrap();
    let mut drivers = host.disconnect();
    let missed = drivers[3].post_entries(&[Entry::new(base, 0)]);
    let mut device = Device::start(folder.path());
    let mut host = Hypervisor::connect(&socket, &vm, Some(drivers));
    wait_for("the chain that was posted meanwhile", || {
        host.drivers[3].answered().len() == 1
    });
    assert_eq!(host.drivers[3].answer(missed), (1, 0));
    let status = client.status(true).unwrap();
    assert_eq!((status.generation, status.resets), (targets, 0));
    assert_eq!(status.tiers[1].size_bytes, 8 * MIB - 255 * PAGE);
    assert_eq!(status.tiers[1].target_bytes, 5 * MIB);
    assert_eq!(status.tiers[1].verified_ratio, Some(1.0));
    drop(host.disconnect());
    assert!(device.0.wait().unwrap().success());
}

#[test]
fn the_locked_in_program_lets_a_tiers_file_prefer_its_host_node() {
    let folder = tempfile::tempdir().unwrap();
    let vm = MockVm::two_tiers();
    vm.fill();
    let node = terrace_sys::allowed_nodes().first().copied().unwrap_or(0);
    let second = format!("node=1,size=8MiB,host-node={node}");
    let tiers = [
        "--tier",
        "node=0,size=8MiB,host-node=1023",
        "--tier",
        &second,
    ];
    let mut device = Device::start_with(folder.path(), &tiers, Stdio::inherit());
    let mut host = Hypervisor::connect(&folder.path().join("hypervisor"), &vm, None);
    let base = vm.tier(1).start;
    assert_eq!(host.entries(2, &[Entry::new(base, 0)]), (1, 0));
    let client = Client::new(&folder.path().join("control"));
    let status = client.status(false).unwrap();
    let nodes: Vec<_> = status.tiers.iter().map(|tier| tier.host_node).collect();
    assert_eq!(nodes, [Some(1023), Some(node)]);
    assert_eq!(status.tiers[0].node_policy, Some(NodePolicy::Refused));
    assert!(status.counters.refused_node_policies > 0);
    // A kernel without policies refuses that too, and the VM is served all the same.
    if let Ok(prefers) = file_prefers(vm.file(1).as_fd(), 0, 4096) {
        assert_eq!(status.tiers[1].node_policy, Some(NodePolicy::Set));
        assert_eq!(prefers, Some(node));
    }
    drop(host.disconnect());
    assert!(device.0.wait().unwrap().success());
}

#[test]
fn wrong_arguments_end_with_one_message() {
    let folder = tempfile::tempdir().unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_terrace-hyperflex"))
        .args([
            "--socket",
            "s",
            "--control",
            "c",
            "--tier",
            "node=0,size=1000",
        ])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(
        said.starts_with("terrace-hyperflex: tier 0") && said.lines().count() == 1,
        "{said}"
    );
}
