//! A guest whose device gives memory back only while the daemon makes pin checks.

use anyhow::{Context, Result};
use serde_json::Value;

use super::device::{CONTROL, Device, FOLDER};
use super::guest::FlexGuest;
use super::machine::NAME;
use super::product::Hyperflex;
use super::shape::{BASE, NODE_BYTES, Shape};
use crate::guests::beside::Daemon;
use crate::guests::tiered::{MIB, TIERS};
use crate::places;

/// The tier that shrinks.
pub const FAST: usize = 0;

/// Memory that a shrink takes from the fast tier, and the whole of it, MiB.
pub const SHRINK_MIB: u64 = 256;
pub const WHOLE_MIB: u64 = NODE_BYTES / MIB;

/// The guest's shape.
pub const LEASED: Shape = Shape {
    node_bytes: [NODE_BYTES; TIERS],
    orders: BASE,
    total_bytes: None,
    is_tiered: false,
    has_balloon: false,
    is_leased: true,
};

/// A guest whose device is ordered about by the daemon.
pub struct Leased {
    pub guest: FlexGuest<Hyperflex>,
    pub daemon: Daemon,
}

/// Boots the guest and has it work, among processes that can all be seen.
pub fn with_leases(work: impl FnOnce(&mut Leased) -> Result<()>) -> Result<()> {
    let mut guest = FlexGuest::<Hyperflex>::start_as(LEASED)?;
    guest.insert()?;
    let mut daemon = Daemon::prepare(NAME, &places::lab("run")?.join(FOLDER))?;
    let control = daemon.path(CONTROL);
    daemon.start_with_pin_checks(&format!("hyperflex = \"{control}\""))?;
    let mut leased = Leased { guest, daemon };
    leased.wait_for_the_device()?;
    work(&mut leased)?;
    leased.guest.device.expect_no_wrong_request()?;
    leased.guest.expect_a_quiet_kernel()
}

impl Leased {
    fn wait_for_the_device(&mut self) -> Result<()> {
        let daemon = &self.daemon;
        self.guest.until("the daemon has seen the device", |_| {
            Ok(daemon.tiers().is_ok_and(|tiers| tiers.len() == TIERS))
        })
    }

    /// The device's status.
    pub fn status(&self) -> Result<Value> {
        self.guest.device.status(false)
    }

    /// One of the device's counters.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let status = self.status()?;
        let value = status["counters"][name].as_u64();
        value.with_context(|| format!("no {name}: {status}"))
    }

    /// Bytes of this machine's memory behind the fast tier.
    pub fn held(&self) -> Result<u64> {
        Ok(self.guest.host_bytes()?[FAST])
    }

    /// Gives the fast tier all of its memory again.
    pub fn grow(&mut self) -> Result<()> {
        self.daemon.resize_and_wait(Some(WHOLE_MIB), None)?;
        self.guest.wait_for([0, 0])
    }
}
