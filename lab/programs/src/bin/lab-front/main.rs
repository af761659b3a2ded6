//! A hypervisor's end of a HyperFlex device, for a test of where pages come from: it shares memory as a hypervisor
//! does, gives half of each tier's pages to the balloon as a guest would, takes them back and touches them again.
//!
//! `lab-front SOCKET TIER_BYTES…` prints, for each tier, on which nodes its pages were before, and on which those are
//! now that went through the balloon and those that did not.

mod memory;
mod session;
mod wire;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use memory::{Memory, Tier};
use serde_json::{Value, json};
use session::Session;
use terrace_lab_programs::move_pages;
use terrace_lab_programs::pages::{PAGE_SIZE, Placement};

/// Entries of a request.
const BATCH: usize = 512;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, sizes @ ..] = &arguments[..] else {
        bail!("usage: lab-front SOCKET TIER_BYTES…");
    };
    let sizes: Result<Vec<usize>, _> = sizes.iter().map(|size| size.parse()).collect();
    let memory = Memory::new(&sizes.context("tier sizes")?)?;
    let mut before = Vec::new();
    for tier in &memory.tiers {
        tier.touch(0..tier.pages());
        before.push(placement(tier, 0..tier.pages())?);
    }
    let mut session = Session::connect(Path::new(socket), &memory)?;
    let mut tiers: Vec<Value> = Vec::new();
    for (index, (tier, before)) in memory.tiers.iter().zip(before).enumerate() {
        // The queues are in the first half of the first.
        let (retained, given) = (0..tier.pages() / 2, tier.pages() / 2..tier.pages());
        let pages: Vec<usize> = given.clone().collect();
        for queue in [2 * index, 2 * index + 1] {
            for batch in pages.chunks(BATCH) {
                let taken = session.ask(queue, &tier.entries(batch))?;
                ensure!(taken == batch.len(), "queue {queue} took {taken} pages");
            }
        }
        let new = given.clone().filter(|page| tier.is_new(*page)).count();
        ensure!(new == pages.len(), "{new} pages of tier {index} are new");
        tier.touch(given.clone());
        tiers.push(json!({
            "before": before,
            "given": placement(tier, given)?,
            "kept": placement(tier, retained)?,
        }));
    }
    println!("{}", json!({ "tiers": tiers }));
    Ok(())
}

/// The nodes of pages, by the kernel's word.
fn placement(tier: &Tier, pages: std::ops::Range<usize>) -> Result<Placement> {
    let addresses: Vec<usize> = pages
        .map(|page| tier.address() + page * PAGE_SIZE)
        .collect();
    let mut placement = Placement::default();
    for status in move_pages::query(0, &addresses)? {
        placement.count(status);
    }
    Ok(placement)
}
