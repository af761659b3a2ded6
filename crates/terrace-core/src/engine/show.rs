//! Filling the views.
//!
//! Responsible for: copying out, and saying in words what runs. It leaves to others: why a page is where it is
//! ([`super::explain`]), and every decision.

use terrace_proto::{PAGE_SIZE, Tick};

use super::Shared;
use super::rounds::Phase;
use super::view::{Mechanism, PhaseView, TierView, VmView};
use super::vm::Vm;
use crate::config::{EngineConfig, PoolRelease};
use crate::estimate::Estimator;
use crate::policy::{Estimate, HotnessThreshold, Move, Observe, Place, Share, Sides};

impl Vm {
    pub fn view(&self, shared: &Shared) -> VmView {
        let at = |tick: Tick| self.rounds.is_scheduled().then_some(tick);
        VmView {
            vm: self.id,
            name: self.name.clone(),
            policy: self.policy.name.name().into(),
            mechanism: self.mechanism(&shared.config),
            unit: self.pages.ram().unit(),
            ram_pages: self.pages.ram().pages(),
            phase: self.phase_view(&shared.config),
            round: self.rounds.number,
            paused: self.settings.paused,
            moves: self.settings.moves_on,
            next_tick_at: at(self.rounds.schedule.next()),
            next_round_at: at(self.rounds.schedule.next_round()),
            counter: self.rounds.schedule.counter(),
            tiers: self.tier_views(shared),
            share: self.share_view(shared),
            neighbours: self.neighbours_view(shared),
            current_round: self.rounds.current_view(),
            last_round: self.rounds.last.clone(),
            counters: self.history.counters(),
            reasons: self.history.reasons(),
            aged: self.observer.ages.as_ref().and_then(|ages| ages.aged()),
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
                    limit: self.settings.limit(tier),
                    total_bytes,
                    free_bytes,
                }
            })
            .collect()
    }

    fn phase_view(&self, config: &EngineConfig) -> PhaseView {
        let of = self.rhythm(config).windows;
        let part = self.part_view();
        match &self.rounds.phase {
            Phase::Unmanaged => PhaseView::Unmanaged,
            Phase::Waiting => PhaseView::Waiting,
            Phase::Placing { .. } => PhaseView::Placing,
            Phase::Clearing { .. } => PhaseView::Clearing,
            Phase::Window { window, ends_at } => PhaseView::Window {
                window: *window,
                of,
                ends_at: *ends_at,
                part,
            },
            Phase::Scanning { window, .. } => PhaseView::Scanning {
                window: *window,
                of,
                part,
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
            Estimate::HotLists => self.lists_text(config),
            Estimate::Rates => "touches per second, averaged over rounds".into(),
            Estimate::Random => format!("shuffled, seed {}", config.random_seed),
            Estimate::Uniform => "all alike".into(),
        };
        Mechanism {
            observe: self.observe_text(config),
            estimate,
            share: self.share_mechanism(config),
            place: match self.policy.place {
                Place::Exchange => "hottest against coldest, one way if there is room",
                Place::Benefit => "what is expected to save more than it costs",
                Place::TopLists => match self.policy.lists.sides {
                    Sides::Single => "hot pages up and cold ones down, from the top lists, as room allows",
                    Sides::Double => "hot pages up, from the top list; where the first tier is full, as many cold ones down",
                },
                Place::Fastest => "all towards the first tier",
                Place::Slowest => "all towards the last tier",
                Place::Stay => "pages stay where the kernel put them",
            }
            .into(),
            moves: match self.policy.moves {
                _ if self.moves_by_guest() => "by the guest, between its own nodes",
                Move::Linux => "the kernel's migration (move_pages)",
                Move::WriteProtect => "copied while write-protected",
                Move::PmlCopy => "copied while mapped, written pages again (PML)",
                Move::Guest => "by the guest, between its own nodes",
            }
            .into(),
        }
    }

    fn lists_text(&self, config: &EngineConfig) -> String {
        let lists = self.policy.lists;
        let write = match Estimator::new(self.policy.estimate, config) {
            Estimator::Counter { write } => write,
            _ => 1,
        };
        let threshold = match lists.threshold {
            HotnessThreshold::Above(count) => format!("above {count}"),
            HotnessThreshold::Auto => "above the lowest count that fits and repays".into(),
        };
        format!(
            "reads + {write} x writes {threshold} in {} sub-epochs of {} ms; {} lists, decay after {} epochs; {} KiB a second",
            lists.sub_epochs,
            lists.sub_epoch_ms,
            lists.lists,
            lists.decay_epochs,
            config.list_bytes_per_s >> 10,
        )
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

    fn observe_text(&self, config: &EngineConfig) -> String {
        let tables = match self.policy.observe {
            Observe::GuestScan | Observe::GuestScanPlain => "guest page tables",
            Observe::PmlLog => "guest page tables that PML logged",
            Observe::EptScan => "second-stage page tables",
            Observe::ProtectionFaults => {
                return "protection faults outside of a hot set of 2 MiB blocks".into();
            }
            Observe::None => return "nothing is looked at; every page counts as known".into(),
        };
        let filter = match self.policy.observe {
            // Pages do not rest in the queue then.
            _ if self.divides_rounds(config) => format!(
                "{} parts in turn by windows of {} ms, every page re-armed",
                config.scan_parts,
                self.rhythm(config).window.as_millis()
            ),
            Observe::GuestScan | Observe::PmlLog => {
                format!("multi-level queue up to level {}", config.max_level)
            }
            _ => "every page re-armed".into(),
        };
        let bits = match self.rounds.measured() {
            None => "accessed bits",
            Some(round) if round.writes_seen => "accessed bits and writes",
            Some(_) => "accessed bits (reads only: no source of writes)",
        };
        format!("{tables}, {bits}, {filter}")
    }
}
