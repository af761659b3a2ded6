//! The host's own count of the memory behind a balloon: what a guest gave back must be gone.

use std::fs;
use std::path::Path;

use super::MIB;
use super::balance::{FLOORS, HVA, Host, ON, RAM, Vm, host_of, until};

/// Lets so much of QEMU's RAM, and of its heap, be resident. MiB.
fn put_resident(host: &Host, ram: u64, heap: u64) {
    let folder = host
        .0
        .folder
        .path()
        .join(format!("proc/{}", std::process::id()));
    let put = |name: &str, text: String| fs::write(Path::join(&folder, name), text).unwrap();
    let kib = (ram + heap) << 10;
    let maps = format!("{HVA:x}-{:x} rw-p 00000000 00:00 0 \n", HVA + RAM * MIB);
    put("maps", maps.clone());
    put("smaps", format!("{maps}Rss: {} kB\n", ram << 10));
    put(
        "status",
        format!("RssAnon: {kib} kB\nRssFile: 4 kB\nRssShmem: 0 kB\n"),
    );
}

/// A VM that gives memory to one that swaps, whose process is this one.
fn giver() -> (Vm, Vm, Host) {
    let (b, a) = (Vm::new(RAM, 100), Vm::new(256, 400));
    let config = format!("{ON}{FLOORS}");
    let host = host_of(&[&b, &a], &config, Some(std::process::id()));
    (b, a, host)
}

fn gives(b: &Vm, host: &Host) {
    until(
        || (b.inside().size + 128 * MIB < RAM * MIB).then_some(()),
        || format!("{:?}", host.provisioning("a")),
    );
}

#[test]
fn one_that_uses_what_its_balloon_gave_back_is_left_alone() {
    let (b, _a, host) = giver();
    put_resident(&host, RAM, 60);
    host.until_said("a", "claims to have given back");
    let alone = "it keeps memory that it claims to have given back";
    host.until("a", |seen| seen.left_alone.as_deref() == Some(alone));
    assert!(b.inside().size >= RAM * MIB / 2, "it gave on");
    let tier = &host.provisioning("a").unwrap().tiers[0];
    assert_eq!(tier.present_bytes, Some(RAM * MIB));
    assert_eq!(tier.counted_bytes, RAM * MIB);
}

#[test]
fn memory_of_qemus_own_and_pages_reported_free_are_no_lie() {
    let (b, _a, host) = giver();
    put_resident(&host, 100, 300);
    gives(&b, &host);
    // QEMU has more than the balloon leaves, but not for its guest.
    until(
        || {
            let seen = host.provisioning("a")?;
            (seen.tiers[0].present_bytes == Some(100 * MIB) && seen.tiers[0].size_bytes < 400 * MIB)
                .then_some(())
        },
        || format!("{:?}", host.provisioning("a")),
    );
    assert!(host.balance("a").unwrap().left_alone.is_none());
    assert!(!host.said("a", "claims to have given back"));
}
