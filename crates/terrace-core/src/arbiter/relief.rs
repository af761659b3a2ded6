//! Whether a guest begins to swap, or has swapped for long: the reserve is for those that begin to.

use crate::config::ArbiterConfig;

/// Seconds without swapping after which those in which it swapped are forgotten one by one. One that swaps in turns is not
/// new each time.
const RESTS_S: u8 = 60;

/// The seconds in which a guest swapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relief {
    /// Those that are not forgotten.
    swapped_s: u8,
    /// Those since it swapped last, at most [`RESTS_S`].
    rested_s: u8,
}

impl Relief {
    /// Takes in whether it swaps, once a second.
    pub fn add(&mut self, swaps: bool) {
        match (swaps, self.rested_s) {
            (true, _) => {
                self.swapped_s = self.swapped_s.saturating_add(1);
                self.rested_s = 0;
            }
            (false, RESTS_S..) => self.swapped_s = self.swapped_s.saturating_sub(1),
            (false, rested) => self.rested_s = rested + 1,
        }
    }

    /// Whether it did not swap for long.
    pub fn is_new(&self, config: &ArbiterConfig) -> bool {
        let relief = config.relief_ms;
        relief == 0 || u64::from(self.swapped_s) * 1000 <= relief
    }
}
