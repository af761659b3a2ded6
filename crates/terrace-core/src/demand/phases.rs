//! Phases of a VM's use of memory, by its page walks (HPMBS §4.1).
//!
//! A program that begins to use other memory walks page tables for it: the number of walks in a short time says that
//! something changed, at no cost. The paper compares a mean of the last windows with the means before it; how many, and
//! which ratio is a change, it does not say. The values here are ours ([`PhaseConfig::default`]).

use std::collections::VecDeque;

use serde::Serialize;

use crate::error::ConfigError;

/// Length of a window, ns (HPMBS §4.1: 0.1 s).
pub const WINDOW_NS: u64 = 100_000_000;

/// Most windows of a mean: a minute.
pub const MAX_WINDOWS: u64 = 600;

/// Most walks that a window counts: more than any number of processors makes.
const MAX_WALKS: u64 = 1 << 48;

/// Highest upper bound, in thousandths.
const MAX_UPPER: u64 = 1_000_000;

/// Windows without enough walks after which a phase is over, in lengths of a mean: a comparison looks at the last mean
/// and at the means before it, which together reach back over twice that length. By default 4 s.
const QUIET_MEANS: u64 = 2;

/// Bounds and counts that make a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseConfig {
    /// Windows of a mean, and means that it is compared with: the paper's *k*.
    pub windows: u64,
    /// Fewer walks in a window are no sign of anything: the window is ignored.
    pub least_walks: u64,
    /// A mean below so many thousandths of those before begins a phase.
    pub lower: u64,
    /// A mean above so many thousandths of those before begins a phase.
    pub upper: u64,
}

impl Default for PhaseConfig {
    /// Twenty windows are two seconds. Windows of a steady program whose walks vary by a fifth (standard deviation) then
    /// give means that vary by 4.5 %, so that a quarter more or less is no noise (test: none in an hour; ten windows
    /// found five). A step is found if walks grow by more than 58 % or shrink by more than 32 %: when the last mean has
    /// reached it, the means before have followed it half way.
    fn default() -> Self {
        Self {
            windows: 20,
            least_walks: 5000,
            lower: 800,
            upper: 1250,
        }
    }
}

impl PhaseConfig {
    /// The values, if they are usable.
    ///
    /// # Errors
    /// If there are no windows or more than [`MAX_WINDOWS`], or 1000 is not between the bounds.
    pub fn checked(self) -> Result<Self, ConfigError> {
        let range = |key: &str, value: u64, allowed: String| ConfigError::Range {
            key: format!("demand.{key}"),
            value: value.to_string(),
            allowed,
        };
        if !(1..=MAX_WINDOWS).contains(&self.windows) {
            let allowed = format!("1 to {MAX_WINDOWS}");
            return Err(range("phase_windows", self.windows, allowed));
        }
        if self.lower >= 1000 {
            return Err(range("phase_lower_milli", self.lower, "0 to 999".into()));
        }
        if !(1001..=MAX_UPPER).contains(&self.upper) {
            let allowed = format!("1001 to {MAX_UPPER}");
            return Err(range("phase_upper_milli", self.upper, allowed));
        }
        Ok(self)
    }
}

/// A change of a VM's phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PhaseChange {
    /// A phase began: the walks are others than before.
    Began,
    /// The phase is stable: no ratio has been outside the bounds for as many windows as a mean has.
    Stable,
}

/// The phases of one VM.
#[derive(Clone, Debug)]
pub struct Phases {
    config: PhaseConfig,
    /// Walks of the last windows.
    walks: VecDeque<u64>,
    /// Sums of those windows at the windows before this one: the means, times their number.
    sums: VecDeque<u128>,
    /// Ratios within the bounds, one after another.
    within: u64,
    /// Windows without enough walks, one after another.
    quiet: u64,
    /// Phases that began.
    began: u64,
}

impl Phases {
    /// A VM that was never seen, with values that are [`PhaseConfig::checked`].
    #[must_use]
    pub fn new(config: PhaseConfig) -> Self {
        Self {
            config,
            walks: VecDeque::new(),
            sums: VecDeque::new(),
            within: 0,
            quiet: 0,
            began: 0,
        }
    }

    /// Whether the phase is stable. A VM that walks too little to be seen stays as it was; one that was never seen is not
    /// stable.
    #[must_use]
    pub fn is_stable(&self) -> bool {
        self.within >= self.config.windows
    }

    /// Whether a phase is under way that is not stable yet. A VM that walked too little for as many windows as a
    /// comparison looks at (a mean and those before it) changes no more: whatever began is over, and may never become
    /// stable. It changes again when it walks again.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        !self.walks.is_empty() && !self.is_idle() && !self.is_stable()
    }

    /// Whether the VM walked too little to tell anything for as many windows as a comparison looks at.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.quiet >= QUIET_MEANS * self.config.windows
    }

    /// Phases that began so far.
    #[must_use]
    pub fn began(&self) -> u64 {
        self.began
    }

    /// Takes in the walks that one window completed; returns what changed.
    pub fn window(&mut self, walks: u64) -> Option<PhaseChange> {
        if walks < self.config.least_walks {
            self.quiet = self.quiet.saturating_add(1);
            return None;
        }
        self.quiet = 0;
        let full = self.config.windows;
        push(&mut self.walks, walks.min(MAX_WALKS), full);
        if (self.walks.len() as u64) < full {
            return None;
        }
        let sum = self.walks.iter().map(|walks| u128::from(*walks)).sum();
        let change = self.compare(sum);
        push(&mut self.sums, sum, full);
        change
    }

    /// Compares a sum of windows with the sums before it.
    fn compare(&mut self, sum: u128) -> Option<PhaseChange> {
        let full = self.config.windows;
        if (self.sums.len() as u64) < full {
            return None;
        }
        let before: u128 = self.sums.iter().sum();
        let ratio = sum * u128::from(full) * 1000;
        let is_within = ratio >= before * u128::from(self.config.lower)
            && ratio <= before * u128::from(self.config.upper);
        let was_stable = self.is_stable();
        if is_within {
            self.within = (self.within + 1).min(full);
            return (!was_stable && self.is_stable()).then_some(PhaseChange::Stable);
        }
        // Until it is stable, further ratios outside belong to the change that was reported.
        let news = was_stable || (self.began == 0 && self.within == 0);
        self.within = 0;
        self.began += u64::from(news);
        news.then_some(PhaseChange::Began)
    }
}

/// Appends a value; the oldest one goes if there are more than `full`.
fn push<T>(values: &mut VecDeque<T>, value: T, full: u64) {
    if values.len() as u64 >= full {
        values.pop_front();
    }
    values.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next number of a stream (SplitMix64).
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A draw with this mean and a standard deviation of a fifth of it: the sum of twelve uniform ones.
    fn noise(state: &mut u64, mean: u64) -> u64 {
        let sum: u64 = (0..12).map(|_| next(state) >> 44).sum();
        let unit = 1_u64 << 20;
        (mean * sum - mean * unit) / (5 * unit)
    }

    /// The windows at which phases began, after the first one that is stable.
    fn changes(walks: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut phases = Phases::new(PhaseConfig::default());
        let windows = (0..).zip(walks);
        let began = windows.filter(|(_, walks)| phases.window(*walks) == Some(PhaseChange::Began));
        began.map(|(window, _)| window).collect()
    }

    #[test]
    fn steps_are_found_once_and_within_two_seconds() {
        for (from, to) in [(20_000, 32_000), (100_000, 60_000), (8_000, 80_000)] {
            let walks = (0..200).map(|window| if window < 100 { from } else { to });
            let found = changes(walks);
            assert_eq!(found.len(), 1, "{from} to {to}: {found:?}");
            assert!((100..120).contains(&found[0]), "{from} to {to}: {found:?}");
        }
    }

    #[test]
    fn noise_is_no_phase() {
        let mut random = 7;
        let found = changes((0..36_000).map(|_| noise(&mut random, 50_000)));
        assert!(found.is_empty(), "in an hour: {found:?}");
    }

    #[test]
    fn steps_in_noise_are_found() {
        let mut random = 8;
        for case in 0..100 {
            let levels = [50_000, 100_000];
            let found = changes((0..240).map(|at| noise(&mut random, levels[at / 120])));
            let step = found.iter().filter(|at| (120..141).contains(*at)).count();
            assert_eq!(step, 1, "case {case}: {found:?}");
        }
    }

    #[test]
    fn quiet_windows_are_ignored() {
        let mut phases = Phases::new(PhaseConfig::default());
        for _ in 0..100 {
            phases.window(20_000);
        }
        assert!(phases.is_stable());
        assert_eq!(phases.window(4_999), None);
        assert!(phases.is_stable() && phases.began() == 0);
    }

    #[test]
    fn a_vm_that_goes_idle_changes_no_more() {
        let mut phases = Phases::new(PhaseConfig::default());
        assert!(!phases.is_changing(), "it was never seen");
        (0..70).for_each(|_| _ = phases.window(20_000));
        (0..5).for_each(|_| _ = phases.window(60_000));
        assert!(phases.is_changing() && phases.began() == 1);
        (0..39).for_each(|_| _ = phases.window(4_999));
        assert!(phases.is_changing(), "a pause of less than 4 s");
        phases.window(0);
        assert!(!phases.is_changing() && !phases.is_stable());
        phases.window(60_000);
        assert!(phases.is_changing(), "it walks again");
    }

    #[test]
    fn a_vm_is_stable_after_six_seconds_of_the_same() {
        let mut phases = Phases::new(PhaseConfig::default());
        let stable = (0..100).find(|_| phases.window(9_000) == Some(PhaseChange::Stable));
        assert_eq!(stable, Some(58));
    }

    #[test]
    fn no_number_of_walks_overflows() {
        let config = PhaseConfig {
            windows: MAX_WINDOWS,
            upper: MAX_UPPER,
            ..PhaseConfig::default()
        };
        let mut phases = Phases::new(config);
        for _ in 0..2 * MAX_WINDOWS + 10 {
            assert_eq!(phases.window(u64::MAX), None);
        }
    }

    #[test]
    fn values_that_mean_nothing_are_refused() {
        let with = |windows, lower, upper| {
            let config = PhaseConfig {
                windows,
                lower,
                upper,
                ..PhaseConfig::default()
            };
            config.checked().map_err(|error| error.to_string())
        };
        assert!(with(10, 800, 1250).is_ok());
        let refused = [with(0, 800, 1250), with(10, 1000, 1250), with(9, 0, 1000)];
        let expected = [
            "demand.phase_windows = 0 is out of range: allowed is 1 to 600",
            "demand.phase_lower_milli = 1000 is out of range: allowed is 0 to 999",
            "demand.phase_upper_milli = 1000 is out of range: allowed is 1001 to 1000000",
        ];
        assert_eq!(refused.map(Result::unwrap_err), expected);
    }
}
