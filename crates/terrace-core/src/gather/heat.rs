//! Which base pages are hot.

/// Windows that are looked back upon.
pub const WINDOWS: u32 = 3;
/// The page cannot be moved.
const FIXED: u8 = 1 << 7;
/// The windows.
const SEEN: u8 = (1 << WINDOWS) - 1;

/// Whether a page was accessed in each of the last windows: one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Heat(u8);

impl Heat {
    /// Takes in a window.
    pub fn push(&mut self, accessed: bool) {
        self.0 = self.0 & FIXED | (self.0 << 1 | u8::from(accessed)) & SEEN;
    }

    /// Says whether the page can be moved: one that is pinned, shared or of an unknown kind cannot.
    pub fn set_movable(&mut self, movable: bool) {
        self.0 = self.0 & SEEN | if movable { 0 } else { FIXED };
    }

    /// Whether the page can be moved.
    #[must_use]
    pub fn is_movable(self) -> bool {
        self.0 & FIXED == 0
    }

    /// Whether the page was accessed in two of the last three windows (one alone may be a sweep over all memory).
    #[must_use]
    pub fn is_hot(self) -> bool {
        let seen = self.0 & SEEN;
        // More than one bit: without a table or a count, so that a block's pages are asked as vectors.
        seen & seen.wrapping_sub(1) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_three_windows_make_a_page_hot_and_it_cools_again() {
        let mut heat = Heat::default();
        let windows = [true, false, false, true, true, false, true, false, false];
        let hot: Vec<bool> = windows
            .map(|accessed| {
                heat.push(accessed);
                heat.is_hot()
            })
            .into();
        assert_eq!(
            hot,
            [false, false, false, false, true, true, true, false, false]
        );
    }

    #[test]
    fn a_page_stays_fixed_whatever_its_heat() {
        let mut heat = Heat::default();
        heat.set_movable(false);
        heat.push(true);
        assert!(!heat.is_movable() && !heat.is_hot());
        heat.push(true);
        assert!(!heat.is_movable() && heat.is_hot());
        heat.set_movable(true);
        assert!(heat.is_movable() && heat.is_hot());
    }
}
