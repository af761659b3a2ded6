//! Moves of one VM: from proposals to plans.
//!
//! Responsible for: plans under way and their bytes, the order in which proposals become plans, and
//! the budget. It leaves to others: whether a proposal is allowed at this moment ([`super::check`]), and
//! how plans went ([`super::landing`]).
//!
//! Each plan holds demotions first, then promotions. All accounts are pessimistic: a unit under way
//! counts against its destination from the moment that it is planned, and still counts in its origin
//! until the report shows that it left. So a promotion uses only room that is there for sure, and a
//! plan's demotions make room for the promotions of the next one; whatever part of a plan fails, no
//! ceiling and no tier is overrun.
//!
//! Demotions that only make room run ahead of the promotions by no more than one plan, nor by more
//! than an eighth of what the VM holds there; by so much an exchange may dip below a floor.

use std::collections::BTreeMap;

use terrace_proto::{Action, MovePlan, PageMove, PlanId, Tick, TierId};

use super::Shared;
use super::by_guest::ByGuest;
use super::check::Verdict;
use super::migration::Pace;
use super::refusal::MoveRefusal;
use super::rounds::Phase;
use super::turns::Spent;
use super::vm::Vm;
use crate::pages::Pages;
use crate::place::Flow;

/// A flow on its way into plans.
#[derive(Debug)]
pub(crate) struct Queue {
    pub to: TierId,
    units: Vec<u32>,
    next: usize,
    forced: usize,
    /// Bytes of the units from `next` on.
    pub bytes_left: u64,
}

impl Queue {
    /// The next unit, and whether its tier must lose it whatever comes in return.
    fn peek(&self) -> Option<(u32, bool)> {
        let unit = self.units.get(self.next)?;
        Some((*unit, self.next < self.forced))
    }

    fn advance(&mut self, bytes: u64) {
        self.next += 1;
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
    }

    pub fn left(&self) -> &[u32] {
        &self.units[self.next.min(self.units.len())..]
    }
}

/// One unit of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub unit: u32,
    /// Units that move together from `unit` on.
    pub extent: u32,
    pub bytes: u64,
    pub from: TierId,
    pub to: TierId,
    /// The move only makes room for another one.
    pub paired: bool,
}

/// A plan under way.
#[derive(Debug)]
pub(crate) struct Plan {
    pub flights: Vec<Flight>,
    /// Memory reports before it was issued.
    pub reports: u64,
    /// The round that it is part of.
    pub round: u64,
    /// The guest carries it out.
    pub by_guest: bool,
}

/// The moves of a VM that wait, and the plans in flight.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    pub queues: Vec<Queue>,
    pub plans: BTreeMap<PlanId, Plan>,
    /// Bytes under way into each tier.
    pub coming: [u64; TierId::MAX],
    /// Bytes under way out of each tier.
    pub leaving: [u64; TierId::MAX],
    /// Bytes that units which only made room left, and that nothing has taken yet.
    pub owed: [u64; TierId::MAX],
    /// The time when the budget allows the next plan, if a plan waits for that.
    pub tokens_at: Option<Tick>,
    /// The VM's use of the move budget.
    pub spent: Spent,
    /// How fast lists may name pages; none under other policies.
    pub pace: Option<Pace>,
    /// Until when no plan goes out, as huge pages are made of the VM's memory ([`super::huge`]).
    pub held_until: Option<Tick>,
    /// The guest, if it moves what is named to it.
    pub by_guest: ByGuest,
}

impl Moving {
    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        let queued = |queue: &Queue| queue.units.capacity() * size_of::<u32>();
        let planned = |plan: &Plan| plan.flights.capacity() * size_of::<Flight>();
        let queues: usize = self.queues.iter().map(queued).sum();
        let plans: usize = self.plans.values().map(planned).sum();
        queues + plans + self.by_guest.heap_bytes()
    }

    pub fn take(&mut self, flows: Vec<Flow>, pages: &Pages) {
        self.owed = [0; TierId::MAX];
        let bytes = |unit: u32| pages.extent(unit).len() as u64 * pages.unit_bytes();
        self.queues = flows
            .into_iter()
            .map(|flow| Queue {
                to: flow.to,
                bytes_left: flow.units.iter().map(|u| bytes(*u)).sum(),
                next: 0,
                forced: flow.forced,
                units: flow.units,
            })
            .collect();
    }

    /// Lets all go, what waits and what is under way; gives what was under way into each tier.
    pub fn cancel(&mut self) -> [u64; TierId::MAX] {
        let old = std::mem::take(self);
        (self.spent, self.pace) = (old.spent, old.pace);
        self.held_until = old.held_until;
        self.by_guest = old.by_guest.of_before();
        old.coming
    }

    /// Bytes that wait to go to a tier.
    pub fn waiting_for(&self, tier: TierId) -> u64 {
        let into = self.queues.iter().filter(|q| q.to == tier);
        into.map(|q| q.bytes_left).sum()
    }

    pub fn waiting_bytes(&self) -> u64 {
        self.queues.iter().map(|q| q.bytes_left).sum()
    }

    pub fn in_flight_bytes(&self) -> u64 {
        self.coming.iter().sum()
    }

    /// The next unit that waits to go to a tier.
    pub fn next_for(&self, tier: TierId) -> Option<u32> {
        let mut into = self.queues.iter().filter(|q| q.to == tier);
        into.find_map(|q| q.peek().map(|(unit, _)| unit))
    }

    /// The queue at whose head a unit waits to go to a faster tier.
    pub fn queue_with(&self, unit: u32) -> Option<usize> {
        let is_next = |q: &Queue| q.peek().is_some_and(|(next, _)| next == unit);
        self.queues.iter().position(is_next)
    }

    /// Plans of a round that were not reported yet. Those of earlier rounds are not waited for.
    fn plans_of(&self, round: u64) -> usize {
        self.plans.values().filter(|p| p.round == round).count()
    }
}

/// The result of an attempt to issue one plan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Issue {
    Issued,
    /// The budget allows it later.
    Tokens(Tick),
    /// Nothing that waits is allowed now; one of the reasons.
    Blocked(Option<MoveRefusal>),
}

impl Vm {
    /// Issues what may go now; ends the round when nothing is left.
    pub fn go_on_moving(&mut self, now: Tick, give_up_at: Tick, shared: &mut Shared) {
        let (issued, blocked) = self.issue_all(shared);
        if issued {
            self.rounds.phase = Phase::Moving { since: now };
        }
        if self.moving.tokens_at.is_some() {
            return;
        }
        // A plan in flight may still be carried out, so its bytes stay in all accounts; only the round ends.
        if now >= give_up_at {
            let text = format!(
                "{} KiB are still on their way, unreported; the round ends without them",
                self.moving.in_flight_bytes() >> 10
            );
            self.history.say(now, text);
            self.drop_waiting(MoveRefusal::RoundEnded);
            self.complete_round(now, shared);
        } else if self.moving.plans_of(self.rounds.number) == 0 && !self.awaits_memory(shared) {
            self.drop_waiting(blocked.unwrap_or(MoveRefusal::RoundEnded));
            self.complete_round(now, shared);
        }
    }

    /// Issues plans until the budget, the plans in flight, or a refusal stop it. Gives whether some were issued, and
    /// what stopped them.
    pub fn issue_all(&mut self, shared: &mut Shared) -> (bool, Option<MoveRefusal>) {
        self.moving.tokens_at = None;
        let most = usize::from(shared.config.plans_in_flight);
        let mut issued = false;
        while self.moving.plans_of(self.rounds.number) < most {
            match self.issue(shared) {
                Issue::Issued => issued = true,
                Issue::Tokens(at) => {
                    self.moving.tokens_at = Some(at);
                    return (issued, None);
                }
                Issue::Blocked(why) => return (issued, why),
            }
        }
        (issued, None)
    }

    /// Something waits for memory that our moves freed and the next report will show.
    fn awaits_memory(&self, shared: &Shared) -> bool {
        let mut waiting = self.moving.queues.iter().filter(|q| q.bytes_left > 0);
        waiting.any(|q| shared.tiers.awaits_report(q.to))
    }

    /// Builds and issues one plan.
    fn issue(&mut self, shared: &mut Shared) -> Issue {
        let most_pages = self.most_named().min(shared.config.plan_max_pages);
        let most_bytes = shared.config.plan_max_bytes;
        // The budget is asked for the largest plan that could come of this, and charged for the one that did.
        let bytes = most_bytes
            .min(self.moving.waiting_bytes())
            .min(most_pages.saturating_mul(self.pages.unit_bytes()));
        let held_until = self.moving.held_until.filter(|until| *until > shared.now);
        if let Some(until) = held_until.filter(|_| bytes > 0) {
            // Others need not wait for it.
            shared.budget.leave(self.id);
            return Issue::Tokens(until);
        }
        if bytes > 0
            && let Err(at) = shared.budget.ask(self.id, self.size.weight, bytes)
        {
            return Issue::Tokens(at);
        }
        if let Some(flights) = self.take_upper(shared) {
            self.spend(&flights, shared);
            self.send(flights, shared);
            return Issue::Issued;
        }
        let (mut pages_left, mut bytes_left) = (most_pages, most_bytes);
        let mut flights = Vec::new();
        let mut blocked = None;
        for queue in 0..self.moving.queues.len() {
            // Half of a plan at most makes room, so that the other half can use it.
            let promotes = self.moving.queues[queue + 1..]
                .iter()
                .any(|q| q.bytes_left > 0);
            let keep = if promotes { most_pages / 2 } else { 0 };
            let (plan, why) =
                self.drain(queue, pages_left.saturating_sub(keep), bytes_left, shared);
            // The obstacle of the units that others only make room for is the better reason.
            blocked = why
                .filter(|w| *w != MoveRefusal::NotNeeded)
                .or(blocked)
                .or(why);
            pages_left -= plan.len() as u64;
            bytes_left -= plan.iter().map(|f| f.bytes).sum::<u64>();
            flights.extend(plan);
        }
        if flights.is_empty() {
            // Nothing will be spent, so this VM's turn must not keep others waiting.
            shared.budget.leave(self.id);
            return Issue::Blocked(blocked);
        }
        self.spend(&flights, shared);
        self.send(flights, shared);
        Issue::Issued
    }

    /// Takes units from one queue while they are allowed; also returns what stopped it.
    pub fn drain(
        &mut self,
        queue: usize,
        pages: u64,
        bytes: u64,
        shared: &mut Shared,
    ) -> (Vec<Flight>, Option<MoveRefusal>) {
        let (mut flights, mut left) = (Vec::new(), bytes);
        while (flights.len() as u64) < pages {
            let q = &self.moving.queues[queue];
            let (to, Some((unit, forced))) = (q.to, q.peek()) else {
                break;
            };
            if pages > 1 && self.is_alone(unit) {
                break;
            }
            let extent = self.pages.extent(unit);
            let size = extent.len() as u64 * self.pages.unit_bytes();
            match self.check(unit, to, forced, shared) {
                // Only a refusal passes the unit by. The queue is in order of gain, so a unit that has to
                // wait holds the ones behind it back as well.
                Verdict::Refused(why) => self.refuse(why, 1),
                Verdict::Later(why) => return (flights, Some(why)),
                Verdict::Allowed { .. } if size > left => break,
                Verdict::Allowed { from, paired } => {
                    left -= size;
                    self.take_off(unit, size, from, to, shared);
                    flights.push(Flight {
                        unit,
                        extent: u32::try_from(extent.len()).unwrap_or(0),
                        bytes: size,
                        from,
                        to,
                        paired,
                    });
                }
            }
            self.moving.queues[queue].advance(size);
        }
        (flights, None)
    }

    fn take_off(&mut self, unit: u32, bytes: u64, from: TierId, to: TierId, shared: &mut Shared) {
        // From here on no other plan can name the unit, and its bytes count in both tiers.
        self.pages.mark_in_flight(self.pages.extent(unit), true);
        if self.has_lists() {
            self.pages.leave_lists(self.pages.extent(unit));
        }
        self.moving.leaving[from.index()] += bytes;
        self.moving.coming[to.index()] += bytes;
        shared.tiers.expect(to, bytes);
    }

    fn spend(&mut self, flights: &[Flight], shared: &mut Shared) {
        let bytes = flights.iter().map(|f| f.bytes).sum();
        let spent = shared.budget.spend(self.id, bytes);
        let sum = &mut self.moving.spent;
        sum.bytes = sum.bytes.saturating_add(spent.bytes);
        sum.held_up += spent.held_up;
        sum.held_up_ns = sum.held_up_ns.saturating_add(spent.held_up_ns);
    }

    /// Whether moves wait for nothing but the budget.
    pub fn waits_for_budget(&self) -> bool {
        let moving = matches!(self.rounds.phase, Phase::Moving { .. }) || self.waits_between();
        moving && !self.settings.paused && self.moving.tokens_at.is_some()
    }

    fn send(&mut self, flights: Vec<Flight>, shared: &mut Shared) {
        let id = shared.plan();
        let moves = flights
            .iter()
            .map(|f| PageMove {
                gfn: self.pages.ram().first_page(f.unit),
                to: f.to,
            })
            .collect();
        shared.act(Action::Move(MovePlan {
            id,
            vm: self.id,
            moves,
        }));
        let plan = Plan {
            flights,
            // A report that was made after this one may show what these moves freed: it is not added again.
            reports: shared.tiers.reports(),
            round: self.rounds.number,
            by_guest: self.moves_by_guest(),
        };
        self.moving.plans.insert(id, plan);
    }

    pub fn refuse(&mut self, why: MoveRefusal, units: u64) {
        self.rounds.refused.add(why, units);
        self.history.refused.add(why, units);
    }

    /// Lets all that waits go; plans under way stay.
    pub fn drop_waiting(&mut self, why: MoveRefusal) {
        for queue in std::mem::take(&mut self.moving.queues) {
            self.refuse(why, queue.left().len() as u64);
        }
        self.moving.tokens_at = None;
    }
}
