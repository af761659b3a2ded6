//! A timeline in few enough pieces to draw.
//!
//! Responsible for: merging neighbouring samples, and leaving out what has no place in time. It leaves
//! to others: drawing.

use terrace_sim::{Sample, VmTimeline, number::float};

use super::format::length;

/// Pieces of time that a picture shows at most.
const MAX: usize = 160;

/// Neighbouring samples as one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stretch {
    /// Start of the stretch, s.
    pub from: f64,
    /// End of the stretch, s.
    pub to: f64,
    /// Share of the data accesses that the first tier served: its samples' mean over time.
    pub fast_hit_ratio: f64,
    /// Pages moved to a faster tier per second.
    pub promoted_per_s: f64,
    /// Pages moved to a slower tier per second.
    pub demoted_per_s: f64,
    /// Bytes per tier at its end.
    pub tier_bytes: Vec<u64>,
    /// Accesses per cell of memory.
    pub heat: Vec<u64>,
}

/// The stretches of a VM's time, in order; samples that do not go on in time are left out.
pub fn stretches(vm: &VmTimeline) -> Vec<Stretch> {
    let mut end = 0.0;
    let mut samples: Vec<(f64, &Sample)> = Vec::with_capacity(vm.samples.len());
    for sample in &vm.samples {
        if sample.at_s.is_finite() && sample.at_s > end {
            samples.push((end, sample));
            end = sample.at_s;
        }
    }
    let together = samples.len().div_ceil(MAX).max(1);
    samples.chunks(together).map(merged).collect()
}

fn merged(samples: &[(f64, &Sample)]) -> Stretch {
    let (Some((from, _)), Some((_, last))) = (samples.first(), samples.last()) else {
        return Stretch::default();
    };
    let seconds = last.at_s - from;
    let (mut hits, mut hit_s) = (0.0, 0.0);
    let (mut promoted, mut demoted) = (0.0, 0.0);
    let cells = samples.iter().map(|(_, s)| s.heat.len()).max();
    let mut heat = vec![0_u64; cells.unwrap_or(0)];
    for (start, sample) in samples {
        if sample.fast_hit_ratio.is_finite() {
            hits += sample.fast_hit_ratio * (sample.at_s - start);
            hit_s += sample.at_s - start;
        }
        promoted += float(sample.promoted_pages);
        demoted += float(sample.demoted_pages);
        for (sum, n) in heat.iter_mut().zip(&sample.heat) {
            *sum = sum.saturating_add(u64::from(*n));
        }
    }
    Stretch {
        from: *from,
        to: last.at_s,
        fast_hit_ratio: hits / hit_s,
        promoted_per_s: promoted / seconds,
        demoted_per_s: demoted / seconds,
        tier_bytes: last.tier_bytes.clone(),
        heat,
    }
}

/// Cells of memory merged so that at most `most` are left; each is so many of the old ones.
pub fn fewer_cells(stretches: &mut [Stretch], most: usize) -> f64 {
    let cells = stretches.iter().map(|s| s.heat.len()).max().unwrap_or(0);
    let together = cells.div_ceil(most).max(1);
    for stretch in stretches {
        stretch.heat.resize(cells, 0);
        let sums = stretch.heat.chunks(together);
        stretch.heat = sums
            .map(|c| c.iter().fold(0, |sum: u64, n| sum.saturating_add(*n)))
            .collect();
    }
    length(cells) / length(together)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_s: f64, fast_hit_ratio: f64) -> Sample {
        Sample {
            at_s,
            fast_hit_ratio,
            promoted_pages: 10,
            demoted_pages: 4,
            tier_bytes: vec![1, 2],
            heat: vec![1, 2, 3],
            ..Sample::default()
        }
    }

    #[test]
    fn many_samples_become_few_and_nothing_is_lost() {
        let samples = (1..=600_u32).map(|i| sample(f64::from(i) / 2.0, 0.5));
        let vm = VmTimeline {
            samples: samples.collect(),
            ..VmTimeline::default()
        };
        let mut found = stretches(&vm);
        assert_eq!(found.len(), 150);
        assert_eq!((found[0].from, found[0].to), (0.0, 2.0));
        assert_eq!(found[0].promoted_per_s, 20.0);
        assert_eq!(found[0].heat, [4, 8, 12]);
        assert_eq!(found[149].to, 300.0);
        assert_eq!(fewer_cells(&mut found, 2), 1.5);
        assert_eq!(found[0].heat, [12, 12]);
    }

    #[test]
    fn samples_out_of_time_are_left_out() {
        let ats = [1.0, f64::NAN, 0.5, 2.0, 2.0, f64::INFINITY, 3.0];
        let mut samples: Vec<Sample> = ats.iter().map(|at| sample(*at, 1.0)).collect();
        samples[3].fast_hit_ratio = f64::NAN;
        let vm = VmTimeline {
            samples,
            ..VmTimeline::default()
        };
        let found = stretches(&vm);
        let ends: Vec<f64> = found.iter().map(|s| s.to).collect();
        assert_eq!(ends, [1.0, 2.0, 3.0]);
        assert!(found[1].fast_hit_ratio.is_nan());
    }
}
