//! Rules for the sizes that a VM may be ordered to have: which are possible, what may be taken away, and what there
//! is to give.

use std::collections::{BTreeMap, BTreeSet};

use terrace_proto::ProviderId;
use terrace_proto::provision::{NodeMemory, OrderCounts, ProviderKind, TierStatus};

use super::admission::{self, Claim, Free, admit};
use super::order::wanted;
use super::provider::Provider;
use super::text::{size, tier_name};
use crate::tier::TierConfig;

/// The reason why sizes are not ordered.
pub(super) enum ResizeRefusal {
    /// The provider does not answer.
    Absent(String),
    /// The sizes are impossible.
    Invalid(String),
    /// Memory that may be pinned would be taken away.
    Pinned(String),
    /// There is no room.
    Full(String),
}

impl ResizeRefusal {
    /// The reason, in words.
    pub fn why(&self) -> &str {
        match self {
            Self::Absent(why) | Self::Invalid(why) | Self::Pinned(why) | Self::Full(why) => why,
        }
    }

    /// Counts the refusal.
    pub fn count(&self, counts: &mut OrderCounts) {
        let count = match self {
            Self::Absent(_) => &mut counts.failed,
            Self::Invalid(_) => &mut counts.refused_invalid,
            Self::Pinned(_) => &mut counts.refused_pinned,
            Self::Full(_) => &mut counts.refused_admission,
        };
        *count += 1;
    }
}

/// The sizes that a VM gets if these are asked for. The present sizes must be known, so that an order can be checked
/// against them, and the wanted ones must make sense.
pub(super) fn known(
    provider: &Provider,
    asked: &[Option<u64>],
) -> Result<Vec<Option<u64>>, ResizeRefusal> {
    let status = provider.status();
    // A status from before the provider fell silent means nothing for its present state.
    let Some(status) = status.filter(|_| provider.trouble.is_none()) else {
        let why = provider.trouble.as_deref();
        let why = why.unwrap_or("its provider has not answered yet");
        return Err(ResizeRefusal::Absent(why.to_owned()));
    };
    wanted(&provider.spec.vm, provider.kind(), status, asked).map_err(ResizeRefusal::Invalid)
}

/// The facts that admission is decided by.
pub(super) struct Admission<'a> {
    pub providers: &'a BTreeMap<ProviderId, Provider>,
    pub memory: &'a [NodeMemory],
    pub tiers: &'a [TierConfig],
    pub least_first_tier_bytes: u64,
}

impl Admission<'_> {
    /// Whether a VM may have these sizes now.
    pub fn check(&self, id: ProviderId, wanted: &[Option<u64>]) -> Result<(), ResizeRefusal> {
        let Some(provider) = self.providers.get(&id) else {
            return Ok(());
        };
        let Some(status) = provider.status() else {
            return Ok(());
        };
        let kind = provider.kind();
        let tiers = status.tiers.iter().zip(wanted).enumerate();
        let tiers = tiers.filter_map(|(i, (tier, wanted))| Some((i, tier, (*wanted)?)));
        for (i, tier, wanted) in tiers.clone() {
            // Others have limits of more kinds, and say them themselves.
            if kind == ProviderKind::HyperFlex && wanted > tier.whole_bytes {
                return Err(ResizeRefusal::Invalid(format!(
                    "its {} memory has {} at most, what it was started with",
                    tier_name(kind, i),
                    size(tier.whole_bytes)
                )));
            }
            self.may_shrink(provider, i, tier, wanted)?;
        }
        // All tiers of the request at once: two that grow on one node must fit together.
        let all = self.claims_with(id, wanted);
        for (i, tier, wanted) in tiers.filter(|(_, tier, wanted)| *wanted > tier.size_bytes) {
            if let Some(why) = self.unseen(id, &tier.host_nodes) {
                return Err(ResizeRefusal::Full(why));
            }
            self.may_grow(provider, i, tier, wanted, &all)?;
        }
        Ok(())
    }

    /// Whether tier `i` may be ordered to have no more than `wanted`. On its way up the guest may have more by then
    /// than it has now.
    fn may_shrink(
        &self,
        provider: &Provider,
        i: usize,
        tier: &TierStatus,
        wanted: u64,
    ) -> Result<(), ResizeRefusal> {
        let kind = provider.kind();
        // Below what it may reach by an older order counts as shrinking, too: the guest would have to give back.
        if wanted >= provider.most(i, tier) {
            return Ok(());
        }
        let least = self.least_first_tier_bytes;
        let is_little = wanted < least.min(tier.size_bytes);
        if kind == ProviderKind::HyperFlex && i == 0 && is_little {
            return Err(ResizeRefusal::Invalid(format!(
                "{} of {} memory is too little for any guest; the least is {}. Did you mean MiB?",
                size(wanted),
                tier_name(kind, i),
                size(least)
            )));
        }
        not_pinned(provider).map_err(ResizeRefusal::Pinned)
    }

    fn may_grow(
        &self,
        provider: &Provider,
        i: usize,
        tier: &TierStatus,
        wanted: u64,
        all: &[Claim],
    ) -> Result<(), ResizeRefusal> {
        let Some(own) = provider.claims().find(|claim| claim.tier == i) else {
            return Ok(());
        };
        let growing = Claim {
            counted_bytes: wanted,
            ..own
        };
        let pool = tier.pool();
        let all: Vec<Claim> = all.iter().filter(|c| c.pool == pool).cloned().collect();
        let admitted = admit(
            &growing,
            tier.size_bytes,
            &all,
            &free(self.memory, self.tiers, pool),
        );
        admitted.map_err(|why| {
            ResizeRefusal::Full(match pool {
                0 => why,
                page => format!("its memory is huge pages of {}, of which {why}", size(page)),
            })
        })
    }

    /// The claims of all tiers of all VMs, with all that is ordered at once.
    fn claims_with(&self, id: ProviderId, wanted: &[Option<u64>]) -> Vec<Claim> {
        let each = self.providers.iter().flat_map(|(of, provider)| {
            provider.claims().map(move |claim| {
                let wanted = wanted.get(claim.tier).copied().flatten();
                let wanted = wanted.filter(|_| *of == id).unwrap_or(0);
                // A tier that is to shrink counts as it is until it has: its memory is not free before.
                Claim {
                    counted_bytes: claim.counted_bytes.max(wanted),
                    ..claim
                }
            })
        });
        each.collect()
    }

    /// The reason why nothing can be given of these nodes, if there is one: a VM that may take memory there has said
    /// nothing yet.
    fn unseen(&self, id: ProviderId, nodes: &[u32]) -> Option<String> {
        let mut others = self.providers.iter();
        let (_, other) = others.find(|(other, provider)| {
            let spec = &provider.spec;
            // Only of one that is configured: others may have no device at all.
            let is_unseen = provider.seen.is_none() && spec.is_configured && **other != id;
            let of = &spec.host_nodes;
            let meets = of.is_empty() || nodes.is_empty() || of.iter().any(|n| nodes.contains(n));
            is_unseen && meets
        })?;
        let why = other.trouble.as_deref().unwrap_or("it was not queried yet");
        Some(format!(
            "terraced does not know how much memory {} may still take, because its HyperFlex device has \
             never answered: {why}",
            other.spec.vm
        ))
    }
}

/// Checks that no process may have pinned the VM's memory; otherwise the error names one that may have.
fn not_pinned(provider: &Provider) -> Result<(), String> {
    if let Some(who) = provider.pins.sharer.by() {
        return Err(format!(
            "{who}, may have pinned it for a device, from under which it would be taken. It can grow, and shrink once \
             that process is gone; if its program never pins memory, say so: do_not_pin = [\"/path/of/program\"] under \
             [vm.NAME] or [defaults]"
        ));
    }
    if let Some(why) = provider.pins.sharer.unknown() {
        return Err(format!(
            "terraced cannot tell if another process has its RAM and may have pinned it: {why}. It can \
             grow, and shrink \
             once terraced may see all processes: grant it CAP_SYS_PTRACE and CAP_DAC_OVERRIDE, or say \
             nobody_pins = true \
             under [vm.NAME] if none ever pins its memory"
        ));
    }
    // HyperFlex punches files, so it must know; QEMU coordinates its own discards with VFIO.
    let unknown = provider.pins.device.unknown();
    if let Some(why) = unknown.filter(|_| provider.kind() == ProviderKind::HyperFlex) {
        return Err(format!(
            "terraced cannot tell if a device is passed through, which would pin its memory: {why}. It can grow, and \
             shrink once terraced may see the descriptors of the hypervisor: grant it CAP_SYS_PTRACE and \
             CAP_DAC_OVERRIDE, or run it as the hypervisor's user"
        ));
    }
    match provider.pins.device.by() {
        None => Ok(()),
        Some(device) => Err(format!(
            "a device is passed through ({device}), which pins all of its memory: what the guest gave back \
             would stay, \
             or be taken from under the device. It can grow, and cannot shrink while it has the device"
        )),
    }
}

/// Free memory of each node in that pool (0: in none), less what the operator keeps back of its tier, a part of each
/// of the tier's nodes.
pub(super) fn free(memory: &[NodeMemory], tiers: &[TierConfig], pool: u64) -> Free {
    let plain = || memory.iter().filter(|memory| memory.page_bytes == 0);
    let reserve = |memory: &NodeMemory| {
        let tier = memory.tier.filter(|_| pool == 0)?;
        let nodes = plain().filter(|other| other.tier == Some(tier)).count();
        let reserve = tiers.get(tier.index())?.reserve_bytes;
        // Rounded up: the parts together keep back no less than the operator said.
        Some(reserve.div_ceil((nodes as u64).max(1)))
    };
    let here = memory.iter().filter(|memory| memory.page_bytes == pool);
    here.map(|memory| {
        let free = memory
            .free_bytes
            .saturating_sub(reserve(memory).unwrap_or(0));
        (memory.node, free)
    })
    .collect()
}

/// The nodes (or the host as a whole) of which VMs may together take more than is free, in sentences; empty if there
/// are none.
pub(super) fn overcommitted(
    providers: &BTreeMap<ProviderId, Provider>,
    memory: &[NodeMemory],
    tiers: &[TierConfig],
) -> Vec<String> {
    let claims: Vec<Claim> = providers.values().flat_map(Provider::claims).collect();
    let pools: BTreeSet<u64> = claims.iter().map(|claim| claim.pool).collect();
    let over = pools.into_iter().flat_map(|pool| {
        let here = claims.iter().filter(|claim| claim.pool == pool);
        let here: Vec<Claim> = here.cloned().collect();
        let said = admission::overcommitted(&here, &free(memory, tiers, pool)).into_iter();
        said.map(move |said| match pool {
            0 => said,
            page => format!("of huge pages of {}, {said}", size(page)),
        })
    });
    over.collect()
}
