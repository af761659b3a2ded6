//! The ages of a VM's memory: scans between its rounds, while a VM that shares memory lacks some.
//!
//! Responsible for: when such scans come and what they cost, and what they come to. It leaves to others: distances
//! ([`crate::demand::Ages`]), and who gives memory ([`crate::arbiter`]).
//!
//! A scan clears accessed bits, as each pass of a round does: both are of the engine, so the bits have one owner. A round
//! begins with a pass that clears them all, and what its windows saw counts as one window here. The first scan after it
//! only clears.
//!
//! Scans may be of a sample: the same leaf tables in each, drawn when the scans of a VM began. What it finds stands for as many times as
//! much; no page moves by it.

use std::time::Duration;

use terrace_proto::{
    Action, PAGE_SIZE, PAGES_PER_HUGE, Part, PartAnswer, PartCell, PartRequest, Rearm, RequestId,
    ScanAnswer, ScanRequest, ScanStats, Space, Tick,
};

use super::Shared;
use super::rounds::Phase;
use super::vm::Vm;
use crate::config::{ArbiterConfig, EngineConfig};
use crate::demand::{Aged, Ages, Curve};
use crate::policy::Observe;

/// Pages that a VM may have to read again in a second by what it has not used: fewer are noise.
const FEW_PER_S: u64 = 1;

/// The age scans of one VM.
#[derive(Debug)]
pub(crate) struct AgeScans {
    ages: Ages,
    /// The sample that is scanned; `None`: all memory.
    sample: Option<Part>,
    /// The scan that is not answered yet, and when it was asked for.
    asked: Option<(RequestId, Tick)>,
    /// When the next one comes.
    due: Tick,
    /// When the phase began that they are of.
    phase: Tick,
    /// When the window under way began; `None`: accessed bits were not cleared.
    since: Option<Tick>,
    /// Time of all windows so far, ns.
    observed_ns: u64,
    /// The same as it counts: it fades as accesses do.
    span_ns: u64,
    /// Pages found accessed, and the blocks that they are of.
    found: (u64, u64),
    /// Pages that programs of the guest map, and the blocks that they are of, by the last scan.
    mapped: (u64, u64),
}

impl AgeScans {
    fn new(now: Tick, sample: Option<Part>) -> Self {
        Self {
            ages: Ages::fading(),
            sample,
            asked: None,
            due: now,
            phase: now,
            since: None,
            observed_ns: 0,
            span_ns: 0,
            found: (0, 0),
            mapped: (0, 0),
        }
    }

    /// Number of times that what was found is there.
    fn stands_for(&self) -> u64 {
        self.sample.map_or(1, |part| part.count().into())
    }

    /// Forgets what was found in another phase than the one that began then.
    fn follow_phase(&mut self, since: Tick) {
        if since <= self.phase {
            return;
        }
        self.phase = since;
        self.ages = Ages::fading();
        (self.observed_ns, self.span_ns, self.found) = (0, 0, (0, 0));
    }

    /// Ends a window in which these pages of blocks were found accessed.
    fn end_window(&mut self, ns: u64, blocks: &[(u32, u64)], fade_ns: u64) {
        let numbers: Vec<u32> = blocks.iter().map(|(block, _)| *block).collect();
        self.ages.scan(&numbers);
        let pages: u64 = blocks.iter().map(|(_, pages)| *pages).sum();
        self.found.0 = self.found.0.saturating_add(pages);
        self.found.1 = self.found.1.saturating_add(blocks.len() as u64);
        self.observed_ns = self.observed_ns.saturating_add(ns);
        self.span_ns = self.span_ns.saturating_add(ns);
        // What was used long ago counts less and less.
        if self.span_ns >= fade_ns.saturating_mul(2) {
            self.ages.halve();
            (self.span_ns, self.found) = (self.span_ns / 2, (self.found.0 / 2, self.found.1 / 2));
        }
    }

    /// Misses of blocks in so long a time that are as few as they may be, thousandths.
    fn few_milli(&self) -> u64 {
        // A miss of a block is one of each page of it that is used.
        let pages_milli = u128::from(self.span_ns) * u128::from(FEW_PER_S) / 1_000_000;
        let milli = pages_milli * u128::from(self.found.1) / u128::from(self.found.0.max(1));
        let milli = milli / u128::from(self.stands_for());
        u64::try_from(milli).unwrap_or(u64::MAX)
    }

    /// The sum of the ages; `None` before anything is known.
    pub fn aged(&self) -> Option<Aged> {
        let (pages, blocks) = self.mapped;
        if self.observed_ns == 0 || blocks == 0 {
            return None;
        }
        let needed = u64::from(self.ages.needed(self.few_milli()));
        let bytes = |blocks: u64| {
            let bytes = u128::from(blocks) * u128::from(pages) * u128::from(PAGE_SIZE)
                / u128::from(self.mapped.1)
                * u128::from(self.stands_for());
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        Some(Aged {
            mapped_bytes: bytes(blocks),
            unused_bytes: bytes(blocks.saturating_sub(needed)),
            span_ns: self.observed_ns,
        })
    }

    /// The curve of all windows so far, in blocks of 2 MiB; its misses are of pages.
    pub fn curve(&self) -> Curve {
        // A block of a sample is as far away as all that it stands for, and is missed as often.
        let times = self.stands_for();
        let block = PAGES_PER_HUGE * PAGE_SIZE * times;
        let of_each = self.found.0 / self.found.1.max(1);
        self.ages.faded(block, of_each.max(1) * times, self.span_ns)
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.ages.heap_bytes()
    }
}

/// The findings of an age scan.
struct Seen {
    /// Pages that programs of the guest map, and the blocks that they are of.
    mapped: (u64, u64),
    /// Blocks with accessed pages, and how many these are.
    found: Vec<(u32, u64)>,
}

/// Pages and blocks of a list of blocks.
fn summed(blocks: impl Iterator<Item = (u32, u64)>) -> (u64, u64) {
    blocks.fold((0, 0), |(pages, blocks), (_, n)| (pages + n, blocks + 1))
}

/// Blocks of 2 MiB of which a part's answer has pages, and how many these are.
fn of_blocks(
    answer: &PartAnswer,
    pages: impl Fn(&PartCell) -> u64,
) -> impl Iterator<Item = (u32, u64)> {
    let blocks = answer.cells.chunk_by(|a, b| a.at / 8 == b.at / 8);
    blocks.filter_map(move |cells| {
        let count = |cell| u64::from(pages(cell).count_ones());
        let sum: u64 = cells.iter().map(count).sum();
        (sum > 0).then_some((cells[0].at / 8, sum))
    })
}

impl Vm {
    /// Begins or ends the age scans of this VM. `phase`: when its present phase began.
    pub fn follow_ages(
        &mut self,
        now: Tick,
        wanted: bool,
        phase: Option<Tick>,
        config: &EngineConfig,
    ) {
        let scans = matches!(
            self.policy.observe,
            Observe::GuestScan | Observe::GuestScanPlain | Observe::PmlLog | Observe::EptScan
        );
        let wanted = wanted && scans && !self.unmapped && self.rounds.is_scheduled();
        match (&mut self.observer.ages, wanted) {
            (ages @ None, true) => {
                let of_tables = matches!(
                    self.policy.observe,
                    Observe::GuestScan | Observe::GuestScanPlain
                );
                let shift = config.arbiter.sample_shift();
                // Another sample each time, so that no page is never looked at.
                let seed = config.random_seed ^ u64::from(self.id.0) << 32 ^ now.0;
                let sample = (of_tables && shift > 0).then(|| Part::new(seed, shift, 0).ok());
                *ages = Some(Box::new(AgeScans::new(now, sample.flatten())));
            }
            (ages @ Some(_), false) => *ages = None,
            (Some(ages), true) => ages.follow_phase(phase.unwrap_or(Tick(0))),
            (None, false) => {}
        }
    }

    /// Asks for the scan that is due. Before the first round nobody knows where the guest's tables are.
    pub fn advance_ages(&mut self, now: Tick, shared: &mut Shared) {
        let timeout = Duration::from_millis(shared.config.answer_timeout_ms);
        let waits = self.rounds.phase == Phase::Waiting && self.rounds.last.is_some();
        let Some(ages) = &mut self.observer.ages else {
            return;
        };
        if ages.asked.is_some_and(|(_, at)| at.after(timeout) <= now) {
            (ages.asked, ages.since) = (None, None);
        }
        if !waits || ages.asked.is_some() || ages.due.max(self.rounds.scans.due) > now {
            return;
        }
        let id = shared.request();
        ages.asked = Some((id, now));
        let (space, prune) = (Space::Guest(self.id), ages.since.is_some());
        shared.act(match ages.sample {
            Some(part) => Action::ScanPart(PartRequest {
                id,
                space,
                part,
                clear: true,
                prune,
                discover: false,
            }),
            None => Action::Scan(ScanRequest {
                id,
                space,
                rearm: Rearm::All,
                prune,
                discover: false,
            }),
        });
    }

    /// When [`Self::advance_ages`] has something to do.
    pub fn ages_timeout(&self, config: &crate::EngineConfig) -> Option<Tick> {
        let ages = self.observer.ages.as_ref()?;
        let timeout = Duration::from_millis(config.answer_timeout_ms);
        match ages.asked {
            Some((_, at)) => Some(at.after(timeout)),
            None if self.rounds.phase == Phase::Waiting && self.rounds.last.is_some() => {
                Some(ages.due.max(self.rounds.scans.due))
            }
            None => None,
        }
    }

    /// Takes in the answer to an age scan; `false`: it is of another one.
    pub fn aged(&mut self, now: Tick, answer: &ScanAnswer, shared: &mut Shared) -> bool {
        let Some((at, sample)) = self.asked_for_ages(answer.id) else {
            return false;
        };
        let seen = (sample.is_none() && self.fits(answer)).then(|| Seen {
            mapped: summed(answer.known.blocks()),
            found: answer.accessed.blocks().collect(),
        });
        self.end_age_window(now, at, &answer.stats, seen, shared);
        true
    }

    /// Takes in the answer to a scan of a sample; `false`: it is of a round.
    pub fn aged_part(&mut self, now: Tick, answer: &PartAnswer, shared: &mut Shared) -> bool {
        let Some((at, sample)) = self.asked_for_ages(answer.id) else {
            return false;
        };
        let fits = sample == Some(answer.part)
            && answer.space == Space::Guest(self.id)
            && answer.fits(self.pages.ram().span_pages());
        let seen = fits.then(|| Seen {
            mapped: summed(of_blocks(answer, |cell| cell.mapped)),
            found: of_blocks(answer, |cell| cell.accessed).collect(),
        });
        self.end_age_window(now, at, &answer.stats, seen, shared);
        true
    }

    /// When the age scan with that request was asked for, and its sample; `None` if none has it.
    fn asked_for_ages(&self, id: RequestId) -> Option<(Tick, Option<Part>)> {
        let ages = self.observer.ages.as_ref()?;
        let (_, at) = ages.asked.filter(|(asked, _)| *asked == id)?;
        Some((at, ages.sample))
    }

    /// Ends a window; `seen` is `None` if the answer cannot be about this VM.
    fn end_age_window(
        &mut self,
        now: Tick,
        at: Tick,
        stats: &ScanStats,
        seen: Option<Seen>,
        shared: &mut Shared,
    ) {
        if seen.is_none() {
            self.history.counters.malformed_answers += 1;
        }
        let cost = self.bill_pass(stats.cpu_ns, false, shared);
        let window = Duration::from_millis(shared.config.arbiter.age_window_ms);
        let (affordable, _) = self.affordable(cost, shared);
        let began = Tick(now.0.saturating_sub(stats.elapsed_ns)).max(at);
        if let Some(ages) = &mut self.observer.ages {
            ages.asked = None;
            ages.due = began.after(window.max(affordable));
            let since = ages.since.replace(began);
            let Some(seen) = seen else {
                ages.since = None;
                return;
            };
            if let Some(since) = since {
                ages.mapped = seen.mapped;
                let fade = ArbiterConfig::ns(shared.config.arbiter.valley_ms);
                ages.end_window(began.0.saturating_sub(since.0), &seen.found, fade);
            }
        }
    }

    /// Takes in what the windows of the round that ends saw.
    pub fn age_by_round(&mut self, now: Tick, shared: &Shared) {
        let began = self.rounds.current.as_ref().map(|round| round.started_at);
        let of_unit = self.pages.ram().unit().base_pages();
        let per_block = usize::try_from(PAGES_PER_HUGE / of_unit)
            .unwrap_or(1)
            .max(1);
        let Some((ages, began)) = self.observer.ages.as_mut().zip(began) else {
            return;
        };
        // A scan that is not answered yet is of before the round.
        (ages.asked, ages.since) = (None, None);
        // What all pages did says nothing of the sample's: its blocks are of some tables, and the round's are of all.
        if ages.sample.is_some() {
            return;
        }
        let counts = self.pages.reads.chunks(per_block);
        let counts = counts.zip(self.pages.writes.chunks(per_block)).enumerate();
        let found = counts.filter_map(|(block, (reads, writes))| {
            let visited = reads.iter().zip(writes).filter(|(r, w)| **r > 0 || **w > 0);
            let pages = visited.count() as u64 * of_unit;
            let block = u32::try_from(block).ok()?;
            (pages > 0).then_some((block, pages))
        });
        let found: Vec<(u32, u64)> = found.collect();
        let units = 0..u32::try_from(self.pages.units()).unwrap_or(u32::MAX);
        let of_block = u32::try_from(per_block).unwrap_or(1);
        let (mut mapped, mut last) = ((0, 0), None);
        for unit in units.filter(|unit| self.pages.known(*unit)) {
            let block = Some(unit / of_block);
            mapped.0 += of_unit;
            mapped.1 += u64::from(block != last);
            last = block;
        }
        ages.mapped = mapped;
        let fade = ArbiterConfig::ns(shared.config.arbiter.valley_ms);
        ages.end_window(now.0.saturating_sub(began.0), &found, fade);
    }
}
