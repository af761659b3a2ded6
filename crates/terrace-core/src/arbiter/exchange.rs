//! Memory of one tier for as much of another: the VM's total stays.
//!
//! What is to come comes first, of the reserve, and as much of another tier goes once nobody uses it there or further down,
//! where pages of memory that is taken move to. So no guest has less than before at any time.

use terrace_proto::Tick;

use super::member::Member;
use super::{percent, sum};
use crate::config::ArbiterConfig;

/// A change of tiers that is not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// When it was ordered.
    at: Tick,
    /// The sizes then.
    pub from: Vec<u64>,
    /// Memory that comes, bytes.
    comes: u64,
    /// Whether the VM had more since.
    has_grown: bool,
}

/// The exchanges of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchanges {
    /// The one under way.
    pub now: Option<Exchange>,
    /// Until when there is no other one, because one could not be completed.
    pub pause: Option<Tick>,
}

impl Member {
    /// Notes that memory comes for which other memory is to go.
    pub fn begin_exchange(&mut self, now: Tick, from: &[u64], to: &[u64]) {
        self.asked.exchanges.now = Some(Exchange {
            at: now,
            from: from.to_vec(),
            comes: sum(to).saturating_sub(sum(from)),
            has_grown: false,
        });
    }

    /// Whether memory may come for which other memory is to go: it must be known what of each tier nobody uses.
    #[must_use]
    pub fn may_exchange(&self, now: Tick) -> bool {
        let exchanges = &self.asked.exchanges;
        exchanges.now.is_none()
            && exchanges.pause.is_none_or(|until| until <= now)
            && self.uses.tiers.is_some()
    }

    /// Memory for which other memory is to go, bytes.
    #[must_use]
    pub fn exchanged(&self) -> u64 {
        let under_way = self.asked.exchanges.now.as_ref();
        under_way.map_or(0, |of| {
            let more = self.size().saturating_sub(sum(&of.from));
            more.min(of.comes)
        })
    }

    /// Memory that is called back from it, bytes: what others lent, or what came in an exchange that is undone.
    #[must_use]
    pub fn called_back(&self, now: Tick, config: &ArbiterConfig) -> u64 {
        let undone = match self.is_undone(now, config) {
            true => self.exchanged(),
            false => 0,
        };
        self.lent().max(undone)
    }

    /// Whether what is to go in its exchange is used for too long.
    #[must_use]
    pub fn is_undone(&self, now: Tick, config: &ArbiterConfig) -> bool {
        self.undone_at(config).is_some_and(|at| at <= now)
    }

    /// The time from which on it is undone.
    pub fn undone_at(&self, config: &ArbiterConfig) -> Option<Tick> {
        let of = self.asked.exchanges.now.as_ref()?;
        let review = ArbiterConfig::ns(config.review_ms);
        Some(Tick(of.at.0.saturating_add(review)))
    }

    /// The sizes that end an exchange if what is to go is used for too long: of what came as much goes again.
    #[must_use]
    pub fn undoes_exchange(&self, now: Tick, config: &ArbiterConfig) -> Option<Vec<u64>> {
        let of = self.asked.exchanges.now.as_ref()?;
        if !self.is_undone(now, config) {
            return None;
        }
        let mut left = self.exchanged();
        let sizes = self.sizes_each();
        let each = sizes.iter().zip(&of.from).map(|(size, before)| {
            let less = left.min(size.saturating_sub(*before));
            left -= less;
            size - less
        });
        Some(each.collect())
    }

    /// Ends an exchange that is complete, that was undone, or that cannot be: its guest swaps. One whose guest or provider keeps
    /// what came rests and is undone later: there is no other one before that.
    pub fn follow_exchange(&mut self, now: Tick, config: &ArbiterConfig) {
        let (size, swaps, sizes) = (self.size(), self.is_swapping(), self.sizes_each());
        let exchanges = &mut self.asked.exchanges;
        let Some(of) = &mut exchanges.now else {
            return;
        };
        let began = sum(&of.from);
        let little = percent(began, 1);
        let near = began.saturating_add(little);
        of.has_grown |= size > near;
        let gained = sizes.iter().zip(&of.from);
        let gained = gained.map(|(size, before)| size.saturating_sub(*before));
        let has_gained = gained.fold(0, u64::saturating_add) > little;
        // Others gave it more: what came is part of that.
        let has_more = size > near.saturating_add(of.comes);
        let age = now.0.saturating_sub(of.at.0);
        let is_late = age >= ArbiterConfig::ns(config.review_ms).saturating_mul(2);
        let is_back = (of.has_grown || is_late) && size <= near;
        let until = Tick(now.0.saturating_add(config.pause_ns()));
        if swaps || is_late || is_back && !has_gained {
            exchanges.pause = Some(until);
            of.at = until;
        }
        if swaps || has_more || is_back {
            exchanges.now = None;
        }
    }

    /// Memory of a tier that can go and leaves the guest's pages where they are, or lets them move down, bytes. Each node keeps
    /// a little.
    #[must_use]
    pub fn free_from(&self, tier: usize, config: &ArbiterConfig) -> u64 {
        let sizes = self.sizes_each();
        let slower = sizes.iter().enumerate().skip(tier);
        let free = slower.map(|(tier, size)| {
            let little = percent(*size, config.dead_band_percent.max(1));
            self.free_of(tier).saturating_sub(little)
        });
        free.fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrace_proto::{MemoryNeed, MemoryRights, MemoryTiers, ProviderId, TierId};

    use super::super::kinds::Kinds;
    use super::super::steps::{Host, On, Step, Takes, towards};
    use super::*;
    use crate::provision::{Sizes, TierSize};

    const MIB: u64 = 1 << 20;
    const SECOND: u64 = 1_000_000_000;

    /// A VM of these sizes, MiB, of which so much of each tier is free.
    fn member(sizes: [u64; 2], free: Option<[u64; 2]>) -> Member {
        let provider = ProviderId(1);
        let mut member = Member::new(MemoryRights {
            provider,
            vm: None,
            floor_bytes: 0,
            ceiling_bytes: u64::MAX,
            weight: 1000,
        });
        resize(&mut member, sizes);
        member.loan.brought = Some(member.sizes_each());
        let free = free.map(|free| free.map(|mib| mib * MIB));
        let need = MemoryNeed {
            provider,
            free_bytes: free.iter().flatten().sum(),
            used_swap_bytes: 0,
            major_faults: 0,
            lost_ns: 0,
            huge_percent: 0,
        };
        member.need(Tick(SECOND), need);
        member.uses.tiers = free.map(|[fast, slow]| {
            let mut free_bytes = [0; TierId::MAX];
            free_bytes[..2].copy_from_slice(&[fast, slow]);
            MemoryTiers {
                provider,
                free_bytes,
                waiting_hot_bytes: 0,
            }
        });
        member
    }

    fn resize(member: &mut Member, sizes: [u64; 2]) {
        let tier = |mib: &u64| TierSize {
            size: mib * MIB,
            target: mib * MIB,
            most: mib * MIB,
            least: 0,
            whole: 4096 * MIB,
            block: MIB,
        };
        member.sizes = Some(Sizes {
            tiers: sizes.iter().map(tier).collect(),
            still: None,
            unplugs: false,
        });
    }

    /// The steps of a VM towards these sizes, on a host with so much of each tier beside it, all of it reserve.
    fn steps(second: u64, member: &Member, to: [u64; 2], beside: [u64; 2]) -> Vec<Step> {
        let mut reserve = Kinds::default();
        reserve.add(&beside.map(|mib| mib * MIB));
        let mut capacity = reserve;
        capacity.add(&member.sizes_each());
        let host = Host {
            capacity,
            reserve,
            headroom: u64::MAX,
        };
        let on = On {
            now: Tick(second * SECOND),
            takes: Takes::All,
        };
        let members = BTreeMap::from([(ProviderId(1), member.clone())]);
        let to = vec![(ProviderId(1), to.map(|mib| mib * MIB).to_vec())];
        towards(on, &members, &to, &host, &ArbiterConfig::default())
    }

    fn mib(sizes: &[u64]) -> Vec<u64> {
        sizes.iter().map(|bytes| bytes / MIB).collect()
    }

    #[test]
    fn more_comes_first_of_half_the_reserve() {
        let full = member([1000, 1000], Some([0, 0]));
        let found = steps(1, &full, [1500, 500], [120, 120]);
        let [step] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert!(step.is_exchange);
        assert_eq!(mib(&step.to), [1060, 1000]);
        // As much as may be taken at once.
        let found = steps(1, &full, [1500, 500], [1000, 0]);
        assert_eq!(mib(&found[0].to), [1100, 1000]);
        // Others swap, or the host has none.
        assert!(steps(1, &full, [1500, 500], [0, 1000]).is_empty());
        // It is not known what of its memory nobody uses.
        assert!(steps(1, &member([1000, 1000], None), [1500, 500], [120, 120]).is_empty());
    }

    #[test]
    fn what_a_guest_uses_of_a_tier_does_not_go() {
        let config = ArbiterConfig::default();
        let mut one = member([1000, 1000], Some([0, 0]));
        one.begin_exchange(
            Tick(SECOND),
            &[1000 * MIB, 1000 * MIB],
            &[1060 * MIB, 1000 * MIB],
        );
        resize(&mut one, [1060, 1000]);
        one.follow_exchange(Tick(2 * SECOND), &config);
        assert_eq!(one.exchanged(), 60 * MIB);
        assert!(steps(2, &one, [1500, 500], [60, 120]).is_empty());
        // What came is free, but not in the tier that is to go.
        let tiers = one.uses.tiers.as_mut().expect("tiers");
        tiers.free_bytes[0] = 90 * MIB;
        assert!(steps(2, &one, [1500, 500], [60, 120]).is_empty());
        // A little stays free.
        let tiers = one.uses.tiers.as_mut().expect("tiers");
        tiers.free_bytes[1] = 90 * MIB;
        let found = steps(2, &one, [1500, 500], [60, 120]);
        assert_eq!(mib(&found[0].to), [1060, 940]);
        resize(&mut one, [1060, 940]);
        one.follow_exchange(Tick(3 * SECOND), &config);
        assert!(one.may_exchange(Tick(3 * SECOND)) && one.exchanged() == 0);
    }

    #[test]
    fn an_exchange_that_does_not_end_is_undone_and_rests() {
        let config = ArbiterConfig::default();
        // Its guest uses what came, too.
        let mut one = member([1000, 1000], Some([0, 0]));
        one.begin_exchange(
            Tick(SECOND),
            &[1000 * MIB, 1000 * MIB],
            &[1060 * MIB, 1000 * MIB],
        );
        resize(&mut one, [1060, 1000]);
        one.follow_exchange(Tick(2 * SECOND), &config);
        assert_eq!(one.undoes_exchange(Tick(2 * SECOND), &config), None);
        let late = Tick(40 * SECOND);
        let before = one.undoes_exchange(late, &config).expect("it is late");
        assert_eq!(mib(&before), [1000, 1000]);
        let found = steps(40, &one, [1000, 1000], [60, 120]);
        assert_eq!(mib(&found[0].to), [1000, 1000]);
        // Nor does it let that go: there is no other one before it does.
        let later = Tick(70 * SECOND);
        one.follow_exchange(later, &config);
        assert_eq!(one.undoes_exchange(later, &config), None);
        let later = Tick(later.0 + config.pause_ns());
        assert!(!one.may_exchange(later) && one.exchanged() == 60 * MIB);
        let later = Tick(later.0 + 30 * SECOND);
        assert_eq!(one.undoes_exchange(later, &config), Some(before));
        resize(&mut one, [1000, 1000]);
        one.follow_exchange(later, &config);
        assert!(!one.may_exchange(later) && one.exchanged() == 0);
        assert!(one.may_exchange(Tick(later.0 + config.pause_ns())));
    }

    #[test]
    fn exchanges_take_no_more_than_the_host_can_give() {
        let one = member([1000, 1000], Some([0, 0]));
        let members = BTreeMap::from([(ProviderId(1), one.clone()), (ProviderId(2), one)]);
        let to = [[1500, 500], [500, 1500]].map(|to| to.map(|mib| mib * MIB).to_vec());
        let to = (1..).map(ProviderId).zip(to).collect();
        let mut capacity = Kinds::default();
        capacity.add(&[4000 * MIB, 4000 * MIB]);
        let host = Host {
            capacity,
            reserve: Kinds::default(),
            headroom: 90 * MIB,
        };
        let on = On {
            now: Tick(SECOND),
            takes: Takes::All,
        };
        let found = towards(on, &members, &to, &host, &ArbiterConfig::default());
        let more = found.iter().map(|step| sum(&step.to) - sum(&step.from));
        assert_eq!(more.sum::<u64>(), 90 * MIB, "{found:?}");
    }
}
