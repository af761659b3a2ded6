//! The service of a tier under load: its loaded latency, and what its medium does with reads and writes together.

/// Use of the bandwidth at which a [`Curve`] has its points.
pub const USES: [f64; 7] = [0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0];

/// Share of writes in the traffic from which on the curve of mixed traffic holds: the measured mix of reads with
/// writes whose lines are fetched and written back (docs/loaded-latency.md).
const MIXED: f64 = 0.43;

/// The latency of reads, over the idle latency, at each of [`USES`]; between two points it is linear, and 1 at no load.
pub type Points = [f64; USES.len()];

/// A curve of loaded latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Curve {
    /// All traffic reads.
    pub reads: Points,
    /// At least 43 % of the traffic writes.
    pub mixed: Points,
}

impl Curve {
    /// The latency of a read over the idle latency, at a use of the bandwidth (0 to 1) of which a share (0 to 1) are
    /// writes.
    #[must_use]
    pub fn times(&self, used: f64, writes: f64) -> f64 {
        let mixed = (writes / MIXED).clamp(0.0, 1.0);
        let reads = at(&self.reads, used);
        reads + mixed * (at(&self.mixed, used) - reads)
    }
}

fn at(points: &Points, used: f64) -> f64 {
    let mut before = (0.0, 1.0);
    for (end, times) in USES.into_iter().zip(*points) {
        if used < end {
            let part = (used - before.0).max(0.0) / (end - before.0);
            return before.1 + part * (times - before.1);
        }
        before = (end, times);
    }
    before.1
}

/// The service of a tier under load, as measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Service {
    /// Latency under load.
    pub curve: Curve,
    /// The most that reads and writes together reach at the same time, over the bandwidth of reads, as over a link of
    /// two directions; `None`: they are served one after another.
    pub duplex: Option<f64>,
    /// Number of processors whose writes the medium combines to whole lines; `None`: any number.
    pub writers: Option<u32>,
}

impl Service {
    /// The time that reads and writes take together, from the time that each takes alone; `both`: the time of all
    /// their bytes as reads.
    #[must_use]
    pub fn busy(&self, [reads, writes]: [f64; 2], both: f64) -> f64 {
        self.duplex
            .map_or(reads + writes, |gain| reads.max(writes).max(both / gain))
    }

    /// The part of the writes that would be combined and are not, with so many processors writing: evictions of so many
    /// streams come in disorder.
    #[must_use]
    pub fn uncombined(&self, writing: f64) -> f64 {
        let combines = self.writers.map(f64::from);
        combines.map_or(0.0, |most| 1.0 - (most / writing.max(most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CURVE: Curve = Curve {
        reads: [1.1, 1.2, 1.3, 1.5, 1.8, 1.9, 2.4],
        mixed: [1.1, 1.2, 1.4, 1.8, 2.2, 2.6, 3.4],
    };

    #[test]
    fn the_curve_meets_its_points_and_is_linear_between() {
        let reads = |used| CURVE.times(used, 0.0);
        assert_eq!((reads(0.0), reads(0.2), reads(1.0)), (1.0, 1.1, 2.4));
        assert!((reads(0.85) - 1.65).abs() < 1e-9 && (reads(0.1) - 1.05).abs() < 1e-9);
        assert_eq!((reads(7.0), reads(-1.0)), (2.4, 1.0));
    }

    #[test]
    fn writes_lead_from_one_curve_to_the_other() {
        let at = |writes| CURVE.times(0.9, writes);
        assert!((at(MIXED / 2.0) - 2.0).abs() < 1e-9);
        assert_eq!((at(0.0), at(0.5), at(1.0)), (1.8, 2.2, 2.2));
    }

    #[test]
    fn a_link_of_two_directions_serves_both_at_once_up_to_its_gain() {
        let one = Service {
            curve: CURVE,
            duplex: None,
            writers: None,
        };
        let two = Service {
            duplex: Some(1.5),
            ..one
        };
        assert_eq!(one.busy([2.0, 1.0], 3.0), 3.0);
        assert_eq!(two.busy([2.0, 1.0], 3.0), 2.0);
        assert_eq!(two.busy([2.0, 2.0], 4.0), 4.0 / 1.5);
    }

    #[test]
    fn more_writers_than_the_medium_combines_leave_lines_apart() {
        let service = Service {
            curve: CURVE,
            duplex: None,
            writers: Some(4),
        };
        assert_eq!(
            (service.uncombined(1.0), service.uncombined(4.0)),
            (0.0, 0.0)
        );
        assert!((service.uncombined(16.0) - 0.75).abs() < 1e-9);
    }
}
