//! The part of a live host: the statistics of stock guests, and which VMs are left alone.

use terrace_proto::provision::ProviderStatus;
use terrace_proto::{
    AgentMemory, GuestMemory, GuestWalks, MemoryBalance, MemoryStanding, ProviderId, Tick, VmId,
};

use super::member::{Member, NEED_LASTS};
use super::standing::Standing;
use super::{Arbiter, Decision, text};
use crate::demand::Swap;
use crate::provision::Sizes;

impl Arbiter {
    /// Takes in the statistics of a guest. `sizes`: what it has.
    pub fn guest(&mut self, now: Tick, seen: &GuestMemory, sizes: Option<Sizes>) {
        let Some(member) = self.members.get_mut(&seen.provider) else {
            return;
        };
        let whole = sizes.as_ref().map_or(0, Sizes::whole);
        let size = sizes.as_ref().map_or(0, Sizes::size);
        if let Some(missed) = member.facts.cache.see(now, seen, size, &self.config) {
            member.hold_at(now, missed.from, missed.until);
            self.notices.push(Decision {
                provider: seen.provider,
                wanted: None,
                why: text::missed(now, &missed),
            });
            self.schedule.change(now, &self.config);
        }
        let need = member.facts.guest.need(now, seen, whole, &self.config);
        if member.facts.guest.has_other_source {
            member.swap = Swap::default();
        }
        match need {
            Some(need) => self.need(now, need, sizes),
            // What it said before holds no more.
            None if member.need.is_some() => {
                member.silence();
                self.change(now);
            }
            None => {}
        }
    }

    /// Takes in what an agent in a guest says of its memory. It counts with the statistics that come after it.
    pub fn agent(&mut self, now: Tick, seen: &AgentMemory) {
        if let Some(member) = self.members.get_mut(&seen.provider) {
            member.facts.guest.agent = Some((now, *seen));
        }
    }

    /// Takes in the page walks of a guest's programs.
    pub fn walks(&mut self, now: Tick, seen: GuestWalks) {
        if let Some(member) = self.members.get_mut(&seen.provider) {
            member.facts.phase.walks(now, seen.walks);
        }
    }

    /// When the present phase of a VM that the engine observes began.
    #[must_use]
    pub fn phase_since(&self, vm: VmId) -> Option<Tick> {
        let mut members = self.members.values();
        let member = members.find(|member| member.rights.vm == Some(vm))?;
        member.facts.phase.since()
    }

    /// Takes in what a guest reports to the device that sizes it. `sizes`: what it has. On a simulated host the guest says it
    /// itself.
    pub fn device(
        &mut self,
        now: Tick,
        provider: ProviderId,
        status: &ProviderStatus,
        sizes: Option<Sizes>,
    ) {
        let member = self.members.get_mut(&provider).filter(|_| self.config.live);
        let said = member.and_then(|member| member.facts.guest.of_device(now, provider, status));
        if let Some((memory, tiers)) = said {
            self.tiers(tiers);
            self.guest(now, &memory, sizes);
        }
    }

    /// Whether some VM that shares memory swaps, by what was heard lately.
    #[must_use]
    pub fn is_short(&self, now: Tick) -> bool {
        let heard = |m: &Member| {
            m.need
                .is_some_and(|(at, _)| now.0 - at.0.min(now.0) <= NEED_LASTS)
        };
        let mut members = self.members.values();
        members.any(|member| member.is_swapping() && heard(member))
    }

    /// Whether a VM shares memory, by its id in the engine.
    #[must_use]
    pub fn shares(&self, vm: VmId) -> bool {
        let mut members = self.members.values();
        members.any(|m| m.rights.vm == Some(vm) && m.facts.standing.alone.is_none())
    }

    /// The id in the engine of a provider's VM, if it observes that.
    #[must_use]
    pub fn vm(&self, id: ProviderId) -> Option<VmId> {
        self.members.get(&id)?.rights.vm
    }

    /// The reason why no huge pages are made of a VM's memory for now; `None`: none is known here.
    #[must_use]
    pub fn keeps_single_pages(&self, now: Tick, id: ProviderId) -> Option<String> {
        if self.halted {
            return Some("an operator paused all VMs (`terrace resume` undoes it)".into());
        }
        // Collapsing takes free huge pages, and the kernel looks for them by reclaim.
        if self.shortage.lacks(now) > 0 {
            return Some("the host is short of memory".into());
        }
        let member = self.members.get(&id)?;
        if member.is_swapping() {
            return Some("its guest swaps".into());
        }
        let stands = member.facts.standing.keeps_single_pages();
        stands.map(|alone| alone.text().into())
    }

    /// Takes in facts that decide whether a VM is left alone.
    pub fn standing(&mut self, now: Tick, seen: MemoryStanding) {
        self.judge_standing(now, seen.provider, false, |standing| {
            standing.see(now, seen)
        });
    }

    /// Takes in an operator's word on whether a VM takes part.
    pub fn balance(&mut self, now: Tick, said: MemoryBalance) {
        self.judge_standing(now, said.provider, true, |standing| standing.say(said));
    }

    /// Takes in that an operator pauses all VMs, or resumes them.
    pub fn halt(&mut self, now: Tick, halted: bool) {
        self.halted = halted;
        self.change(now);
    }

    /// Takes in that an operator wants a VM to have another size.
    pub fn resized(&mut self, now: Tick, provider: ProviderId) {
        // On a simulated host that is how sizes begin.
        if self.config.live {
            self.judge_standing(now, provider, true, Standing::resized);
        }
    }

    /// Takes something in about a VM's standing, and says what follows; always if it is an operator's word.
    fn judge_standing(
        &mut self,
        now: Tick,
        id: ProviderId,
        is_word: bool,
        take: impl FnOnce(&mut Standing),
    ) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let standing = &mut member.facts.standing;
        take(standing);
        if !standing.judge(now, &self.config) {
            return;
        }
        self.schedule.change(now, &self.config);
        // A VM without a floor was never meant to take part: that is no news.
        if member.rights.floor_bytes == 0 || !(standing.may_say(now) || is_word) {
            return;
        }
        let why = standing.alone.map_or_else(
            || "its memory is balanced from now on".to_owned(),
            |alone| format!("its memory is not balanced: {}", alone.text()),
        );
        self.notices.push(Decision {
            provider: id,
            wanted: None,
            why,
        });
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::MemoryRights;

    use super::*;
    use crate::config::{ArbiterConfig, Rule};

    const MIB: u64 = 1 << 20;

    /// A guest that had swap in use for long before its agent came.
    #[test]
    fn an_agent_that_begins_to_speak_is_no_sign_of_swapping() {
        let provider = ProviderId(1);
        let config = ArbiterConfig {
            rule: Rule::Dp,
            live: true,
            ..ArbiterConfig::default()
        };
        let mut arbiter = Arbiter::new(config);
        let at = |s: u64| Tick(s * 1_000_000_000);
        arbiter.rights(
            at(0),
            MemoryRights {
                provider,
                vm: None,
                floor_bytes: MIB,
                ceiling_bytes: u64::MAX,
                weight: 1000,
            },
        );
        let seen = GuestMemory {
            provider,
            age_ms: Some(0),
            free_bytes: Some(0),
            swapped_in_bytes: Some(0),
            swapped_out_bytes: Some(0),
            ..GuestMemory::default()
        };
        for s in 1..20 {
            if s > 8 {
                let said = AgentMemory {
                    provider,
                    used_swap_bytes: Some(500 * MIB),
                    free_swap_bytes: None,
                    waited_ns: Some(1 << 50),
                };
                arbiter.agent(at(s), &said);
            }
            arbiter.guest(at(s), &seen, None);
            let view = arbiter.view(provider, at(s)).unwrap();
            assert!(!view.is_swapping, "{s}");
            assert_eq!(view.is_swap_estimate, s <= 8);
            let used = if s > 8 { 500 * MIB } else { 0 };
            assert_eq!(view.used_swap_bytes, Some(used));
        }
    }
}
