//! A VM whose load as a whole has fallen.
//!
//! Responsible for: how far all recent averages together lie below all long ones. It leaves to others: what follows for the VM's size
//! ([`crate::engine`]).
//!
//! A page's long average falls over minutes, because a page is silent by chance now and then. All pages together are not: what an idle VM had in fast memory
//! can go to its neighbours before each of its pages has proved idle.

use super::scale::{rate_of, rate_of_fine};
use crate::pages::Pages;

/// Steps of the scale in an octave.
const OCTAVE: u32 = 8;
/// Units that say it.
const SAMPLE: usize = 4096;

/// The steps of the scale by which the recent rate of all units lies below their long one; whole octaves only. All of the scale if there is nothing recent.
pub(crate) fn fallen_steps(pages: &Pages) -> u8 {
    let step = (pages.units() / SAMPLE).max(1) | 1;
    let averages = pages.queue.iter().zip(&pages.long);
    let (mut recent, mut long) = (0_u64, 0_u64);
    for (now, then) in averages.step_by(step) {
        recent += rate_of(*now);
        long += rate_of_fine(*then);
    }
    match long.checked_div(recent) {
        None => u8::MAX,
        Some(times) => {
            let octaves = times.max(1).ilog2();
            u8::try_from(octaves * OCTAVE).unwrap_or(u8::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::PageSize;

    use super::*;
    use crate::track::tests::pages;

    #[test]
    fn all_units_together_say_how_far_a_load_fell() {
        let mut p = pages(PageSize::Base, 100);
        p.have_rates();
        p.long.fill(100 << 8);
        for (recent, steps) in [(100, 0), (93, 0), (92, 8), (60, 40), (140, 0), (0, u8::MAX)] {
            p.queue.fill(recent);
            assert_eq!(fallen_steps(&p), steps, "{recent}");
        }
        // One hot unit among silent ones.
        p.queue.fill(0);
        p.queue[3] = 160;
        assert_eq!(fallen_steps(&p), 0);
    }
}
