//! The two ways to gather, and which one works here.

use std::ops::Range;

use anyhow::{Result, bail, ensure};
use terrace_sys::HostRoot;
use terrace_sys::guest_module::{GuestModule, ModuleError};

use super::node::NodeWay;
use crate::config::Config;

/// Place of the call in what the module reports.
const CONSOLIDATE: usize = 1;

/// Why pages were not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Those of this process: the others may be.
    Process(String),
    /// There is no room for more.
    Full(String),
}

/// A way by which hot pages come together.
pub trait Way {
    /// The way's name.
    fn name(&self) -> &'static str;
    /// Frames that take what is gathered, if they are known before.
    fn target(&self) -> Result<Option<Range<u64>>>;
    /// Makes ready; returns the pages that can be taken.
    fn prepare(&mut self) -> Result<u64>;
    /// Makes room for so many pages at once, for somebody else who sends them.
    fn open_up(&mut self, _pages: u64) -> Result<()> {
        Ok(())
    }
    /// Most pages of one process that are taken at once.
    fn batch(&self) -> usize;
    /// Takes pages of a process. What was taken shows by their frames.
    ///
    /// # Errors
    /// The refusal; pages before it may have been taken.
    fn take(&mut self, pid: u32, addresses: &[u64]) -> Result<(), Refusal>;
    /// Sends pages home that are not hot any more, by their numbers; returns how many went.
    fn return_pages(&mut self, pid: u32, pages: &[u64]) -> u64;
    /// Takes back what has become free.
    fn finish(&mut self) -> Result<()>;
    /// A sentence on what outlives the program, for people.
    fn left(&self) -> Option<String>;
}

/// The way that works here: the node that the configuration names, else the guest module.
///
/// # Errors
/// If neither does: what is missing and what to change.
pub fn choose(root: &HostRoot, config: &Config) -> Result<Box<dyn Way>> {
    if let Some(node) = config.gather.node {
        return Ok(Box::new(NodeWay::open(root, node, &config.tiers)?));
    }
    ensure!(
        config.module,
        "nothing to gather by: gather.node names no node, and module = false switches the guest module off"
    );
    let module = GuestModule::open(root).map_err(|error| match error {
        ModuleError::NotLoaded => anyhow::anyhow!(
            "nothing to gather by: gather.node names no node, and {error}. terrace-agent doctor says how to get one of the two"
        ),
        _ => error.into(),
    })?;
    let states = module.states()?;
    match states
        .get(CONSOLIDATE)
        .and_then(|state| state.missing.as_ref())
    {
        Some(why) => bail!("CONSOLIDATE of the guest module does not work here: {why}"),
        None => Ok(Box::new(ModuleWay { module })),
    }
}

/// Blocks of each page's own node, by the guest module's CONSOLIDATE.
struct ModuleWay {
    module: GuestModule,
}

impl Way for ModuleWay {
    fn name(&self) -> &'static str {
        "module"
    }

    fn target(&self) -> Result<Option<Range<u64>>> {
        Ok(None)
    }

    fn prepare(&mut self) -> Result<u64> {
        // Free blocks are found one by one.
        Ok(u64::MAX)
    }

    fn batch(&self) -> usize {
        terrace_sys::guest_module::abi::MAX_BATCH
    }

    fn take(&mut self, pid: u32, addresses: &[u64]) -> Result<(), Refusal> {
        let mut rest = addresses.to_vec();
        // The pages that a full block left go to the next one.
        for _ in 0..2 {
            let mut statuses = vec![0; rest.len()];
            let done = self.module.consolidate(pid, None, &rest, &mut statuses);
            done.map_err(|error| match error.errno() {
                libc::ENOMEM => Refusal::Full(format!("no free block of 2 MiB: {error}")),
                _ => Refusal::Process(error.to_string()),
            })?;
            let left = rest.iter().zip(statuses);
            rest = left
                .filter(|(_, status)| *status == -libc::ENOSPC)
                .map(|(address, _)| *address)
                .collect();
            if rest.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn return_pages(&mut self, _pid: u32, _pages: &[u64]) -> u64 {
        // They are where any page of the guest may be.
        0
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn left(&self) -> Option<String> {
        None
    }
}
