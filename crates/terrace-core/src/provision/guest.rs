//! A VM's guest by its provider's reports: whether its driver is there, the state of each tier, and which changes are
//! worth a sentence.

use std::time::Duration;

use terrace_proto::Tick;
use terrace_proto::provision::{OrderState, ProviderKind, ProviderStatus};

use super::config::ProvisionConfig;
use super::order::Order;
use super::text::{no_driver, share, size, tier_name};
use crate::reasons::Reasons;

/// Least time between two sentences that a guest started anew, and between two tries of an order that failed.
pub(super) const MIN_REPEAT: Duration = Duration::from_secs(60);

/// Number of reports in a row that must say that a guest is stuck.
const REPORTS: u32 = 2;
/// Points from which on a guest is dishonest: two verifications in a row that found what it claims to have given back.
const DISHONEST: u32 = 4;
/// Points of such a verification. One that found nothing takes a point away: one that is honest every other time is not.
const POINTS: u32 = 2;
/// Points at most: one that was dishonest for long has not to be honest for long.
const MOST_POINTS: u32 = 5;

/// Restarts of the guest, reported at most once in [`MIN_REPEAT`]: a guest that does nothing else fills no list.
#[derive(Clone, Copy, Debug, Default)]
struct Restarts {
    unsaid: u64,
    said: Option<Tick>,
}

impl Restarts {
    /// Takes in the device's count before and now, and returns the sentence that is due.
    fn seen(&mut self, before: u64, after: u64, now: Tick) -> Option<String> {
        // A count that fell is that of a new device.
        let more = after.checked_sub(before).unwrap_or(1);
        self.unsaid = self.unsaid.saturating_add(more);
        // A guest can restart as often as it likes; it must not fill the list of reasons by it.
        let is_new = |said| now.since(said) < MIN_REPEAT;
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

/// The state of a tier by the reports.
#[derive(Clone, Copy, Debug, Default)]
struct TierState {
    /// Whether the driver has once brought the tier to its target, and the host's memory agreed.
    is_inflated: bool,
    /// The guest's reports since the last order that the tier is stuck: how many, and the number of the last one.
    stuck_reports: u32,
    report: Option<u64>,
    /// The tier's size at the last of these reports, bytes: a tier that moves on is slow and not stuck.
    stuck_at: u64,
    /// The target that the tier was last said to be stuck on the way to.
    stuck_said: Option<u64>,
    /// See [`DISHONEST`].
    points: u32,
    withheld_bytes: u64,
}

/// Whether the targets are met.
#[derive(Debug, Default)]
struct Targets {
    /// Whether they were met at the last report.
    were_met: Option<bool>,
    /// The targets that were last said to be met: a guest that goes to and fro makes one sentence.
    said: Vec<u64>,
}

/// The guest of a VM that changes size, as far as reports show it.
#[derive(Debug, Default)]
pub(super) struct Guest {
    tiers: Vec<TierState>,
    targets: Targets,
    /// The time since which the driver does not know the targets, and whether that was said.
    targets_unsent: Option<(Tick, bool)>,
    restarts: Restarts,
}

/// The list that sentences about the guest go to, with the mechanism's kind, which names the tiers.
pub(super) struct Speaker<'a> {
    pub now: Tick,
    pub kind: ProviderKind,
    pub reasons: &'a mut Reasons,
}

impl Speaker<'_> {
    fn say(&mut self, said: impl Into<String>) {
        self.reasons.say(self.now, said);
    }
}

impl Guest {
    /// Whether the guest reports that it cannot reach the present target of tier `i`.
    pub fn is_stuck(&self, i: usize) -> bool {
        self.tiers.get(i).is_some_and(|tier| tier.stuck_reports > 0)
    }

    /// Whether several verifications in a row found memory that the guest claims to have given back.
    pub fn is_dishonest(&self, i: usize) -> bool {
        self.tiers
            .get(i)
            .is_some_and(|tier| tier.points >= DISHONEST)
    }

    /// Whether the driver brought tier `i` to its target, so that no more than that is counted.
    pub fn is_inflated(&self, i: usize) -> bool {
        self.tiers.get(i).is_some_and(|tier| tier.is_inflated)
    }

    /// Takes in that new targets are ordered. `report`: the number of the guest's last report, which was about the
    /// old ones.
    pub fn ordered(&mut self, report: Option<u64>) {
        self.targets.said.clear();
        for tier in &mut self.tiers {
            (tier.stuck_reports, tier.report, tier.stuck_said) = (0, report, None);
        }
    }

    /// Lets every tier count as not inflated: the guest may be another one by now, with empty balloons.
    pub fn distrust(&mut self) {
        self.tiers.iter_mut().for_each(|t| t.is_inflated = false);
    }

    /// Takes in how often the guest had started anew before, and by now.
    pub fn restarts(&mut self, before: u64, after: u64, speaker: &mut Speaker<'_>) {
        if before != after {
            self.distrust();
        }
        if let Some(said) = self.restarts.seen(before, after, speaker.now) {
            speaker.say(said);
        }
    }

    /// Takes a status in. `is_fresh`: for each tier, whether the host's verdict is new; `is_tried`: whether the
    /// host's memory was verified once.
    pub fn take(
        &mut self,
        status: &ProviderStatus,
        is_fresh: &[bool],
        is_tried: bool,
        config: &ProvisionConfig,
        speaker: &mut Speaker<'_>,
    ) {
        // The order matters: what a guest claims is weighed before its targets count as met, and whether it is
        // inflated follows from both.
        self.tiers.resize(status.tiers.len(), TierState::default());
        self.watch_driver(status, config, speaker);
        self.watch_verification(status, is_fresh, speaker);
        self.watch_withheld(status, speaker);
        self.watch_targets(status, speaker);
        self.watch_stuck(status, speaker);
        self.watch_inflated(status, is_tried, speaker.kind);
    }

    fn watch_driver(
        &mut self,
        status: &ProviderStatus,
        config: &ProvisionConfig,
        speaker: &mut Speaker<'_>,
    ) {
        if status.connected && status.targets_sent {
            if self.targets_unsent.take().is_some_and(|(_, said)| said) {
                speaker.say("the guest's driver knows the targets");
            }
            return;
        }
        // A driver that is just being loaded is no news; one that stays away is.
        let (since, said) = self.targets_unsent.get_or_insert((speaker.now, false));
        if *said || speaker.now.since(*since) < config.driver() {
            return;
        }
        *said = true;
        let wait = config.driver().as_secs();
        let why = no_driver(speaker.kind, status.connected);
        speaker.say(format!("for {wait} s {why}"));
    }

    fn watch_verification(
        &mut self,
        status: &ProviderStatus,
        is_fresh: &[bool],
        speaker: &mut Speaker<'_>,
    ) {
        let kind = speaker.kind;
        let tiers = status.tiers.iter().zip(&mut self.tiers).enumerate();
        for (i, (tier, state)) in tiers {
            let is_fresh = is_fresh.get(i).copied().unwrap_or(false);
            // One verification that is reported twice must not count as two reports.
            let Some(seen) = tier.verified.filter(|_| is_fresh) else {
                continue;
            };
            let name = tier_name(kind, i);
            if seen.is_honest(kind) {
                let was_dishonest = state.points >= DISHONEST;
                state.points = state.points.saturating_sub(1);
                if was_dishonest && state.points < DISHONEST {
                    let said =
                        format!("all memory that it claims to have given back of {name} is gone");
                    speaker.say(said);
                }
                continue;
            }
            // One verification may fall between the guest's claim and the hole; it takes several in a row.
            let was_honest = state.points < DISHONEST;
            state.points = (state.points + POINTS).min(MOST_POINTS);
            if state.points >= DISHONEST {
                // From now on admission counts the tier whole: the guest may touch all of it again.
                state.is_inflated = false;
            }
            // Once, or each further one would say it again.
            if was_honest && state.points >= DISHONEST {
                // A guest can claim less than was seen of it before: the difference must not wrap.
                let retained = seen.retained_bytes.min(seen.claimed_bytes);
                let said = format!(
                    "claims to have given back {} of {name}, of which {} is still there (verified: {})",
                    size(seen.claimed_bytes),
                    size(seen.retained_bytes),
                    share(seen.claimed_bytes - retained, seen.claimed_bytes)
                );
                speaker.say(said);
            }
        }
    }

    fn watch_withheld(&mut self, status: &ProviderStatus, speaker: &mut Speaker<'_>) {
        let kind = speaker.kind;
        for (i, (tier, state)) in status.tiers.iter().zip(&mut self.tiers).enumerate() {
            let (after, name) = (tier.withheld_bytes, tier_name(kind, i));
            let before = std::mem::replace(&mut state.withheld_bytes, after);
            if after > before {
                let said = format!(
                    "{} of {name} were being given back as another process came, which may have pinned \
                     them: they stay \
                     out of use, and {name} shrinks no more until the guest starts anew",
                    size(after)
                );
                speaker.say(said);
            } else if after < before {
                // Only a reset of the guest brings them back, and the process that pinned the old pages knows nothing
                // of it.
                let said = format!(
                    "{} of {name} that were withheld are the guest's again: restart whatever maps its RAM, whose \
                     devices may use other pages in their place",
                    size(before)
                );
                speaker.say(said);
            }
        }
    }

    fn watch_targets(&mut self, status: &ProviderStatus, speaker: &mut Speaker<'_>) {
        let kind = speaker.kind;
        let is_met = status.is_met() && status.targets_sent;
        let targets: Vec<u64> = status.tiers.iter().map(|tier| tier.target_bytes).collect();
        // Only a change is said, and once per set of targets: a guest that goes to and fro makes one sentence.
        if is_met && self.targets.were_met == Some(false) && self.targets.said != targets {
            let has = status.tiers.iter().enumerate();
            let has: Vec<String> = has
                .map(|(i, tier)| format!("{} {}", tier_name(kind, i), size(tier.size_bytes)))
                .collect();
            let said = format!("has reached its target: {}", has.join(", "));
            speaker.say(said);
        }
        if is_met {
            self.targets.said = targets;
        }
        self.targets.were_met = Some(is_met);
    }

    fn watch_stuck(&mut self, status: &ProviderStatus, speaker: &mut Speaker<'_>) {
        let kind = speaker.kind;
        let tiers = status.tiers.iter().zip(&mut self.tiers).enumerate();
        for (i, (tier, state)) in tiers {
            let Some(why) = tier.stuck.as_ref().filter(|_| !tier.is_met()) else {
                state.stuck_reports = 0;
                continue;
            };
            // The device repeats the guest's last report with each query: the same number is the same report.
            if status.reports.is_some() && status.reports == state.report {
                continue;
            }
            state.report = status.reports;
            // It moved since: it is slow, not stuck, so the count starts anew.
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
                speaker.say(said);
            }
        }
    }

    fn watch_inflated(&mut self, status: &ProviderStatus, is_tried: bool, kind: ProviderKind) {
        let knows = status.connected && status.targets_sent;
        let needs_proof = kind.needs_proof();
        for (tier, state) in status.tiers.iter().zip(&mut self.tiers) {
            let is_honest = tier.verified.map_or(!needs_proof, |seen| {
                // If the guest had given back less when this was verified, the rest is not proven.
                let given = tier.whole_bytes.saturating_sub(tier.size_bytes);
                let is_all = seen.claimed_bytes >= given - given / 100;
                seen.is_honest(kind) && (is_all || !needs_proof)
            });
            // A driver that went may have let its balloon go with it, so the tier counts whole at once. To count as
            // inflated takes all of it: the driver knows the targets, they are met, and the host's memory agrees.
            if !status.connected {
                state.is_inflated = false;
            } else if knows && tier.is_met() && is_tried && is_honest && state.points < DISHONEST {
                state.is_inflated = true;
            }
        }
    }

    /// The progress of an order by a status, and why it is no farther. `was`: the reason why that was not known
    /// before.
    pub fn progress(
        &self,
        kind: ProviderKind,
        order: &Order,
        status: &ProviderStatus,
        was: Option<String>,
    ) -> (OrderState, Option<String>) {
        let has_no_driver = self.targets_unsent.is_some_and(|(_, said)| said);
        let asked = order.size_bytes.iter().zip(&status.tiers).enumerate();
        let asked = asked.filter_map(|(i, (size, tier))| Some((i, (*size)?, tier)));
        let (mut state, mut why) = (OrderState::Met, None);
        for (i, size_bytes, tier) in asked {
            // Another target than the order's: the device lost it, or another program ordered. It will not be met.
            if tier.target_bytes != size_bytes {
                let but = format!(
                    "the target of {} is {} now",
                    tier_name(kind, i),
                    size(tier.target_bytes)
                );
                let why = match was {
                    Some(was) => format!("{was}; {but}"),
                    None => format!("{but}: another program changed it, or the device lost it"),
                };
                return (OrderState::Failed, Some(why));
            }
            // The sizes may fit by chance while the driver has not heard of the targets.
            if tier.is_met() && status.targets_sent {
                continue;
            }
            // The guest's own report goes before the guess that it has no driver; either goes before "under way",
            // and one tier that is stuck makes the order stuck.
            if self
                .tiers
                .get(i)
                .is_some_and(|t| t.stuck_reports >= REPORTS)
            {
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
}

#[cfg(test)]
mod tests {
    use terrace_proto::provision::Verified;

    use super::*;

    #[test]
    fn repeated_guest_resets_make_one_sentence_a_minute() {
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

    /// One that takes back what it gave between two verifications, and gives it again before the next one.
    #[test]
    fn a_guest_that_is_honest_every_other_time_is_dishonest() {
        let (mut guest, mut reasons) = (Guest::default(), Reasons::new(16));
        guest.tiers.resize(1, TierState::default());
        let mut look = |retained_bytes: u64| {
            let mut status = ProviderStatus::default();
            status.tiers.resize_with(1, Default::default);
            status.tiers[0].verified = Some(Verified {
                present_bytes: 0,
                claimed_bytes: 1 << 30,
                retained_bytes,
            });
            let mut speaker = Speaker {
                now: Tick(0),
                kind: ProviderKind::Balloon,
                reasons: &mut reasons,
            };
            guest.watch_verification(&status, &[true], &mut speaker);
            guest.is_dishonest(0)
        };
        // One between its claim and the hole is none.
        assert_eq!([look(1 << 30), look(0), look(0)], [false; 3]);
        for turn in 0..20 {
            let is = [look(1 << 30), look(0)];
            assert!(is[0] || turn < 4, "{turn}");
            assert!(is[1] || turn < 4, "{turn}");
        }
        // For good.
        assert_eq!([look(0), look(0)], [false; 2]);
    }
}
