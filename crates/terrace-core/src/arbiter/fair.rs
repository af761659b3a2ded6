//! `fair`: sizes by slowdown, as far as lost time is known.
//!
//! The time in which a VM works is that of its vCPUs less the time that they lose by its curve: both are the host's to know.
//! Only of one that swaps the guest's word counts, up to all the time of its vCPUs. An idle VM counts as one that works all
//! the time, so what it loses weighs little.

use terrace_proto::ProviderId;

use super::member::{Member, WAITS_NS};
use super::sum;
use crate::config::ArbiterConfig;
use crate::share::{FairNeed, FloorsExceed, Loss, Need, in_proportion, least_slowdown};

/// Nanoseconds in a second of a vCPU.
const SECOND_NS: u64 = 1_000_000_000;
/// Millionths of a slowdown in a thousandth of a bound.
const PPM_PER_MILLI: u64 = 1000;

/// A VM that is slower than its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beyond {
    pub provider: ProviderId,
    /// The slowdown at its new size, millionths.
    pub slowdown_ppm: u64,
    /// The bound, thousandths.
    pub bound_milli: u32,
}

/// Time that a VM loses at each total: by its curve, or by what its guest waits for now and how much that is.
fn loss(member: &Member, need: &Need<'_>, config: &ArbiterConfig) -> Option<Loss> {
    if !need.is_swapping() {
        return need.loss();
    }
    let lacks = member.lacks(config).max(member.swap.used_bytes());
    let lost = member.rate().lost_ns.min(all_ns(member)).max(WAITS_NS);
    Some(Loss::until(need.size_bytes, lost, lacks))
}

/// Time of all vCPUs, ns per second.
fn all_ns(member: &Member) -> u64 {
    let vcpus = member.uses.speed.map_or(1, |speed| speed.vcpus.max(1));
    u64::from(vcpus).saturating_mul(SECOND_NS)
}

/// Time that it loses with the memory that it has, ns per second: the guest's word while it swaps, else its curve's.
fn loses(member: &Member, config: &ArbiterConfig) -> u64 {
    if member.is_swapping() {
        return member.rate().lost_ns;
    }
    let curve = member.demand.curve.as_ref();
    let loss = curve.and_then(|curve| Loss::of_curve(curve, member.fault_ns(config)));
    loss.map_or(0, |loss| loss.at(member.size()))
}

/// A VM as the rule takes it, with this loss.
pub(super) fn need<'a>(
    member: &Member,
    bounds: (u64, u64),
    size_bytes: u64,
    loss: Option<&'a Loss>,
    config: &ArbiterConfig,
) -> FairNeed<'a> {
    let useful = all_ns(member).saturating_sub(loses(member, config));
    FairNeed {
        weight: member.rights.weight,
        floor_bytes: bounds.0,
        ceiling_bytes: bounds.1,
        size_bytes,
        loss,
        useful_ns: useful.max(1),
        max_slowdown: member.uses.speed.and_then(|of| of.max_slowdown_milli),
    }
}

/// Who is slower than its bound with these sizes.
pub(super) fn beyond(
    parties: &[(ProviderId, &Member)],
    needs: &[FairNeed<'_>],
    sizes: &[u64],
) -> Vec<Beyond> {
    let each = parties.iter().zip(needs).zip(sizes);
    let slow = each.filter_map(|(((provider, _), need), size)| {
        let bound_milli = need.max_slowdown?;
        let slowdown_ppm = need.slowdown_ppm(*size)?;
        (slowdown_ppm > u64::from(bound_milli) * PPM_PER_MILLI).then_some(Beyond {
            provider: *provider,
            slowdown_ppm,
            bound_milli,
        })
    });
    slow.collect()
}

/// The total of each, of so much memory, and who is slower than its bound with that.
///
/// # Errors
/// The floors exceed the memory.
pub(super) fn totals(
    parties: &[(ProviderId, &Member)],
    needs: &[Need<'_>],
    bytes: u64,
    config: &ArbiterConfig,
) -> Result<(Vec<u64>, Vec<Beyond>), FloorsExceed> {
    let each = || parties.iter().zip(needs);
    let losses: Vec<Option<Loss>> = each()
        .map(|((_, member), of)| loss(member, of, config))
        .collect();
    let fair: Vec<FairNeed<'_>> = each()
        .zip(&losses)
        .map(|(((_, member), of), loss)| {
            // What it has beyond what its guest uses saves nobody any time.
            let bounds = (of.floor_bytes, of.ceiling_bytes);
            need(member, bounds, of.floor_bytes, loss.as_ref(), config)
        })
        .collect();
    let mut sizes = least_slowdown(&fair, bytes)?.sizes;
    // What saves nobody any time stays where it is, and what nobody has goes in proportion.
    let has: Vec<u64> = needs.iter().map(|need| need.size_bytes).collect();
    let mosts: Vec<u64> = needs.iter().map(Need::most_bytes).collect();
    let more: Vec<u64> = (0..sizes.len())
        .map(|i| has[i].min(mosts[i]).saturating_sub(sizes[i]))
        .collect();
    let tops: Vec<u64> = sizes.iter().zip(&more).map(|(s, more)| s + more).collect();
    let left = bytes.saturating_sub(sum(&sizes));
    let left = in_proportion(&mut sizes, &tops, &more, left);
    in_proportion(&mut sizes, &mosts, &has, left);
    let beyond = beyond(parties, &fair, &sizes);
    Ok((sizes, beyond))
}
