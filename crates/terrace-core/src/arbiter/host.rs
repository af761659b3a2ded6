//! The host's own memory: while the host is short of it, VMs give what they do not use, and none gets more.
//!
//! Nobody is shrunk for it below its floor, nor while it swaps: what is still missing then is said, not taken.

use terrace_proto::{HostMemory, ProviderId, Tick};

use super::member::{Member, NEED_LASTS};
use super::steps::{On, Step, Takes, Targets, towards};
use super::{Arbiter, Decision, Known, percent, sum, text};
use crate::config::ArbiterConfig;
use crate::provision::Sizes;

/// Share of the host's memory that is taken at a time while its tasks wait though enough is available, percent.
const STEP_PERCENT: u8 = 1;

/// A shortage of the host's own memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Shortage {
    /// When the host's memory was last read, and what was read.
    seen: Option<(Tick, HostMemory)>,
    /// Memory that the host lacks, bytes; 0: it has enough.
    lacks: u64,
    /// Whether it was said that VMs have no more that they do not use.
    is_said: bool,
}

impl Shortage {
    /// Takes in what was read.
    fn see(&mut self, now: Tick, seen: HostMemory, config: &ArbiterConfig) {
        self.seen = Some((now, seen));
        let reserve = percent(seen.total_bytes, config.host_reserve_percent);
        // Beyond the reserve by a tenth it is over, so that it does not come and go.
        let enough = match self.lacks {
            0 => reserve,
            _ => reserve.saturating_add(reserve / 10),
        };
        let most = u32::from(config.host_waits_percent) * 100;
        let waits = seen.waits_centi.is_some_and(|waits| waits >= most);
        let step = percent(seen.total_bytes, STEP_PERCENT);
        self.lacks = enough
            .saturating_sub(seen.available_bytes)
            .max(if waits { step } else { 0 });
        self.is_said &= self.lacks > 0;
    }

    /// Memory by which VMs may grow so that the host does not become short at once, bytes.
    pub fn headroom(&self, now: Tick, config: &ArbiterConfig) -> u64 {
        let Some((_, seen)) = self.seen.filter(|(at, _)| !is_old(*at, now)) else {
            return u64::MAX;
        };
        let reserve = percent(seen.total_bytes, config.host_reserve_percent);
        let enough = reserve.saturating_add(reserve / 10);
        seen.available_bytes.saturating_sub(enough)
    }

    /// Memory that the host lacks, bytes; 0: it has enough, or nobody reads it any more.
    pub fn lacks(&self, now: Tick) -> u64 {
        match self.seen {
            Some((at, _)) if !is_old(at, now) => self.lacks,
            _ => 0,
        }
    }
}

fn is_old(at: Tick, now: Tick) -> bool {
    now.0.saturating_sub(at.0) > NEED_LASTS
}

impl Arbiter {
    /// Takes in the host's own memory.
    pub fn host_memory(&mut self, now: Tick, seen: HostMemory) {
        if self.is_off() || self.members.is_empty() {
            return;
        }
        let before = self.shortage.lacks;
        self.shortage.see(now, seen, &self.config);
        let lacks = self.shortage.lacks;
        if lacks > 0 || before > 0 {
            self.change(now);
        }
        let said = match (before > 0, lacks > 0) {
            (false, true) => text::host_lacks(&seen, &self.config),
            (true, false) => "the host has enough memory again".to_owned(),
            _ => return,
        };
        self.say_to_all(&said);
    }

    /// Memory that the host lacks in words, for `doctor`; `None`: it has enough.
    #[must_use]
    pub fn shortage(&self, now: Tick) -> Option<String> {
        let (_, seen) = self.shortage.seen?;
        (self.shortage.lacks(now) > 0).then(|| text::host_lacks(&seen, &self.config))
    }

    /// Says the same of each VM that takes part.
    fn say_to_all(&mut self, why: &str) {
        let members = self.members.iter();
        let members = members.filter(|(_, member)| member.rights.floor_bytes > 0);
        self.notices.extend(members.map(|(id, _)| Decision {
            provider: *id,
            wanted: None,
            why: why.to_owned(),
        }));
    }

    /// The orders by which VMs give the host what they do not use.
    pub(super) fn give_to_host(&mut self, now: Tick, known: &dyn Known) -> Vec<Decision> {
        self.schedule.decide(now);
        self.look(now, known);
        let gifts = self.for_host(now);
        gifts
            .into_iter()
            .filter_map(|(step, why)| self.order(now, &step, why))
            .collect()
    }

    /// Steps by which VMs give to a host that lacks memory what they do not use.
    pub(super) fn for_host(&mut self, now: Tick) -> Vec<(Step, String)> {
        let coming = self.members.values().map(on_its_way_down);
        let coming = coming.fold(0, u64::saturating_add);
        let lacks = self.shortage.lacks(now).saturating_sub(coming);
        let (targets, rest) = self.gifts(now, lacks);
        if rest > 0 && !self.shortage.is_said {
            self.shortage.is_said = true;
            self.say_to_all(&text::host_lacks_still(rest));
        }
        let on = On {
            now,
            takes: Takes::All,
        };
        let steps = towards(on, &self.members, &targets, &self.host(now), &self.config);
        self.watch(now, &steps, &targets);
        let gifts = steps.into_iter().map(|step| {
            let free = self.members.get(&step.provider);
            let free = free.map_or(0, |member| member.spare(&self.config));
            let why = text::for_host(free);
            (step, why)
        });
        // What cannot be carried out is not waited for, in a shortage neither.
        gifts.chain(self.gave_less(now)).collect()
    }

    /// Sizes without so much of what VMs do not use, the most idle first, and how much is lacking then.
    fn gifts(&self, now: Tick, mut lacks: u64) -> (Targets, u64) {
        let members = self
            .members
            .iter()
            .filter(|(_, member)| member.can_act() && !member.is_swapping() && !member.suffers());
        let mut idle: Vec<(u64, ProviderId, &Sizes)> = members
            .filter_map(|(id, member)| {
                let above = member.size().saturating_sub(member.floor(now));
                let idle = member.spare(&self.config).min(above);
                Some((idle, *id, member.sizes.as_ref()?))
            })
            .collect();
        idle.sort_by_key(|(idle, id, _)| (std::cmp::Reverse(*idle), *id));
        let mut targets = Targets::new();
        for (idle, id, sizes) in idle {
            let gives = idle.min(lacks);
            if gives > 0 {
                lacks -= gives;
                targets.push((id, sizes.of_total(sizes.size() - gives)));
            }
        }
        (targets, lacks)
    }
}

/// Memory that a VM was ordered to give and still has, bytes.
fn on_its_way_down(member: &Member) -> u64 {
    let Some(sizes) = &member.sizes else {
        return 0;
    };
    let asked = member.asked.pending.as_ref().map(|(_, sizes)| sum(sizes));
    let target = asked.unwrap_or(sizes.target());
    match sizes.still == Some(crate::provision::STUCK) {
        true => 0,
        false => sizes.size().saturating_sub(target),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_claimed_to_be_given_where_sizes_are_only_said() {
        let seen = HostMemory {
            total_bytes: 100 << 30,
            available_bytes: 1 << 30,
            waits_centi: None,
        };
        let said = |observe| {
            let config = ArbiterConfig {
                observe,
                ..ArbiterConfig::default()
            };
            text::host_lacks(&seen, &config)
        };
        assert!(said(true).contains("VMs would give") && said(false).contains("VMs give"));
        assert!(said(true).contains("1 GiB of memory available, of which it is to have 5 GiB"));
    }
}
