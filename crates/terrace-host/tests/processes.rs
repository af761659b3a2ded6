//! Tests of QEMU processes of which only procfs is asked.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use terrace_host::doctor::{Processes, processes};
use terrace_host::qemu::{DiscoveryConfig, discover};
use terrace_host::topology::{NodeId, Tier, TierSource, Topology};
use terrace_host::{Finding, Health, HostRoot};
use terrace_proto::TierId;
use terrace_testkit::qemu::{play_qemu, rules};

fn topology() -> Topology {
    let tier = |id: u8| Tier {
        id: TierId(id),
        name: String::new(),
        nodes: vec![NodeId(u32::from(id))],
        total_bytes: 0,
    };
    Topology {
        nodes: vec![],
        tiers: vec![tier(0), tier(1)],
        source: TierSource::Operator,
        findings: vec![],
    }
}

fn inspect(root: &Path) -> Processes {
    let root = HostRoot::new(root);
    processes(&root, &topology(), &rules(&root))
}

/// The findings about the one VM of these options.
fn played(args: &[&str]) -> Vec<Finding> {
    let dir = tempfile::tempdir().unwrap();
    let pid = std::process::id();
    play_qemu(dir.path(), pid, args);
    let allowed = dir.path().join(format!("proc/{pid}/status"));
    let status = fs::read_to_string(&allowed).unwrap();
    let status: Vec<&str> = status.lines().filter(|l| !l.starts_with("Mems_")).collect();
    fs::write(&allowed, status.join("\n") + "\n").unwrap();
    let found = inspect(dir.path());
    assert_eq!(found.others, []);
    assert_eq!(found.vms.len(), 1);
    found.vms.into_values().next().unwrap()
}

fn about<'a>(name: &str, findings: &'a [Finding]) -> &'a Finding {
    let found = findings.iter().find(|f| f.name == name);
    found.unwrap_or_else(|| panic!("nothing about {name}: {findings:?}"))
}

const SHARED: [&str; 6] = [
    "-object",
    "memory-backend-memfd,id=m0,size=1G,share=on",
    "-machine",
    "q35,memory-backend=m0",
    "-accel",
    "kvm",
];

#[test]
fn a_vm_that_lacks_nothing_is_reported_without_its_monitor() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("qmp.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let qmp = format!("unix:{},server=on,wait=off", socket.display());
    let findings = played(&[&["-name", "web1", "-qmp", &qmp], &SHARED[..]].concat());
    let wrong: Vec<_> = findings.iter().filter(|f| f.health != Health::Ok).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let monitor = about("monitor", &findings);
    assert!(monitor.found.contains("qmp.sock"), "{monitor:?}");
    let nobody = listener.accept().unwrap_err();
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
}

/// Options, the finding about them, how bad it is, and a word of it.
type Lacking = (&'static [&'static str], &'static str, Health, &'static str);

const LACKING: [Lacking; 7] = [
    (
        &[
            "-object",
            "memory-backend-ram,id=m0",
            "-numa",
            "node,memdev=m0",
        ],
        "guest-ram",
        Health::Degraded,
        "'m0' is private",
    ),
    (
        &[
            "-object",
            "memory-backend-ram,id=m0,share=on",
            "-numa",
            "node,memdev=m0",
        ],
        "guest-ram",
        Health::Degraded,
        "no descriptor",
    ),
    (
        &[
            "-object",
            "memory-backend-memfd,id=m0,hugetlb=on",
            "-numa",
            "node,memdev=m0",
        ],
        "guest-ram",
        Health::Missing,
        "hugetlbfs",
    ),
    (
        &[
            "-object",
            "memory-backend-file,id=m0,share=on,mem-path=/dev/shm/a",
            "-numa",
            "node,memdev=m0",
        ],
        "alignment",
        Health::Degraded,
        "2 MiB",
    ),
    (
        &[
            "-object",
            "memory-backend-memfd,id=m0,policy=bind,host-nodes=0",
            "-numa",
            "node,memdev=m0",
        ],
        "memory-policy",
        Health::Degraded,
        "bound to nodes 0",
    ),
    (
        &["-device", "vfio-pci,host=01:00.0"],
        "guest-ram",
        Health::Missing,
        "passed through",
    ),
    (
        &["-object", "sev-guest,id=s0"],
        "guest-ram",
        Health::Missing,
        "encrypted",
    ),
];

#[test]
fn what_a_command_line_lacks_is_told_with_what_to_add() {
    let bare = played(&["-name", "web1", "-m", "4G", "-machine", "q35"]);
    let ram = about("guest-ram", &bare);
    assert!(ram.health == Health::Degraded && ram.found.contains("share=on"));
    let monitor = about("monitor", &bare);
    assert!(monitor.health == Health::Missing && monitor.found.contains("no QMP monitor"));
    assert!(
        monitor
            .advice
            .as_ref()
            .is_some_and(|c| c.contains("-qmp unix:"))
    );
    assert_eq!(about("accelerator", &bare).health, Health::Degraded);
    for (args, name, status, word) in LACKING {
        let findings = played(args);
        let finding = about(name, &findings);
        assert_eq!(finding.health, status, "{finding:?}");
        let said = [
            finding.found.as_str(),
            finding.advice.as_deref().unwrap_or(""),
        ]
        .concat();
        assert!(said.contains(word), "{finding:?}");
    }
}

#[test]
fn a_qemu_that_is_no_vm_is_told_why_in_the_daemons_words() {
    let dir = tempfile::tempdir().unwrap();
    let pid = std::process::id();
    play_qemu(dir.path(), pid, &SHARED);
    let foreign = dir.path().join("tmp/qemu-system-x86_64");
    fs::create_dir_all(foreign.parent().unwrap()).unwrap();
    fs::write(&foreign, "").unwrap();
    let exe = dir.path().join(format!("proc/{pid}/exe"));
    fs::remove_file(&exe).unwrap();
    symlink(&foreign, &exe).unwrap();
    let found = inspect(dir.path());
    assert!(found.vms.is_empty());
    let root = HostRoot::new(dir.path());
    let config = DiscoveryConfig {
        processes: true,
        ..DiscoveryConfig::default()
    };
    assert_eq!(
        found.others,
        discover(&root, &config, &rules(&root)).findings
    );
    assert!(found.others[0].found.contains("is not taken for a VM"));
}

#[test]
fn hostile_names_are_written_out() {
    let dir = tempfile::tempdir().unwrap();
    let name = "web1\u{1b}[2J\u{202e}\n";
    let backend = "memory-backend-ram,id=\u{1b}]0;owned\u{7}";
    let args = [
        "-name",
        name,
        "-object",
        backend,
        "-numa",
        "node,memdev=\u{1b}]0;owned\u{7}",
    ];
    play_qemu(dir.path(), std::process::id(), &args);
    let found = inspect(dir.path());
    let findings: Vec<&Finding> = found.vms.values().flatten().collect();
    assert!(
        findings
            .iter()
            .any(|f| f.found.contains("printable characters"))
    );
    assert!(findings.iter().any(|f| f.found.contains("owned")));
    let said = format!("{}{:?}", found.vms.keys().next().unwrap(), "");
    let said = findings.iter().fold(said, |said, f| {
        said + &f.found + f.advice.as_deref().unwrap_or_default()
    });
    assert!(
        !said.contains(|c: char| c.is_control() || c == '\u{202e}'),
        "{said:?}"
    );
    assert!(said.starts_with("process "), "{said}");
}
