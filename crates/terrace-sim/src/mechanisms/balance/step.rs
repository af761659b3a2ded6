//! The part of the accesses that an interval shifts.
//!
//! Latency rises steeply where bandwidth ends, and how steeply is not known. So the part is found by trying: it doubles
//! while accesses go the same way, and is halved when they went too far.

/// The unit of parts: 1 of so many.
pub(super) const WHOLE: u64 = 1024;

/// The largest part, a quarter: between two intervals a shift must not turn one overloaded tier into another.
const MAX: u64 = WHOLE / 4;

/// The part that is shifted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    size: u64,
    /// The tiers of the last shift.
    last: Option<(u8, u8)>,
}

impl Step {
    /// A first part of a 16th.
    pub(super) fn new() -> Self {
        Self {
            size: WHOLE / 16,
            last: None,
        }
    }

    /// The part of all accesses to shift now, of [`WHOLE`].
    pub(super) fn next(&mut self, from: u8, to: u8) -> u64 {
        if self.last == Some((from, to)) {
            self.size = (self.size * 2).min(MAX);
        } else if self.last == Some((to, from)) {
            self.size = (self.size / 2).max(1);
        }
        self.last = Some((from, to));
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_doubles_on_its_way_and_halves_at_each_turn() {
        let mut step = Step::new();
        let up: Vec<u64> = (0..4).map(|_| step.next(1, 0)).collect();
        assert_eq!(up, [64, 128, 256, 256]);
        let turns: Vec<u64> = [(0, 1), (1, 0), (0, 1)]
            .map(|(from, to)| step.next(from, to))
            .into();
        assert_eq!(turns, [128, 64, 32]);
        for _ in 0..20 {
            step.next(1, 0);
            step.next(0, 1);
        }
        assert_eq!(step.next(1, 0), 1);
    }
}
