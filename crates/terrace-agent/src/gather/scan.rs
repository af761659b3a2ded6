//! Accessed bits by SCAN of the guest's kernel module.

use anyhow::{Context as _, Result};
use terrace_core::ranges::Range;
use terrace_proto::PAGE_SIZE;
use terrace_sys::guest_module::{GuestModule, abi};

use super::watch::{AccessedBits, Seen};

/// Place of the call in what the module reports.
const SCAN: usize = 0;

/// The module's bits.
pub struct ScanBits {
    module: GuestModule,
    entries: Vec<u64>,
}

impl ScanBits {
    /// The bits of a module whose SCAN works.
    ///
    /// # Errors
    /// If it does not work here, with the module's reason.
    pub fn new(module: GuestModule) -> Result<Self> {
        let states = module.states()?;
        if let Some(why) = states.get(SCAN).and_then(|state| state.missing.as_ref()) {
            anyhow::bail!("SCAN of the guest module does not work here: {why}");
        }
        Ok(Self {
            module,
            entries: Vec::new(),
        })
    }

    fn scan(&mut self, pid: u32, range: Range) -> Result<()> {
        let addresses = range.start * PAGE_SIZE..range.end * PAGE_SIZE;
        match self.module.scan(pid, addresses, true, &mut self.entries) {
            Ok(_) => Ok(()),
            Err(error) if error.errno() == libc::ESRCH => {
                self.entries.clear();
                Ok(())
            }
            Err(error) => Err(error).context("scanning accessed bits"),
        }
    }
}

impl AccessedBits for ScanBits {
    fn name(&self) -> &'static str {
        "SCAN"
    }

    fn clear(&mut self, pid: u32, range: Range) -> Result<()> {
        self.scan(pid, range)
    }

    fn take(&mut self, pid: u32, range: Range, seen: &mut Vec<Seen>) -> Result<()> {
        self.scan(pid, range)?;
        seen.extend(self.entries.iter().map(|entry| seen_of(*entry)));
        Ok(())
    }
}

fn seen_of(entry: u64) -> Seen {
    let is = |bit| entry & bit != 0;
    match is(abi::ENTRY_PRESENT) && is(abi::ENTRY_ACCESSED) {
        false => Seen::Not,
        true if is(abi::ENTRY_LARGE) => Seen::Large,
        true => Seen::Accessed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_larger_pages_are_known_as_such() {
        let accessed = abi::ENTRY_PRESENT | abi::ENTRY_ACCESSED;
        let entries = [
            0,
            abi::ENTRY_PRESENT,
            accessed,
            accessed | abi::ENTRY_LARGE,
            abi::ENTRY_ACCESSED,
        ];
        let seen: Vec<Seen> = entries.into_iter().map(seen_of).collect();
        assert_eq!(
            seen,
            [Seen::Not, Seen::Not, Seen::Accessed, Seen::Large, Seen::Not]
        );
    }
}
