//! Memory that moves between VMs, and what may go wrong meanwhile: one test each.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::MIB;
use super::balance::{FLOORS, Host, ON, RAM, Trouble, Vm, host, until};

/// A VM that swaps beside one that idles, each of 512 MiB of RAM; the first one has 256.
fn pair() -> (Vm, Vm) {
    (Vm::new(256, 400), Vm::new(RAM, 100))
}

fn start(a: &Vm, b: &Vm, more: &str) -> Host {
    host(&[a, b], &format!("{ON}{more}{FLOORS}"))
}

/// Memory that both had when they were found.
const BOTH: u64 = (256 + RAM) * MIB;

fn until_more(a: &Vm, than: u64, host: &Host) {
    until(
        || (a.inside().size > than).then_some(()),
        || format!("{:?} {:?}", host.provisioning("a"), host.provisioning("b")),
    );
}

#[test]
fn a_guest_that_never_gives_leaves_others_what_is_there() {
    let (a, b) = pair();
    b.inside().gives_to = RAM * MIB;
    let host = start(&a, &b, "review_ms = 1000\n");
    host.until_said("b", "gave what it could");
    assert!(a.inside().size + b.inside().size <= BOTH);
    assert_eq!(b.inside().size, RAM * MIB);
}

/// A guest that is out of memory takes it out of its balloon (`deflate-on-oom`): that is no lie, and stays so.
#[test]
fn a_guest_that_takes_back_keeps_it_and_is_believed() {
    let (a, b) = pair();
    let host = start(&a, &b, "");
    until_more(&a, 256 * MIB, &host);
    {
        let mut b = b.inside();
        (b.used, b.size) = (RAM * MIB, RAM * MIB);
    }
    host.until("b", |seen| seen.free_bytes == Some(0));
    // An order of before may be under way.
    std::thread::sleep(Duration::from_secs(1));
    let (has, orders) = {
        let b = b.inside();
        (b.size, b.orders.len())
    };
    std::thread::sleep(Duration::from_secs(1));
    let later = b.inside().orders[orders..].to_vec();
    // It swaps by now, or has nothing free: nothing is taken of it.
    assert!(later.iter().all(|to| *to >= has), "{later:?}");
    assert!(host.balance("b").unwrap().left_alone.is_none());
}

#[test]
fn a_monitor_that_hangs_stops_its_vm_alone() {
    let (a, b) = pair();
    b.inside().trouble = Some(Trouble::Hangs);
    let host = start(&a, &b, "");
    // The other one is seen, and gets nothing that is not there.
    host.until("a", |seen| seen.is_swapping);
    assert!(b.inside().orders.is_empty());
    assert!(a.inside().size + b.inside().size <= BOTH);
    b.inside().trouble = None;
    until_more(&a, 380 * MIB, &host);
}

#[test]
fn a_monitor_that_hangs_in_mid_way_gives_nothing_twice() {
    let (a, b) = pair();
    let host = start(&a, &b, "");
    until_more(&a, 256 * MIB, &host);
    b.inside().trouble = Some(Trouble::Hangs);
    host.until("a", |seen| seen.is_swapping);
    std::thread::sleep(Duration::from_secs(3));
    assert!(a.inside().size + b.inside().size <= BOTH);
    b.inside().trouble = None;
    until_more(&a, 380 * MIB, &host);
    assert!(a.inside().size + b.inside().size <= BOTH);
}

#[test]
fn a_monitor_that_another_program_holds_is_waited_for() {
    let (a, b) = pair();
    let host = start(&a, &b, "");
    host.until("b", |seen| seen.free_bytes.is_some());
    let other = UnixStream::connect(host.0.folder.path().join("b.sock")).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert!(a.inside().size + b.inside().size <= BOTH);
    drop(other);
    until_more(&a, 380 * MIB, &host);
}

/// The order was taken and its answer is lost: sizes tell.
#[test]
fn a_monitor_that_closes_in_mid_order_is_asked_again() {
    let (a, b) = pair();
    b.inside().trouble = Some(Trouble::ClosesOnOrder);
    let host = start(&a, &b, "");
    until(
        || (!b.inside().orders.is_empty()).then_some(()),
        || format!("{:?}", host.provisioning("b")),
    );
    b.inside().trouble = None;
    until_more(&a, 380 * MIB, &host);
    assert!(a.inside().size + b.inside().size <= BOTH);
}

#[test]
fn a_vm_that_reboots_in_mid_way_has_what_it_has() {
    let (a, b) = pair();
    let host = start(&a, &b, "");
    until_more(&a, 256 * MIB, &host);
    {
        // The balloon empties, and the driver counts anew.
        let mut a = a.inside();
        (a.size, a.used, a.swapped, a.reports) = (RAM * MIB, 100 * MIB, 0, Some(1));
    }
    host.until("a", |seen| {
        !seen.is_swapping && seen.used_swap_bytes == Some(0)
    });
    // Nothing is taken of B for it any more.
    let had = b.inside().size;
    std::thread::sleep(Duration::from_millis(500));
    assert!(b.inside().size >= had.min(100 * MIB));
    assert!(b.inside().size >= 64 * MIB);
}

#[test]
fn a_vm_that_migrates_in_mid_way_is_resized_no_more() {
    let (a, b) = pair();
    let host = start(&a, &b, "");
    until_more(&a, 256 * MIB, &host);
    a.inside().migration = Some("active");
    host.until("a", |seen| seen.left_alone.is_some());
    let orders = a.inside().orders.len();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(a.inside().orders.len(), orders);
    a.inside().migration = None;
    until_more(&a, 380 * MIB, &host);
}

#[test]
fn a_vm_that_starts_in_mid_way_is_left_alone_until_settled() {
    let (a, b) = pair();
    let host = host(
        &[&a, &b],
        &format!(
            "{}{FLOORS}",
            ON.replace("settle_ms = 0", "settle_ms = 1500")
        ),
    );
    host.until("a", |seen| {
        seen.left_alone
            .as_deref()
            .is_some_and(|why| why.contains("first seen"))
    });
    assert!(a.inside().orders.is_empty() && b.inside().orders.is_empty());
    until_more(&a, 380 * MIB, &host);
}

#[test]
fn a_vm_that_dies_in_mid_way_leaves_the_other_what_it_has() {
    let (a, b) = pair();
    let host = start(&a, &b, "");
    until_more(&a, 256 * MIB, &host);
    host.0.discovery_scan(&["a"]);
    until(
        || host.provisioning("b").is_none().then_some(()),
        || format!("{:?}", host.provisioning("b")),
    );
    let had = a.inside().size;
    std::thread::sleep(Duration::from_millis(500));
    assert!(a.inside().size >= had.min(256 * MIB), "{}", a.inside().size);
}

#[test]
fn admission_that_refuses_is_counted_and_asked_less_and_less() {
    let (a, b) = pair();
    let host = start(&a, &b, "");
    // The host has nothing free for a VM that grows.
    let zones = "Node 0, zone Normal\n  pages free 0\n  high 0\n\
                 Node 1, zone Normal\n  pages free 0\n  high 0\n";
    crate::played::put(host.0.folder.path(), "proc/zoneinfo", zones);
    let refused = || {
        host.provisioning("a")
            .map_or(0, |seen| seen.orders.refused_admission)
    };
    until(
        || (refused() >= 1).then_some(()),
        || format!("{:?}", host.provisioning("a")),
    );
    let had = a.inside().size;
    std::thread::sleep(Duration::from_secs(3));
    // Cycles of 200 ms: after 200, 400, 800, 1,600 ms and so on.
    assert!(refused() <= 8, "{}", refused());
    assert_eq!(a.inside().size, had);
}

/// Targets stay as they were ordered; the next daemon takes sizes as they are.
#[test]
fn a_daemon_killed_before_an_answer_leaves_sizes_as_they_are() {
    let (a, b) = pair();
    b.inside().trouble = Some(Trouble::ClosesOnOrder);
    let first = start(&a, &b, "");
    until(
        || (!b.inside().orders.is_empty()).then_some(()),
        || format!("{:?}", first.provisioning("b")),
    );
    drop(first);
    b.inside().trouble = None;
    let state = |vm: &Vm| {
        let inside = vm.inside();
        (inside.size, inside.orders.len())
    };
    let had = state(&b);
    let settles = ON.replace("settle_ms = 0", "settle_ms = 1500");
    let host = host(&[&a, &b], &format!("{settles}{FLOORS}"));
    host.until("b", |seen| seen.left_alone.is_some());
    assert_eq!(state(&b), had);
    until_more(&a, 300 * MIB, &host);
    assert!(a.inside().size + b.inside().size <= BOTH);
}
