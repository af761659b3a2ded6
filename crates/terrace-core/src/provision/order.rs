//! An order: which sizes it names, in numbers and in words, and how far it is.

use terrace_proto::bytes::Bytes;
use terrace_proto::provision::{OrderState, Origin, ProviderKind, ProviderStatus, ResidentMemory};
use terrace_proto::{OrderId, Tick};

use super::words::{size, tier_name};

/// An order that was given.
pub(super) struct Order {
    /// Its number.
    pub number: OrderId,
    /// Who gave it.
    pub origin: Origin,
    /// When.
    pub at: Tick,
    /// What each tier had then, bytes.
    pub from_bytes: Vec<u64>,
    /// What each shall have, bytes.
    pub size_bytes: Vec<Option<u64>>,
    /// How far it is.
    pub state: OrderState,
    /// Why it is stuck or failed.
    pub why: Option<String>,
    /// Memory of the hypervisor's process then.
    pub resident: Option<ResidentMemory>,
}

/// What each tier shall have if these sizes are asked for.
///
/// # Errors
/// If they cannot be.
pub(super) fn wanted(
    vm: &str,
    kind: ProviderKind,
    status: &ProviderStatus,
    asked: &[Option<u64>],
) -> Result<Vec<Option<u64>>, String> {
    if asked.iter().all(Option::is_none) {
        return Err("say what to resize: fast_bytes, slow_bytes or both, or tiers_bytes".into());
    }
    if !kind.knows_tiers() {
        let Some(sum) = sum(asked) else {
            return Err(format!(
                "{vm} is resized by the balloon, which knows no tiers: say both sizes, of which it gives the VM the \
                 sum; to resize one tier, start it with a virtio-mem device for each node of the guest, or with \
                 HyperFlex"
            ));
        };
        let rounded = status.tiers.first().map_or(sum, |tier| tier.rounded(sum));
        return Ok(vec![Some(rounded)]);
    }
    let tiers = status.tiers.len();
    let beyond = asked.iter().enumerate().skip(tiers);
    if let Some((tier, _)) = beyond.into_iter().find(|(_, asked)| asked.is_some()) {
        let tier = tier_name(kind, tier);
        let s = if tiers == 1 { "" } else { "s" };
        return Err(format!(
            "{vm} has {tiers} tier{s} of elastic memory: there is no {tier} one to resize"
        ));
    }
    let asked = asked.iter().copied().chain(std::iter::repeat(None));
    let each = status.tiers.iter().zip(asked);
    Ok(each
        .map(|(tier, asked)| asked.map(|bytes| tier.rounded(bytes)))
        .collect())
}

/// The sum of sizes that are all said.
fn sum(asked: &[Option<u64>]) -> Option<u64> {
    let mut each = asked.iter().copied();
    each.try_fold(0_u64, |sum, asked| Some(sum.saturating_add(asked?)))
}

/// `fast 512 MiB → 256 MiB`. `asked`: what was asked for before it was rounded.
pub(super) fn words(
    kind: ProviderKind,
    status: &ProviderStatus,
    wanted: &[Option<u64>],
    asked: &[Option<u64>],
) -> String {
    let whole = [sum(asked)];
    let asked = if kind.knows_tiers() { asked } else { &whole };
    let tiers = status.tiers.iter().zip(wanted).enumerate();
    let each = tiers.filter_map(|(i, (tier, wanted))| {
        let (name, from) = (tier_name(kind, i), size(tier.size_bytes));
        let wanted = (*wanted)?;
        let asked = asked.get(i).copied().flatten();
        let rounded = asked.filter(|asked| *asked != wanted).map(|asked| {
            let [asked, block] = [asked, tier.block_bytes].map(Bytes);
            format!(" ({asked} rounded down to blocks of {block})")
        });
        let rounded = rounded.unwrap_or_default();
        Some(format!("{name} {from} → {}{rounded}", size(wanted)))
    });
    each.collect::<Vec<_>>().join(", ")
}
