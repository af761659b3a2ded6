//! Hot pages that wait for fast memory.
//!
//! Responsible for: how many there are, by the VM's own lists. It leaves to others: what memory they are given for it
//! ([`crate::share::Trade`]).

use terrace_proto::TierId;

use super::vm::Vm;
use crate::estimate::list_of;

impl Vm {
    /// Bytes outside of the first tier that are on the top hot list; 0 without lists.
    pub fn waiting_hot_bytes(&self) -> u64 {
        if !self.has_lists() {
            return 0;
        }
        let waits = |(unit, state): &(u32, &u8)| {
            let slow = self.pages.tier(*unit).is_some_and(|t| t != TierId::FAST);
            slow && list_of(**state) >= self.policy.lists.lists
        };
        let units = (0..).zip(&self.pages.queue).filter(waits).count();
        units as u64 * self.pages.unit_bytes()
    }
}
