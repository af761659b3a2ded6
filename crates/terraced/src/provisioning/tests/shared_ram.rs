//! VMs whose RAM another process has: played ones, and a real one beside the real device.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use terrace_api::types::Health;
use terrace_hyperflex::Args;
use terrace_hyperflex::abi::Entry;
use terrace_hyperflex::control::Client;
use terrace_hyperflex::lease::Holders;
use terrace_testkit::mock::{MIB, MockVm};

use super::GIB;
use super::real::serve;
use super::script::{Host, Scripted, host, host_with, live};
use terrace_proto::provision::ProviderKind;
use terrace_testkit::front_end::{Hypervisor, PAGE, args, start};

/// A line of the memory map of a played host's hypervisor.
const RAM: &str = "1000-400000 rw-s 00000000 00:01 7 /memfd:ram (deleted)\n";

fn map_ram(host: &Host, pid: u32) {
    fs::write(host.root().join(format!("proc/{pid}/maps")), RAM).unwrap();
}

/// A process that maps the RAM, and the program that it runs.
fn come(host: &Host, pid: u32, program: &Path) {
    live(host.root(), pid);
    symlink(program, host.root().join(format!("proc/{pid}/exe"))).unwrap();
    map_ram(host, pid);
}

fn go(host: &Host, pid: u32) {
    fs::remove_dir_all(host.root().join(format!("proc/{pid}"))).unwrap();
}

#[test]
fn every_provider_refuses_to_shrink_a_vm_whose_ram_is_shared() {
    for kind in [
        ProviderKind::HyperFlex,
        ProviderKind::VirtioMem,
        ProviderKind::Balloon,
    ] {
        let script = Scripted::settled();
        script.lock().kind = kind;
        if kind == ProviderKind::Balloon {
            script.see(|status| status.tiers.truncate(1));
        }
        let host = host([("vm1", &script)]);
        map_ram(&host, 100);
        come(&host, 200, Path::new("/usr/bin/spdk_tgt\x1b[2J"));
        let slow = (kind == ProviderKind::Balloon).then_some(0);
        let refused = host.resize("vm1", [Some(GIB), slow]).unwrap_err();
        for has in [
            "process 200 (/usr/bin/spdk_tgt",
            "maps its RAM",
            "do_not_pin",
            "can grow",
        ] {
            assert!(refused.contains(has), "{kind:?}: no {has:?} in {refused}");
        }
        assert!(!refused.contains('\x1b'), "{refused:?}");
        assert_eq!(script.lock().ordered, Vec::<Vec<_>>::new(), "{kind:?}");
        let provisioning = host.provisioning("vm1").unwrap();
        assert_eq!(provisioning.orders.refused_pinned, 1);
        assert!(provisioning.held_by.unwrap().starts_with("process 200 "));
        let finding = host.doctor(Some("vm1"), "provisioning-held");
        assert_eq!(finding.health, Health::Degraded);
        host.event(
            "vm1",
            "which maps its RAM, may have pinned it: it cannot shrink",
        );
        // Growth takes no memory from any process.
        host.resize("vm1", [Some(3 * GIB), slow]).unwrap();
        go(&host, 200);
        host.event("vm1", "no other process has its RAM any more");
        host.resize("vm1", [Some(GIB), slow]).unwrap();
    }
}

#[test]
fn a_process_that_comes_under_way_takes_the_target_back() {
    for kind in [ProviderKind::HyperFlex, ProviderKind::VirtioMem] {
        let script = Scripted::settled();
        script.lock().kind = kind;
        let host = host([("vm1", &script)]);
        map_ram(&host, 100);
        host.resize("vm1", [Some(GIB), None]).unwrap();
        come(&host, 200, Path::new("/usr/bin/spdk_tgt"));
        host.event(
            "vm1",
            "ordered by terraced, because another process has its RAM",
        );
        let held = [Some(2 * GIB), None];
        host.until("vm1", |_| {
            (script.lock().ordered.last()? == &held).then_some(())
        });
        let order = host.until("vm1", |provisioning| provisioning.order.clone());
        assert_eq!(order.origin, "sharing");
    }
}

#[test]
fn the_vms_own_device_that_needs_no_looks_is_nobody_else() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    map_ram(&host, 100);
    let device = Path::new("/usr/bin/terrace-hyperflex");
    // Started with `--nobody-pins`; then another one in its place, which only the next answer shows.
    for (pid, size) in [(300, GIB + GIB / 2), (301, GIB)] {
        script.lock().process = Some(pid);
        come(&host, pid, device);
        host.resize("vm1", [Some(size), None]).unwrap();
        host.until("vm1", |_| {
            (script.lock().ordered.last()? == &[Some(size), None]).then_some(())
        });
        let queries = script.lock().queries[1];
        host.until("vm1", |provisioning| {
            assert_eq!(provisioning.held_by, None);
            (script.lock().queries[1] > queries + 2).then_some(())
        });
        go(&host, pid);
    }
    // A process of the same program that is no device of this VM's.
    come(&host, 200, device);
    let refused = host.resize("vm1", [Some(GIB / 2), None]).unwrap_err();
    assert!(refused.contains("process 200 "), "{refused}");
}

#[test]
fn a_process_that_cannot_be_looked_at_may_have_the_ram() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    map_ram(&host, 100);
    live(host.root(), 200);
    fs::write(
        host.root().join("proc/200/maps"),
        "no line of the kernel's\n",
    )
    .unwrap();
    let refused = host.resize("vm1", [Some(GIB), None]).unwrap_err();
    for has in ["cannot tell", "proc/200/maps", "CAP_SYS_PTRACE"] {
        assert!(refused.contains(has), "no {has:?} in {refused}");
    }
    assert!(
        host.doctor(Some("vm1"), "provisioning-held")
            .found
            .contains("proc/200/maps")
    );
}

#[test]
fn a_program_that_the_operator_names_does_not_pin() {
    let folder = tempfile::tempdir().unwrap();
    let (program, other) = (
        folder.path().join("virtiofsd"),
        folder.path().join("b/virtiofsd"),
    );
    fs::create_dir(folder.path().join("b")).unwrap();
    fs::write(&program, "").unwrap();
    fs::write(&other, "").unwrap();
    let script = Scripted::settled();
    let config = format!("[defaults]\ndo_not_pin = [\"{}\"]\n", program.display());
    let host = host_with(Duration::from_secs(60), &config, [("vm1", &script)]);
    map_ram(&host, 100);
    come(&host, 200, &program);
    host.resize("vm1", [Some(GIB), None]).unwrap();
    // Another file of the same name is another program.
    come(&host, 300, &other);
    let refused = host.resize("vm1", [Some(GIB / 2), None]).unwrap_err();
    assert!(refused.contains("process 300 "), "{refused}");
}

/// A process that was forked from this one, has none of its descriptors and waits.
struct Forked(libc::pid_t);

impl Forked {
    fn new(root: &Path) -> Self {
        // SAFETY: the child calls only functions that are safe after a fork, and never returns.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: takes no pointers; the child owns nothing that is closed.
            unsafe {
                libc::close_range(3, libc::c_uint::MAX, 0);
                loop {
                    libc::pause();
                }
            }
        }
        symlink(format!("/proc/{pid}"), root.join(format!("proc/{pid}"))).unwrap();
        Self(pid)
    }

    fn end(self, root: &Path) {
        fs::remove_file(root.join(format!("proc/{}", self.0))).unwrap();
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        // SAFETY: the child is this process's own and was not waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// A real device that needs pin checks, beside a daemon that sees this process as it is.
fn serve_leased(args: &Args) -> Host {
    let host = serve(&args.control);
    let maps = host
        .root()
        .join(format!("proc/{}/maps", std::process::id()));
    fs::remove_file(&maps).unwrap();
    symlink(format!("/proc/{}/maps", std::process::id()), &maps).unwrap();
    host
}

#[test]
fn nothing_is_punched_while_another_process_maps_the_ram() {
    let folder = tempfile::tempdir().unwrap();
    let args = Args {
        nobody_pins: false,
        ..args(folder.path(), &[])
    };
    let vm = MockVm::two_tiers();
    vm.fill();
    let device = start(&args);
    let mut guest = Hypervisor::connect(&args.socket, &vm, None);
    let base = vm.tier(1).start;
    let pages = |first: u64| -> Vec<Entry> {
        let pages = first..first + 32;
        pages
            .map(|page| Entry::new(base + page * PAGE, 0))
            .collect()
    };
    // Without a daemon nothing is given back, and the driver is answered so.
    assert_eq!(guest.entries(2, &pages(0)), (0, 32));
    let client = Client::new(&args.control);
    let leases = client.status(false).unwrap().leases.unwrap();
    assert!(
        leases.needed && !leases.stands && leases.last.is_none(),
        "{leases:?}"
    );
    let host = serve_leased(&args);
    host.until("vm", |provisioning| provisioning.connected.then_some(()));
    host.resize("vm", [None, Some(6 * MIB)]).unwrap();
    assert_eq!(guest.entries(2, &pages(0)), (32, 0));
    // A process that maps it, by no descriptor of its own.
    let other = Forked::new(host.root());
    host.event(
        "vm",
        "which maps its RAM, may have pinned it: it cannot shrink",
    );
    host.event(
        "vm",
        "ordered by terraced, because another process has its RAM",
    );
    let last_found = || client.status(false).unwrap().leases.unwrap().last;
    // A lease of before is taken back.
    host.until("vm", |_| {
        matches!(last_found(), Some(Holders::Somebody(_))).then_some(())
    });
    assert_eq!(guest.entries(2, &pages(64)), (0, 32));
    let there = vm.present(1);
    assert!((64..96).all(|page| there.contains(&page)), "{there:?}");
    let refused = host.resize("vm", [None, Some(4 * MIB)]).unwrap_err();
    assert!(
        refused.contains(&format!("process {}", other.0)),
        "{refused}"
    );
    // Memory that was given back before is handed out as ever.
    assert_eq!(guest.entries(3, &pages(0)), (32, 0));
    other.end(host.root());
    host.event("vm", "no other process has its RAM any more");
    host.resize("vm", [None, Some(4 * MIB)]).unwrap();
    // The device refuses for a moment after a pin check that found another process; the driver tries again.
    while guest.entries(2, &pages(64)) != (32, 0) {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(guest);
    device.join().unwrap();
}
