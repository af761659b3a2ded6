//! Memory and files of a guest, compared with those of before.

use anyhow::{Context, Result, ensure};

use crate::guests::flex::device::Device;
use crate::guests::flex::guest::FlexGuest;
use crate::guests::tiered::{MIB, TIERS};

/// Most memory that the guest's kernel may use for itself while a test measures, bytes.
pub const SLACK: u64 = 24 * MIB;

/// The sizes that must not change except for the tier that is resized.
pub struct Sizes {
    pub free: [u64; TIERS],
    pub total: [u64; TIERS],
    /// Bytes of the host's memory behind each tier.
    pub host: [u64; TIERS],
}

pub fn sizes<D: Device>(guest: &mut FlexGuest<D>) -> Result<Sizes> {
    let mut sizes = Sizes {
        free: [0; TIERS],
        total: [0; TIERS],
        host: guest.host_bytes()?,
    };
    for node in 0..TIERS {
        sizes.free[node] = guest.free_bytes(node)?;
        sizes.total[node] = guest.meminfo(node, "MemTotal")?;
    }
    Ok(sizes)
}

pub fn expect_about(what: &str, value: u64, wanted: u64) -> Result<()> {
    let is_about = value.abs_diff(wanted) <= SLACK;
    ensure!(
        is_about,
        "{what}: {} MiB, not {}",
        value / MIB,
        wanted / MIB
    );
    Ok(())
}

/// Expects a node's free memory to become as wanted; freed memory may be under way for a moment.
pub fn expect_free<D: Device>(guest: &mut FlexGuest<D>, node: usize, wanted: u64) -> Result<()> {
    let mut free = 0;
    let arrives = guest.until("freed memory is counted", |guest| {
        free = guest.free_bytes(node)?;
        Ok(free.abs_diff(wanted) <= SLACK)
    });
    arrives.with_context(|| {
        let [free, wanted] = [free, wanted].map(|bytes| bytes / MIB);
        format!("node {node} has {free} MiB free, not {wanted}")
    })
}

/// Writes files on each node, whose pages cannot go elsewhere; the rest of memory is touched once. Returns the files'
/// checksums.
pub fn fill<D: Device>(guest: &mut FlexGuest<D>) -> Result<String> {
    for node in 0..TIERS {
        guest.lab.check(&format!(
            "dd if=/dev/urandom of=/node{node}/kept bs=1M count=64 2>/dev/null; \
             dd if=/dev/zero of=/node{node}/touch bs=1M count=300 2>/dev/null; rm /node{node}/touch"
        ))?;
    }
    checksums(guest)
}

pub fn checksums<D: Device>(guest: &mut FlexGuest<D>) -> Result<String> {
    guest.lab.check("md5sum /node0/kept /node1/kept")
}

/// Expects the guest to have all of its memory.
pub fn expect_all_back<D: Device>(guest: &mut FlexGuest<D>, before: &Sizes) -> Result<()> {
    let after = sizes(guest)?;
    for node in 0..TIERS {
        expect_free(guest, node, before.free[node])?;
        ensure!(after.total[node] == before.total[node]);
    }
    Ok(())
}
