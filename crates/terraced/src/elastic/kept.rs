//! What the daemon's thread keeps of a VM's elastic memory, and what of it is worth an event.

use std::time::{Duration, Instant};

use terrace_api::elastic::{OrderState, Orders};
use terrace_host::process_memory::Resident;
use terrace_host::sharers::Found;
use terrace_sys::ProcessId;

use super::keeper::{Keeper, Looked, Told};
use super::{Kind, Look, Mechanism, Origin, Pace, TierLook, Trouble, size, tier_name};

/// Below this, what a guest claims to have given back is not what it gave back.
pub const HONEST: f64 = 0.99;
/// So many looks in a row must say so.
const LOOKS: u32 = 2;

/// How often at most it is told that a guest starts anew.
const EVERY: Duration = Duration::from_secs(60);

/// All about one VM.
pub struct Kept {
    /// Looks after it.
    pub keeper: Keeper,
    /// The hypervisor's process when it was found.
    pub process: Option<ProcessId>,
    /// A device of ours is configured for it, whether that was seen or not.
    pub is_configured: bool,
    /// Nothing was heard yet, and nobody asked: it is shown to nobody.
    pub is_quiet: bool,
    /// What resizes it, once that is known.
    pub mechanism: Option<Mechanism>,
    /// The last look that brought something.
    pub seen: Option<Seen>,
    /// Why the last one brought nothing, where it did not.
    pub trouble: Option<String>,
    /// When the keeper was heard last.
    pub heard: Instant,
    /// What pins its memory.
    pub pinned_by: Option<String>,
    /// Why that is not known, where it is not.
    pub pinning_unknown: Option<String>,
    /// Who else has its RAM.
    pub held_by: Option<String>,
    /// Why that is not known, where it is not.
    pub holding_unknown: Option<String>,
    /// Memory of its hypervisor's process.
    pub resident: Option<Resident>,
    /// The last order.
    pub order: Option<Order>,
    /// What became of all orders.
    pub counts: Orders,
    /// Of each tier.
    tiers: Vec<TierState>,
    was_met: Option<bool>,
    /// Targets of which it was told that they are met: a guest that goes to and fro makes one event.
    met_told: Vec<u64>,
    /// Since when the driver does not know the targets, and whether that was told.
    untold: Option<(Instant, bool)>,
    is_silence_told: bool,
    restarts: Restarts,
    is_pinning_told: bool,
    is_holding_told: bool,
}

/// That the guest started anew, told at most once in [`EVERY`]: a guest that does nothing else fills no list.
#[derive(Clone, Copy, Debug, Default)]
struct Restarts {
    untold: u64,
    told: Option<Instant>,
}

impl Restarts {
    /// Takes in the device's count before and now, and says what to tell.
    fn seen(&mut self, before: u64, now: u64, at: Instant) -> Option<String> {
        // A count that fell is that of a new device.
        let more = now.checked_sub(before).unwrap_or(1);
        self.untold = self.untold.saturating_add(more);
        let told = |told| at.saturating_duration_since(told) < EVERY;
        if self.untold == 0 || self.told.is_some_and(told) {
            return None;
        }
        self.told = Some(at);
        let times = match std::mem::take(&mut self.untold) {
            1 => String::new(),
            times => format!(" ({times} times)"),
        };
        Some(format!(
            "the guest started anew{times}: its balloons are empty"
        ))
    }
}

/// A look.
pub struct Seen {
    /// When.
    pub at: Instant,
    /// What was seen.
    pub look: Look,
}

/// An order that was recorded.
pub struct Order {
    /// Which.
    pub number: u64,
    /// Who gave it.
    pub origin: Origin,
    /// When.
    pub at: Instant,
    /// What each tier had then, bytes.
    pub from_bytes: Vec<u64>,
    /// What each shall have, bytes.
    pub size_bytes: Vec<Option<u64>>,
    /// How far it is.
    pub state: OrderState,
    /// Why it is stuck or failed.
    pub why: Option<String>,
    /// Memory of the hypervisor's process then.
    pub resident: Option<Resident>,
    /// A look came after the provider took it.
    is_seen: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct TierState {
    /// The driver has once brought the tier to its target, and the host's memory agreed.
    is_inflated: bool,
    /// Words of the guest since the last order that it is stuck, and the number of the last word.
    stuck_looks: u32,
    report: Option<u64>,
    /// What it had then, bytes: a tier that moves on is slow and not stuck.
    stuck_at: u64,
    /// The target of which it was told that it is stuck.
    stuck_told: Option<u64>,
    low_looks: u32,
    withheld_bytes: u64,
}

impl Kept {
    /// Nothing is known yet.
    pub fn new(keeper: Keeper, process: Option<ProcessId>) -> Self {
        Self {
            keeper,
            process,
            is_configured: false,
            is_quiet: false,
            mechanism: None,
            seen: None,
            trouble: None,
            heard: Instant::now(),
            pinned_by: None,
            pinning_unknown: None,
            held_by: None,
            holding_unknown: None,
            resident: None,
            order: None,
            counts: Orders::default(),
            tiers: Vec::new(),
            was_met: None,
            met_told: Vec::new(),
            untold: None,
            is_silence_told: false,
            restarts: Restarts::default(),
            is_pinning_told: false,
            is_holding_told: false,
        }
    }

    /// Which mechanism it is; a device of ours until that is known.
    pub fn kind(&self) -> Kind {
        self.mechanism.as_ref().map_or(Kind::HyperFlex, |m| m.kind)
    }

    /// The mechanism, to stand after "by".
    pub fn words(&self) -> &str {
        self.mechanism.as_ref().map_or("HyperFlex", |m| &m.words)
    }

    /// Records an order.
    pub fn ordered(&mut self, number: u64, origin: Origin, size_bytes: Vec<Option<u64>>) {
        let look = self.seen.as_ref().map(|seen| &seen.look);
        let report = look.and_then(|look| look.reports);
        let tiers = look.iter().flat_map(|look| &look.tiers);
        self.order = Some(Order {
            number,
            origin,
            at: Instant::now(),
            from_bytes: tiers.map(|tier| tier.size_bytes).collect(),
            size_bytes,
            state: OrderState::Sent,
            why: None,
            resident: self.resident,
            is_seen: false,
        });
        self.met_told.clear();
        // What the guest said until now was about another target.
        for tier in &mut self.tiers {
            (tier.stuck_looks, tier.report, tier.stuck_told) = (0, report, None);
        }
    }

    /// Whether the guest says of the target of now that it cannot reach tier `i`'s.
    pub fn is_stuck(&self, i: usize) -> bool {
        self.tiers.get(i).is_some_and(|tier| tier.stuck_looks > 0)
    }

    /// Whether tier `i` was brought to its target by the driver, so that no more than that is counted.
    pub fn is_inflated(&self, i: usize) -> bool {
        self.tiers.get(i).is_some_and(|tier| tier.is_inflated)
    }

    /// Host memory behind tier `i`, bytes; where nobody looked at its files, its share of what the hypervisor's process
    /// holds, by the sizes.
    pub fn present_bytes(&self, i: usize) -> u64 {
        let tiers = self.seen.as_ref().map(|seen| &seen.look.tiers);
        let Some(tier) = tiers.and_then(|tiers| tiers.get(i)) else {
            return 0;
        };
        if let Some(seen) = tier.verified {
            return seen.present_bytes;
        }
        let sizes = tiers.into_iter().flatten().map(|tier| tier.size_bytes);
        let all: u128 = sizes.map(u128::from).sum();
        let held = u128::from(self.resident.map_or(0, |resident| resident.bytes()));
        let share = (held * u128::from(tier.size_bytes)).checked_div(all);
        u64::try_from(share.unwrap_or(0))
            .unwrap_or(u64::MAX)
            .min(tier.size_bytes)
    }

    /// What admission counts of tier `i`, bytes: all of it until the driver has inflated.
    pub fn counted(&self, i: usize, tier: &TierLook) -> u64 {
        if !self.is_inflated(i) {
            return tier.whole_bytes;
        }
        let order = self.order.as_ref();
        let order = order.filter(|o| !o.is_seen && o.state != OrderState::Failed);
        let sent = order.and_then(|o| o.size_bytes.get(i).copied().flatten());
        tier.size_bytes
            .max(tier.target_bytes)
            .max(sent.unwrap_or(0))
    }

    /// Somebody heard of it, or wants to.
    pub fn heard_of(&mut self) {
        self.heard = Instant::now();
        self.is_quiet = false;
    }

    /// Takes news in and says what of it is worth an event.
    pub fn take(&mut self, told: Told, pace: &Pace) -> Vec<String> {
        self.heard_of();
        let mut events = Vec::new();
        if std::mem::take(&mut self.is_silence_told) {
            events.push(format!("{} answers again", self.asked()));
        }
        match told {
            Told::Answered(number, result) => self.answered(number, result, &mut events),
            Told::Looked(looked) => self.looked(*looked, pace, &mut events),
        }
        events
    }

    /// Takes in that an order was taken back, which is no word of the keeper.
    pub fn withdrawn(&mut self, number: u64, why: String) -> Vec<String> {
        let mut events = Vec::new();
        self.answered(number, Err(Trouble::Refused(why)), &mut events);
        events
    }

    /// An event where nothing was heard for too long: what is asked hangs.
    pub fn silence(&mut self, pace: &Pace) -> Option<String> {
        let silent = self.heard.elapsed();
        if self.is_quiet || self.is_silence_told || silent < pace.idle + pace.patience {
            return None;
        }
        self.is_silence_told = true;
        Some(format!(
            "{} hangs: no answer for {} s",
            self.asked(),
            silent.as_secs()
        ))
    }

    /// Whether it hangs.
    pub fn is_silent(&self) -> bool {
        self.is_silence_told
    }

    fn asked(&self) -> &'static str {
        // What is not known yet is looked for by the monitor.
        match self.mechanism.as_ref().map(|m| m.kind) {
            Some(Kind::HyperFlex) => "its HyperFlex device",
            None | Some(Kind::VirtioMem | Kind::Balloon) => "its monitor",
        }
    }

    fn answered(&mut self, number: u64, result: Result<(), Trouble>, events: &mut Vec<String>) {
        match &result {
            Ok(()) => self.counts.taken += 1,
            Err(trouble) => {
                self.counts.failed += 1;
                events.push(format!("order {number} came to nothing: {trouble}"));
            }
        }
        let Some(order) = self.order.as_mut().filter(|o| o.number == number) else {
            return;
        };
        match result {
            Ok(()) => order.state = OrderState::UnderWay,
            Err(trouble) => {
                // A lost answer is none: the order, or half of it, may have been taken.
                order.state = match trouble {
                    Trouble::Gone(_) => OrderState::Unknown,
                    Trouble::Refused(_) | Trouble::Nothing(_) => OrderState::Failed,
                };
                order.why = Some(trouble.to_string());
            }
        }
    }

    fn looked(&mut self, looked: Looked, pace: &Pace, events: &mut Vec<String>) {
        self.mechanism = looked.mechanism.or(self.mechanism.take());
        let is_safe = self.kind().frees_pinned();
        self.watch_pinning(looked.pinned_by.as_ref(), is_safe, events);
        (self.pinned_by, self.pinning_unknown) = match looked.pinned_by {
            _ if is_safe => (None, None),
            Ok(device) => (device, None),
            Err(why) => (None, Some(why)),
        };
        self.watch_holding(looked.held_by, events);
        self.resident = looked.resident;
        match looked.look {
            Err(trouble) => {
                if self.trouble.is_none() {
                    events.push(format!("{} does not answer: {trouble}", self.asked()));
                }
                self.trouble = Some(trouble.to_string());
                // What comes back may be a new one, with empty balloons.
                self.tiers.iter_mut().for_each(|t| t.is_inflated = false);
            }
            Ok(look) => {
                if self.trouble.take().is_some() {
                    events.push(format!("{} answers", self.asked()));
                }
                let before = self.seen.as_ref().map_or(look.resets, |s| s.look.resets);
                if before != look.resets {
                    self.tiers.iter_mut().for_each(|t| t.is_inflated = false);
                }
                events.extend(self.restarts.seen(before, look.resets, looked.at));
                self.tiers.resize(look.tiers.len(), TierState::default());
                self.watch_driver(&look, pace, events);
                self.watch_honesty(&look, &looked.is_fresh, events);
                self.watch_withheld(&look, events);
                self.watch_targets(&look, events);
                self.watch_inflated(&look, looked.is_tried);
                self.watch_order(&look, looked.order);
                self.seen = Some(Seen {
                    at: looked.at,
                    look,
                });
            }
        }
    }

    fn watch_pinning(
        &mut self,
        seen: Result<&Option<String>, &String>,
        is_safe: bool,
        events: &mut Vec<String>,
    ) {
        match seen {
            Ok(Some(device)) if !is_safe && !self.is_pinning_told => {
                self.is_pinning_told = true;
                events.push(format!(
                    "a device is passed through ({device}), which pins all of its memory: it cannot shrink"
                ));
            }
            Ok(None) if std::mem::take(&mut self.is_pinning_told) => {
                events.push("no device is passed through any more: it can shrink".into());
            }
            // That it is not known for now is no news.
            _ => {}
        }
    }

    fn watch_holding(&mut self, seen: Found, events: &mut Vec<String>) {
        (self.held_by, self.holding_unknown) = match seen {
            Found::Somebody(who) => {
                if !self.is_holding_told {
                    events.push(format!("{who}, may have pinned it: it cannot shrink"));
                }
                self.is_holding_told = true;
                (Some(who), None)
            }
            Found::Nobody => {
                if std::mem::take(&mut self.is_holding_told) {
                    events.push("no other process has its RAM any more: it can shrink".into());
                }
                (None, None)
            }
            // That it is not known for now is no news.
            Found::Unknown(why) => (None, Some(why)),
        };
    }

    /// Why its targets are held: a device, or another process.
    pub fn holding(&self) -> Origin {
        if self.held_by.is_some() {
            Origin::Sharing
        } else {
            Origin::Pinning
        }
    }

    fn watch_withheld(&mut self, look: &Look, events: &mut Vec<String>) {
        let kind = self.kind();
        for (i, (tier, state)) in look.tiers.iter().zip(&mut self.tiers).enumerate() {
            let (now, name) = (tier.withheld_bytes, tier_name(kind, i));
            let before = std::mem::replace(&mut state.withheld_bytes, now);
            if now > before {
                events.push(format!(
                    "{} of {name} were being given back as another process came, which may have pinned them: they stay \
                     out of use, and {name} shrinks no more until the guest starts anew",
                    size(now)
                ));
            } else if now < before {
                events.push(format!(
                    "{} of {name} that were withheld are the guest's again: restart whatever maps its RAM, whose \
                     devices may use other pages in their place",
                    size(before)
                ));
            }
        }
    }

    /// What each tier shall have so that a device that is passed through loses no memory; `None` where nothing is to
    /// be done, or an order is on its way. `given`: the last order before the look.
    pub fn held(&self, given: u64) -> Option<Vec<Option<u64>>> {
        let is_pinned = self.kind() == Kind::HyperFlex && self.pinned_by.is_some();
        let is_pinned = is_pinned || self.held_by.is_some();
        let look = &self
            .seen
            .as_ref()
            .filter(|_| is_pinned && self.trouble.is_none())?
            .look;
        if let Some(order) = &self.order {
            let is_ours = matches!(order.origin, Origin::Pinning | Origin::Sharing);
            let failed = is_ours && order.state == OrderState::Failed;
            if order.number > given || (failed && order.at.elapsed() < EVERY) {
                return None;
            }
        }
        let most = look.total_bytes.unwrap_or(u64::MAX);
        let tiers = look.tiers.iter().map(|tier| {
            let held = tier.kept_as_it_is().min(most);
            (tier.target_bytes < tier.size_bytes && held != tier.target_bytes).then_some(held)
        });
        let tiers: Vec<_> = tiers.collect();
        tiers.iter().any(Option::is_some).then_some(tiers)
    }

    fn watch_driver(&mut self, look: &Look, pace: &Pace, events: &mut Vec<String>) {
        if look.connected && look.told {
            if self.untold.take().is_some_and(|(_, told)| told) {
                events.push("the guest's driver knows the targets".into());
            }
            return;
        }
        let (since, told) = self.untold.get_or_insert((Instant::now(), false));
        if *told || since.elapsed() < pace.driver {
            return;
        }
        *told = true;
        let wait = pace.driver.as_secs();
        let why = no_driver(self.kind(), look.connected);
        events.push(format!("for {wait} s {why}"));
    }

    fn watch_honesty(&mut self, look: &Look, is_fresh: &[bool], events: &mut Vec<String>) {
        let kind = self.kind();
        let tiers = look.tiers.iter().zip(&mut self.tiers).enumerate();
        for (i, (tier, state)) in tiers {
            let is_fresh = is_fresh.get(i).copied().unwrap_or(false);
            let Some(seen) = tier.verified.filter(|_| is_fresh) else {
                continue;
            };
            let name = tier_name(kind, i);
            if seen.honesty() >= HONEST {
                if state.low_looks >= LOOKS {
                    events.push(format!(
                        "what it claims to have given back of {name} is gone"
                    ));
                }
                state.low_looks = 0;
                continue;
            }
            state.low_looks = state.low_looks.saturating_add(1);
            if state.low_looks >= LOOKS {
                state.is_inflated = false;
            }
            if state.low_looks == LOOKS {
                events.push(format!(
                    "claims to have given back {} of {name}, of which {} is still there (honesty {:.2})",
                    size(seen.claimed_bytes),
                    size(seen.kept_bytes),
                    seen.honesty()
                ));
            }
        }
    }

    fn watch_targets(&mut self, look: &Look, events: &mut Vec<String>) {
        let kind = self.kind();
        let is_met = look.is_met() && look.told;
        let targets: Vec<u64> = look.tiers.iter().map(|tier| tier.target_bytes).collect();
        if is_met && self.was_met == Some(false) && self.met_told != targets {
            let has = look.tiers.iter().enumerate();
            let has: Vec<String> = has
                .map(|(i, tier)| format!("{} {}", tier_name(kind, i), size(tier.size_bytes)))
                .collect();
            events.push(format!("has what it shall have: {}", has.join(", ")));
        }
        if is_met {
            self.met_told = targets;
        }
        self.was_met = Some(is_met);
        let tiers = look.tiers.iter().zip(&mut self.tiers).enumerate();
        for (i, (tier, state)) in tiers {
            let Some(why) = tier.stuck.as_ref().filter(|_| !tier.is_met()) else {
                state.stuck_looks = 0;
                continue;
            };
            if look.reports.is_some() && look.reports == state.report {
                continue;
            }
            state.report = look.reports;
            if state.stuck_at != tier.size_bytes {
                (state.stuck_at, state.stuck_looks) = (tier.size_bytes, 0);
            }
            state.stuck_looks = state.stuck_looks.saturating_add(1);
            if state.stuck_looks == LOOKS && state.stuck_told != Some(tier.target_bytes) {
                state.stuck_told = Some(tier.target_bytes);
                events.push(format!(
                    "{} is stuck at {} on the way to {}: {why}",
                    tier_name(kind, i),
                    size(tier.size_bytes),
                    size(tier.target_bytes)
                ));
            }
        }
    }

    fn watch_inflated(&mut self, look: &Look, is_tried: bool) {
        let knows = look.connected && look.told;
        let needs_proof = self.kind().needs_proof();
        for (tier, state) in look.tiers.iter().zip(&mut self.tiers) {
            let is_honest = tier.verified.map_or(!needs_proof, |seen| {
                // Of a guest that had given back less then, the rest is not proven.
                let given = tier.whole_bytes.saturating_sub(tier.size_bytes);
                let is_all = seen.claimed_bytes >= given - given / 100;
                seen.honesty() >= HONEST && (is_all || !needs_proof)
            });
            if !look.connected {
                state.is_inflated = false;
            } else if knows && tier.is_met() && is_tried && is_honest {
                state.is_inflated = true;
            }
        }
    }

    fn watch_order(&mut self, look: &Look, given: u64) {
        let order = self.order.as_mut().filter(|order| order.number <= given);
        // What became of it stays: later targets are no word about it.
        let is_over =
            |order: &&mut Order| matches!(order.state, OrderState::Failed | OrderState::Met);
        let Some(order) = order.filter(|order| !is_over(order)) else {
            return;
        };
        let was = (order.state == OrderState::Unknown).then(|| order.why.take());
        order.is_seen = true;
        let kind = self.mechanism.as_ref().map_or(Kind::HyperFlex, |m| m.kind);
        let has_no_driver = self.untold.is_some_and(|(_, told)| told);
        let asked = order.size_bytes.iter().zip(&look.tiers).enumerate();
        let asked = asked.filter_map(|(i, (size, tier))| Some((i, (*size)?, tier)));
        let mut state = OrderState::Met;
        let mut why = None;
        for (i, size_bytes, tier) in asked {
            if tier.target_bytes != size_bytes {
                state = OrderState::Failed;
                let but = format!(
                    "the target of {} is {} now",
                    tier_name(kind, i),
                    size(tier.target_bytes)
                );
                why = Some(match was.flatten() {
                    Some(was) => format!("{was}; {but}"),
                    None => {
                        format!("{but}: it was ordered by another way, or the device lost it")
                    }
                });
                break;
            }
            if tier.is_met() && look.told {
                continue;
            }
            if self.tiers.get(i).is_some_and(|t| t.stuck_looks >= LOOKS) {
                state = OrderState::Stuck;
                why.clone_from(&tier.stuck);
            } else if has_no_driver {
                state = OrderState::Stuck;
                why = Some(no_driver(kind, look.connected));
            } else if state == OrderState::Met {
                state = OrderState::UnderWay;
            }
        }
        order.state = state;
        order.why = why;
    }
}

fn no_driver(kind: Kind, is_connected: bool) -> String {
    let driver = match kind {
        Kind::HyperFlex => "is the module hyperflex loaded in it?",
        Kind::VirtioMem => "has it virtio_mem?",
        Kind::Balloon => "has it virtio_balloon?",
    };
    if is_connected {
        format!("the guest's driver has not taken the targets: {driver}")
    } else {
        "no hypervisor has been connected to its device".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_starts_anew_again_and_again_makes_one_event_a_minute_with_their_number() {
        let (mut restarts, start) = (Restarts::default(), Instant::now());
        let mut seen = |before, now, s| restarts.seen(before, now, start + Duration::from_secs(s));
        assert_eq!(seen(4, 4, 0), None);
        let told = seen(4, 5, 1).unwrap();
        assert_eq!(told, "the guest started anew: its balloons are empty");
        assert_eq!((seen(5, 9, 2), seen(9, 0, 30)), (None, None));
        let told = seen(0, 0, 61).unwrap();
        assert_eq!(
            told,
            "the guest started anew (5 times): its balloons are empty"
        );
        assert_eq!(seen(0, 0, 200), None);
    }
}
