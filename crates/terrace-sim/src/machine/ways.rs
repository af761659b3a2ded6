//! The ways of a set, compared all at once.

/// Whether one of so many tags, at most 32, is the wanted one.
///
/// Most sets that are searched do not have it: a search that stops early takes longer for those. A mask with a bit for
/// each tag cannot stop, so that several tags are compared in one step.
#[inline(always)]
#[must_use]
pub fn holds_tag<const WAYS: usize>(tags: &[u32; WAYS], wanted: u32) -> bool {
    let mut mask = 0_u32;
    for (way, tag) in tags.iter().enumerate() {
        mask |= u32::from(*tag == wanted) << way;
    }
    mask != 0
}
