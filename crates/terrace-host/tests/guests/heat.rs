//! A comparison of a scan with a hot set that the guest knows.

use std::fmt;

use terrace_proto::{PageBitmap, Rearm};

use crate::guest::{CLEAR, Frames, Guest, Pass};

/// Passes over the hot set between two scans: each page is touched for certain.
const PASSES: u64 = 3;

/// A hot set and what was found of it.
pub struct Heat {
    pub hot: usize,
    pub found: usize,
    /// Pages of the region that were seen accessed and are not hot.
    pub wrong: usize,
}

impl fmt::Display for Heat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hot, found, wrong } = self;
        write!(f, "{found} of {hot} hot pages found, {wrong} others")
    }
}

/// Clears, waits until all hot pages were touched, and scans.
pub fn measure(guest: &mut Guest, prune: bool) -> Heat {
    let (hot, region) = (guest.frames("truth"), guest.frames("region"));
    guest.scan(CLEAR);
    guest.wait_for_passes(PASSES);
    let answer = guest.scan(Pass {
        rearm: Rearm::None,
        prune,
        discover: false,
    });
    let accessed = |frames: &Frames| count(&answer.accessed, frames);
    let found = accessed(&hot);
    Heat {
        hot: hot.len(),
        found,
        wrong: accessed(&region) - found,
    }
}

/// Number of the frames that are in the bitmap.
pub fn count(bitmap: &PageBitmap, frames: &Frames) -> usize {
    frames.iter().filter(|frame| bitmap.get(**frame)).count()
}

/// Fails unless every hot page is found and next to nothing else.
pub fn expect_found(heat: &Heat) {
    assert!(
        heat.found == heat.hot && heat.wrong * 50 <= heat.hot,
        "{heat}"
    );
}
