//! What a report changes, and what of it is worth a sentence.

use terrace_proto::provision::{
    OrderState, OtherUsers, ProviderError, ProviderKind, ProviderReport, ProviderStatus,
};
use terrace_proto::{OrderId, Tick};

use super::config::ProvisionConfig;
use super::order::Order;
use super::provider::{EVERY, Provider, Seen};
use super::verdicts::Verdicts;
use super::words::{no_driver, share, size, tier_name};

/// So many reports in a row must say that a guest is dishonest, or stuck.
const REPORTS: u32 = 2;

/// That the guest started anew, said at most once in [`EVERY`]: a guest that does nothing else fills no list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Restarts {
    unsaid: u64,
    said: Option<Tick>,
}

impl Restarts {
    /// Takes in the device's count before and now, and says what there is to say.
    fn seen(&mut self, before: u64, after: u64, now: Tick) -> Option<String> {
        // A count that fell is that of a new device.
        let more = after.checked_sub(before).unwrap_or(1);
        self.unsaid = self.unsaid.saturating_add(more);
        let is_new = |said| now.since(said) < EVERY;
        if self.unsaid == 0 || self.said.is_some_and(is_new) {
            return None;
        }
        self.said = Some(now);
        let times = match std::mem::take(&mut self.unsaid) {
            1 => String::new(),
            times => format!(" ({times} times)"),
        };
        Some(format!(
            "the guest started anew{times}: its balloons are empty"
        ))
    }
}

/// What the reports said of a tier.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TierState {
    /// The driver has once brought the tier to its target, and the host's memory agreed.
    pub is_inflated: bool,
    /// Words of the guest since the last order that it is stuck, and the number of the last word.
    stuck_reports: u32,
    report: Option<u64>,
    /// What it had then, bytes: a tier that moves on is slow and not stuck.
    stuck_at: u64,
    /// The target of which it was said that it is stuck.
    stuck_said: Option<u64>,
    low_reports: u32,
    withheld_bytes: u64,
}

impl TierState {
    /// What the guest said until now was about another target.
    pub fn forget_stuck(&mut self, report: Option<u64>) {
        (self.stuck_reports, self.report, self.stuck_said) = (0, report, None);
    }

    /// The guest says that it is stuck.
    pub fn is_stuck(&self) -> bool {
        self.stuck_reports > 0
    }
}

impl Provider {
    /// Takes a report in whose look was asked for at `asked`.
    pub fn take(
        &mut self,
        now: Tick,
        report: &ProviderReport,
        asked: Tick,
        config: &ProvisionConfig,
    ) {
        self.mechanism = report.mechanism.clone().or(self.mechanism.take());
        let is_gone = matches!(report.status, Err(ProviderError::Gone(_)));
        if self.is_quiet && self.mechanism.is_none() && is_gone {
            self.looks.not_found();
            return;
        }
        self.looks.found();
        self.answers(now);
        self.watch_pinning(now, report.pinned_by.as_ref());
        self.watch_holding(now, &report.held_by);
        self.resident = report.resident;
        match &report.status {
            Err(trouble) => {
                // What comes back may be another device.
                self.verdicts = Verdicts::default();
                if self.trouble.is_none() {
                    let said = format!("{} does not answer: {trouble}", self.asked());
                    self.reasons.say(now, said);
                }
                self.trouble = Some(trouble.to_string());
                // What comes back may be a new one, with empty balloons.
                self.tiers.iter_mut().for_each(|t| t.is_inflated = false);
            }
            Ok(status) => {
                let mut status = status.clone();
                self.looks.was_met = status.is_met();
                let is_fresh = self.verdicts.take(now, &mut status, asked);
                if report.verify {
                    self.verdicts.tried = Some(now);
                }
                self.status_seen(now, status, &is_fresh, report.order, config);
            }
        }
    }

    fn status_seen(
        &mut self,
        now: Tick,
        status: ProviderStatus,
        is_fresh: &[bool],
        given: OrderId,
        config: &ProvisionConfig,
    ) {
        if self.trouble.take().is_some() {
            let said = format!("{} answers", self.asked());
            self.reasons.say(now, said);
        }
        let before = self.status().map_or(status.resets, |s| s.resets);
        if before != status.resets {
            self.tiers.iter_mut().for_each(|t| t.is_inflated = false);
        }
        if let Some(said) = self.restarts.seen(before, status.resets, now) {
            self.reasons.say(now, said);
        }
        self.tiers.resize(status.tiers.len(), TierState::default());
        self.watch_driver(now, &status, config);
        self.watch_honesty(now, &status, is_fresh);
        self.watch_withheld(now, &status);
        self.watch_targets(now, &status);
        self.watch_stuck(now, &status);
        self.watch_inflated(&status);
        self.orders_seen(given);
        self.watch_order(&status, given);
        self.seen = Some(Seen { at: now, status });
    }

    fn watch_pinning(&mut self, now: Tick, seen: Result<&Option<String>, &String>) {
        let is_safe = self.kind().frees_pinned();
        match seen {
            Ok(Some(device)) if !is_safe && !self.is_pinning_said => {
                self.is_pinning_said = true;
                let said = format!(
                    "a device is passed through ({device}), which pins all of its memory: it cannot shrink"
                );
                self.reasons.say(now, said);
            }
            Ok(None) if std::mem::take(&mut self.is_pinning_said) => {
                let said = "no device is passed through any more: it can shrink";
                self.reasons.say(now, said);
            }
            // That it is not known for now is no news.
            _ => {}
        }
        (self.pinned_by, self.pinning_unknown) = match seen {
            _ if is_safe => (None, None),
            Ok(device) => (device.clone(), None),
            Err(why) => (None, Some(why.clone())),
        };
    }

    fn watch_holding(&mut self, now: Tick, seen: &OtherUsers) {
        (self.held_by, self.holding_unknown) = match seen {
            OtherUsers::Somebody(who) => {
                if !self.is_holding_said {
                    let said = format!("{who}, may have pinned it: it cannot shrink");
                    self.reasons.say(now, said);
                }
                self.is_holding_said = true;
                (Some(who.clone()), None)
            }
            OtherUsers::Nobody => {
                if std::mem::take(&mut self.is_holding_said) {
                    let said = "no other process has its RAM any more: it can shrink";
                    self.reasons.say(now, said);
                }
                (None, None)
            }
            // That it is not known for now is no news.
            OtherUsers::Unknown(why) => (None, Some(why.clone())),
        };
    }

    fn watch_withheld(&mut self, now: Tick, status: &ProviderStatus) {
        let kind = self.kind();
        for (i, (tier, state)) in status.tiers.iter().zip(&mut self.tiers).enumerate() {
            let (after, name) = (tier.withheld_bytes, tier_name(kind, i));
            let before = std::mem::replace(&mut state.withheld_bytes, after);
            if after > before {
                let said = format!(
                    "{} of {name} were being given back as another process came, which may have pinned them: they stay \
                     out of use, and {name} shrinks no more until the guest starts anew",
                    size(after)
                );
                self.reasons.say(now, said);
            } else if after < before {
                let said = format!(
                    "{} of {name} that were withheld are the guest's again: restart whatever maps its RAM, whose \
                     devices may use other pages in their place",
                    size(before)
                );
                self.reasons.say(now, said);
            }
        }
    }

    fn watch_driver(&mut self, now: Tick, status: &ProviderStatus, config: &ProvisionConfig) {
        if status.connected && status.told {
            if self.untold.take().is_some_and(|(_, said)| said) {
                self.reasons
                    .say(now, "the guest's driver knows the targets");
            }
            return;
        }
        let (since, said) = self.untold.get_or_insert((now, false));
        if *said || now.since(*since) < config.driver() {
            return;
        }
        *said = true;
        let wait = config.driver().as_secs();
        let why = no_driver(self.kind(), status.connected);
        self.reasons.say(now, format!("for {wait} s {why}"));
    }

    fn watch_honesty(&mut self, now: Tick, status: &ProviderStatus, is_fresh: &[bool]) {
        let kind = self.kind();
        let tiers = status.tiers.iter().zip(&mut self.tiers).enumerate();
        for (i, (tier, state)) in tiers {
            let is_fresh = is_fresh.get(i).copied().unwrap_or(false);
            let Some(seen) = tier.verified.filter(|_| is_fresh) else {
                continue;
            };
            let name = tier_name(kind, i);
            if seen.is_honest() {
                if state.low_reports >= REPORTS {
                    let said = format!("what it claims to have given back of {name} is gone");
                    self.reasons.say(now, said);
                }
                state.low_reports = 0;
                continue;
            }
            state.low_reports = state.low_reports.saturating_add(1);
            if state.low_reports >= REPORTS {
                state.is_inflated = false;
            }
            if state.low_reports == REPORTS {
                let kept = seen.kept_bytes.min(seen.claimed_bytes);
                let said = format!(
                    "claims to have given back {} of {name}, of which {} is still there (honesty {})",
                    size(seen.claimed_bytes),
                    size(seen.kept_bytes),
                    share(seen.claimed_bytes - kept, seen.claimed_bytes)
                );
                self.reasons.say(now, said);
            }
        }
    }

    fn watch_targets(&mut self, now: Tick, status: &ProviderStatus) {
        let kind = self.kind();
        let is_met = status.is_met() && status.told;
        let targets: Vec<u64> = status.tiers.iter().map(|tier| tier.target_bytes).collect();
        if is_met && self.was_met == Some(false) && self.met_said != targets {
            let has = status.tiers.iter().enumerate();
            let has: Vec<String> = has
                .map(|(i, tier)| format!("{} {}", tier_name(kind, i), size(tier.size_bytes)))
                .collect();
            let said = format!("has what it shall have: {}", has.join(", "));
            self.reasons.say(now, said);
        }
        if is_met {
            self.met_said = targets;
        }
        self.was_met = Some(is_met);
    }

    fn watch_stuck(&mut self, now: Tick, status: &ProviderStatus) {
        let kind = self.kind();
        let tiers = status.tiers.iter().zip(&mut self.tiers).enumerate();
        for (i, (tier, state)) in tiers {
            let Some(why) = tier.stuck.as_ref().filter(|_| !tier.is_met()) else {
                state.stuck_reports = 0;
                continue;
            };
            if status.reports.is_some() && status.reports == state.report {
                continue;
            }
            state.report = status.reports;
            if state.stuck_at != tier.size_bytes {
                (state.stuck_at, state.stuck_reports) = (tier.size_bytes, 0);
            }
            state.stuck_reports = state.stuck_reports.saturating_add(1);
            if state.stuck_reports == REPORTS && state.stuck_said != Some(tier.target_bytes) {
                state.stuck_said = Some(tier.target_bytes);
                let said = format!(
                    "{} is stuck at {} on the way to {}: {why}",
                    tier_name(kind, i),
                    size(tier.size_bytes),
                    size(tier.target_bytes)
                );
                self.reasons.say(now, said);
            }
        }
    }

    fn watch_inflated(&mut self, status: &ProviderStatus) {
        let knows = status.connected && status.told;
        let needs_proof = self.kind().needs_proof();
        let is_tried = self.verdicts.tried.is_some();
        for (tier, state) in status.tiers.iter().zip(&mut self.tiers) {
            let is_honest = tier.verified.map_or(!needs_proof, |seen| {
                // Of a guest that had given back less then, the rest is not proven.
                let given = tier.whole_bytes.saturating_sub(tier.size_bytes);
                let is_all = seen.claimed_bytes >= given - given / 100;
                seen.is_honest() && (is_all || !needs_proof)
            });
            if !status.connected {
                state.is_inflated = false;
            } else if knows && tier.is_met() && is_tried && is_honest {
                state.is_inflated = true;
            }
        }
    }

    fn watch_order(&mut self, status: &ProviderStatus, given: OrderId) {
        let kind = self.kind();
        let order = self.order.as_mut().filter(|order| order.number <= given);
        // What became of it stays: later targets are no word about it.
        let is_over =
            |order: &&mut Order| matches!(order.state, OrderState::Failed | OrderState::Met);
        let Some(order) = order.filter(|order| !is_over(order)) else {
            return;
        };
        let was = (order.state == OrderState::Unknown).then(|| order.why.take());
        let has_no_driver = self.untold.is_some_and(|(_, said)| said);
        (order.state, order.why) = progress(
            kind,
            order,
            status,
            &self.tiers,
            has_no_driver,
            was.flatten(),
        );
    }
}

/// How far an order is, and why not farther. `was`: why that was not known before.
fn progress(
    kind: ProviderKind,
    order: &Order,
    status: &ProviderStatus,
    states: &[TierState],
    has_no_driver: bool,
    was: Option<String>,
) -> (OrderState, Option<String>) {
    let asked = order.size_bytes.iter().zip(&status.tiers).enumerate();
    let asked = asked.filter_map(|(i, (size, tier))| Some((i, (*size)?, tier)));
    let (mut state, mut why) = (OrderState::Met, None);
    for (i, size_bytes, tier) in asked {
        if tier.target_bytes != size_bytes {
            let but = format!(
                "the target of {} is {} now",
                tier_name(kind, i),
                size(tier.target_bytes)
            );
            let why = match was {
                Some(was) => format!("{was}; {but}"),
                None => format!("{but}: it was ordered by another way, or the device lost it"),
            };
            return (OrderState::Failed, Some(why));
        }
        if tier.is_met() && status.told {
            continue;
        }
        if states.get(i).is_some_and(|t| t.stuck_reports >= REPORTS) {
            state = OrderState::Stuck;
            why.clone_from(&tier.stuck);
        } else if has_no_driver {
            state = OrderState::Stuck;
            why = Some(no_driver(kind, status.connected));
        } else if state == OrderState::Met {
            state = OrderState::UnderWay;
        }
    }
    (state, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_starts_anew_again_and_again_makes_one_sentence_a_minute_with_their_number() {
        let mut restarts = Restarts::default();
        let mut seen =
            |before, after, s: u64| restarts.seen(before, after, Tick(s * 1_000_000_000));
        assert_eq!(seen(4, 4, 0), None);
        let said = seen(4, 5, 1).unwrap();
        assert_eq!(said, "the guest started anew: its balloons are empty");
        assert_eq!((seen(5, 9, 2), seen(9, 0, 30)), (None, None));
        let said = seen(0, 0, 61).unwrap();
        assert_eq!(
            said,
            "the guest started anew (5 times): its balloons are empty"
        );
        assert_eq!(seen(0, 0, 200), None);
    }
}
