//! The VM that engine and classification are measured with.

use terrace_proto::{Gfn, PAGE_SIZE, PageSize, RamRange, TierLimit, VmId, VmSpec};

/// 4 KiB pages of a 64 GiB VM.
pub const PAGES_OF_64_GIB: u64 = 16 << 20;

/// A VM of two tiers, of which the first holds `fast` of its pages.
pub(crate) fn spec(pages: u64, fast: u64) -> VmSpec {
    let limit = |ceiling_bytes| TierLimit {
        floor_bytes: 0,
        ceiling_bytes,
    };
    VmSpec {
        vm: VmId(1),
        name: "bench".into(),
        ram: vec![RamRange {
            start: Gfn(0),
            pages,
        }],
        unit: PageSize::Base,
        limits: vec![limit(fast * PAGE_SIZE), limit(u64::MAX)],
        weight: 1000,
        moves: true,
    }
}

/// A repeatable draw of 0 to 2^32 − 1 for a page.
pub(crate) fn draw(page: u64, purpose: u64) -> u64 {
    let mut z = page
        .wrapping_add(purpose << 40)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z >> 32
}

/// Whether a page is among so many percent, drawn at random.
pub(crate) fn among(page: u64, purpose: u64, percent: u64) -> bool {
    (draw(page, purpose) * 100) >> 32 < percent
}
