//! The reason for a page's place.
//!
//! Responsible for: what its place follows from, and that in sentences. It leaves to others: every decision.

use terrace_proto::snapshot::{Benefit, PageExplanation, RankClass};
use terrace_proto::{Gfn, MoveStatus, PAGE_SIZE, Tick, TierId};

use super::history::LastMove;
use super::vm::Vm;
use crate::config::EngineConfig;
use crate::estimate::{PER_SECOND, list_of, rate_of};
use crate::policy::{Estimate, Place};
use crate::track::level_of;

impl Vm {
    /// None if there is no RAM.
    pub fn explain(&self, gfn: Gfn, now: Tick, config: &EngineConfig) -> Option<PageExplanation> {
        let pages = &self.pages;
        if !pages.ram().contains(gfn, 1) {
            return None;
        }
        let mut unit = pages.ram().unit_of(gfn)?;
        if pages.in_huge_block(unit) && pages.extent(unit - unit % 512).len() == 512 {
            unit -= unit % 512;
        }
        let units = pages.extent(unit);
        let numbers = || units.clone().filter_map(|u| u32::try_from(u).ok());
        let hottest = numbers().max_by_key(|u| self.place.degree(self.rounds.number, pages, *u))?;
        let degree = self.place.degree(self.rounds.number, pages, hottest);
        let threshold = self.rounds.ranked().map(|round| round.threshold_degree);
        let at = hottest as usize;
        let known = numbers().any(|u| pages.known(u));
        let class = class(known, degree, threshold);
        let mut page = PageExplanation {
            gpa: gfn.gpa(),
            gfn,
            unit_gpa: Some(pages.ram().first_page(unit).gpa()),
            unit_bytes: Some(self.moved_pages(unit) * PAGE_SIZE),
            tier: pages.tier(unit).map(|tier| config.tier_name(tier)),
            known,
            reads: pages.reads[at],
            writes: pages.writes[at],
            windows: self.rhythm(config).windows,
            degree: degree.unwrap_or(0),
            threshold_degree: threshold.unwrap_or(0),
            level: self.level(pages.queue[at]),
            class: Some(class),
            cool_down_rounds: pages.cool_down(unit).saturating_sub(1),
            in_flight: numbers().any(|u| pages.in_flight(u)),
            benefit: None,
            because: Vec::new(),
        };
        let is_fast = pages.tier(unit) == Some(TierId::FAST);
        page.benefit = degree
            .filter(|_| known && page.tier.is_some())
            .and_then(|degree| self.place.benefit(degree, is_fast));
        let last = self.history.remembered(unit);
        page.because = vec![self.why(&page, class, last.map(|last| last.status), config)];
        page.because
            .extend(page.benefit.map(|sum| sum_text(&sum, is_fast, config)));
        page.because
            .extend(last.map(|last| last_move_text(last, now, config)));
        Some(page)
    }

    /// The level of the page table in a page, and whether it is ranked; none if it is none.
    fn table_level(&self, gfn: Gfn, known: bool) -> Option<(u8, bool)> {
        let unit = u32::try_from(gfn.0).ok()?;
        let level = self.observer.tables.level_of(unit)?;
        Some((level, known))
    }

    /// The level of the multi-level queue, or the list, that a unit's state names.
    fn level(&self, state: u8) -> u8 {
        match self.policy.estimate {
            Estimate::HotLists => list_of(state),
            Estimate::Rates => 0,
            _ => level_of(state),
        }
    }

    fn why(
        &self,
        page: &PageExplanation,
        class: RankClass,
        last: Option<MoveStatus>,
        config: &EngineConfig,
    ) -> String {
        let first = config.tier_name(TierId::FAST);
        if page.tier.is_none() {
            return "no host page backs it, so there is nothing to place".into();
        }
        if self.policy.place == Place::Stay {
            return "the policy leaves pages where the kernel put them".into();
        }
        let (degree, threshold) = (page.degree, page.threshold_degree);
        let mut text: String = match class {
            RankClass::Unknown => {
                "no user table of the guest maps it, so its heat is not known and it stays".into()
            }
            RankClass::NotRanked => "no round has ranked its VM's pages yet".into(),
            RankClass::Hot => {
                format!("hot: its degree {degree} is above the threshold {threshold}")
            }
            RankClass::Threshold => {
                format!("its degree {degree} is the threshold: hot as far as there is room")
            }
            RankClass::Cold => {
                format!("cold: its degree {degree} is below the threshold {threshold}")
            }
        };
        if let Some((level, is_known)) = self.table_level(page.gfn, page.known) {
            if !is_known {
                text = format!(
                    "a page table of level {level} in use; of those that lead to other tables one moves at a time, to {first}, and stays there"
                );
            } else {
                text +=
                    &format!("; a page table of level {level}, whose rate is that of its leaves");
            }
        }
        if self.has_rates() && page.known {
            text += &format!("; touched {} times a second", thousandths(page.degree));
        }
        if self.has_lists() && page.level > 0 {
            let kind = if page.tier.as_deref() == Some(first.as_str()) {
                "cold"
            } else {
                "hot"
            };
            text += &format!(
                "; {kind} list {} of {}",
                page.level, self.policy.lists.lists
            );
        }
        if page.in_flight {
            text += "; it is on its way now";
        } else if page.cool_down_rounds > 0 {
            let why = match last {
                Some(MoveStatus::MappedByOthers) => "other processes map it too, so it",
                Some(_) => "it moved lately and",
                // The outcome of its move is forgotten.
                None => "it moved lately, or other processes map it too, and",
            };
            let rounds = page.cool_down_rounds;
            text += &format!("; {why} is left alone for {rounds} more rounds");
        } else if !self.settings.moves_on {
            text += "; moves are off for this VM";
        }
        text
    }
}

/// A rate in words, to three digits after the point.
pub(super) fn thousandths(degree: u8) -> String {
    in_thousandths(rate_of(degree) * 1_000 / PER_SECOND)
}

fn in_thousandths(n: u64) -> String {
    format!("{}.{:03}", n / 1_000, n % 1_000)
}

fn class(known: bool, degree: Option<u8>, threshold: Option<u8>) -> RankClass {
    match (known, degree, threshold) {
        (false, _, _) => RankClass::Unknown,
        (true, Some(d), Some(t)) if d > t => RankClass::Hot,
        (true, Some(d), Some(t)) if d == t => RankClass::Threshold,
        (true, Some(_), Some(_)) => RankClass::Cold,
        _ => RankClass::NotRanked,
    }
}

/// The sum of a page's benefit.
fn sum_text(sum: &Benefit, is_fast: bool, config: &EngineConfig) -> String {
    let first = config.tier_name(TierId::FAST);
    let own = in_thousandths(sum.touches_per_1000_s);
    let other = sum.other_touches_per_1000_s.map(in_thousandths);
    let (what, rates) = match (other, is_fast) {
        (Some(hot), true) => (
            format!("to change places with the hottest page outside {first}"),
            format!("({hot} - {own})"),
        ),
        (Some(cold), false) => (
            format!("to change places with the coldest page in {first}"),
            format!("({own} - {cold})"),
        ),
        (None, false) if sum.saves_ns > 0 => (format!("to come to {first}, which has room,"), own),
        (None, _) => {
            return format!(
                "likely {own} times a second; no page that may move is there to change places with"
            );
        }
    };
    let (misses, extra) = (sum.misses_per_touch, sum.miss_extra_ns);
    let verdict = match (sum.pays, sum.saves_ns > sum.costs_ns) {
        (true, _) => "worth it",
        (false, true) => "not worth it, since chance may explain the difference",
        (false, false) => "not worth it",
    };
    format!(
        "{what} would save {rates} touches a second x {misses} misses x {extra} ns for {} s = {} us, and cost {} us: {verdict}",
        sum.stay_ms / 1_000,
        sum.saves_ns / 1_000,
        sum.costs_ns / 1_000,
    )
}

fn last_move_text(last: LastMove, now: Tick, config: &EngineConfig) -> String {
    format!(
        "last move: to {}, {} s ago: {}",
        config.tier_name(last.to),
        now.since(last.at).as_secs(),
        status_text(last.status)
    )
}

fn status_text(status: MoveStatus) -> String {
    use MoveStatus as S;
    match status {
        S::Moved => "done".into(),
        S::AlreadyThere => "it was there already".into(),
        S::Busy => "the page was pinned or in use".into(),
        S::Absent => "no host page backs it".into(),
        S::NoMemory => "the target had no free page".into(),
        S::NotTried => "not tried".into(),
        S::MappedByOthers => "other processes map it too (KSM, a template file)".into(),
        S::Failed(errno) => format!("failed: {}", std::io::Error::from_raw_os_error(errno)),
    }
}
