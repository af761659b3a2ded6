//! From what a rule wants to what may be done now.
//!
//! **Invariant:** whatever a rule wants, no VM comes below its floor or above its ceiling, all together have no more of
//! any tier than there is, and nobody grows in a tier before the memory is there.
//!
//! A step either takes or gives. A VM that is to have more of one tier and as much less of another gives what nobody uses, or
//! else takes first what is there ([`super::exchange`]).

use std::collections::{BTreeMap, BTreeSet};

use terrace_proto::{ProviderId, Tick};

use super::kinds::{Kinds, kind};
use super::member::{Direction, Member};
use super::{percent, sum};
use crate::config::ArbiterConfig;

/// Sizes that a VM is to have, of each tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub provider: ProviderId,
    pub from: Vec<u64>,
    pub to: Vec<u64>,
    /// Whether as much of another tier goes afterwards.
    pub is_exchange: bool,
}

impl Step {
    /// A step by itself.
    pub fn new(provider: ProviderId, from: Vec<u64>, to: Vec<u64>) -> Self {
        Self {
            provider,
            from,
            to,
            is_exchange: false,
        }
    }

    /// Whether the VM is to have more.
    pub fn grows(&self) -> bool {
        sum(&self.to) > sum(&self.from)
    }

    /// Memory that the VM is to have beyond what it has, bytes.
    pub fn more(&self) -> u64 {
        sum(&self.to).saturating_sub(sum(&self.from))
    }

    /// The direction of a tier; `None` if it stays.
    pub fn direction(&self, tier: usize) -> Option<Direction> {
        match self.to[tier].cmp(&self.from[tier]) {
            std::cmp::Ordering::Less => Some(Direction::Down),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(Direction::Up),
        }
    }

    /// The sizes that change.
    pub fn changes(&self) -> Vec<Option<u64>> {
        let changed = |tier: usize| self.direction(tier).map(|_| self.to[tier]);
        (0..self.to.len()).map(changed).collect()
    }
}

type Members = BTreeMap<ProviderId, Member>;

/// Sizes of each tier that VMs are to have.
pub(super) type Targets = Vec<(ProviderId, Vec<u64>)>;

/// Memory that there is, and how much of it is kept for VMs that begin to swap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host {
    pub capacity: Kinds,
    pub reserve: Kinds,
    /// Memory of the host that is available beyond what it is to have, bytes: VMs grow by no more.
    pub headroom: u64,
}

impl Host {
    /// The reserve of all memory that a VM whose device sizes so many tiers can have.
    pub fn reserve_for(&self, tiers: usize) -> u64 {
        match tiers {
            0 | 1 => self.reserve[0],
            _ => self.reserve.from(1),
        }
    }

    /// Memory that nobody has or is on its way to.
    pub fn room(&self, members: &Members) -> Kinds {
        let held = held(members);
        self.capacity.less(&held).at_most_each(self.headroom)
    }

    /// Memory that VMs have, or are on their way to, beyond what there is, bytes.
    pub fn excess(&self, members: &Members) -> u64 {
        held(members).less(&self.capacity).from(0)
    }
}

/// Memory that VMs have, or are on their way to.
fn held(members: &Members) -> Kinds {
    let mut held = Kinds::default();
    for member in members.values() {
        held.add(&member.most_each());
    }
    held
}

/// Memory that may be taken of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// What others lent, and as much of its own as a cycle allows.
    All,
    /// What others lent: it is between two cycles.
    Lent,
}

/// An occasion for steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct On {
    pub now: Tick,
    pub takes: Takes,
}

/// The steps towards these sizes: those that shrink first. Of two proposals for a VM the first one counts.
pub(super) fn towards(
    on: On,
    members: &Members,
    targets: &Targets,
    host: &Host,
    config: &ArbiterConfig,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let (mut grow, mut exchange) = (Vec::new(), Vec::new());
    let mut seen = BTreeSet::new();
    for (id, target) in targets {
        let Some(member) = members.get(id).filter(|member| member.can_act()) else {
            continue;
        };
        if !seen.insert(*id) {
            continue;
        }
        let from = member.sizes_each();
        // Who is to have more in all does not give first.
        let more = sum(target) > sum(&from) && matters(sum(&from), sum(target), config);
        let shrunk = shrunk(on, member, target, config).filter(|_| !more);
        if let Some(to) = shrunk {
            steps.push(Step::new(*id, from, to));
        } else if target.iter().zip(&from).any(|(to, from)| to > from) {
            match more || member.size() < member.held(on.now) {
                true => grow.push((*id, member, target)),
                false => exchange.push((*id, member, target)),
            }
        }
    }
    let growth = Growth {
        now: on.now,
        config,
        host,
    };
    let mut room = host.room(members);
    let grown = growth.steps(grow, &mut room);
    let more = grown.iter().map(Step::more).fold(0, u64::saturating_add);
    let headroom = host.headroom.saturating_sub(more);
    steps.extend(grown);
    // The reserve is theirs who swap.
    if on.takes == Takes::All && !members.values().any(Member::is_swapping) {
        steps.extend(growth.exchanges(exchange, room, headroom));
    }
    steps
}

/// The sizes that a VM may have now on its way down.
fn shrunk(on: On, member: &Member, target: &[u64], config: &ArbiterConfig) -> Option<Vec<u64>> {
    let (has, now) = (member.size(), on.now);
    let lent = member.called_back(now, config);
    // Its own memory is not taken while it swaps or loses more than before it shrank last, nor twice in a cycle.
    let is_short = member.is_swapping() || member.suffers();
    let only_lent = is_short || on.takes == Takes::Lent;
    if only_lent && lent == 0 {
        return None;
    }
    let beyond = member.pace(config);
    let mut spare = member.spare(config);
    // What a lender lost by comes back in steps, unless it swaps.
    let at_once = match (member.loan.is_paced, on.takes) {
        (true, Takes::Lent) => return None,
        (true, Takes::All) => 0,
        (false, _) => lent,
    };
    let mut most = spare.max(beyond).max(at_once);
    if only_lent {
        (spare, most) = (spare.min(lent), most.min(lent));
    }
    // Memory that only changes its tier is taken as far as nobody uses it.
    let stays = !matters(has.saturating_sub(member.exchanged()), sum(target), config);
    let mut limit = most.min(has.saturating_sub(sum(target)));
    if stays {
        limit = limit.max(spare.min(beyond));
    }
    let limit = limit.min(member.most_taken(now, config));
    let limit = limit.min(has.saturating_sub(member.floor(now)));
    // What is in use and goes all the same. If it is not known where memory is free, it may be anywhere.
    let in_use = match stays {
        // What came is taken even so if what is to go is used for long.
        true if member.is_undone(now, config) => member.exchanged(),
        true => 0,
        false if member.uses.tiers.is_none() => u64::MAX,
        false => has.saturating_sub(sum(target)).saturating_sub(spare),
    };
    let mut left = limit;
    let mut to = member.sizes_each();
    for (i, tier) in member.sizes.as_ref()?.tiers.iter().enumerate().rev() {
        if turns(now, member, i, Direction::Down, config) {
            continue;
        }
        let wanted = target.get(i).map_or(0, |to| tier.size.saturating_sub(*to));
        let here = member.free_from(i, config).saturating_add(in_use);
        let here = here.saturating_sub(limit - left);
        to[i] = tier.down_by(wanted.min(here).min(left));
        left -= tier.size - to[i];
    }
    matters(has, sum(&to), config).then_some(to)
}

/// VMs that grow.
struct Growth<'a> {
    now: Tick,
    config: &'a ArbiterConfig,
    host: &'a Host,
}

type Grows<'a> = (ProviderId, &'a Member, &'a Vec<u64>);

impl Growth<'_> {
    /// The sizes of VMs that grow. Those that swap take of the reserve.
    fn steps(&self, mut wanted: Vec<Grows<'_>>, room: &mut Kinds) -> Vec<Step> {
        wanted.sort_by_key(|(_, member, _)| !member.is_swapping());
        let mut steps = Vec::new();
        let mut left = self.host.headroom;
        // Weights of those that are still to come: that do not swap, and that do.
        let mut weights = [false, true].map(|swaps| {
            let of = wanted.iter().map(|(_, member, _)| member);
            let of = of.filter(|member| member.is_swapping() == swaps);
            of.map(|member| u128::from(member.rights.weight))
                .sum::<u128>()
        });
        for (id, member, target) in &wanted {
            let from = member.sizes_each();
            let peers = &mut weights[usize::from(member.is_swapping())];
            let to = self.grown(member, target, *peers, room);
            *peers = peers.saturating_sub(u128::from(member.rights.weight));
            if !matters(sum(&from), sum(&to), self.config) {
                continue;
            }
            let tiers = from.len();
            for (tier, (to, from)) in to.iter().zip(&from).enumerate() {
                room.take(kind(tiers, tier), to - from);
            }
            left = left.saturating_sub(sum(&to).saturating_sub(sum(&from)));
            *room = room.at_most_each(left);
            steps.push(Step::new(*id, from, to));
        }
        steps
    }

    /// Memory that comes for which as much of another tier is to go: no more than half of the reserve, and as much as may be
    /// taken at once. `headroom`: the most for all together.
    fn exchanges(&self, wanted: Vec<Grows<'_>>, mut room: Kinds, mut headroom: u64) -> Vec<Step> {
        let mut steps = Vec::new();
        for (id, member, target) in wanted {
            if !member.may_exchange(self.now) {
                continue;
            }
            let (from, tiers) = (member.sizes_each(), member.tiers());
            let mut to = from.clone();
            let most = member.may_have().saturating_sub(sum(&from));
            let most = most.min(goes(member, target));
            let mut left = most.min(member.pace(self.config)).min(headroom);
            for (i, tier) in member.sizes.iter().flat_map(|of| &of.tiers).enumerate() {
                let kind = kind(tiers, i);
                let there = room[kind].saturating_sub(self.host.reserve[kind] / 2);
                let wants = target.get(i).map_or(0, |to| to.saturating_sub(from[i]));
                if turns(self.now, member, i, Direction::Up, self.config) {
                    continue;
                }
                to[i] = tier.up_by(wants.min(there).min(left)).max(from[i]);
                left = left.saturating_sub(to[i] - from[i]);
            }
            // What goes again must be outside of the dead band, too.
            if !matters(sum(&to), sum(&from), self.config) {
                continue;
            }
            for (tier, (to, from)) in to.iter().zip(&from).enumerate() {
                room.take(kind(tiers, tier), to - from);
            }
            let step = Step {
                is_exchange: true,
                ..Step::new(id, from, to)
            };
            headroom -= step.more();
            steps.push(step);
        }
        steps
    }

    /// The sizes of a VM that grows. `peers`: its weight and those of all that come after it and are as badly off.
    fn grown(&self, member: &Member, target: &[u64], peers: u128, room: &Kinds) -> Vec<u64> {
        let from = member.sizes_each();
        let mut to = from.clone();
        let Some(sizes) = &member.sizes else {
            return to;
        };
        let all = member.may_have().saturating_sub(sum(&from));
        let net = all.min(sum(target).saturating_sub(sum(&from)));
        let mut give = |wanted: &dyn Fn(usize, u64) -> u64, most: u64| {
            for (i, tier) in sizes.tiers.iter().enumerate().rev() {
                let there = self.part(member, i, peers, room);
                let there = there.saturating_sub(to[i] - from[i]);
                let left = most.saturating_sub(sum(&to) - sum(&from));
                let more = wanted(i, to[i]).min(there).min(left);
                to[i] = tier
                    .up_by((to[i] - from[i]).saturating_add(more))
                    .max(to[i]);
            }
        };
        let named = |i: usize, has: u64| target.get(i).map_or(0, |to| to.saturating_sub(has));
        give(&named, all);
        // What there is of no slow tier comes from a faster one.
        give(&|_, _| u64::MAX, net);
        to
    }

    /// The part of a VM in what is there of a tier.
    fn part(&self, member: &Member, tier: usize, peers: u128, room: &Kinds) -> u64 {
        let swaps = member.is_swapping();
        // Who swaps does not wait for having given lately.
        if !swaps && turns(self.now, member, tier, Direction::Up, self.config) {
            return 0;
        }
        let kind = kind(member.tiers(), tier);
        let reserve = self.host.reserve_for(member.tiers());
        let there = match member.draws_on(self.now, reserve, self.config) {
            true => room[kind],
            false => room[kind].saturating_sub(self.host.reserve[kind]),
        };
        let part = u128::from(there) * u128::from(member.rights.weight);
        let part = part.checked_div(peers).unwrap_or(0);
        u64::try_from(part).unwrap_or(u64::MAX).min(there)
    }
}

/// Memory in whole blocks that goes of tiers which shrink, bytes.
fn goes(member: &Member, target: &[u64]) -> u64 {
    let tiers = member.sizes.iter().flat_map(|of| &of.tiers);
    let less = tiers.zip(target).map(|(tier, to)| {
        let to = tier.down_by(tier.size.saturating_sub(*to));
        tier.size - to
    });
    less.fold(0, u64::saturating_add)
}

/// Whether a tier of the VM changed in the other direction a short while ago.
pub(super) fn turns(
    now: Tick,
    member: &Member,
    tier: usize,
    direction: Direction,
    config: &ArbiterConfig,
) -> bool {
    let turned = member.turned.get(tier).copied().flatten();
    turned.is_some_and(|(at, last)| {
        last != direction && now.0.saturating_sub(at.0) < ArbiterConfig::ns(config.turn_ms)
    })
}

/// Whether a change is outside of the dead band.
fn matters(from: u64, to: u64, config: &ArbiterConfig) -> bool {
    from != to && from.abs_diff(to) >= percent(from, config.dead_band_percent)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use terrace_proto::{MemoryNeed, MemoryRights};

    use super::*;
    use crate::provision::{Sizes, TierSize};

    const MIB: u64 = 1 << 20;

    /// A VM of one or two tiers, with a floor and a ceiling, which may be on its way to other sizes, swap, lose more than
    /// before it shrank, have free memory, or owe what others lent.
    #[derive(Clone, Debug)]
    struct Party {
        sizes: Vec<u64>,
        target: u64,
        bounds: Bounds,
        free: u64,
        /// Whether it swaps, is on its way, can be unplugged, shrank once, and loses time.
        is: [bool; 5],
        turned: Option<(u64, Direction)>,
    }

    /// The bounds of a VM, and what is owed.
    #[derive(Clone, Copy, Debug)]
    struct Bounds {
        floor: u64,
        ceiling: u64,
        weight: u32,
        /// The size at which it is held.
        held: u64,
        /// Memory that it brought, whether what it has beyond that is called back, and in steps.
        brought: Option<(u64, bool)>,
        is_paced: bool,
    }

    impl Party {
        fn size(&self) -> u64 {
            sum(&self.sizes)
        }

        fn swaps(&self) -> bool {
            self.is[0]
        }

        fn suffers(&self) -> bool {
            self.is[3] && self.is[4]
        }

        /// Memory that it brought, if more is called back.
        fn returns(&self) -> Option<u64> {
            let brought = self.bounds.brought.filter(|(_, returns)| *returns);
            brought.map(|(brought, _)| brought)
        }

        /// The least that it may be brought to now, if it is larger.
        fn least(&self) -> u64 {
            // One that is to give back is held at no more than it brought.
            let held = self.bounds.held.min(self.returns().unwrap_or(u64::MAX));
            self.bounds
                .floor
                .max(held.min(self.bounds.ceiling.max(self.bounds.floor)))
        }
    }

    fn bounds() -> impl Strategy<Value = Bounds> {
        let weight = prop_oneof![Just(1), Just(1000), Just(u32::MAX), 1..100_000_u32];
        let held = prop_oneof![Just(0), 0..4096_u64];
        let brought = prop::option::of((0..4096_u64, any::<bool>()));
        let of = (0..2048_u64, 64..8192_u64, weight, held, brought);
        (of, any::<bool>()).prop_map(
            |((floor, ceiling, weight, held, brought), is_paced)| Bounds {
                floor: floor * MIB,
                ceiling: ceiling * MIB,
                weight,
                held: held * MIB,
                brought: brought.map(|(brought, returns)| (brought * MIB, returns)),
                is_paced,
            },
        )
    }

    fn party() -> impl Strategy<Value = Party> {
        let turned = prop::option::of((0..20_u64, any::<bool>()));
        let sizes = prop::collection::vec(64..2048_u64, 1..3);
        let of = (sizes, 64..4096_u64, 0..4096_u64, prop::bool::weighted(0.2));
        let is = any::<[bool; 5]>();
        (of, bounds(), is, turned).prop_map(|((sizes, target, free, moves), bounds, is, turned)| {
            let sizes: Vec<u64> = sizes.into_iter().map(|mib| mib * MIB).collect();
            Party {
                target: if moves { target * MIB } else { sizes[0] },
                bounds: Bounds {
                    floor: bounds.floor.min(sum(&sizes)),
                    ..bounds
                },
                sizes,
                free: free * MIB,
                is,
                turned: turned
                    .map(|(ago, up)| (ago, if up { Direction::Up } else { Direction::Down })),
            }
        })
    }

    const NOW: Tick = Tick(100_000_000_000);

    /// Lets its guest say for two seconds what it needs. It loses 5 ms a second, if it does: too little to be taken for one
    /// that swaps.
    fn speaks(member: &mut Member, party: &Party) {
        let [swaps, _, _, shrank, loses] = party.is;
        for (second, at) in [(98, 0), (99, 1)] {
            let need = MemoryNeed {
                provider: member.rights.provider,
                free_bytes: party.free,
                used_swap_bytes: u64::from(swaps) * at * MIB,
                major_faults: 0,
                lost_ns: u64::from(loses) * at * 5_000_000,
                huge_percent: 0,
            };
            member.need(Tick(second * 1_000_000_000), need);
        }
        member.past.before_shrink = shrank.then(super::super::member::Rate::default);
    }

    fn member(id: u32, party: &Party) -> Member {
        let (provider, bounds) = (ProviderId(id), party.bounds);
        let mut member = Member::new(MemoryRights {
            provider,
            vm: None,
            floor_bytes: bounds.floor,
            ceiling_bytes: bounds.ceiling,
            weight: bounds.weight,
        });
        speaks(&mut member, party);
        let tier = |(i, size): (usize, &u64)| {
            let target = if i == 0 { party.target } else { *size };
            TierSize {
                size: *size,
                target,
                most: (*size).max(target),
                least: 0,
                whole: 8192 * MIB,
                block: MIB,
            }
        };
        let [_, pending, unplugs, ..] = party.is;
        member.sizes = Some(Sizes {
            tiers: party.sizes.iter().enumerate().map(tier).collect(),
            still: (party.sizes[0] != party.target).then_some("on its way"),
            unplugs,
        });
        member.asked.pending = pending.then(|| (terrace_proto::ResizeId(1), party.sizes.clone()));
        member.hold_at(NOW, bounds.held, Tick(NOW.0 + 1));
        if let Some((brought, returns)) = bounds.brought {
            member.loan.brought = Some(vec![brought]);
            member.loan.returns = returns;
            member.loan.is_paced = bounds.is_paced;
        }
        let at = |ago: u64| Tick(NOW.0 - ago * 1_000_000_000);
        let turned = party.turned.map(|(ago, direction)| (at(ago), direction));
        member.turned = [turned; 4];
        member
    }

    /// Checks a step of a VM. `all`: its own memory may be taken, too.
    fn check(step: &Step, party: &Party, member: &Member, all: bool) -> Result<(), TestCaseError> {
        prop_assert!(member.can_act() && step.from == party.sizes);
        prop_assert_eq!(member.is_swapping(), party.swaps());
        prop_assert_eq!(member.suffers(), party.suffers());
        let turned = |last| party.turned.is_some_and(|(ago, d)| d == last && ago < 10);
        let (from, to) = (sum(&step.from), sum(&step.to));
        let mut each = step.to.iter().zip(&step.from);
        if to < from {
            let lent = from.saturating_sub(party.returns().unwrap_or(from));
            let spare = member.spare(&ArbiterConfig::default());
            let at_once = if party.bounds.is_paced { 0 } else { lent };
            let cap = spare.max(64 * MIB).max(party.size() / 20).max(at_once);
            prop_assert!(each.all(|(to, from)| to <= from));
            prop_assert!(to >= party.least().min(from) && from - to <= cap);
            let pace = member.pace(&ArbiterConfig::default());
            let moves = party.free.max(lent.min(pace));
            prop_assert!(!party.is[2] || from - to <= moves, "{from} to {to}");
            prop_assert!(!turned(Direction::Up));
            // What it brought is taken of nobody who swaps or loses more than before it shrank, nor between two cycles.
            if party.swaps() || party.suffers() || !all {
                prop_assert!(
                    from - to <= lent && (all || at_once > 0),
                    "{from} to {to}, of which {lent} lent"
                );
            }
        } else {
            prop_assert!(each.all(|(to, from)| to >= from));
            let most = party.bounds.ceiling.max(party.bounds.floor);
            prop_assert!(to <= most.min(party.returns().unwrap_or(most)));
            prop_assert!(party.swaps() || !turned(Direction::Down));
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// Whatever a rule proposes: duplicates, strangers, sizes beyond everything.
        #[test]
        fn no_proposal_breaks_floors_ceilings_sums_or_the_pace(
            parties in prop::collection::vec(party(), 1..7),
            proposals in prop::collection::vec((0..9_u32, [0..20_000_u64, 0..20_000]), 0..12),
            beside in 0..4096_u64,
            all in prop::bool::weighted(0.8),
        ) {
            let config = ArbiterConfig::default();
            let members: Members = (0..)
                .zip(&parties)
                .map(|(id, party)| (ProviderId(id), member(id, party)))
                .collect();
            let mut capacity = Kinds::default();
            for member in members.values() {
                capacity.add(&member.most_each());
            }
            capacity.add(&[beside * MIB]);
            capacity.add(&[beside * MIB, beside / 2 * MIB]);
            let reserve = capacity.percent(config.reserve_percent);
            let host = Host { capacity, reserve, headroom: u64::MAX };
            let proposals: Targets = proposals
                .iter()
                .map(|(id, mib)| (ProviderId(*id), mib.map(|mib| mib * MIB).to_vec()))
                .collect();
            let on = On { now: NOW, takes: if all { Takes::All } else { Takes::Lent } };
            let steps = towards(on, &members, &proposals, &host, &config);
            let (mut given, mut to_others) = (Kinds::default(), Kinds::default());
            let mut stepped = BTreeSet::new();
            for step in &steps {
                let party = &parties[step.provider.0 as usize];
                prop_assert!(stepped.insert(step.provider), "two orders at once: {steps:?}");
                check(step, party, &members[&step.provider], all)?;
                if step.grows() {
                    let more: Vec<u64> = step.to.iter().zip(&step.from).map(|(t, f)| t - f).collect();
                    given.add(&more);
                    // One that is held at more gave it to the reserve.
                    if !party.swaps() && party.size() >= party.least() {
                        to_others.add(&more);
                    }
                }
            }
            let room = host.room(&members);
            for kind in 0..3 {
                // Nobody grows into memory that another one still has.
                prop_assert!(given[kind] <= room[kind], "{given:?}");
                let free = room[kind].saturating_sub(host.reserve[kind]);
                prop_assert!(to_others[kind] <= free || to_others[kind] == 0);
            }
        }
    }
}
