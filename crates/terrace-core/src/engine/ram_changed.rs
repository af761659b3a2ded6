//! RAM that comes, goes or is elsewhere.
//!
//! Responsible for: letting go of all that was known of the old map. An operator's settings stay, and so do the
//! counts. It leaves to others: noticing (the daemon), and where pages are now (the next round).

use terrace_proto::{PAGE_SIZE, RamChange, Tick};

use super::Shared;
use super::rounds::Phase;
use super::vm::{Observer, Vm};
use crate::ram::Ram;

impl Vm {
    /// Takes in that the VM's RAM is another one. The round under way is given up, plans under way are cancelled page
    /// by page: a report of one that comes later is stale. RAM that makes no sense counts as RAM that is not known.
    pub fn ram_changed(&mut self, now: Tick, change: &RamChange, shared: &mut Shared) {
        self.let_go(now, shared);
        let stands = self.rounds.phase == Phase::Unmanaged;
        let ram = match Ram::of(&change.ram, change.unit) {
            Ok(ram) => ram,
            Err(why) => {
                self.unmapped = true;
                let text = if change.ram.is_empty() {
                    "its memory map changed: it is neither scanned nor moved before the new one is known".into()
                } else {
                    format!("its memory map changed, and the new one is not taken: {why}")
                };
                if !stands {
                    self.rounds.phase = Phase::Unscannable {
                        reason: text.clone(),
                    };
                }
                self.history.say(now, text);
                return;
            }
        };
        let before = self.pages.ram().pages();
        self.pages = self.pages.anew(ram);
        self.unmapped = false;
        self.observer = Observer::new(self.policy.observe, self.pages.ram(), &shared.config);
        let rhythm = self.rhythm(&shared.config);
        self.rounds.restart(now, rhythm, &shared.config);
        self.moving.pace = self.pace(&shared.config);
        let mib = |pages: u64| (pages * PAGE_SIZE) >> 20;
        let text = format!(
            "its new memory map is known: {} MiB of RAM, before {} MiB",
            mib(self.pages.ram().pages()),
            mib(before)
        );
        self.history.say(now, text);
    }

    /// Lets go of all that is known of its pages.
    fn let_go(&mut self, now: Tick, shared: &mut Shared) {
        if !self.unmapped {
            self.history.counters.map_changes += 1;
        }
        let held = self.held();
        self.abandon(now, "the VM's memory map changed");
        self.cancel(shared);
        self.pages = self.pages.anew(self.pages.ram().clone());
        self.place.forget();
        self.found_since(held, &mut shared.tiers);
        self.history.forget_moves();
        self.observer = Observer::new(self.policy.observe, self.pages.ram(), &shared.config);
    }

    /// Takes all pages off their plans; the moves of some may have been made.
    fn cancel(&mut self, shared: &mut Shared) {
        let coming = self.moving.cancel();
        self.history.counters.not_tried_pages += coming.iter().sum::<u64>() / PAGE_SIZE;
        for (tier, bytes) in self.tiers().zip(coming) {
            shared.tiers.orphan(tier, bytes);
        }
    }
}
