//! The interface between device and driver: `docs/hyperflex-abi.md` as numbers, and wire data to and from values.
//!
//! Everything that a guest wrote becomes a value here or not at all.

/// Bytes of a base page.
pub const PAGE_BYTES: u64 = 4096;
/// First word of the configuration space ("TRHF").
pub const MAGIC: u32 = 0x4648_5254;
/// Version of the layout.
pub const VERSION: u16 = 1;
/// Most tiers of a device.
pub const MAX_TIERS: usize = 4;
/// Bytes of the configuration space.
pub const CONFIG_BYTES: usize = 128;
/// The virtio id: reserved, without a driver in Linux.
pub const VIRTIO_ID: u32 = 13;
/// Order of a 4 KiB page.
pub const ORDER_4K: u8 = 0;
/// Order of a 2 MiB page.
pub const ORDER_2M: u8 = 9;
/// Most entries of one chain of a page queue.
pub const MAX_ENTRIES: usize = 512;
/// Bytes of an entry of a page queue.
pub const ENTRY_BYTES: usize = 8;
/// Bytes of the answer behind the entries.
pub const ANSWER_BYTES: usize = 8;
/// Most pages of a VM: 16 TiB.
pub const MAX_VM_PAGES: u64 = 16 << (40 - 12);
/// Most entries of a statistics buffer.
pub const MAX_STATISTICS: usize = 64;
/// Bytes of an entry of a statistics buffer.
pub const STATISTIC_BYTES: usize = 16;
/// Tags of statistics that are known: 0 up to this, exclusive.
pub const STATISTIC_TAGS: usize = 8;

const EVENT_TARGETS: u32 = 1;
const ORDER_BITS: u64 = 0x3f;
const BELOW_PAGE: u64 = PAGE_BYTES - 1;

/// The purpose of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRole {
    /// Pages into the balloon of a tier.
    Inflate(usize),
    /// Pages out of the balloon of a tier.
    Deflate(usize),
    /// Targets to the driver.
    Events,
    /// Statistics of the guest.
    Statistics,
}

/// Queues of a device with that many tiers.
#[must_use]
pub const fn queues(tiers: usize) -> usize {
    2 * tiers + 2
}

/// The role of queue `index` of a device with that many tiers; `None` beyond the last.
#[must_use]
pub fn role(index: usize, tiers: usize) -> Option<QueueRole> {
    match index {
        i if i < 2 * tiers && i % 2 == 0 => Some(QueueRole::Inflate(i / 2)),
        i if i < 2 * tiers => Some(QueueRole::Deflate(i / 2)),
        i if i == 2 * tiers => Some(QueueRole::Events),
        i if i == 2 * tiers + 1 => Some(QueueRole::Statistics),
        _ => None,
    }
}

/// An entry of a page queue as the guest wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub u64);

impl From<Entry> for u64 {
    /// As it is in memory.
    fn from(entry: Entry) -> Self {
        entry.0
    }
}

impl Entry {
    /// The entry for the block of `order` at `gpa`, whose low twelve bits are dropped.
    #[must_use]
    pub fn new(gpa: u64, order: u8) -> Self {
        Self(gpa & !BELOW_PAGE | u64::from(order) & ORDER_BITS)
    }

    /// Guest physical address of its first byte.
    #[must_use]
    pub fn gpa(self) -> u64 {
        self.0 & !BELOW_PAGE
    }

    /// Order, 0 to 63.
    #[must_use]
    pub fn order(self) -> u32 {
        // Six bits always fit.
        u32::try_from(self.0 & ORDER_BITS).unwrap_or(u32::MAX)
    }

    /// Whether bits stand between order and address that mean nothing.
    #[must_use]
    pub fn has_unknown_bits(self) -> bool {
        self.0 & BELOW_PAGE & !ORDER_BITS != 0
    }
}

/// A tier in the configuration space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierConfigSpace {
    /// Pages that shall be in the balloon.
    pub target_pages: u64,
    /// Pages that are in it.
    pub actual_pages: u64,
    /// The guest's node.
    pub node: u32,
}

/// The configuration space; tiers beyond [`MAX_TIERS`] are left out.
#[must_use]
pub fn config_space(
    orders: u32,
    statistics_s: u32,
    tiers: &[TierConfigSpace],
) -> [u8; CONFIG_BYTES] {
    let mut space = [0; CONFIG_BYTES];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(slot) = space.get_mut(at..at + bytes.len()) {
            slot.copy_from_slice(bytes);
        }
    };
    let count = u16::try_from(tiers.len().min(MAX_TIERS)).unwrap_or_default();
    put(0, &MAGIC.to_le_bytes());
    put(4, &VERSION.to_le_bytes());
    put(6, &count.to_le_bytes());
    put(8, &orders.to_le_bytes());
    put(12, &statistics_s.to_le_bytes());
    for (i, tier) in tiers.iter().take(MAX_TIERS).enumerate() {
        let at = 16 + 24 * i;
        put(at, &tier.target_pages.to_le_bytes());
        put(at + 8, &tier.actual_pages.to_le_bytes());
        put(at + 16, &tier.node.to_le_bytes());
    }
    space
}

/// Any part of a space: bytes beyond its end read as zero, so that the answer always has `len` bytes.
#[must_use]
pub fn part_of(space: &[u8], offset: u32, len: u32) -> Vec<u8> {
    let at = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    let rest = space.get(at(offset)..).unwrap_or_default();
    let mut part: Vec<u8> = rest.iter().copied().take(at(len)).collect();
    part.resize(at(len), 0);
    part
}

/// The event that carries the targets.
#[must_use]
pub fn targets_event(generation: u32, targets: &[u64]) -> Vec<u8> {
    let mut event = Vec::with_capacity(16 + 8 * targets.len());
    event.extend(EVENT_TARGETS.to_le_bytes());
    event.extend(generation.to_le_bytes());
    event.extend(0_u64.to_le_bytes());
    event.extend(targets.iter().flat_map(|pages| pages.to_le_bytes()));
    event
}

/// One statistic as the guest reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistic {
    /// Which, below [`STATISTIC_TAGS`].
    pub tag: usize,
    /// Of which tier.
    pub tier: usize,
    /// The statistic's value, untrusted.
    pub value: u64,
}

/// The statistics in a buffer whose tag and tier are known; the rest is ignored, and so is a part of an entry.
pub fn statistics(bytes: &[u8], tiers: usize) -> impl Iterator<Item = Statistic> + '_ {
    bytes
        .chunks_exact(STATISTIC_BYTES)
        .take(MAX_STATISTICS)
        .filter_map(move |entry| {
            let half =
                |at: usize| Some(usize::from(u16::from_le_bytes(*entry[at..].first_chunk()?)));
            let (tag, tier) = (half(0)?, half(2)?);
            let value = u64::from_le_bytes(*entry[8..].first_chunk()?);
            (tag < STATISTIC_TAGS && tier < tiers).then_some(Statistic { tag, tier, value })
        })
}

/// The largest value that a statistic of a tier of so many pages may have; a larger one is false. Sums over tiers and
/// VMs stay far below 2^63, and each fits a number of JSON.
#[must_use]
pub fn most_of_statistic(tag: usize, tier_pages: u64) -> u64 {
    match tag {
        // Of the node, which may have more than the tier.
        0 | 1 => MAX_VM_PAGES * PAGE_BYTES,
        2 => tier_pages,
        4 => 1,
        // Counts since a start: a million a second for nine years.
        _ => 1 << 48,
    }
}

/// The bytes of one statistic, for a driver.
#[must_use]
pub fn statistic_bytes(tag: u16, tier: u16, value: u64) -> [u8; STATISTIC_BYTES] {
    let mut bytes = [0; STATISTIC_BYTES];
    bytes[..2].copy_from_slice(&tag.to_le_bytes());
    bytes[2..4].copy_from_slice(&tier.to_le_bytes());
    bytes[8..].copy_from_slice(&value.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_is_laid_out_as_the_document_says() {
        let tier = |n: u64| TierConfigSpace {
            target_pages: n,
            actual_pages: n + 1,
            node: 7,
        };
        let space = config_space(0x201, 5, &[tier(10), tier(20)]);
        assert_eq!(space[..4], *b"TRHF");
        assert_eq!(space[4..8], [1, 0, 2, 0]);
        assert_eq!(space[8..16], [1, 2, 0, 0, 5, 0, 0, 0]);
        assert_eq!((space[16], space[24], space[32]), (10, 11, 7));
        assert_eq!((space[40], space[48], space[56]), (20, 21, 7));
        assert!(space[64..].iter().all(|byte| *byte == 0));
        assert_eq!(config_space(1, 0, &[tier(1); MAX_TIERS])[88], 1);
    }

    #[test]
    fn every_part_of_the_space_is_answered_in_full() {
        let space = config_space(1, 0, &[]);
        assert_eq!(part_of(&space, 4, 2), [1, 0]);
        for (offset, len) in [(0, 0), (126, 4), (128, 8), (u32::MAX, 256), (0, 4096)] {
            let part = part_of(&space, offset, len);
            assert_eq!(part.len(), len as usize);
        }
        assert_eq!(part_of(&space, 127, 3), [0, 0, 0]);
    }

    #[test]
    fn entries_and_statistics_round_trip_unknown_ones_are_ignored() {
        let entry = Entry::new(0x20_0fff, 9);
        assert_eq!((entry.gpa(), entry.order()), (0x20_0000, 9));
        assert!(!entry.has_unknown_bits() && Entry(0x1040).has_unknown_bits());
        let bytes = [
            statistic_bytes(2, 1, 77),
            statistic_bytes(8, 0, 1),
            statistic_bytes(0, 2, 1),
        ]
        .concat();
        let want = Statistic {
            tag: 2,
            tier: 1,
            value: 77,
        };
        let got: Vec<_> = statistics(&bytes[..bytes.len() - 1], 2).collect();
        assert_eq!(got, [want]);
        let many = statistic_bytes(0, 0, 1).repeat(1000);
        assert_eq!(statistics(&many, 1).count(), MAX_STATISTICS);
    }

    #[test]
    fn queues_alternate_per_tier_and_end_with_events_and_statistics() {
        let roles: Vec<_> = (0..7).map(|i| role(i, 2)).collect();
        assert_eq!(
            roles,
            [
                Some(QueueRole::Inflate(0)),
                Some(QueueRole::Deflate(0)),
                Some(QueueRole::Inflate(1)),
                Some(QueueRole::Deflate(1)),
                Some(QueueRole::Events),
                Some(QueueRole::Statistics),
                None
            ]
        );
    }
}
