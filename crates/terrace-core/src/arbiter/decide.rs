//! The sizes that a rule wants all VMs to have.

use std::collections::BTreeMap;

use terrace_proto::{ProviderId, Tick};

use super::fair::Beyond;
use super::kinds::Kinds;
use super::member::Member;
use super::steps::{Host, Targets};
use super::{fair, percent, sum, tiers};
use crate::config::{ArbiterConfig, Rule};
use crate::share::{FloorsExceed, Need, Want, totals};

type Members = BTreeMap<ProviderId, Member>;

/// The sizes that a rule wants.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub targets: Targets,
    /// Who would be slower than its bound.
    pub beyond: Vec<Beyond>,
}

/// Those that can be resized now.
pub(super) type Parties<'a> = [(ProviderId, &'a Member)];

/// The sizes of all that can be resized now. VMs whose device knows tiers share their memory, and the others theirs.
///
/// # Errors
/// If the floors of all are more than there is.
pub(super) fn targets(
    now: Tick,
    members: &Members,
    host: &Host,
    config: &ArbiterConfig,
) -> Result<Wanted, FloorsExceed> {
    let mut wanted = Wanted::default();
    if !config.rule.divides_by_gain() {
        return Ok(wanted);
    }
    let (tiered, whole): (Vec<_>, Vec<_>) =
        members.iter().partition(|(_, member)| member.tiers() > 1);
    for (group, first) in [(whole, 0), (tiered, 1)] {
        let (parties, others): (Vec<_>, Vec<_>) =
            group.into_iter().partition(|(_, member)| member.can_act());
        if parties.is_empty() {
            continue;
        }
        let mut held = Kinds::default();
        for (_, member) in others {
            held.add(&member.most_each());
        }
        let parties: Vec<_> = parties.into_iter().map(|(id, of)| (*id, of)).collect();
        let left = host.capacity.less(&held);
        let sums = match first {
            0 => (left[0], host.reserve[0]),
            first => (left.from(first), host.reserve.from(first)),
        };
        let (totals, mut beyond) = totals_of(now, &parties, sums, config)?;
        let sizes = match first {
            0 => totals.into_iter().map(|total| vec![total]).collect(),
            _ => tiers::Split::new(&parties, &totals, config).sizes(
                &left,
                &host.reserve,
                &mut beyond,
            ),
        };
        wanted.beyond.extend(beyond);
        for ((id, member), sizes) in parties.iter().zip(sizes) {
            let before = member.undoes_exchange(now, config);
            wanted.targets.push((*id, before.unwrap_or(sizes)));
        }
    }
    wanted.targets.sort_by_key(|(id, _)| *id);
    Ok(wanted)
}

/// The total of each, of so much memory with a reserve in it, and who is slower than its bound.
fn totals_of(
    now: Tick,
    parties: &Parties<'_>,
    (mut left, reserve): (u64, u64),
    config: &ArbiterConfig,
) -> Result<(Vec<u64>, Vec<Beyond>), FloorsExceed> {
    let mut needs = needs(now, parties, config, Member::idle);
    if !fit(&needs, left) {
        // More is in use than there is, or somebody is owed what it had: what is free now is for that.
        needs = self::needs(now, parties, config, Member::spare);
    }
    if !fit(&needs, left) {
        // A VM that had lent some is gone. Then floors alone hold; but what one took
        // unasked is taken from nobody who has no more than it brought.
        let brought = |member: &Member| match config.names_capacity() {
            true => 0,
            false => member.size().min(member.all_brought().unwrap_or(0)),
        };
        for (need, (_, member)) in needs.iter_mut().zip(parties) {
            need.floor_bytes = member.own_floor().max(brought(member));
        }
        let own = parties.iter().map(|(_, member)| brought(member));
        left = left.max(own.fold(0, u64::saturating_add));
    }
    let beside = left.saturating_sub(reserve);
    if config.rule == Rule::Fair {
        let floors = needs.iter().map(|need| need.floor_bytes);
        let floors = floors.fold(0, u64::saturating_add);
        // The reserve is for those that begin to swap.
        let draws = |(_, member): &(ProviderId, &Member)| {
            member.is_swapping() && member.draws_on(now, reserve, config)
        };
        let least = if parties.iter().any(draws) {
            left
        } else {
            beside
        };
        return fair::totals(parties, &needs, floors.clamp(least, left), config);
    }
    let lacks = fill_reserve(&mut needs, parties, (left, reserve), config);
    let lacks = take_unused(now, &mut needs, parties, lacks, config);
    take_cache(now, &mut needs, parties, lacks, config);
    let expected = needs
        .iter()
        .map(Need::expected_bytes)
        .fold(0, u64::saturating_add);
    Ok((totals(&needs, expected.clamp(beside, left))?, Vec::new()))
}

/// Those that are to have more than they have.
pub(super) fn takers(members: &Members, targets: &Targets) -> Vec<ProviderId> {
    let more = targets.iter().filter(|(id, target)| {
        members.get(id).is_some_and(|member| {
            sum(target) > member.size().saturating_add(percent(member.size(), 1))
        })
    });
    more.map(|(id, _)| *id).collect()
}

/// Memory of a VM that it can do without, bytes.
type Free = fn(&Member, &ArbiterConfig) -> u64;

/// The needs of VMs of which nobody takes more than what `free` says, if nothing else is known of them.
fn needs<'a>(
    now: Tick,
    parties: &[(ProviderId, &'a Member)],
    config: &ArbiterConfig,
    free: Free,
) -> Vec<Need<'a>> {
    let members = parties.iter().map(|(_, member)| *member);
    let needs = members.map(|member| need(now, member, config, free(member, config)));
    needs.collect()
}

/// Whether the floors are no more than there is.
fn fit(needs: &[Need<'_>], capacity: u64) -> bool {
    let floors = needs.iter().map(|need| need.floor_bytes);
    floors.fold(0, u64::saturating_add) <= capacity
}

fn need<'a>(now: Tick, member: &'a Member, config: &ArbiterConfig, free: u64) -> Need<'a> {
    let want = member.want(config);
    let curve = match want {
        Want::WorkingSet { .. } => member.demand.curve.as_ref(),
        Want::Swapping { .. } | Want::Same => None,
    };
    let exchanged = member.exchanged();
    let used = match want {
        Want::Same => member.size() - free.max(member.lent()).max(exchanged),
        Want::Swapping { .. } => member.size() - member.lent(),
        Want::WorkingSet { .. } => 0,
    };
    let floor = member.floor(now);
    let want = match want {
        Want::Same if exchanged > 0 => Want::WorkingSet {
            bytes: member.size() - exchanged,
        },
        want => want,
    };
    Need {
        weight: member.rights.weight,
        floor_bytes: floor.max(used).min(member.ceiling()),
        ceiling_bytes: member.ceiling(),
        size_bytes: member.size(),
        want,
        curve,
        fault_ns: member.fault_ns(config),
    }
}

/// Lets VMs that want no more than they have give what was free for long, until others have what they want and the reserve
/// is full. What somebody is held at, and has not, comes of all that is free now, and so does what is there no more. Returns
/// what is lacking then, bytes.
fn fill_reserve(
    needs: &mut [Need<'_>],
    parties: &Parties<'_>,
    (capacity, reserve): (u64, u64),
    config: &ArbiterConfig,
) -> u64 {
    let sum = |of: fn(&Need<'_>) -> u64| needs.iter().map(of).fold(0, u64::saturating_add);
    let expected = sum(|need| need.expected_bytes());
    let mut lacks = expected.saturating_sub(capacity.saturating_sub(reserve));
    let mut owed = match sum(|need| need.size_bytes) > capacity {
        true => lacks,
        false => sum(|need| need.floor_bytes.saturating_sub(need.size_bytes)).min(lacks),
    };
    for (need, (_, member)) in needs.iter_mut().zip(parties) {
        if need.want == Want::Same {
            let give = owed.min(member.spare(config));
            let give = give.max(lacks.min(member.idle(config)));
            need.want = Want::WorkingSet {
                bytes: need.size_bytes - give,
            };
            lacks -= give;
            owed = owed.saturating_sub(give);
        }
    }
    lacks
}

/// Lets guests that do not swap give what their programs do not use, by its age, to those that do. Returns what is lacking
/// then, bytes.
fn take_unused(
    now: Tick,
    needs: &mut [Need<'_>],
    parties: &Parties<'_>,
    mut lacks: u64,
    config: &ArbiterConfig,
) -> u64 {
    if !needs.iter().any(Need::is_swapping) {
        return lacks;
    }
    for (need, (_, member)) in needs.iter_mut().zip(parties) {
        if let Want::WorkingSet { bytes } = need.want
            && need.curve.is_none()
        {
            let unused = member.unused(config).min(lacks);
            let bytes = bytes.saturating_sub(unused);
            need.want = Want::WorkingSet { bytes };
            need.floor_bytes = need.floor_bytes.min(bytes.max(member.floor(now)));
            lacks -= unused;
        }
    }
    lacks
}

/// Lets guests that do not swap give page cache to those that do.
fn take_cache(
    now: Tick,
    needs: &mut [Need<'_>],
    parties: &Parties<'_>,
    mut lacks: u64,
    config: &ArbiterConfig,
) {
    if !needs.iter().any(Need::is_swapping) {
        return;
    }
    for (need, (_, member)) in needs.iter_mut().zip(parties) {
        let Want::WorkingSet { bytes } = need.want else {
            continue;
        };
        // One with a curve gives by that.
        if need.curve.is_none() && lacks > 0 && member.unused(config) == 0 {
            // In whole steps: a smaller change would be none.
            let cache = member.cache(now, config);
            let bytes = bytes.saturating_sub(cache);
            need.want = Want::WorkingSet { bytes };
            need.floor_bytes = need.floor_bytes.min(bytes.max(member.floor(now)));
            lacks = lacks.saturating_sub(cache);
        }
    }
}
