//! Whether a VM swaps now, by how much of its swap is used (HPMBS §2.6).
//!
//! Used swap says nothing by itself: a guest leaves pages there that nobody asks for. Used swap that is above its own
//! recent mean grows, and then the VM wants more memory than it has.

/// Values that are remembered, one a second: the paper's *s*, which it does not say. Five seconds are one cycle of the
/// sharing of memory, so that a VM which swapped in a cycle counts as swapping when its end is decided.
pub const VALUES: usize = 5;

/// The last values of used swap of one VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swap {
    values: [u64; VALUES],
    /// Values so far, at most [`VALUES`].
    known: usize,
}

impl Swap {
    /// Takes in how many bytes of swap are used, once a second.
    pub fn add(&mut self, used_bytes: u64) {
        self.values.rotate_left(1);
        self.values[VALUES - 1] = used_bytes;
        self.known = (self.known + 1).min(VALUES);
    }

    /// Bytes of swap that are used.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.values[VALUES - 1]
    }

    /// Whether the VM swaps: the last value is above the mean of the known ones.
    #[must_use]
    pub fn is_swapping(&self) -> bool {
        let known = &self.values[VALUES - self.known..];
        let sum: u128 = known.iter().map(|value| u128::from(*value)).sum();
        u128::from(self.used_bytes()) * known.len() as u128 > sum
    }

    /// Bytes that a VM of this size wants beyond it: all of its used swap while it swaps.
    #[must_use]
    pub fn wanted_bytes(&self) -> u64 {
        if self.is_swapping() {
            self.used_bytes()
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the VM swaps after each of these values.
    fn swapping(values: &[u64]) -> Vec<bool> {
        let mut swap = Swap::default();
        let seen = values.iter().map(|value| {
            swap.add(*value);
            swap.is_swapping()
        });
        seen.collect()
    }

    #[test]
    fn swap_that_is_used_and_stays_so_is_no_swapping() {
        assert_eq!(swapping(&[700; 6]), [false; 6]);
        assert_eq!(swapping(&[]), [false; 0]);
    }

    #[test]
    fn swap_that_grows_is_swapping_until_it_stood_for_five_seconds() {
        let found = swapping(&[100, 100, 150, 150, 150, 150, 150, 150]);
        assert_eq!(found, [false, false, true, true, true, true, false, false]);
    }

    #[test]
    fn swap_that_shrinks_is_no_swapping() {
        assert_eq!(swapping(&[u64::MAX, 10, 5, 0]), [false; 4]);
        let mut swap = Swap::default();
        swap.add(3);
        swap.add(9);
        assert_eq!((swap.wanted_bytes(), swap.used_bytes()), (9, 9));
        swap.add(1);
        assert_eq!((swap.wanted_bytes(), swap.used_bytes()), (0, 1));
    }
}
