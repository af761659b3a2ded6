//! The view of the arbiter for people.

use terrace_proto::provision::{BalanceStatus, SharedMemory};
use terrace_proto::{ProviderId, Tick};

use super::Arbiter;
use super::kinds::{Kinds, kind};
use super::member::Member;
use crate::config::Rule;
use crate::provision::ON_ITS_WAY;

impl Arbiter {
    /// The part of a VM in the sharing of memory; `None`: it has none.
    #[must_use]
    pub fn view(&self, id: ProviderId, now: Tick) -> Option<BalanceStatus> {
        let member = self.members.get(&id)?;
        let guest = &member.facts.guest;
        let seen = guest.seen;
        let need = member.need.map(|(_, need)| need);
        Some(BalanceStatus {
            mode: if self.config.observe { "observe" } else { "on" }.into(),
            share: share(self.config.rule).into(),
            floor_bytes: member.rights.floor_bytes,
            ceiling_bytes: Some(member.rights.ceiling_bytes).filter(|most| *most < u64::MAX),
            weight: member.rights.weight,
            left_alone: match self.halted {
                true => Some("an operator paused all VMs (`terrace resume` undoes it)".into()),
                false => left_alone(member, self.config.rule),
            },
            statistics_missing: guest.silence.map(super::guest::Silence::text),
            statistics_age_s: age_s(member, now),
            free_bytes: need.map(|need| need.free_bytes),
            cache_bytes: seen.and_then(|seen| seen.cache_bytes),
            used_swap_bytes: need.map(|need| need.used_swap_bytes),
            is_swap_estimate: guest.estimates_swap.unwrap_or(false),
            is_swapping: member.is_swapping(),
            phase: member.facts.phase.view(now),
            // The engine's to say.
            ages: None,
        })
    }
}

impl Arbiter {
    /// The memory that VMs share; `None`: no VM takes part.
    #[must_use]
    pub fn shared(&self, now: Tick) -> Option<SharedMemory> {
        let host = self.host(now);
        let mut held = Kinds::default();
        let mut members = self.members.values();
        members
            .clone()
            .for_each(|member| held.add(&member.most_each()));
        let has = |tiered: bool| move |member: &Member| (member.tiers() > 1) == tiered;
        // What is configured is there once, for either kind of VMs.
        let (whole, tiered) = (
            members.any(has(false)),
            self.members.values().any(has(true)),
        );
        let sum = |kinds: &Kinds| {
            let of = |is_there: bool, bytes: u64| if is_there { bytes } else { 0 };
            of(whole, kinds[0]).saturating_add(of(tiered, kinds.from(kind(2, 0))))
        };
        (whole || tiered).then(|| SharedMemory {
            capacity_bytes: sum(&host.capacity),
            held_bytes: sum(&held),
            reserve_bytes: sum(&host.reserve),
        })
    }
}

/// Age of a guest's figures, s: what it says, and since it was read.
fn age_s(member: &Member, now: Tick) -> Option<f64> {
    let (at, _) = member.need?;
    let said = member.facts.guest.seen.and_then(|seen| seen.age_ms);
    let said = std::time::Duration::from_millis(said.unwrap_or(0));
    Some((now.since(at) + said).as_secs_f64())
}

/// The name of a rule.
fn share(rule: Rule) -> &'static str {
    match rule {
        Rule::Off => "off",
        Rule::Dp => "dp",
        Rule::Trade => "trade",
        Rule::Fair => "fair",
    }
}

/// Why the VM is not resized, if it is not.
fn left_alone(member: &Member, rule: Rule) -> Option<String> {
    let still = member.sizes.as_ref().and_then(|sizes| sizes.still);
    let alone = member
        .facts
        .standing
        .alone
        .map(super::standing::Alone::text);
    let trades_nothing = rule == Rule::Trade && member.tiers() == 1;
    let why = alone.or(still.filter(|why| *why != ON_ITS_WAY));
    let why = why.or(trades_nothing.then_some(
        "share = \"trade\" exchanges memory of one tier for that of another, and its device knows one size for all",
    ));
    why.map(str::to_owned)
}
