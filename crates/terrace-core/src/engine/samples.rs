//! Samples of a VM's accesses, as they come in.
//!
//! Responsible for: what of a report is believed at all. It leaves to others: what samples mean
//! ([`crate::estimate::Sampled`]). A report may be a guest's word: it can make pages of its own VM look hot, and no more.

use terrace_proto::{MAX_SAMPLED_PAGES, PageSamples, Samples, Tick};

use super::vm::Vm;
use crate::config::EngineConfig;
use crate::estimate::Sampled;

/// The longest time that one report is over, ns.
const LONGEST_NS: u64 = 10_000_000_000;

impl Vm {
    /// Takes samples in. Policies without rates have no use for them.
    pub fn sampled(&mut self, now: Tick, said: &Samples, config: &EngineConfig) {
        if !self.has_rates() || self.unmapped || !config.terrace.samples {
            return;
        }
        let since = self
            .observer
            .sampled_at
            .map_or(LONGEST_NS, |at| now.0.saturating_sub(at.0));
        // Nobody has seen more time than there was.
        let over_ns = said.over_ns.min(since).min(LONGEST_NS);
        if said.period == 0 || over_ns == 0 {
            self.history.counters.malformed_answers += 1;
            return;
        }
        self.observer.sampled_at = Some(now);
        let (read, write) = config.weights();
        let ram = self.pages.ram();
        let count = |page: &PageSamples| {
            let writes = u64::from(page.writes) * u64::from(write) / u64::from(read.max(1));
            let all = u64::from(page.reads).saturating_add(writes);
            let unit = ram.unit_of(page.gfn)?;
            Some((unit, u32::try_from(all).unwrap_or(u32::MAX)))
        };
        let read = said.pages.iter().take(MAX_SAMPLED_PAGES);
        let counts: Vec<(u32, u32)> = read.filter_map(count).collect();
        if counts.len() < said.pages.len() {
            self.history.counters.malformed_answers += 1;
        }
        let exposure = (over_ns << 8) / u64::from(said.period);
        let units = self.pages.units();
        let own = &mut self.observer.sampled;
        let sampled = own.get_or_insert_with(|| Box::new(Sampled::new(units)));
        sampled.hear(counts, exposure, &mut self.pages.long);
    }
}
