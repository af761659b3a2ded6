//! Phases of a live guest's use of memory (HPMBS §4.1).
//!
//! A program that begins to use other memory makes old ages of it worthless. Page walks show that at once, where the
//! host counts them for its guests; elsewhere a phase begins with another amount of used memory, or with many more or
//! fewer faults. A guest can always pretend a new phase: it keeps its own memory by that, and gets nobody else's.

use terrace_proto::Tick;
use terrace_proto::provision::PhaseStatus;

use super::member::{NEED_LASTS, Rate};
use super::percent;
use crate::demand::{PhaseConfig, Phases, WINDOW_NS};

/// Values in a mean of page walks. They come every two seconds, so a mean spans ten, and each is one of twenty windows.
const MEAN: u64 = 5;
/// Used memory that differs by less says nothing, percent of the VM's memory (our choice).
const USE_PERCENT: u8 = 5;
/// The same at least, bytes: the kernel's own caches come and go (our choice).
const LEAST_USE: u64 = 64 << 20;
/// Faults that double or halve begin a phase, if they differ by more than this a second (our choice).
const FEW_FAULTS: u64 = 16;

/// The source by which phases are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// Page walks, as the host counts them.
    PageWalks,
    /// The guest's statistics.
    #[default]
    Statistics,
}

/// Page walks of a guest.
#[derive(Clone, Debug)]
struct Walks {
    /// The last count, and its time.
    last: (Tick, u64),
    phases: Phases,
}

/// The memory in use and the faults with which a phase began.
#[derive(Clone, Copy, Debug)]
struct Reference {
    size: u64,
    used: u64,
    faults: u64,
}

/// The phases of one guest.
#[derive(Clone, Debug, Default)]
pub struct Phase {
    walks: Option<Walks>,
    reference: Option<Reference>,
    /// When the present phase began, as far as it was seen; `None` before the guest spoke.
    since: Option<Tick>,
    /// Phases that began after the first.
    began: u64,
}

impl Phase {
    /// Takes in the number of page walks so far.
    pub fn walks(&mut self, now: Tick, count: u64) {
        let elapsed = self.walks.as_ref().map(|walks| now.since(walks.last.0));
        let elapsed = elapsed.map_or(u64::MAX, |time| {
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
        });
        // A guest with other vCPUs is counted anew, and what nobody counted for a while does not compare.
        let fits = elapsed <= NEED_LASTS;
        let Some(walks) = self
            .walks
            .as_mut()
            .filter(|walks| fits && count >= walks.last.1)
        else {
            self.walks = Some(Walks {
                last: (now, count),
                phases: Phases::new(PhaseConfig {
                    windows: MEAN,
                    ..PhaseConfig::default()
                }),
            });
            self.since = Some(now);
            return;
        };
        if elapsed < WINDOW_NS {
            return;
        }
        let more = u128::from(count - walks.last.1) * u128::from(WINDOW_NS) / u128::from(elapsed);
        walks.last = (now, count);
        let before = walks.phases.began();
        walks.phases.window(u64::try_from(more).unwrap_or(u64::MAX));
        let (began, changes) = (walks.phases.began() - before, walks.phases.is_changing());
        self.began += began;
        if changes || began > 0 {
            self.since = Some(now);
        }
    }

    /// Takes in what the guest says of itself: used memory, bytes, and faults a second. `size`: the VM's memory, bytes;
    /// `None` while that is on its way.
    pub fn statistics(&mut self, now: Tick, used: u64, rate: Rate, size: Option<u64>) {
        self.since.get_or_insert(now);
        let Some(size) = size else {
            return;
        };
        let new = Reference {
            size,
            used,
            faults: rate.faults,
        };
        let before = self.reference.map_or(new, |before| before.resized(&new));
        self.reference = Some(before);
        if self.source(now) == Source::Statistics && before.differs(&new) {
            (self.reference, self.since) = (Some(new), Some(now));
            self.began += 1;
        }
    }

    /// The present source. Too few walks tell nothing: those of a guest with huge pages, or of virtual CPUs that are gone.
    pub fn source(&self, now: Tick) -> Source {
        let lasts = |walks: &Walks| now.0.saturating_sub(walks.last.0.0) <= NEED_LASTS;
        let tells = |walks: &Walks| lasts(walks) && !walks.phases.is_idle();
        match self.walks.as_ref().is_some_and(tells) {
            true => Source::PageWalks,
            false => Source::Statistics,
        }
    }

    /// When the present phase began.
    pub fn since(&self) -> Option<Tick> {
        self.since
    }

    /// The view for people; `None` before anything was heard.
    pub fn view(&self, now: Tick) -> Option<PhaseStatus> {
        Some(PhaseStatus {
            source: match self.source(now) {
                Source::PageWalks => "page-walks",
                Source::Statistics => "statistics",
            }
            .into(),
            since_s: now.since(self.since?).as_secs_f64(),
            changes: self.began,
        })
    }
}

impl Reference {
    /// The same for another size: as much less may be in use as it has less, or more as it has more. That is our doing,
    /// as are its faults.
    fn resized(self, now: &Self) -> Self {
        if now.size == self.size {
            return self;
        }
        let less = self.size.saturating_sub(now.size);
        let more = now.size.saturating_sub(self.size);
        let (least, most) = (
            self.used.saturating_sub(less),
            self.used.saturating_add(more),
        );
        Self {
            used: now.used.clamp(least, most),
            ..*now
        }
    }

    /// Whether a guest that was like this is no more.
    fn differs(&self, now: &Self) -> bool {
        let band = percent(self.size, USE_PERCENT).max(LEAST_USE);
        let (less, more) = (self.faults.min(now.faults), self.faults.max(now.faults));
        self.used.abs_diff(now.used) > band
            || more > less.saturating_mul(2).saturating_add(FEW_FAULTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(s: u64) -> Tick {
        Tick(s * 1_000_000_000)
    }

    fn rate(faults: u64) -> Rate {
        Rate { lost_ns: 0, faults }
    }

    /// How long the phase has lasted by then, and how many began after the first.
    fn seen(phase: &Phase, s: u64) -> (u64, u64) {
        let since = phase.since().unwrap();
        (at(s).since(since).as_secs(), phase.began)
    }

    /// Statistics each two seconds until then, with so much in use.
    fn say(phase: &mut Phase, s: std::ops::Range<u64>, used_mib: u64, faults: u64) {
        for s in s.step_by(2) {
            phase.statistics(at(s), used_mib * MIB, rate(faults), Some(1024 * MIB));
        }
    }

    #[test]
    fn a_phase_begins_with_another_amount_of_used_memory() {
        let mut phase = Phase::default();
        assert_eq!(phase.view(at(0)), None);
        say(&mut phase, 0..100, 500, 0);
        // Less than the band.
        say(&mut phase, 100..110, 560, 0);
        assert_eq!(seen(&phase, 110), (110, 0));
        say(&mut phase, 110..120, 570, 0);
        assert_eq!(seen(&phase, 120), (10, 1));
        say(&mut phase, 120..200, 200, 0);
        assert_eq!(seen(&phase, 200), (80, 2));
    }

    /// Compared with the value before, it would never begin.
    #[test]
    fn a_phase_begins_when_use_grows_little_by_little() {
        let mut phase = Phase::default();
        for s in 0..100 {
            phase.statistics(at(2 * s), (100 + 10 * s) * MIB, rate(0), Some(2048 * MIB));
        }
        assert_eq!(seen(&phase, 198).1, 9);
    }

    #[test]
    fn a_phase_begins_with_twice_the_faults_or_half_of_them() {
        let mut phase = Phase::default();
        say(&mut phase, 0..20, 500, 3);
        say(&mut phase, 20..40, 500, 22);
        assert_eq!(seen(&phase, 40), (40, 0));
        say(&mut phase, 40..60, 500, 100);
        assert_eq!(seen(&phase, 60), (20, 1));
        say(&mut phase, 60..80, 500, 30);
        assert_eq!(seen(&phase, 80), (20, 2));
    }

    #[test]
    fn a_size_that_changes_begins_no_phase() {
        let mut phase = Phase::default();
        phase.statistics(at(0), 900 * MIB, rate(0), Some(1024 * MIB));
        phase.statistics(at(2), 700 * MIB, rate(0), None);
        phase.statistics(at(4), 500 * MIB, rate(0), Some(600 * MIB));
        // To another one between two looks.
        phase.statistics(at(6), 300 * MIB, rate(0), Some(400 * MIB));
        assert_eq!(seen(&phase, 6), (6, 0));
        phase.statistics(at(8), 100 * MIB, rate(0), Some(400 * MIB));
        assert_eq!(seen(&phase, 8), (0, 1));
    }

    /// Walks each two seconds from `from` to `to`, so many a second.
    fn walk(phase: &mut Phase, count: &mut u64, seconds: std::ops::Range<u64>, per_s: u64) {
        for s in seconds.step_by(2) {
            *count += 2 * per_s;
            phase.walks(at(s), *count);
        }
    }

    #[test]
    fn page_walks_find_a_phase_that_statistics_do_not_show() {
        let (mut phase, mut count) = (Phase::default(), 0);
        say(&mut phase, 0..2, 500, 0);
        walk(&mut phase, &mut count, 0..100, 1_000_000);
        let (lasts, began) = seen(&phase, 100);
        assert!((70..100).contains(&lasts) && began == 0, "{lasts} {began}");
        assert_eq!(phase.view(at(100)).unwrap().source, "page-walks");
        walk(&mut phase, &mut count, 100..110, 3_000_000);
        assert_eq!(seen(&phase, 110).1, 1);
        walk(&mut phase, &mut count, 110..200, 3_000_000);
        let (lasts, began) = seen(&phase, 200);
        assert!((60..100).contains(&lasts) && began == 1, "{lasts} {began}");
    }

    #[test]
    fn page_walks_that_vary_by_a_fifth_are_one_phase() {
        let (mut phase, mut count) = (Phase::default(), 0);
        let rates = [1_000_000, 1_200_000, 800_000, 1_100_000, 900_000];
        for (s, per_s) in (0..1800).zip(rates.into_iter().cycle()) {
            walk(&mut phase, &mut count, 2 * s..2 * s + 1, per_s);
        }
        assert_eq!(seen(&phase, 3600).1, 0);
    }

    /// Statistics decide while nobody counts.
    #[test]
    fn page_walks_that_are_counted_no_more_leave_it_to_statistics() {
        let (mut phase, mut count) = (Phase::default(), 0);
        walk(&mut phase, &mut count, 0..60, 1_000_000);
        say(&mut phase, 60..62, 500, 0);
        say(&mut phase, 62..66, 100, 0);
        assert_eq!(seen(&phase, 66).1, 0, "walks decide");
        say(&mut phase, 80..82, 100, 0);
        assert_eq!(phase.view(at(80)).unwrap().source, "statistics");
        assert_eq!(seen(&phase, 80).1, 1);
    }

    #[test]
    fn counts_that_fall_or_leap_begin_anew() {
        let mut phase = Phase::default();
        for (s, count) in [
            (0, u64::MAX),
            (2, 5),
            (4, u64::MAX),
            (4, 7),
            (3, 8),
            (90, 9),
        ] {
            phase.walks(at(s), count);
        }
        assert_eq!(seen(&phase, 90), (0, 0));
        phase.walks(at(91), 10);
        phase.walks(Tick(0), u64::MAX);
    }

    /// A guest with huge pages walks hardly any tables, whatever it does.
    #[test]
    fn walks_too_few_to_tell_leave_it_to_statistics() {
        let (mut phase, mut count) = (Phase::default(), 0);
        walk(&mut phase, &mut count, 0..100, 10_000);
        for s in (100..200).step_by(2) {
            walk(&mut phase, &mut count, s..s + 1, 10_000);
            say(&mut phase, s..s + 1, if s < 150 { 500 } else { 100 }, 0);
        }
        let (lasts, began) = seen(&phase, 200);
        assert!(began == 1 && lasts <= 50, "{lasts} {began}");
    }

    /// As those of virtual CPUs that were unplugged.
    #[test]
    fn walks_that_stand_still_leave_it_to_statistics() {
        let (mut phase, mut count) = (Phase::default(), 0);
        walk(&mut phase, &mut count, 0..100, 1_000_000);
        for s in (100..200).step_by(2) {
            phase.walks(at(s), count);
            say(&mut phase, s..s + 1, if s < 150 { 500 } else { 100 }, 0);
        }
        assert_eq!(phase.view(at(200)).unwrap().source, "statistics");
        let (lasts, began) = seen(&phase, 200);
        assert!(began >= 1 && lasts <= 50, "{lasts} {began}");
    }

    /// Memory is taken each cycle: each look finds another size.
    #[test]
    fn a_phase_begins_though_the_size_changes_all_the_time() {
        let mut phase = Phase::default();
        for s in 0..40 {
            let size = (2048 - 20 * s) * MIB;
            // The memory that goes was not used. Then programs take what was free.
            let used = if s < 20 { 1000 } else { 1200 } * MIB;
            phase.statistics(at(4 * s), used, rate(0), Some(size));
            phase.statistics(at(4 * s + 2), used - 10 * MIB, rate(0), None);
        }
        assert_eq!(seen(&phase, 156), (76, 1));
    }

    /// One that walks hardly any tables says nothing by that.
    #[test]
    fn an_idle_guest_stays_in_its_phase() {
        let (mut phase, mut count) = (Phase::default(), 0);
        walk(&mut phase, &mut count, 0..600, 100);
        let (lasts, began) = seen(&phase, 600);
        assert!(lasts > 500 && began == 0, "{lasts} {began}");
    }
}
