//! Which base pages are hot.

/// Windows that are looked back upon.
pub const WINDOWS: u32 = 3;
/// Windows in which a hot page was accessed, at least.
const HOT: u32 = 2;

/// Whether a page was accessed in each of the last windows: one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Heat(u8);

impl Heat {
    /// Takes in a window.
    pub fn push(&mut self, accessed: bool) {
        self.0 = (self.0 << 1 | u8::from(accessed)) & ((1 << WINDOWS) - 1);
    }

    /// Whether the page was accessed in two of the last three windows (one alone may be a sweep over all memory).
    #[must_use]
    pub fn is_hot(self) -> bool {
        self.0.count_ones() >= HOT
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
}
