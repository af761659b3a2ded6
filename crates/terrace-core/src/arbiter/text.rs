//! The arbiter's sentences.

use terrace_proto::{HostMemory, Tick};

use super::cache::Missed;
use super::fair::Beyond;
use super::member::Member;
use super::percent;
use super::steps::Step;
use super::trials::Failed;
use crate::config::ArbiterConfig;
use crate::provision::{Sizes, size_text};
use crate::share::{self, TradeWindow, Want};

/// Most VMs that a sentence names.
const NAMES: usize = 4;

/// Why a VM that swaps wants memory.
pub(super) fn lacks(member: &Member, config: &ArbiterConfig) -> String {
    let used = member.swap.used_bytes();
    let wants = member.size().saturating_add(member.lacks(config));
    format!(
        "it swaps ({} of swap are used) and wants {}",
        size_text(used),
        size_text(wants)
    )
}

/// The occasion of a decision.
pub(super) struct Occasion<'a> {
    pub now: Tick,
    /// Bytes that VMs have beyond what they may have together.
    pub excess: u64,
    /// The names of those that lack memory.
    pub takers: &'a [String],
}

/// Why a VM gets this size.
pub(super) fn step(
    step: &Step,
    member: &Member,
    on: &Occasion<'_>,
    config: &ArbiterConfig,
) -> String {
    let has = match member.want(config) {
        Want::Swapping { .. } => lacks(member, config),
        Want::WorkingSet { bytes } => format!("its working set is {}", size_text(bytes)),
        Want::Same => {
            let free = member.need.map_or(0, |(_, need)| need.free_bytes);
            let unused = member.unused(config);
            let cache = match member.is_cache(on.now, step, config) {
                _ if unused > 0 && !on.takers.is_empty() => format!(
                    " and its programs have {} that they do not use, by its age",
                    size_text(unused)
                ),
                true => format!(
                    " and has {} of page cache that it does not miss so far",
                    size_text(member.facts.cache.droppable())
                ),
                false => String::new(),
            };
            format!("its guest calls {} free{cache}", size_text(free))
        }
    };
    let change = match step.grows() {
        false if member.lent() > 0 && member.loan.is_paced => {
            "others lent it memory, and lose more without it than was gained"
        }
        false if member.lent() > 0 => "others lent it memory, and one of them swaps now",
        true if step.is_exchange => {
            "this tier saves it more time: it comes first, and as much of another tier goes then"
        }
        false if member.undoes_exchange(on.now, config).is_some() => {
            "what was to go for it of another tier is in use: what came goes again"
        }
        false if member.exchanged() > 0 => "it got as much of another tier",
        true => "of what others do not use",
        false if on.excess > 0 => {
            let excess = size_text(on.excess);
            return format!("{has}; all VMs together have {excess} more than they may");
        }
        false if on.takers.is_empty() => "for the reserve, which is not full",
        false => {
            let verb = if on.takers.len() == 1 { "has" } else { "have" };
            return format!("{has}; {} {verb} use for more", named(on.takers));
        }
    };
    format!("{has}; {change}")
}

/// Whose memory a VM gets, and the lost time that it is expected to save, ns a second.
pub(super) fn source(gave: &[(String, u64)], gain_ns: u64) -> String {
    let each = gave.iter().take(NAMES);
    let each = each.map(|(name, bytes)| format!("{name} gave {}", size_text(*bytes)));
    let mut out = match gave {
        [] => String::new(),
        _ => format!("; {} lately", each.collect::<Vec<_>>().join(", ")),
    };
    // Less is not worth a word.
    if gain_ns >= 1_000_000 {
        out += &format!(
            "; estimated gain: {} ms of each second",
            gain_ns / 1_000_000
        );
    }
    out
}

/// Page cache that a guest misses.
pub(super) fn missed(now: Tick, missed: &Missed) -> String {
    let why = match missed.read {
        0 => {
            "nobody counts any more what its guest reads from disk since it gave page cache".into()
        }
        read => format!(
            "its guest read {} from disk since it gave page cache",
            size_text(read)
        ),
    };
    format!(
        "{why}: it gets that back, and keeps {} for {} s",
        size_text(missed.from),
        missed.until.0.saturating_sub(now.0) / 1_000_000_000
    )
}

/// The shortage of the host itself.
pub(super) fn host_lacks(seen: &HostMemory, config: &ArbiterConfig) -> String {
    let reserve = percent(seen.total_bytes, config.host_reserve_percent);
    let is_little = seen.available_bytes < reserve;
    let waits = seen.waits_centi.unwrap_or(0);
    let why = match is_little {
        true => format!(
            "the host has {} of memory available, of which it is to have {}",
            size_text(seen.available_bytes),
            size_text(reserve)
        ),
        false => format!(
            "tasks of the host wait for memory in {}.{:02} % of the time",
            waits / 100,
            waits % 100
        ),
    };
    match config.observe {
        true => format!(
            "{why}: VMs would give what they do not use if mode were \"on\" under [balance]"
        ),
        false => {
            format!("{why}: VMs give what they do not use, and none gets more until that is over")
        }
    }
}

/// Memory that the host lacks and no VM can give.
pub(super) fn host_lacks_still(bytes: u64) -> String {
    format!(
        "the host lacks {} that no VM can give: what VMs use is not taken for it. End something on this host, or move a \
         VM away",
        size_text(bytes)
    )
}

/// Why a VM gives memory to the host.
pub(super) fn for_host(spare: u64) -> String {
    format!(
        "the host is short of memory, and its guest can do without {}",
        size_text(spare)
    )
}

/// Why no more is asked of a guest that gave less than it was to give.
pub(super) fn gave_less(sizes: &Sizes) -> String {
    format!(
        "its guest gave what it could and has {}, not {}; no more is asked of it",
        size_text(sizes.size()),
        size_text(sizes.target())
    )
}

/// A size that would be ordered.
pub(super) fn proposed(from: u64, to: u64, why: &str) -> String {
    format!(
        "it would be resized from {} to {} if mode were \"on\" under [balance]: {why}",
        size_text(from),
        size_text(to)
    )
}

/// Why a VM gets the size of this step of its trade. `owes`: it is on its way to more than it pays for.
pub(super) fn trade(
    step: share::Step,
    seen: &TradeWindow,
    owes: bool,
    config: &ArbiterConfig,
) -> String {
    let ratio = config.price_ratio_milli;
    let price = format!("{}.{} to 1", ratio / 1000, ratio % 1000 / 100);
    let begins = match seen.major_faults {
        0 => format!(
            "{} of its slow memory are unused and {} of hot pages wait there",
            size_text(seen.unused_slow_bytes),
            size_text(seen.waiting_hot_bytes)
        ),
        faults => format!("{faults} major faults in {} s", config.cycle_ms / 1000),
    };
    match step {
        share::Step::InflateFast(_) => {
            format!("{begins}; fast memory pays for the slow memory that it got, {price}")
        }
        share::Step::InflateSlow(_) if owes => {
            format!("{begins}; what it did not pay for goes back, {price}")
        }
        share::Step::DeflateSlow(_) => format!("{begins}; it buys slow memory, {price}"),
        share::Step::InflateSlow(_) => format!("{begins}; slow memory goes for fast, {price}"),
        share::Step::DeflateFast(_) | share::Step::MigrateDown(_) | share::Step::MigrateUp(_) => {
            format!("{begins}; fast memory comes for slow, {price}")
        }
    }
}

/// The first names, and how many more there are: a sentence is stored with each VM, and does not grow with their number.
fn named(vms: &[String]) -> String {
    let first = vms.get(..NAMES).unwrap_or(vms).join(", ");
    match vms.len().saturating_sub(NAMES) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Why a VM is no more to have what it was given.
pub(super) fn stalled(member: &Member, config: &ArbiterConfig) -> String {
    let target = member.sizes.as_ref().map_or(0, Sizes::target);
    format!(
        "it was given {} and has taken no more than {} for {} s: the rest is for others",
        size_text(target),
        size_text(member.size()),
        config.review_ms / 1000
    )
}

/// Why a VM is slower than it is to be.
pub(super) fn beyond(of: &Beyond) -> String {
    let (slowdown, bound) = (of.slowdown_ppm / 10_000, of.bound_milli / 10);
    format!(
        "it is slowed down {}.{:02} times with the memory that there is for it, more than its max_slowdown of \
         {}.{:02}: lower others' weights or floors, or run fewer VMs here",
        slowdown / 100,
        slowdown % 100,
        bound / 100,
        bound % 100
    )
}

/// Why a VM gets back what was taken.
pub(super) fn failed(failed: &Failed, config: &ArbiterConfig) -> String {
    let ms = |ns: u64| ns / 1_000_000;
    let (before, after) = failed.lost;
    let who = match failed.is_shared {
        true => "it and those that got it lose",
        false => "it loses",
    };
    let again = config.review_ms.saturating_mul(config.retry_factor.into()) / 1000;
    format!(
        "what was taken of it is given back: {} s later {who} {} ms a second, {} before; \
         not tried again for {again} s",
        config.review_ms / 1000,
        ms(after),
        ms(before)
    )
}
