//! A real frontend and the device over a Unix socket in one process.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::left::left_state;
use crate::process::Device;
use terrace_hyperflex::Prepared;
use terrace_hyperflex::abi::{Entry, statistic_bytes};
use terrace_hyperflex::config::Limits;
use terrace_hyperflex::control::Client;
use terrace_testkit::front_end::{Hypervisor, PAGE, args, start, wait_for};
use terrace_testkit::mock::{MIB, MockVm};
use vm_memory::{Bytes as _, GuestAddress};

fn small(gpa: u64) -> Entry {
    Entry::new(gpa, 0)
}

#[test]
fn a_vm_follows_targets_across_a_restart_of_its_device() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path(), &[]);
    let vm = MockVm::two_tiers();
    vm.fill();
    let device = start(&args);
    let client = Client::new(&args.control);
    assert!(!client.status(true).unwrap().connected);
    let mut host = Hypervisor::connect(&args.socket, &vm, None);
    assert_eq!(host.config(0, 8), *b"TRHF\x01\0\x02\0");
    assert_eq!(host.config(120, 256 - 120).len(), 136);

    // Both page sizes in one chain; the files shrink, the other tier's does not.
    let base = vm.tier(1).start;
    let mut entries = vec![Entry::new(base + 2 * MIB, 9)];
    entries.extend((0..40).map(|i| small(base + 2 * i * PAGE)));
    assert_eq!(host.entries(2, &entries), (41, 0));
    let status = client.status(true).unwrap();
    let verified = status.tiers[1].verified.unwrap();
    assert_eq!((verified.claimed_pages, verified.absent_pages), (552, 552));
    assert_eq!(verified.file_bytes, 8 * MIB - 552 * PAGE);
    assert_eq!(status.tiers[0].verified.unwrap().file_bytes, 8 * MIB);
    assert_eq!(status.tiers[1].size_bytes, 8 * MIB - 552 * PAGE);
    assert_eq!(status.tiers[1].verified_ratio, Some(1.0));

    // A target, and a newer one before the driver has come to the first.
    let sizes = |fast: u64, slow: u64| [Some(fast * MIB), Some(slow * MIB)];
    client.resize(&sizes(6, 8)).unwrap();
    let newest = client.resize(&sizes(5, 7)).unwrap();
    let at = host.post_event_buffer(100);
    assert_eq!(host.event(at), (newest, [768, 256]));
    let at = host.post_event_buffer(101);
    let later = client.resize(&[None, Some(4 * MIB)]).unwrap();
    assert!(later > newest);
    assert_eq!(host.event(at), (later, [768, 1024]));
    assert_eq!(host.config(40, 8), 1024_u64.to_le_bytes());
    assert!(client.resize(&[Some(9 * MIB), None]).is_err());
    assert!(client.resize(&[Some(5)]).is_err());

    // A guest that touches pages that it gave back is caught.
    vm.touch(base, 1);
    let ratio = client.status(true).unwrap().tiers[1].verified_ratio;
    assert!(ratio > Some(0.99) && ratio < Some(1.0), "{ratio:?}");
    assert_eq!(host.entries(3, &[small(base)]), (1, 0));

    // The device goes and comes back; a chain that was posted meanwhile is served, balloons are as before.
    let mut drivers = host.disconnect();
    device.join().unwrap();
    let missed = drivers[2].post_entries(&[small(base + PAGE), small(base + 2 * PAGE)]);
    let device = start(&args);
    let mut host = Hypervisor::connect(&args.socket, &vm, Some(drivers));
    wait_for("the chain that was posted meanwhile", || {
        host.drivers[2].answered().len() == 1
    });
    assert_eq!(host.drivers[2].answer(missed), (1, 1));
    let status = client.status(false).unwrap();
    assert_eq!((status.resets, status.generation), (0, later));
    assert_eq!(status.tiers[1].size_bytes, 8 * MIB - 552 * PAGE);
    assert_eq!(status.tiers[1].target_bytes, 4 * MIB);
    assert!(!status.tiers[1].is_done());
    let all: Vec<Entry> = (1..40).map(|i| small(base + 2 * i * PAGE)).collect();
    assert_eq!(host.entries(3, &all), (39, 0));
    assert_eq!(
        host.entries(3, &[Entry::new(base + 2 * MIB, 9), small(base + PAGE)]),
        (2, 0)
    );
    assert_eq!(client.status(false).unwrap().tiers[1].size_bytes, 8 * MIB);
    drop(host);
    device.join().unwrap();
}

#[test]
fn a_size_that_is_no_multiple_of_the_page_size_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path(), &["--pages", "2MiB"]);
    let vm = MockVm::two_tiers();
    let device = start(&args);
    let client = Client::new(&args.control);
    let host = Hypervisor::connect(&args.socket, &vm, None);
    assert_eq!(client.status(false).unwrap().tiers[1].block_bytes, 2 * MIB);
    let before = client.status(false).unwrap().generation;
    for size in [5 * MIB, 4 * MIB + PAGE, PAGE] {
        let why = client.resize(&[None, Some(size)]).unwrap_err().to_string();
        assert!(
            why.starts_with("tier 1: ") && why.contains("2.0 MiB"),
            "{why}"
        );
    }
    assert_eq!(client.status(false).unwrap().generation, before);
    client.resize(&[Some(6 * MIB), Some(0)]).unwrap();
    drop(host);
    device.join().unwrap();
}

#[test]
fn nothing_is_reported_of_a_hypervisor_before_it_connects() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path(), &[]);
    let vm = MockVm::two_tiers();
    let device = start(&args);
    let client = Client::new(&args.control);
    let status = client.status(true).unwrap();
    assert!(!status.connected && status.hypervisor_pid.is_none());
    let tier = &status.tiers[0];
    assert_eq!((tier.block_bytes, tier.page_bytes), (PAGE, 0));
    assert_eq!((tier.verified, tier.verified_ratio), (None, None));
    assert_eq!(tier.verified_age_s, None);
    let host = Hypervisor::connect(&args.socket, &vm, None);
    wait_for("the memory", || client.status(false).unwrap().connected);
    let status = client.status(true).unwrap();
    assert!(status.tiers.iter().all(|tier| tier.verified.is_some()));
    let status = client.status(false).unwrap();
    assert!(status.tiers.iter().all(|tier| tier.verified.is_none()));
    assert_eq!(status.tiers[0].page_bytes, PAGE);
    wait_for("who connected", || {
        client.status(false).unwrap().hypervisor_pid == Some(std::process::id())
    });
    drop(host);
    device.join().unwrap();
}

#[test]
fn a_guest_reboot_empties_the_balloons_and_shows_in_the_status() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path(), &["--pages", "4KiB"]);
    let vm = MockVm::two_tiers();
    let device = start(&args);
    let client = Client::new(&args.control);
    let mut host = Hypervisor::connect(&args.socket, &vm, None);
    client.resize(&[Some(7 * MIB), None]).unwrap();
    assert_eq!(host.entries(0, &[small(5 * MIB), small(6 * MIB)]), (2, 0));
    let mut host = host.reboot(&vm);
    let status = client.status(false).unwrap();
    assert_eq!((status.resets, status.tiers[0].size_bytes), (1, 8 * MIB));
    assert_eq!(status.tiers[0].target_bytes, 7 * MIB);
    assert_eq!(host.entries(0, &[small(5 * MIB)]), (1, 0));
    assert_eq!(client.status(false).unwrap().resets, 1);
    drop(host);
    device.join().unwrap();
}

#[test]
fn guest_statistics_arrive_and_the_next_ones_are_requested() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path(), &[]);
    let vm = MockVm::two_tiers();
    let device = start(&args);
    let client = Client::new(&args.control);
    let mut host = Hypervisor::connect(&args.socket, &vm, None);
    let at = host.drivers[5].buffer(70);
    let said = [
        statistic_bytes(0, 1, 4096),
        statistic_bytes(4, 1, 1),
        statistic_bytes(60, 1, 1),
    ]
    .concat();
    host.drivers[5].put(at, &said);
    host.drivers[5].post_chain(&[(at, 48, 0)]);
    host.kick(5);
    wait_for("statistics", || {
        let guest = client.status(false).unwrap().tiers[1].guest;
        guest.statistics.free_bytes == Some(4096) && guest.is_stuck == Some(true)
    });
    wait_for("the request for more", || {
        !host.drivers[5].answered().is_empty()
    });
    drop(host);
    device.join().unwrap();
}

#[test]
fn balloons_move_to_another_device_before_the_hypervisor() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (args(from.path(), &[]), args(to.path(), &[]));
    let vm = MockVm::two_tiers();
    let (device, other) = (start(&here), start(&there));
    let (client, second) = (Client::new(&here.control), Client::new(&there.control));
    let mut host = Hypervisor::connect(&here.socket, &vm, None);
    client.resize(&[None, Some(4 * MIB)]).unwrap();
    let base = vm.tier(1).start;
    assert_eq!(host.entries(2, &[Entry::new(base, 9)]), (1, 0));
    let exported = client.export().unwrap();
    assert!(client.import(&exported).is_err(), "the VM runs here");
    assert!(second.import(&exported[1..]).is_err());
    assert!(second.import(&vec![0; 1 << 20]).is_err());
    second.import(&exported).unwrap();
    let moved = second.status(false).unwrap();
    assert_eq!(moved.tiers[1].size_bytes, 6 * MIB);
    assert_eq!(moved.tiers[1].target_bytes, 4 * MIB);
    let drivers = host.disconnect();
    let mut host = Hypervisor::connect(&there.socket, &vm, Some(drivers));
    assert_eq!(host.entries(3, &[Entry::new(base, 9)]), (1, 0));
    assert_eq!(second.status(false).unwrap().resets, 0);
    drop(host);
    device.join().unwrap();
    other.join().unwrap();
}

#[test]
fn nonsense_on_the_control_socket_is_answered_with_the_reason() {
    use std::io::{Read as _, Write as _};
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path(), &[]);
    let device = start(&args);
    for nonsense in [
        "\n",
        "{}\n",
        "{\"status\":{}}\n",
        "{\"import\":{\"bytes\":99999999}}\n",
        "\u{0}\n",
    ] {
        let mut socket = std::os::unix::net::UnixStream::connect(&args.control).unwrap();
        socket.write_all(nonsense.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with("{\"error\":{\"message\":"),
            "{nonsense:?}: {answer}"
        );
    }
    assert!(Prepared::new(&args).is_err(), "the state is in use");
    drop(Hypervisor::connect(
        &args.socket,
        &MockVm::two_tiers(),
        None,
    ));
    device.join().unwrap();
}

#[test]
fn a_restless_guest_delays_neither_hypervisor_nor_socket() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(
        folder.path(),
        &["--rate", "0", "--tier", "node=2,size=64MiB"],
    );
    let limits = Limits {
        total_pages: None,
        entries_per_s: None,
        statistics_s: 1,
    };
    let vm = MockVm::new(&[8 * MIB, 8 * MIB, 64 * MIB], 0x201, limits).unwrap();
    let device = start(&args);
    let client = Client::new(&args.control);
    let mut host = Hypervisor::connect(&args.socket, &vm, None);
    let blocks: Vec<Entry> = (0..32)
        .map(|i| Entry::new(vm.tier(2).start + i * 2 * MIB, 9))
        .collect();
    // The same pages go in and out, and both rings always have more chains.
    let rings = [4, 5].map(|queue| {
        let ring = &mut host.drivers[queue];
        for _ in 0..64 {
            ring.post_entries(&blocks);
        }
        (ring.available() + 2, ring.used() + 2)
    });
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for (available, used) in rings {
                    let used: u16 = vm.memory().read_obj(GuestAddress(used)).unwrap();
                    let more = used.wrapping_add(64);
                    vm.memory()
                        .write_obj(more, GuestAddress(available))
                        .unwrap();
                }
            }
        });
        for queue in [4, 5] {
            host.kick(queue);
        }
        let mut rounds = 0;
        wait_for("a device that is busy", || {
            rounds += 1;
            let chains = client.status(false).unwrap().counters.chains;
            let base = host.stop(4);
            host.enable(5, false);
            client.status(false).unwrap();
            host.set_up(4, base);
            host.enable(5, true);
            host.config(0, 8);
            rounds >= 30 && chains >= 1000
        });
        ended.store(true, Ordering::Relaxed);
    });
    drop(host);
    device.join().unwrap();
}

/// Killed in the very first chain of a driver, whose ring is at 0 like that of the next driver.
#[test]
fn a_killed_devices_chain_is_not_in_the_next_drivers_balloon() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path(), &[]);
    let vm = MockVm::two_tiers();
    vm.fill();
    let base = vm.tier(1).start;
    // Kills it between the first hole of its first chain and the answer.
    let chain: Vec<Entry> = (0..400).map(|i| small(base + 2 * i * PAGE)).collect();
    let state = folder.path().join("state");
    let mut met = false;
    for _ in 0..200 {
        let _ = std::fs::remove_file(&state);
        let mut device = Device::start(folder.path());
        let mut host = Hypervisor::connect(&args.socket, &vm, None);
        host.drivers[2].post_entries(&chain);
        host.kick(2);
        wait_for("the first hole", || !vm.present(1).contains(&0));
        device.0.kill().unwrap();
        device.0.wait().unwrap();
        let left = left_state(&state, vm.config());
        met = left.in_flight(2) == Some(0);
        vm.touch(base, 2048);
        if met {
            break;
        }
    }
    assert!(met, "no kill met the chain");
    // The guest reboots meanwhile.
    let device = start(&args);
    let mut host = Hypervisor::connect(&args.socket, &vm, None);
    let again: Vec<Entry> = (1..4).map(|i| small(base + 2 * i * PAGE)).collect();
    assert_eq!(host.entries(2, &[small(base + PAGE)]), (1, 0));
    assert_eq!(host.entries(2, &again), (3, 0), "they are the guest's");
    let status = Client::new(&args.control).status(true).unwrap();
    assert_eq!(status.tiers[1].size_bytes, 8 * MIB - 4 * PAGE);
    assert_eq!(status.tiers[1].verified_ratio, Some(1.0));
    drop(host);
    device.join().unwrap();
}
