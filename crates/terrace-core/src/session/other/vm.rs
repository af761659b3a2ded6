//! One VM of a log that is replayed with another policy.

use terrace_proto::{
    MoveReport, MoveStatus, PlacementReport, RamChange, RequestId, ScanAnswer, ScanRequest, Tick,
    TierId, VmSpec,
};

use crate::engine::view::Counters;
use crate::ram::Ram;

use super::Refused;
use super::observed::{Observed, Window};
use super::places::Places;
use super::report::{Outcome, VmReport, seconds, share};

/// The other engine's open question.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum OpenQuestion {
    #[default]
    Nothing,
    Placement(RequestId),
    Scan(ScanRequest),
}

/// A VM of the log.
pub(super) struct Vm {
    name: String,
    span_pages: u64,
    /// The VM under the log's policy.
    pub recorded: Recorded,
    /// The VM under the other policy.
    pub other: Other,
    pub observed: Observed,
    /// The sums over all windows.
    pub tally: Tally,
    /// The other engine's open question.
    pub asked: OpenQuestion,
    /// The recorded scan under way.
    pub scan: Option<ScanRequest>,
    /// The recorded question under way where pages are, and what was answered so far.
    query: Option<(RequestId, Places)>,
    /// Nothing is known of any page.
    empty: Places,
    placed: bool,
    window: LastWindow,
}

/// The VM under the log's policy.
pub(super) struct Recorded {
    /// The pages' locations.
    pub places: Places,
    rounds: u64,
    promoted: u64,
    demoted: u64,
}

impl Recorded {
    fn new(places: Places) -> Self {
        Self {
            places,
            rounds: 0,
            promoted: 0,
            demoted: 0,
        }
    }

    /// Takes a report of its moves in.
    pub fn moved(&mut self, report: &MoveReport) {
        let tried = report.results.iter();
        for result in tried.filter(|r| r.status != MoveStatus::NotTried) {
            let page = usize::try_from(result.gfn.0).unwrap_or(usize::MAX);
            let (up, down) = self.places.land(page, result.now);
            self.promoted += up;
            self.demoted += down;
        }
    }

    fn outcome(&self, tally: &Tally) -> Outcome {
        Outcome {
            rounds: self.rounds,
            promoted_pages: self.promoted,
            demoted_pages: self.demoted,
            fast_share: share(tally.recorded_fast, tally.accesses),
        }
    }
}

/// The VM under the other policy.
pub(super) struct Other {
    /// The locations that the pages would have.
    pub places: Places,
    /// The other engine's counters, up to the VM's departure.
    pub counters: Counters,
    /// Rounds of the log that it had no use for.
    pub missed_rounds: u64,
}

impl Other {
    fn new(places: Places) -> Self {
        Self {
            places,
            counters: Counters::default(),
            missed_rounds: 0,
        }
    }

    fn outcome(&self, tally: &Tally) -> Outcome {
        Outcome {
            rounds: self.counters.rounds,
            promoted_pages: self.counters.promoted_pages,
            demoted_pages: self.counters.demoted_pages,
            fast_share: share(tally.fast, tally.accesses),
        }
    }
}

/// The newest window.
struct LastWindow {
    /// The number in the round, 0 after the clearing pass.
    number: u8,
    /// When its scan was answered: there the next one begins.
    ended: Tick,
}

/// The sums over all windows.
#[derive(Default)]
pub(super) struct Tally {
    /// Windows seen.
    pub windows: u64,
    observed_ns: u64,
    /// Units that were mapped, by window.
    pub unit_windows: u64,
    /// Those of them whose accesses the log supplies.
    pub known: u64,
    accesses: u64,
    /// Accesses to the first tier, as the other policy would have placed.
    fast: u64,
    /// The same, as the log's policy did.
    recorded_fast: u64,
    pub writes_seen: bool,
    by_damon: bool,
}

impl Tally {
    fn add(&mut self, window: &Window, recorded: &Places, other: &Places) {
        let sum = |words: &[u64]| words.iter().map(|w| u64::from(w.count_ones())).sum::<u64>();
        self.windows += 1;
        self.unit_windows += sum(&window.mapped);
        self.known += sum(&window.known);
        self.accesses += sum(&window.accessed);
        for (index, word) in window.accessed.iter().enumerate() {
            let units = (0..64).filter(|bit| word >> bit & 1 == 1);
            for unit in units.map(|bit| index * 64 + bit) {
                let fast = |places: &Places| places.unit_tier(unit) == Some(TierId::FAST);
                self.fast += u64::from(fast(other));
                self.recorded_fast += u64::from(fast(recorded));
            }
        }
    }
}

impl Vm {
    pub fn new(spec: &VmSpec) -> Self {
        let span = spec.span_pages();
        let empty = Places::new(spec.unit, span);
        Self {
            name: spec.name.clone(),
            span_pages: span,
            recorded: Recorded::new(empty.clone()),
            other: Other::new(empty.clone()),
            observed: Observed::new(spec.unit, span),
            tally: Tally::default(),
            asked: OpenQuestion::Nothing,
            scan: None,
            query: None,
            empty,
            placed: false,
            window: LastWindow {
                number: 0,
                ended: Tick(0),
            },
        }
    }

    /// Takes in another memory map: nothing of the old one counts, and no question about it is answered.
    pub fn ram_changed(&mut self, change: &RamChange) {
        // If it is not known, no page of it is reported before it is. RAM that the engine refuses counts as not known:
        // its span may be more than there is memory for.
        if let Ok(ram) = Ram::of(&change.ram, change.unit) {
            let span = ram.span_pages();
            self.span_pages = span;
            self.empty = Places::new(change.unit, span);
            self.observed = Observed::new(change.unit, span);
        }
        self.recorded.places = self.empty.clone();
        self.other.places = self.empty.clone();
        self.asked = OpenQuestion::Nothing;
        (self.scan, self.query) = (None, None);
        (self.placed, self.window.number) = (false, 0);
    }

    /// The log's policy asks where pages are. Gives the question of the other engine that this leaves
    /// without an answer.
    pub fn round_starts(&mut self, query: RequestId) -> Option<RequestId> {
        self.query = Some((query, self.empty.clone()));
        self.scan = None;
        self.give_up()
    }

    /// Nothing more comes of the other engine's open question.
    pub fn give_up(&mut self) -> Option<RequestId> {
        match std::mem::take(&mut self.asked) {
            OpenQuestion::Nothing => None,
            OpenQuestion::Placement(id) => Some(id),
            OpenQuestion::Scan(request) => Some(request.id),
        }
    }

    /// Whether a recorded question of that number is open.
    pub fn waits_for(&self, id: RequestId) -> bool {
        let query = self.query.as_ref().map(|(id, _)| *id);
        let scan = self.scan.as_ref().map(|request| request.id);
        [query, scan].contains(&Some(id))
    }

    /// Takes a report in; returns whether the whole VM is reported now.
    pub fn placement(&mut self, report: &PlacementReport) -> bool {
        let Some((_, found)) = self.query.as_mut().filter(|(id, _)| *id == report.id) else {
            return false;
        };
        found.report(report);
        if !report.last {
            return false;
        }
        if let Some((_, found)) = self.query.take() {
            self.recorded.places = found;
            self.other.places.follow(&self.recorded.places);
            self.placed = true;
        }
        true
    }

    pub fn fits(&self, answer: &ScanAnswer) -> bool {
        let written = answer.written.as_ref().map(|w| w.pages());
        [answer.known.pages(), answer.accessed.pages()] == [self.span_pages; 2]
            && written.is_none_or(|pages| pages == self.span_pages)
    }

    /// Takes a recorded scan's answer in; gives the number of the window that it ends, 0 for the
    /// clearing pass.
    pub fn scanned(
        &mut self,
        at: Tick,
        answer: &ScanAnswer,
        request: &ScanRequest,
        windows: u8,
    ) -> Result<u8, Refused> {
        self.tally.by_damon |= answer.stats.tables == 0 && answer.stats.accessed > 0;
        if request.discover {
            self.observed.clear(answer, &request.rearm);
            self.window.number = 0;
        } else {
            if !self.placed {
                return Err(Refused::NoPlacement(self.name.clone()));
            }
            let window = self.observed.window(answer, &request.rearm);
            self.tally
                .add(&window, &self.recorded.places, &self.other.places);
            self.tally.observed_ns += at.0.saturating_sub(self.window.ended.0);
            self.tally.writes_seen |= answer.written.is_some();
            self.window.number = self.window.number.saturating_add(1);
            self.recorded.rounds += u64::from(self.window.number == windows);
        }
        self.window.ended = at;
        Ok(self.window.number)
    }

    /// Refuses what was not observed page by page.
    pub fn check(&self) -> Result<(), Refused> {
        if self.tally.by_damon {
            return Err(Refused::Damon(self.name.clone()));
        }
        Ok(())
    }

    pub fn report(&self) -> VmReport {
        let tally = &self.tally;
        VmReport {
            name: self.name.clone(),
            observed_s: seconds(tally.observed_ns),
            coverage: share(tally.known, tally.unit_windows),
            unit_windows: tally.unit_windows,
            accesses: tally.accesses,
            other: self.other.outcome(tally),
            recorded: self.recorded.outcome(tally),
            missed_rounds: self.other.missed_rounds,
        }
    }
}
