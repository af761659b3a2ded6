//! Sizes, tiers and drivers as they are spoken of.

use terrace_proto::provision::ProviderKind;

/// `512 MiB`, `1.5 GiB`, by whole numbers alone, so that a log has the same text everywhere.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = bytes.checked_ilog2().unwrap_or(0) / 10;
    let unit = 1_u128 << (10 * power);
    let tenfold = u128::from(bytes) * 10;
    let (tenths, rest) = (tenfold / unit, tenfold % unit * 2);
    // Halves to the even digit.
    let up = rest > unit || (rest == unit && tenths % 2 == 1);
    let tenths = tenths + u128::from(up);
    let name = usize::try_from(power).ok().and_then(|p| UNITS.get(p));
    let name = name.unwrap_or(&"EiB");
    match tenths % 10 {
        0 => format!("{} {name}", tenths / 10),
        tenth => format!("{}.{tenth} {name}", tenths / 10),
    }
}

/// Two sizes, so exact that they differ if they do: in tenths of MiB.
pub(super) fn apart(from: u64, to: u64) -> (String, String) {
    let (a, b) = (size(from), size(to));
    if a != b || from == to {
        return (a, b);
    }
    let exact = |bytes: u64| {
        let tenths = (u128::from(bytes) * 10) >> 20;
        format!("{}.{} MiB", tenths / 10, tenths % 10)
    };
    (exact(from), exact(to))
}

/// The share of memory that was really given back, in hundredths: `0.50`.
pub(super) fn share(part: u64, whole: u64) -> String {
    let hundredths =
        (u128::from(part) * 100 + u128::from(whole) / 2).checked_div(u128::from(whole));
    let hundredths = hundredths.unwrap_or(100);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// The name of a tier: `fast`, `slow`; `memory` if the mechanism knows no tiers.
#[must_use]
pub fn tier_name(kind: ProviderKind, tier: usize) -> &'static str {
    const NAMES: [&str; 4] = ["fast", "slow", "third", "fourth"];
    if kind.knows_tiers() {
        NAMES.get(tier).copied().unwrap_or("tier")
    } else {
        "memory"
    }
}

/// The reason why the guest has not taken its targets.
pub(super) fn no_driver(kind: ProviderKind, is_connected: bool) -> String {
    let driver = match kind {
        ProviderKind::HyperFlex => "is the module hyperflex loaded in it?",
        ProviderKind::VirtioMem => "has it virtio_mem?",
        ProviderKind::Balloon => "has it virtio_balloon?",
    };
    if is_connected {
        format!("the guest's driver has not taken the targets: {driver}")
    } else {
        "no hypervisor has been connected to its device".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_decimal_at_most() {
        let all = [
            0,
            1023,
            1536,
            1 << 20,
            (1 << 30) + (1 << 28),
            3 << 29,
            u64::MAX,
        ];
        let text = all.map(size);
        let as_said = [
            "0 B", "1023 B", "1.5 KiB", "1 MiB", "1.2 GiB", "1.5 GiB", "16 EiB",
        ];
        assert_eq!(text, as_said);
    }

    #[test]
    fn shares_are_told_in_hundredths() {
        assert_eq!(
            [share(1, 2), share(0, 0), share(2, 3)],
            ["0.50", "1.00", "0.67"]
        );
    }
}
