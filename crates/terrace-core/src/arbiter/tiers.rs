//! The tiers of VMs whose total is decided: the fast tier goes where it saves most time, or, under `fair`, where the slowest
//! VM is slowed down least.
//!
//! A VM of which no heat is known keeps its fast memory, and so does one to which other fast memory is worth nothing: what
//! nobody gains by does not move. Where that leaves less than the reserve of a tier, all of these give or take in
//! proportion. The slower tiers have the rest, the slowest changes first.

use terrace_proto::ProviderId;

use super::fair::{self, Beyond};
use super::kinds::Kinds;
use super::member::Member;
use super::sum;
use crate::config::{ArbiterConfig, Rule};
use crate::provision::Sizes;
use crate::share::{FairNeed, FastNeed, Heat, Loss, by_gain, in_proportion, least_slowdown};

/// Memory stays in the fast tier unless other memory has more accesses than it by one in so many.
const STAYS: u64 = 8;

/// A VM, its total, and the bounds of its fast memory.
struct Party<'a> {
    member: &'a Member,
    sizes: &'a Sizes,
    total: u64,
    least: u64,
    most: u64,
}

impl<'a> Party<'a> {
    fn new(member: &'a Member, sizes: &'a Sizes, total: u64) -> Self {
        let slower = sizes.tiers.get(1..).unwrap_or_default();
        let whole = slower
            .iter()
            .map(|tier| tier.whole)
            .fold(0, u64::saturating_add);
        let least = slower
            .iter()
            .map(|tier| tier.least)
            .fold(0, u64::saturating_add);
        let fast = sizes.tiers.first().copied().unwrap_or_default();
        let at_least = total.saturating_sub(whole).max(fast.least).min(fast.whole);
        Self {
            member,
            sizes,
            total,
            least: at_least,
            most: total.saturating_sub(least).min(fast.whole).max(at_least),
        }
    }

    /// The fast memory that it keeps if nothing is known.
    fn keeps(&self) -> u64 {
        let fast = self.sizes.of_total(self.total).first().copied();
        fast.unwrap_or(0).clamp(self.least, self.most)
    }

    /// Whether its memory's heat is known.
    fn knows(&self) -> bool {
        !self.member.demand.heat.is_empty()
    }

    /// The least and the most of its fast memory.
    fn bounds(&self, keeps: u64) -> (u64, u64) {
        match self.knows() {
            true => (self.least, self.most),
            false => (keeps, keeps),
        }
    }

    /// The VM's memory by heat. What fast memory it has now counts a little more: what is observed varies, and memory that went to
    /// and fro by that would gain nobody anything.
    fn heat(&self) -> Vec<Heat> {
        let mut within = self.keeps();
        let mut all = Vec::with_capacity(self.member.demand.heat.len() + 1);
        for group in self.member.demand.heat.iter() {
            let here = within.min(group.bytes);
            within -= here;
            for (bytes, is_here) in [(here, true), (group.bytes - here, false)] {
                let accesses = u128::from(group.accesses_per_s) * u128::from(bytes);
                let accesses = accesses.checked_div(u128::from(group.bytes)).unwrap_or(0);
                let accesses_per_s = u64::try_from(accesses).unwrap_or(u64::MAX);
                if bytes > 0 {
                    let more = if is_here { accesses_per_s / STAYS } else { 0 };
                    all.push(Heat {
                        bytes,
                        accesses_per_s: accesses_per_s.saturating_add(more),
                    });
                }
            }
        }
        all
    }

    fn need(&self, keeps: u64) -> FastNeed {
        let bounds = self.bounds(keeps);
        FastNeed {
            weight: self.member.rights.weight,
            floor_bytes: bounds.0,
            ceiling_bytes: bounds.1,
            heat: self.heat(),
            // All VMs have the same tiers.
            extra_ns: 1,
        }
    }

    /// The size of each tier with so much fast memory.
    fn each(&self, fast: u64) -> Vec<u64> {
        let mut slower = self.sizes.clone();
        let first = slower.tiers.drain(..slower.tiers.len().min(1)).count();
        let rest = slower.of_total(self.total.saturating_sub(fast));
        (0..first).map(|_| fast).chain(rest).collect()
    }
}

/// VMs whose totals are decided.
pub(super) struct Split<'a> {
    of: &'a [(ProviderId, &'a Member)],
    parties: Vec<Party<'a>>,
    config: &'a ArbiterConfig,
}

impl<'a> Split<'a> {
    pub fn new(
        of: &'a [(ProviderId, &'a Member)],
        totals: &[u64],
        config: &'a ArbiterConfig,
    ) -> Self {
        let parties = of.iter().zip(totals).filter_map(|((_, member), total)| {
            Some(Party::new(member, member.sizes.as_ref()?, *total))
        });
        Self {
            of,
            parties: parties.collect(),
            config,
        }
    }

    /// The size of each tier, for each VM. `left`: what there is for them of each kind. Who is slower than its bound with
    /// that is added.
    pub fn sizes(&self, left: &Kinds, reserve: &Kinds, slow: &mut Vec<Beyond>) -> Vec<Vec<u64>> {
        let totals: Vec<u64> = self.parties.iter().map(|party| party.total).collect();
        let (fast, slower) = (left[1], left.from(2));
        let beside = left.less(reserve);
        // What the totals take of the reserve, each tier gives.
        let over = sum(&totals).saturating_sub(beside.from(1));
        let most = fast.min(beside[1].saturating_add(over));
        let least = sum(&totals).saturating_sub(slower.min(beside.from(2).saturating_add(over)));
        let shares = self.shares(most, least);
        if self.config.rule == Rule::Fair {
            let losses = self.losses();
            slow.extend(fair::beyond(
                self.of,
                &self.fair_needs(&losses, &shares),
                &shares,
            ));
        }
        let each = self.parties.iter().zip(shares);
        each.map(|(party, fast)| party.each(fast)).collect()
    }

    /// The fast memory of each: at most and at least so much in all, as far as their bounds allow.
    fn shares(&self, most: u64, least: u64) -> Vec<u64> {
        let parties = &self.parties;
        let each = |of: &dyn Fn(&Party<'_>) -> u64| parties.iter().map(of).collect::<Vec<u64>>();
        let (leasts, mosts) = (each(&|p| p.least), each(&|p| p.most));
        let keeps = each(&|party| match party.knows() {
            true => party.least,
            false => party.keeps(),
        });
        let keeps = shrunk(&keeps, &leasts, most);
        let mut shares = self.by_rule(&keeps, most);
        let has = each(&|party| match party.knows() {
            true => party.keeps(),
            false => 0,
        });
        let mut grow = |to: &[u64], bytes: u64| {
            let more: Vec<u64> = to
                .iter()
                .zip(&shares)
                .map(|(to, has)| to.saturating_sub(*has))
                .collect();
            let tops = shares.iter().zip(&more).map(|(has, more)| has + more);
            let tops: Vec<u64> = tops.collect();
            let left = bytes.saturating_sub(sum(&shares));
            in_proportion(&mut shares, &tops, &more, left);
        };
        grow(&has, most);
        grow(&mosts, least);
        shares
    }

    /// The fast memory of each that saves time: most in all, or such that the slowest is slowed down least.
    fn by_rule(&self, keeps: &[u64], most: u64) -> Vec<u64> {
        let each = self.parties.iter().zip(keeps);
        if self.config.rule == Rule::Fair {
            let losses = self.losses();
            let needs = self.fair_needs(&losses, keeps);
            let found = least_slowdown(&needs, most);
            return found.map_or_else(|_| keeps.to_vec(), |fair| fair.sizes);
        }
        let needs: Vec<FastNeed> = each.map(|(party, keeps)| party.need(*keeps)).collect();
        by_gain(&needs, most)
    }

    fn losses(&self) -> Vec<Option<Loss>> {
        let extra = self.config.slow_access_extra_ns;
        let loss = |party: &Party<'_>| party.knows().then(|| Loss::of_heat(&party.heat(), extra));
        self.parties.iter().map(loss).collect()
    }

    fn fair_needs<'b>(&self, losses: &'b [Option<Loss>], keeps: &[u64]) -> Vec<FairNeed<'b>> {
        let each = self.parties.iter().zip(losses).zip(keeps);
        each.map(|((party, loss), keeps)| {
            let bounds = party.bounds(*keeps);
            fair::need(party.member, bounds, *keeps, loss.as_ref(), self.config)
        })
        .collect()
    }
}

/// Sizes that are at most so much together: what is above their least shrinks in proportion.
fn shrunk(sizes: &[u64], leasts: &[u64], most: u64) -> Vec<u64> {
    if sum(sizes) <= most {
        return sizes.to_vec();
    }
    let mut shrunk = leasts.to_vec();
    let above: Vec<u64> = sizes
        .iter()
        .zip(leasts)
        .map(|(size, least)| size.saturating_sub(*least))
        .collect();
    let left = most.saturating_sub(sum(leasts));
    in_proportion(&mut shrunk, sizes, &above, left);
    shrunk
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use terrace_proto::MemoryRights;

    use super::*;
    use crate::provision::TierSize;

    /// A VM of these sizes, which may have 1,000 of each tier. `heat`: bytes and accesses, the hottest first.
    fn member(sizes: [u64; 2], heat: &[(u64, u64)]) -> Member {
        let mut member = Member::new(MemoryRights {
            provider: ProviderId(1),
            vm: None,
            floor_bytes: 0,
            ceiling_bytes: u64::MAX,
            weight: 1000,
        });
        let tier = |size: &u64| TierSize {
            size: *size,
            target: *size,
            most: *size,
            least: 0,
            whole: 1000,
            block: 1,
        };
        member.sizes = Some(Sizes {
            tiers: sizes.iter().map(tier).collect(),
            still: None,
            unplugs: false,
        });
        let heat = heat.iter().map(|(bytes, accesses_per_s)| Heat {
            bytes: *bytes,
            accesses_per_s: *accesses_per_s,
        });
        member.demand.heat = heat.collect();
        member
    }

    fn kinds(tiers: [u64; 2]) -> Kinds {
        let mut kinds = Kinds::default();
        kinds.add(&tiers);
        kinds
    }

    fn sizes(
        rule: Rule,
        members: &[Member],
        totals: &[u64],
        left: [u64; 2],
        percent: u8,
    ) -> Vec<Vec<u64>> {
        let of: Vec<_> = (0..).map(ProviderId).zip(members).collect();
        let config = ArbiterConfig {
            rule,
            ..ArbiterConfig::default()
        };
        let left = kinds(left);
        let split = Split::new(&of, totals, &config);
        split.sizes(&left, &left.percent(percent), &mut Vec::new())
    }

    #[test]
    fn fast_memory_goes_to_whom_it_saves_most_and_the_total_stays() {
        let hot = member([100, 300], &[(200, 4000), (200, 10)]);
        let all = [hot, member([300, 100], &[(400, 40)])];
        for rule in [Rule::Dp, Rule::Fair] {
            let found = sizes(rule, &all, &[400, 400], [400, 400], 0);
            assert!(found[0][0] >= 200, "{found:?}");
            assert_eq!(found[0].iter().sum::<u64>(), 400);
            assert_eq!(found[1].iter().sum::<u64>(), 400);
        }
    }

    #[test]
    fn an_unknown_vm_keeps_its_fast_memory_but_for_the_reserve() {
        let all = [member([200, 200], &[]), member([200, 200], &[])];
        let found = sizes(Rule::Dp, &all, &[400, 400], [400, 400], 0);
        assert_eq!(found, [[200, 200], [200, 200]]);
        // Each tier fills its reserve.
        let found = sizes(Rule::Dp, &all, &[380, 380], [400, 400], 5);
        assert_eq!(found, [[190, 190], [190, 190]]);
        // Its total shrinks: the slow tier first.
        let found = sizes(Rule::Dp, &all, &[300, 400], [400, 400], 0);
        assert_eq!(found, [[200, 100], [200, 200]]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn totals_stay_and_no_tier_has_more_than_there_is(
            vms in prop::collection::vec(
                ([0..500_u64, 0..500], 0..900_u64, prop::collection::vec((1..300_u64, 0..1000_u64), 0..3)),
                1..6,
            ),
            beside in [0..500_u64, 0..500],
            fair in any::<bool>(),
            percent in 0..20_u8,
        ) {
            let members: Vec<Member> = vms.iter().map(|(sizes, _, heat)| member(*sizes, heat)).collect();
            let totals: Vec<u64> = vms.iter().map(|(_, total, _)| *total).collect();
            let all: u64 = totals.iter().sum();
            let fast = beside[0] + all / 3;
            let left = [fast, beside[1] + all.saturating_sub(fast.min(all))];
            let rule = if fair { Rule::Fair } else { Rule::Dp };
            let found = sizes(rule, &members, &totals, left, percent);
            let mut sums = [0; 2];
            for (sizes, total) in found.iter().zip(&totals) {
                prop_assert_eq!(sizes.iter().sum::<u64>(), *total);
                prop_assert!(sizes.iter().all(|size| *size <= 1000), "{:?}", sizes);
                sums = [sums[0] + sizes[0], sums[1] + sizes[1]];
            }
            prop_assert!(sums[0] <= left[0] && sums[1] <= left[1], "{sums:?} of {left:?}");
            let over = all.saturating_sub(left.map(|tier| tier - tier * u64::from(percent) / 100).iter().sum());
            for tier in [0, 1] {
                let most = left[tier] - left[tier] * u64::from(percent) / 100 + over;
                // What bounds of others leave to nobody may be of the reserve.
                prop_assert!(sums[tier] <= most.min(left[tier]) + 1, "{sums:?} of {most}");
            }
        }
    }
}
