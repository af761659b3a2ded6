//! Windows that belong to parts of a VM's memory: each part is cleared and looked at for as many windows as a round has, then the
//! next one, until all were.
//!
//! Responsible for: which part is under a window, and what its passes found. It leaves to others: when passes come
//! ([`super::round`]), and what a window's bits mean ([`crate::track`]).
//!
//! A pass over a part costs its part of a whole pass, so windows may be shorter than a pass over all memory. What a part's windows saw is
//! of its own time: pages of two parts were not looked at together. Each part is drawn from the guest's leaf tables by a seed that
//! is another one in each round, so no page is always the last.

use terrace_proto::{
    Action, PageBitmap, Part, PartAnswer, PartRequest, RequestId, Space, Tick, VmId,
};

use super::Shared;
use super::view::PartView;
use super::vm::Vm;
use crate::config::EngineConfig;
use crate::policy::{Estimate, Observe};

/// The parts of the round under way.
#[derive(Debug)]
pub(crate) struct Parts {
    /// The one whose windows are under way.
    part: Part,
    /// Pages that the parts so far map.
    mapped: PageBitmap,
}

impl Parts {
    fn first(vm: VmId, round: u64, span: u64, config: &EngineConfig) -> Option<Self> {
        // Any number but the same in each round, and no secret: a guest that knows it gains nothing, since it sets its own
        // bits as it likes.
        let seed = config.random_seed ^ u64::from(vm.0) << 32 ^ round.rotate_left(48);
        let part = Part::new(seed, config.scan_shift(), 0).ok()?;
        Some(Self {
            part,
            mapped: PageBitmap::new(span),
        })
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.mapped.heap_bytes()
    }
}

impl Vm {
    /// Whether rounds are divided: their scans are of the guest's tables, and the configuration wants that. Lists have windows of
    /// their own, all of the same time.
    pub fn divides_rounds(&self, config: &EngineConfig) -> bool {
        let guest = matches!(
            self.policy.observe,
            Observe::GuestScan | Observe::GuestScanPlain
        );
        guest && self.policy.estimate != Estimate::HotLists && config.scan_shift() > 0
    }

    /// Divides the round that begins, if rounds are to be divided.
    pub fn divide_round(&mut self, config: &EngineConfig) {
        let divides = self.divides_rounds(config);
        let span = self.pages.ram().span_pages();
        let parts = || Parts::first(self.id, self.rounds.number, span, config);
        self.rounds.parts = divides.then(parts).flatten().map(Box::new);
    }

    /// Asks for a pass over the part under way; `None` if the round is not divided.
    pub fn scan_part(
        &self,
        clear: bool,
        prune: bool,
        first: bool,
        shared: &mut Shared,
    ) -> Option<RequestId> {
        let part = self.rounds.parts.as_ref()?.part;
        let id = shared.request();
        shared.act(Action::ScanPart(PartRequest {
            id,
            space: Space::Guest(self.id),
            part,
            clear,
            prune,
            // The tables were looked for before the first part.
            discover: first && part.index() == 0,
        }));
        Some(id)
    }

    /// Takes in what a pass over a part found.
    pub fn scanned_part(&mut self, now: Tick, answer: &PartAnswer, shared: &mut Shared) {
        if self.aged_part(now, answer, shared) {
            return;
        }
        let Some((window, since)) = self.pass_under_way(answer.id) else {
            self.history.counters.stale_answers += 1;
            return;
        };
        let span = self.pages.ram().span_pages();
        let asked = self.rounds.parts.as_ref().map(|parts| parts.part);
        let fits = asked == Some(answer.part)
            && answer.space == Space::Guest(self.id)
            && answer.fits(span);
        let Some(parts) = self.rounds.parts.as_mut().filter(|_| fits) else {
            self.malformed(now);
            return;
        };
        for cell in &answer.cells {
            let at = cell.at as usize;
            let before = parts.mapped.words().get(at).copied().unwrap_or(0);
            parts.mapped.set_word(at, before | cell.mapped);
        }
        let is_first = window == 0 && answer.part.index() == 0;
        let blocks = span.div_ceil(terrace_proto::PAGES_PER_HUGE);
        self.observer
            .coarse
            .hear_part(&answer.huge, blocks, is_first);
        let windows = self.rhythm(&shared.config).windows;
        if window > 0 {
            let tracker = &self.observer.tracker;
            tracker.record_part(&mut self.pages, answer, windows);
        }
        self.pass_ended(
            now,
            window,
            since,
            &answer.stats,
            answer.written.is_some(),
            shared,
        );
    }

    /// Goes on with the next part; false after the last one, and if the round is not divided.
    pub fn next_part(&mut self, now: Tick, shared: &mut Shared) -> bool {
        let Some(parts) = &mut self.rounds.parts else {
            return false;
        };
        let Some(next) = parts.part.next() else {
            return false;
        };
        parts.part = next;
        self.clear(now, shared);
        true
    }

    /// The part under way; `None` if the round is not divided.
    pub fn part_view(&self) -> Option<PartView> {
        let part = self.rounds.parts.as_ref()?.part;
        Some(PartView {
            part: part.index() + 1,
            of: part.count(),
        })
    }

    /// The pages that the round's parts map, once all were looked at; `None` if it was not divided.
    pub fn mapped_by_parts(&mut self) -> Option<PageBitmap> {
        self.rounds.parts.take().map(|parts| parts.mapped)
    }
}
