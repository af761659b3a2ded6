//! One VM of a log that is replayed with another policy.

use terrace_proto::{
    MoveReport, MoveStatus, PlacementReport, RamChange, RequestId, ScanAnswer, ScanRequest, Tick,
    TierId, VmSpec,
};

use crate::engine::view::Counters;

use super::Refused;
use super::observed::{Observed, Window};
use super::places::Places;
use super::report::{Outcome, VmReport, seconds, share};

/// What the other engine waits for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Asked {
    #[default]
    Nothing,
    Placement(RequestId),
    Scan(ScanRequest),
}

pub(super) struct Vm {
    name: String,
    span_pages: u64,
    /// Where pages are by the log.
    pub recorded: Places,
    /// Where they would be.
    pub other: Places,
    pub observed: Observed,
    /// What the other engine waits for.
    pub asked: Asked,
    /// The recorded scan under way.
    pub scan: Option<ScanRequest>,
    /// The recorded question under way where pages are, and what was answered so far.
    query: Option<(RequestId, Places)>,
    empty: Places,
    placed: bool,
    /// Number of the last window of the round, 0 after its clearing pass.
    window: u8,
    window_began: Tick,
    /// Windows seen.
    pub windows: u64,
    observed_ns: u64,
    pub unit_windows: u64,
    pub known: u64,
    accesses: u64,
    fast: u64,
    recorded_fast: u64,
    rounds: u64,
    promoted: u64,
    demoted: u64,
    pub missed_rounds: u64,
    pub writes_told: bool,
    /// What the other engine counted, up to the VM's end.
    pub counters: Counters,
    by_damon: bool,
}

impl Vm {
    pub fn new(spec: &VmSpec) -> Self {
        let span = spec.span_pages();
        let empty = Places::new(spec.unit, span);
        Self {
            name: spec.name.clone(),
            span_pages: span,
            recorded: empty.clone(),
            other: empty.clone(),
            observed: Observed::new(spec.unit, span),
            asked: Asked::Nothing,
            scan: None,
            query: None,
            empty,
            placed: false,
            window: 0,
            window_began: Tick(0),
            windows: 0,
            observed_ns: 0,
            unit_windows: 0,
            known: 0,
            accesses: 0,
            fast: 0,
            recorded_fast: 0,
            rounds: 0,
            promoted: 0,
            demoted: 0,
            missed_rounds: 0,
            writes_told: false,
            counters: Counters::default(),
            by_damon: false,
        }
    }

    /// Its RAM is another one: nothing of the old one counts, and nothing that was asked about it is answered.
    pub fn ram_changed(&mut self, change: &RamChange) {
        let end = |r: &terrace_proto::RamRange| r.start.0.saturating_add(r.pages);
        // Where it is not known, no page of it is told before it is.
        if let Some(span) = change.ram.iter().map(end).max() {
            self.span_pages = span;
            self.empty = Places::new(change.unit, span);
            self.observed = Observed::new(change.unit, span);
        }
        self.recorded = self.empty.clone();
        self.other = self.empty.clone();
        self.asked = Asked::Nothing;
        (self.scan, self.query) = (None, None);
        (self.placed, self.window) = (false, 0);
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
            Asked::Nothing => None,
            Asked::Placement(id) => Some(id),
            Asked::Scan(request) => Some(request.id),
        }
    }

    /// Whether a recorded question of that number is open.
    pub fn waits_for(&self, id: RequestId) -> bool {
        let query = self.query.as_ref().map(|(id, _)| *id);
        let scan = self.scan.as_ref().map(|request| request.id);
        [query, scan].contains(&Some(id))
    }

    /// Takes a report in; says whether the whole VM is told now.
    pub fn placement(&mut self, report: &PlacementReport) -> bool {
        let Some((_, found)) = self.query.as_mut().filter(|(id, _)| *id == report.id) else {
            return false;
        };
        found.report(report);
        if !report.last {
            return false;
        }
        if let Some((_, found)) = self.query.take() {
            self.recorded = found;
            self.other.follow(&self.recorded);
            self.placed = true;
        }
        true
    }

    pub fn recorded_moves(&mut self, report: &MoveReport) {
        let tried = report.results.iter();
        for result in tried.filter(|r| r.status != MoveStatus::NotTried) {
            let page = usize::try_from(result.gfn.0).unwrap_or(usize::MAX);
            let (up, down) = self.recorded.land(page, result.now);
            self.promoted += up;
            self.demoted += down;
        }
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
        self.by_damon |= answer.stats.tables == 0 && answer.stats.accessed > 0;
        if request.discover {
            self.observed.clear(answer, &request.rearm);
            self.window = 0;
        } else {
            if !self.placed {
                return Err(Refused::NoPlacement(self.name.clone()));
            }
            let window = self.observed.window(answer, &request.rearm);
            self.count(&window);
            self.window = self.window.saturating_add(1);
            self.windows += 1;
            self.observed_ns += at.0.saturating_sub(self.window_began.0);
            self.writes_told |= answer.written.is_some();
            self.rounds += u64::from(self.window == windows);
        }
        self.window_began = at;
        Ok(self.window)
    }

    fn count(&mut self, window: &Window) {
        let sum = |words: &[u64]| words.iter().map(|w| u64::from(w.count_ones())).sum::<u64>();
        self.unit_windows += sum(&window.mapped);
        self.known += sum(&window.known);
        self.accesses += sum(&window.accessed);
        for (index, word) in window.accessed.iter().enumerate() {
            let units = (0..64).filter(|bit| word >> bit & 1 == 1);
            for unit in units.map(|bit| index * 64 + bit) {
                let fast = |places: &Places| places.unit_tier(unit) == Some(TierId::FAST);
                self.fast += u64::from(fast(&self.other));
                self.recorded_fast += u64::from(fast(&self.recorded));
            }
        }
    }

    /// Refuses what was not observed page by page.
    pub fn check(&self) -> Result<(), Refused> {
        if self.by_damon {
            return Err(Refused::Damon(self.name.clone()));
        }
        Ok(())
    }

    pub fn report(&self) -> VmReport {
        VmReport {
            name: self.name.clone(),
            observed_s: seconds(self.observed_ns),
            coverage: share(self.known, self.unit_windows),
            unit_windows: self.unit_windows,
            accesses: self.accesses,
            other: Outcome {
                rounds: self.counters.rounds,
                promoted_pages: self.counters.promoted_pages,
                demoted_pages: self.counters.demoted_pages,
                fast_share: share(self.fast, self.accesses),
            },
            recorded: Outcome {
                rounds: self.rounds,
                promoted_pages: self.promoted,
                demoted_pages: self.demoted,
                fast_share: share(self.recorded_fast, self.accesses),
            },
            missed_rounds: self.missed_rounds,
        }
    }
}
