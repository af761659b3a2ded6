//! The arbiter: how much memory each VM has, of what they have together.
//!
//! Responsible for: when sizes are decided, what of a rule's wish may be done now (`steps`), the reserve, judging what
//! was taken (`trials`), and saying why. It leaves to others: the rules ([`crate::share`]), admission, orders and
//! their progress ([`crate::provision`]), and what demand is ([`crate::demand`]).
//!
//! A VM takes part once its rights and its sizes are known and its guest says what it needs; else it keeps what it has,
//! and that counts. Two questions in turn: memory as a whole here, its fast part where the first tier is divided
//! ([`crate::engine`]).

mod cache;
mod changes;
mod decide;
mod exchange;
mod fair;
mod guest;
mod hold;
mod host;
mod kinds;
mod live;
mod member;
mod peaks;
mod phase;
mod purchases;
mod refused;
mod relief;
mod schedule;
mod standing;
mod steps;
mod text;
mod tiers;
mod trades;
mod trials;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use terrace_proto::provision::{Origin, SizesAnswer, SizesWanted};
use terrace_proto::{
    MemoryNeed, MemoryRights, MemoryTiers, ProviderId, ResizeId, SpeedRights, Tick, VmId,
};

pub use crate::config::{ArbiterConfig, Rule};
pub use crate::provision::{Sizes, TierSize};
pub use member::KnownDemand;

use crate::provision::ARBITERS;
use crate::share::FloorsExceed;

use fair::Beyond;
use host::Shortage;
use kinds::Kinds;
use member::Member;
use schedule::Schedule;
use steps::{Host, Step, Takes, Targets};
use trades::Trades;
use trials::Trials;

/// A size that is only said is news if it differs from the last one by so much of the VM's memory, percent.
const NEWS_PERCENT: u8 = 10;

/// The rest of the engine, as the arbiter asks it when it decides.
pub trait Known {
    /// The sizes of a VM; `None` if its provider did not report.
    fn sizes(&self, provider: ProviderId) -> Option<Sizes>;
    /// The name of a VM.
    fn name(&self, provider: ProviderId) -> String;
    /// The demand of a VM, if it is tracked.
    fn demand(&self, vm: VmId) -> Option<KnownDemand>;
}

/// Sizes that are to be ordered, or something that is to be said of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The provider of the VM.
    pub provider: ProviderId,
    /// The sizes; `None`: something is said alone.
    pub wanted: Option<SizesWanted>,
    /// The reason, in a sentence.
    pub why: String,
}

/// The value that shares memory between VMs.
#[derive(Clone, Debug, Default)]
pub struct Arbiter {
    config: ArbiterConfig,
    members: BTreeMap<ProviderId, Member>,
    trials: Trials,
    trades: Trades,
    requests: u64,
    /// When sizes are decided.
    schedule: Schedule,
    /// A guest swaps: the reserve is for it.
    relief: bool,
    /// The last sentence about floors that do not fit.
    said: Option<String>,
    /// VMs of which was said that they are slower than their bound.
    slow: BTreeSet<ProviderId>,
    /// Sentences that are to be said.
    notices: Vec<Decision>,
    /// An operator paused all VMs.
    halted: bool,
    /// Whether the host lacks memory itself.
    shortage: Shortage,
}

impl Arbiter {
    /// No VM takes part yet.
    #[must_use]
    pub fn new(config: ArbiterConfig) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    fn is_off(&self) -> bool {
        self.config.rule == Rule::Off
    }

    /// Takes in what a VM may have.
    pub fn rights(&mut self, now: Tick, rights: MemoryRights) {
        if self.is_off() {
            return;
        }
        // A weight of 0 counts as 1, as it does for the rules: it is relieved last, not never.
        let weight = rights.weight.max(1);
        let rights = MemoryRights { weight, ..rights };
        let member = self.members.entry(rights.provider);
        member.or_insert_with(|| Member::new(rights)).rights = rights;
        self.change(now);
    }

    /// Takes in what a guest says. `sizes`: what it has.
    pub fn need(&mut self, now: Tick, need: MemoryNeed, sizes: Option<Sizes>) {
        let Some(member) = self.members.get_mut(&need.provider) else {
            return;
        };
        let remembered = ArbiterConfig::ns(self.config.valley_ms);
        let settled = sizes.filter(|sizes| sizes.still.is_none() && sizes.size() == sizes.most());
        if member.need(now, need) {
            let size = settled.map(|sizes| sizes.size());
            let used = |size: u64| size.saturating_sub(need.free_bytes);
            if let Some(size) = size {
                member.past.peaks.add(now, used(size), remembered);
            }
            let rate = member.rate();
            let used = size.map_or(0, used);
            member.facts.phase.statistics(now, used, rate, size);
            self.relief |= member.is_swapping();
            // A trade has windows of equal length, and what is observed of a VM changes unsaid.
            let ticks = self.config.rule == Rule::Trade;
            if ticks || member.differs(&self.config) {
                self.change(now);
            } else if member.rights.vm.is_some() {
                self.schedule.look_at(now, &self.config);
            }
        }
    }

    /// Takes in how a VM uses its tiers.
    pub fn tiers(&mut self, seen: MemoryTiers) {
        if let Some(member) = self.members.get_mut(&seen.provider) {
            member.uses.tiers = Some(seen);
        }
    }

    /// Takes in what a VM's slowdown is measured by.
    pub fn speed(&mut self, now: Tick, rights: SpeedRights) {
        if let Some(member) = self.members.get_mut(&rights.provider) {
            member.uses.speed = Some(rights);
            self.change(now);
        }
    }

    /// Takes in that a VM is gone.
    pub fn depart(&mut self, now: Tick, provider: ProviderId) {
        if self.members.remove(&provider).is_some() {
            self.change(now);
        }
    }

    /// Takes in that the state of a provider may have changed.
    pub fn changed(&mut self, now: Tick, provider: ProviderId) {
        if self.members.contains_key(&provider) {
            self.trades.look(provider);
            self.schedule.look_at(now, &self.config);
        }
    }

    /// Takes in the answer to a request of its own.
    pub fn answered(&mut self, now: Tick, answer: &SizesAnswer) {
        let mut of = self.members.iter_mut();
        if let Some((id, member)) =
            of.find(|(_, member)| matches!(member.asked.pending, Some((id, _)) if id == answer.id))
        {
            if answer.result.is_err() {
                self.trades.refused(*id);
            }
            member.answered(now, answer.result.is_ok(), &self.config);
            self.change(now);
        }
    }

    fn change(&mut self, now: Tick) {
        self.schedule.change(now, &self.config);
    }

    /// The number of decisions about the sizes of all so far.
    #[must_use]
    pub fn decisions(&self) -> u64 {
        self.schedule.decisions()
    }

    /// The latest time at which something is to be done.
    #[must_use]
    pub fn timeout(&self) -> Option<Tick> {
        if self.halted {
            return None;
        }
        let due = self.schedule.timeout();
        due.into_iter().chain(self.trials.due(&self.config)).min()
    }

    /// Does what is due.
    pub fn advance(&mut self, now: Tick, known: &dyn Known) -> Vec<Decision> {
        if self.members.is_empty() {
            // Nobody is left to decide about: what was due would be due for ever.
            self.schedule.rest();
            self.trials = Trials::default();
            return Vec::new();
        }
        let mut decisions = std::mem::take(&mut self.notices);
        if self.halted {
            self.schedule.rest();
            return decisions;
        }
        let judges = self.trials.due(&self.config).is_some_and(|due| due <= now);
        if judges {
            decisions.extend(self.judge(now, known));
        }
        let cycle = self.schedule.take_due(now, &self.config);
        if self.shortage.lacks(now) > 0 {
            if cycle {
                decisions.extend(self.give_to_host(now, known));
            }
            return decisions;
        }
        if self.config.rule == Rule::Trade {
            decisions.extend(self.trade(now, cycle, known));
            return decisions;
        }
        let relief = std::mem::take(&mut self.relief);
        if cycle || relief {
            self.look(now, known);
            let steps = self.divide(now, cycle, known, &mut decisions);
            let steps = steps.unwrap_or_else(|why| {
                decisions.extend(self.refuse(&why));
                Vec::new()
            });
            let orders = steps
                .into_iter()
                .filter_map(|(step, why)| self.order(now, &step, why));
            decisions.extend(orders);
            let wakes = self.members.values();
            let wakes = wakes.filter_map(|member| member.wakes(now, &self.config));
            self.schedule.wake_at(wakes.min());
        }
        decisions
    }

    /// The steps that are to be taken now. `cycle`: whether a cycle has passed since sizes were looked at.
    fn divide(
        &mut self,
        now: Tick,
        cycle: bool,
        known: &dyn Known,
        decisions: &mut Vec<Decision>,
    ) -> Result<Vec<(Step, String)>, FloorsExceed> {
        for member in self.members.values_mut() {
            member.keeps_what_it_calls_back(now, &self.config);
        }
        if cycle && self.learn(known) {
            return self.cycle(now, known, decisions);
        }
        if self.schedule.is_changed() {
            self.change(now);
        }
        // Memory that was lent is called back as soon as its lender swaps.
        if self.calls_back() && self.schedule.take_call(now) {
            return self.decide(now, Takes::Lent, known, decisions);
        }
        Ok(self.relieve(now, known))
    }

    /// Asks for the demand of all that take part. Returns whether anything changed since the last decision.
    fn learn(&mut self, known: &dyn Known) -> bool {
        for member in self.members.values_mut() {
            let demand = member.rights.vm.and_then(|vm| known.demand(vm));
            let demand = demand.unwrap_or_default();
            self.schedule.found(demand != member.demand);
            member.demand = demand;
        }
        self.schedule.is_changed()
    }

    /// Lets each VM trade for itself.
    fn trade(&mut self, now: Tick, cycle: bool, known: &dyn Known) -> Vec<Decision> {
        let relief = std::mem::take(&mut self.relief);
        if !cycle && !relief && !self.trades.is_due() {
            return Vec::new();
        }
        if cycle {
            self.schedule.decide(now);
            self.learn(known);
        }
        self.look(now, known);
        let host = self.host(now);
        let steps = self.trades.advance(now, &self.members, &host, &self.config);
        // Who did not take what it was given, or gave less, is on its way for ever else.
        let given_up = match cycle {
            true => [self.stalled(now), self.gave_less(now)].concat(),
            false => Vec::new(),
        };
        let is_idle = |(step, _): &(Step, String)| !self.trades.has_order(step.provider);
        let given_up: Vec<_> = given_up.into_iter().filter(is_idle).collect();
        let orders = steps.into_iter().chain(given_up);
        orders
            .filter_map(|(step, why)| self.order(now, &step, why))
            .collect()
    }

    /// VMs that the engine observes, if each trades: whether hot and cold pages are to change places in equal numbers.
    pub fn sides(&self) -> impl Iterator<Item = (VmId, bool)> {
        let trades = self.config.rule == Rule::Trade && !self.config.observe;
        let members = self.members.iter().filter(move |_| trades);
        members
            .filter_map(|(id, member)| Some((member.rights.vm?, self.trades.is_double_sided(*id))))
    }

    /// Whether some VM swaps because others have what it lent them.
    fn calls_back(&self) -> bool {
        let mut members = self.members.values();
        members.any(|member| member.calls_back(&self.config))
    }

    /// Reads the sizes of all that take part. Memory that was lent is called back while a lender swaps.
    fn look(&mut self, now: Tick, known: &dyn Known) {
        for (id, member) in &mut self.members {
            member.forget(now);
            match (known.sizes(*id), &mut member.sizes) {
                (Some(sizes), has) => {
                    self.schedule.found(has.as_ref() != Some(&sizes));
                    *has = Some(sizes);
                }
                // Its guest has all the same what it was given.
                (None, Some(last)) => last.still = Some("its provider is gone"),
                (None, None) => {}
            }
            if let Some(sizes) = &member.sizes {
                // A provider may report any target: none counts above the VM's ceiling.
                let most = member.ceiling();
                let brought = || at_most(sizes.each(|tier| tier.target), most);
                member.loan.brought.get_or_insert_with(brought);
            }
            member.watch(now);
            member.follow_exchange(now, &self.config);
        }
        // Who trades lends nothing.
        let lends = self.config.rule != Rule::Trade;
        let calls = self.calls_back();
        let mut members = self.members.values();
        let is_owed = members.any(|member| member.is_owed(now, &self.config));
        for member in self.members.values_mut() {
            member.loan.returns = lends && (calls || is_owed);
            member.loan.is_paced = !calls;
        }
    }

    /// Memory that all have together, and the reserve of it.
    fn host(&self, now: Tick) -> Host {
        let mut brought = Kinds::default();
        for member in self.members.values() {
            brought.add(member.loan.brought.as_deref().unwrap_or_default());
        }
        let config = &self.config;
        // What is configured is the host's: beside each other, the two kinds of VMs would have it twice.
        let is_whole = |member: &Member| member.tiers() == 1;
        let is_tiered = |member: &Member| member.tiers() > 1;
        let mut members = self.members.values();
        let is_mixed = members.clone().any(is_whole) && members.any(is_tiered);
        let configured = Kinds::of(config.capacity_bytes, &config.capacity_tiers_bytes);
        let capacity = match is_mixed && config.live {
            true => brought.at_most(&configured),
            false => brought.or_configured(&configured),
        };
        // Without a capacity it would be taken anew of what VMs have after each restart of the daemon.
        let reserve = match config.live && !config.names_capacity() {
            true => Kinds::default(),
            false => capacity.percent(config.reserve_percent),
        };
        Host {
            capacity,
            reserve,
            headroom: self.shortage.headroom(now, config),
        }
    }

    fn judge(&mut self, now: Tick, known: &dyn Known) -> Vec<Decision> {
        self.look(now, known);
        let failed = self.trials.judge(now, &mut self.members, &self.config);
        self.change(now);
        let said = failed.into_iter().map(|failed| Decision {
            provider: failed.giver,
            wanted: None,
            why: text::failed(&failed, &self.config),
        });
        said.collect()
    }

    /// Gives what is free to those that swap, at once.
    fn relieve(&self, now: Tick, known: &dyn Known) -> Vec<(Step, String)> {
        let wants: Targets = self
            .members
            .iter()
            .filter(|(_, member)| member.is_swapping())
            .filter_map(|(id, member)| {
                let total = member.size().saturating_add(member.lacks(&self.config));
                // What comes free was taken for those whom `fair` found to need it.
                let most = member.uses.fair_bytes.unwrap_or(u64::MAX);
                let total = total.min(most.max(member.size()));
                Some((*id, member.sizes.as_ref()?.of_total(total)))
            })
            .collect();
        let on = steps::On {
            now,
            takes: Takes::Lent,
        };
        let steps = steps::towards(on, &self.members, &wants, &self.host(now), &self.config);
        let said = steps.into_iter().map(|step| {
            let member = self.members.get(&step.provider);
            let why = member.map_or_else(String::new, |member| text::lacks(member, &self.config));
            let source = self.source(now, &step, known);
            let why =
                format!("{why}; what is free, with the reserve, is for those that swap{source}");
            (step, why)
        });
        said.collect()
    }

    /// Decides the sizes of all.
    fn cycle(
        &mut self,
        now: Tick,
        known: &dyn Known,
        decisions: &mut Vec<Decision>,
    ) -> Result<Vec<(Step, String)>, FloorsExceed> {
        self.schedule.decide(now);
        for member in self.members.values_mut() {
            member.is_decided(&self.config);
        }
        self.decide(now, Takes::All, known, decisions)
    }

    /// Takes steps towards the sizes that the rule wants. Of what is lent alone: between two decisions it comes back and goes to those that lent it. Nothing else is taken then,
    /// as only so much of a VM may be in a cycle.
    fn decide(
        &mut self,
        now: Tick,
        takes: Takes,
        known: &dyn Known,
        decisions: &mut Vec<Decision>,
    ) -> Result<Vec<(Step, String)>, FloorsExceed> {
        let host = self.host(now);
        let wanted = decide::targets(now, &self.members, &host, &self.config)?;
        self.said = None;
        decisions.extend(self.name_slow(&wanted.beyond));
        let targets = wanted.targets;
        self.note_fair(&targets);
        let on = steps::On { now, takes };
        let steps = steps::towards(on, &self.members, &targets, &host, &self.config);
        self.watch(now, &steps, &targets);
        let takers = decide::takers(&self.members, &targets);
        let name = |id: &ProviderId| known.name(*id);
        let names: Vec<String> = takers.iter().map(name).collect();
        let on = text::Occasion {
            now,
            excess: host.excess(&self.members),
            takers: &names,
        };
        let said = steps.into_iter().filter_map(|step| {
            let member = self.members.get(&step.provider)?;
            let why = text::step(&step, member, &on, &self.config);
            let why = why + &self.source(now, &step, known);
            Some((step, why))
        });
        let stalled = self.stalled(now).into_iter();
        let gave_less = self.gave_less(now).into_iter();
        let said: Vec<(Step, String)> = stalled.chain(gave_less).chain(said).collect();
        Ok(said)
    }

    /// Notes what `fair` found for those that swap: relief until the next decision goes no further.
    fn note_fair(&mut self, targets: &Targets) {
        for (id, target) in targets {
            if let Some(member) = self.members.get_mut(id) {
                let is_fair = self.config.rule == Rule::Fair && member.is_swapping();
                member.uses.fair_bytes = is_fair.then(|| sum(target));
            }
        }
    }

    /// Takes back what VMs were given and do not take: it would be nobody's for ever.
    fn stalled(&self, now: Tick) -> Vec<(Step, String)> {
        let members = self.members.iter();
        let stalled = members.filter(|(_, member)| member.is_stalled(now, &self.config));
        let steps = stalled.map(|(id, member)| {
            let sizes = member.sizes.as_ref()?;
            let from = sizes.each(|tier| tier.target);
            // Up to its floor it may take its time.
            let least = member.own_floor().saturating_sub(member.size());
            // Whole blocks, but no more of any tier than it was to have.
            let to = sizes.each(|tier| tier.rounded_up().min(tier.target));
            let to = at_least(to, &from, least);
            let provider = *id;
            let step = Step::new(provider, from, to);
            Some((step, text::stalled(member, &self.config)))
        });
        let shrink = |(step, _): &(Step, String)| sum(&step.to) < sum(&step.from);
        steps.flatten().filter(shrink).collect()
    }

    /// Takes what a guest gave, and asks for no more: it cannot reach its target, and would count as on its way for ever.
    fn gave_less(&self, now: Tick) -> Vec<(Step, String)> {
        let members = self.members.iter();
        let short = members.filter(|(_, member)| member.gave_less(now, &self.config));
        let steps = short.filter_map(|(id, member)| {
            let sizes = member.sizes.as_ref()?;
            // Whole blocks, and never more than it has: it may be above its ceiling.
            let from = sizes.each(|tier| tier.target);
            let step = Step::new(*id, from, sizes.each(TierSize::rounded_down));
            step.grows().then(|| (step, text::gave_less(sizes)))
        });
        steps.collect()
    }

    /// Names those that are slower than their bound, once until they are not.
    fn name_slow(&mut self, beyond: &[Beyond]) -> Vec<Decision> {
        let mut slow = BTreeSet::new();
        let named = &self.slow;
        // One that is slow for want of both is named once.
        let new = beyond
            .iter()
            .filter(|of| slow.insert(of.provider) && !named.contains(&of.provider));
        let said = new.map(|of| Decision {
            provider: of.provider,
            wanted: None,
            why: text::beyond(of),
        });
        let said = said.collect();
        self.slow = slow;
        said
    }

    /// Remembers what is taken now.
    fn watch(&mut self, now: Tick, steps: &[Step], targets: &Targets) {
        let takers = decide::takers(&self.members, targets);
        let lent = |step: &&Step| {
            let member = self.members.get(&step.provider);
            member.is_some_and(|member| member.lent() > 0 || member.exchanged() > 0)
        };
        // Who gives back what others lent is not asked whether it could use it, nor who got as much of another tier.
        let givers = steps.iter().filter(|step| !step.grows() && !lent(step));
        let givers = givers
            .map(|step| (step.provider, sum(&step.from)))
            .collect();
        // What is only said does no harm.
        if !self.config.observe {
            self.trials.begin(now, &self.members, givers, &takers);
        }
    }

    /// The order for a step; a sentence alone, once, if nothing is ordered.
    fn order(&mut self, now: Tick, step: &Step, why: String) -> Option<Decision> {
        if self.config.observe {
            return self.propose(now, step, &why);
        }
        self.requests += 1;
        let id = ResizeId(ARBITERS | self.requests);
        if let Some(member) = self.members.get_mut(&step.provider) {
            member.asked.pending = Some((id, step.to.clone()));
            if step.is_exchange {
                member.begin_exchange(now, &step.from, &step.to);
            }
            if !step.grows() {
                member.gives_cache(now, step, &self.config);
                member.past.before_shrink = Some(member.rate());
                member.give(member.size().saturating_sub(sum(&step.to)));
            }
            member.note(now, step, &why, true);
            for (tier, turned) in (0..step.to.len()).zip(&mut member.turned) {
                *turned = step.direction(tier).map(|way| (now, way)).or(*turned);
            }
        }
        Some(Decision {
            provider: step.provider,
            wanted: Some(SizesWanted {
                id,
                provider: step.provider,
                origin: Origin::Arbiter,
                size_bytes: step.changes(),
            }),
            why,
        })
    }

    /// Says what would be ordered, if that is news.
    fn propose(&mut self, now: Tick, step: &Step, why: &str) -> Option<Decision> {
        let member = self.members.get_mut(&step.provider)?;
        let (new, had) = (sum(&step.to), sum(&step.from));
        let said = member.facts.proposed.replace(step.to.clone());
        let is_news = said.is_none_or(|said| {
            let little = percent(had, self.config.dead_band_percent.max(NEWS_PERCENT));
            sum(&said).abs_diff(new) > little
        });
        if !is_news {
            return None;
        }
        member.note(now, step, why, false);
        Some(Decision {
            provider: step.provider,
            wanted: None,
            why: text::proposed(had, new, why),
        })
    }
}

/// So many percent of a number of bytes.
pub(crate) fn percent(bytes: u64, percent: u8) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

/// The sum of some numbers of bytes.
pub(crate) fn sum(bytes: &[u64]) -> u64 {
    bytes
        .iter()
        .fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// Sizes that are at most so much together: the slowest tiers have less.
fn at_most(mut sizes: Vec<u64>, most: u64) -> Vec<u64> {
    let mut over = sum(&sizes).saturating_sub(most);
    for size in sizes.iter_mut().rev() {
        let less = over.min(*size);
        *size -= less;
        over -= less;
    }
    sizes
}

/// Sizes with so much more together, as far as these limits allow: the slowest tiers have more.
fn at_least(mut sizes: Vec<u64>, limits: &[u64], mut more: u64) -> Vec<u64> {
    for (size, limit) in sizes.iter_mut().zip(limits).rev() {
        let here = more.min(limit.saturating_sub(*size));
        *size += here;
        more -= here;
    }
    sizes
}
