//! Filling the views.
//!
//! Responsible for: copying out, and saying in words what runs and why a page is where it is. It leaves
//! to others: every decision.

use terrace_proto::{Gfn, MoveStatus, PAGE_SIZE, Tick};

use super::Shared;
use super::view::{
    Counters, Mechanism, PageExplanation, PhaseView, RankClass, RoundSummary, TierView, VmView,
};
use super::vm::{Phase, Vm};
use crate::config::{EngineConfig, PoolRelease};
use crate::policy::{Estimate, Move, Observe, Place, Share};
use crate::track::level_of;

impl Vm {
    pub fn view(&self, shared: &Shared) -> VmView {
        let scheduled = !matches!(self.phase, Phase::Unmanaged | Phase::Unscannable { .. });
        let at = |tick: Tick| scheduled.then_some(tick);
        VmView {
            vm: self.id,
            name: self.name.clone(),
            policy: self.policy.name.name().into(),
            mechanism: self.mechanism(&shared.config),
            unit: self.pages.ram().unit(),
            ram_pages: self.ram_pages,
            phase: self.phase_view(&shared.config),
            round: self.round,
            paused: self.paused,
            moves: self.moves_on,
            next_tick_at: at(self.intermittent.next()),
            next_round_at: at(self.intermittent.next_round()),
            counter: self.intermittent.counter(),
            tiers: self.tier_views(shared),
            share: self.share_view(shared),
            neighbours: self.neighbours_view(shared),
            current_round: self.current.clone().map(|round| RoundSummary {
                refused: self.refused.list(),
                ..round
            }),
            last_round: self.last.clone(),
            counters: Counters {
                refused: self.refused_ever.list(),
                ..self.counters.clone()
            },
            reasons: self.reasons.list(),
        }
    }

    fn tier_views(&self, shared: &Shared) -> Vec<TierView> {
        self.tiers()
            .map(|tier| {
                let (total_bytes, free_bytes) = shared.tiers.reported(tier);
                TierView {
                    tier,
                    name: shared.config.tiers[tier.index()].name.clone(),
                    bytes: self.pages.bytes(tier),
                    coming_bytes: self.moving.coming[tier.index()],
                    leaving_bytes: self.moving.leaving[tier.index()],
                    limit: self.limit(tier),
                    total_bytes,
                    free_bytes,
                }
            })
            .collect()
    }

    fn phase_view(&self, config: &EngineConfig) -> PhaseView {
        let of = config.windows;
        match &self.phase {
            Phase::Unmanaged => PhaseView::Unmanaged,
            Phase::Waiting => PhaseView::Waiting,
            Phase::Placing { .. } => PhaseView::Placing,
            Phase::Clearing { .. } => PhaseView::Clearing,
            Phase::Window { window, ends_at } => PhaseView::Window {
                window: *window,
                of,
                ends_at: *ends_at,
            },
            Phase::Scanning { window, .. } => PhaseView::Scanning {
                window: *window,
                of,
            },
            Phase::Moving { .. } => PhaseView::Moving {
                waiting_pages: self.moving.waiting_bytes() / PAGE_SIZE,
                in_flight_pages: self.moving.in_flight_bytes() / PAGE_SIZE,
            },
            Phase::Unscannable { reason } => PhaseView::Unscannable {
                reason: reason.clone(),
            },
        }
    }

    fn mechanism(&self, config: &EngineConfig) -> Mechanism {
        let (read, write) = config.weights();
        let estimate = match self.policy.estimate {
            Estimate::PageDegree => {
                format!("degree = {read} x reads + {write} x writes, bucket sort")
            }
            Estimate::FixedThreshold => {
                format!("hot from {} visits on", config.fixed_threshold)
            }
            Estimate::Random => format!("shuffled, seed {}", config.random_seed),
            Estimate::Uniform => "all alike".into(),
        };
        Mechanism {
            observe: self.observe_words(config),
            estimate,
            share: self.share_mechanism(config),
            place: match self.policy.place {
                Place::Exchange => "hottest against coldest, one way where there is room",
                Place::Fastest => "all towards the first tier",
                Place::Slowest => "all towards the last tier",
                Place::Stay => "pages stay where the kernel put them",
            }
            .into(),
            moves: match self.policy.moves {
                Move::Linux => "the kernel's migration (move_pages)",
                Move::WriteProtect => "copied while write-protected",
                Move::PmlCopy => "copied while mapped, written pages again (PML)",
            }
            .into(),
        }
    }

    fn share_mechanism(&self, config: &EngineConfig) -> String {
        match (self.size.nominal, self.policy.share) {
            (0, _) if config.fair_shares => {
                "by weight of what nominal sizes and floors leave; lent while unused; no nominal size".into()
            }
            (0, _) => "floors and ceilings set from outside; no nominal size".into(),
            (_, Share::Island) => "fixed size".into(),
            (_, Share::Pool) => {
                let release = match config.pool_release {
                    PoolRelease::OnDemand => "as soon as another VM can use it",
                    PoolRelease::Always => "as soon as this VM cannot use it",
                };
                format!("memory pool by weight; memory is released {release}")
            }
        }
    }

    fn observe_words(&self, config: &EngineConfig) -> String {
        let tables = match self.policy.observe {
            Observe::GuestScan | Observe::GuestScanPlain => "guest page tables",
            Observe::PmlLog => "guest page tables that PML logged",
            Observe::EptScan => "second-stage page tables",
            Observe::None => return "nothing is looked at; every page counts as known".into(),
        };
        let filter = match self.policy.observe {
            Observe::GuestScan | Observe::PmlLog => {
                format!("multi-level queue up to level {}", config.max_level)
            }
            _ => "every page re-armed".into(),
        };
        let measured = self
            .current
            .iter()
            .chain(&self.last)
            .find(|round| round.classified_at.is_some() && round.scan.scans > 1);
        let bits = match measured {
            None => "accessed bits",
            Some(round) if round.writes_seen => "accessed bits and writes",
            Some(_) => "accessed bits (reads only: no source of writes)",
        };
        format!("{tables}, {bits}, {filter}")
    }

    pub fn explain(&self, gfn: Gfn) -> Option<PageExplanation> {
        let pages = &self.pages;
        let mut unit = pages.ram().unit_of(gfn)?;
        if pages.in_huge_block(unit) && pages.extent(unit - unit % 512).len() == 512 {
            unit -= unit % 512;
        }
        let units = pages.extent(unit);
        let numbers = || units.clone().filter_map(|u| u32::try_from(u).ok());
        let ranked = self.current.iter().chain(&self.last);
        let threshold = ranked
            .filter(|r| r.classified_at.is_some())
            .map(|r| r.threshold_degree)
            .next();
        let hottest = numbers().max_by_key(|u| self.place.degree(self.round, pages, *u))?;
        let degree = self.place.degree(self.round, pages, hottest);
        let at = hottest as usize;
        let known = numbers().any(|u| pages.known(u));
        let class = match (known, degree, threshold) {
            (false, _, _) => RankClass::Unknown,
            (true, Some(d), Some(t)) if d > t => RankClass::Hot,
            (true, Some(d), Some(t)) if d == t => RankClass::Threshold,
            (true, Some(_), Some(_)) => RankClass::Cold,
            _ => RankClass::NotRanked,
        };
        let mut page = PageExplanation {
            gfn,
            unit_start: pages.ram().first_page(unit),
            unit_pages: self.moved_pages(unit),
            ram: pages.ram().contains(gfn, 1),
            tier: pages.tier(unit),
            known,
            reads: pages.reads[at],
            writes: pages.writes[at],
            level: level_of(pages.queue[at]),
            degree,
            threshold_degree: threshold,
            class,
            limits: self.limits.clone(),
            cool_down_rounds: pages.cool_down(unit).saturating_sub(1),
            in_flight: numbers().any(|u| pages.in_flight(u)),
            last_move: self.remembered(unit),
            why: String::new(),
        };
        page.why = self.why(&page);
        Some(page)
    }

    fn why(&self, page: &PageExplanation) -> String {
        if page.tier.is_none() || !page.ram {
            let what = if page.ram {
                "no host page backs it"
            } else {
                "it is not RAM"
            };
            return format!("{what}, so there is nothing to place");
        }
        if self.policy.place == Place::Stay {
            return "the policy leaves pages where the kernel put them".into();
        }
        let degree = page.degree.unwrap_or(0);
        let threshold = page.threshold_degree.unwrap_or(0);
        let mut text: String = match page.class {
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
        if page.in_flight {
            text += "; it is on its way now";
        } else if page.cool_down_rounds > 0 {
            let last = page.last_move.map(|last| last.status);
            let why = match last {
                Some(MoveStatus::MappedByOthers) => "other processes map it too, so it",
                Some(_) => "it moved lately and",
                // What came of its move is forgotten.
                None => "it moved lately, or other processes map it too, and",
            };
            let rounds = page.cool_down_rounds;
            text += &format!("; {why} is left alone for {rounds} more rounds");
        } else if !self.moves_on {
            text += "; moves are off for this VM";
        }
        text
    }
}
