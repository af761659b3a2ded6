//! A unit's place and marks in a byte.
//!
//! Responsible for: the layout. It leaves to others: who sets which mark.

use terrace_proto::TierId;

/// Tier, or 7 for none, as in a page code.
pub const TIER: u8 = 7;
/// No host page there.
pub const ABSENT: u8 = 7;
/// Part of a huge page of the host.
pub const HUGE: u8 = 8;
/// Part of a plan that was not reported yet.
pub const IN_FLIGHT: u8 = 16;
/// Some user table of the guest maps it.
pub const KNOWN: u8 = 32;
/// Rounds for which it is left alone after a move, the one of the move included: two bits.
pub const COOL: u8 = 0xc0;
/// One round.
pub const COOL_ONE: u8 = 0x40;

/// The tier of so many that a byte names; none if the unit is absent.
pub fn tier(flags: u8, tiers: u8) -> Option<TierId> {
    let code = flags & TIER;
    (code < tiers).then_some(TierId(code))
}
