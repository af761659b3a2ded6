//! Which VMs are left alone, and why.
//!
//! A VM that is left alone keeps the size that it has or is on its way to, and that counts. What a provider reports (a
//! driver that is missing, pinned or dishonest memory) leaves it alone too: that is [`crate::provision`]'s to find.

use terrace_proto::{MemoryBalance, MemoryStanding, Tick};

use crate::config::ArbiterConfig;

/// The reason why a VM is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// An operator switched it off.
    Off,
    /// An operator paused it.
    Halted,
    /// An operator resized it.
    Resized,
    /// It has no floor.
    NoFloor,
    /// Its RAM comes from a pool of huge pages.
    HugePages,
    /// It is stopped.
    Paused,
    /// It migrates.
    Migrating,
    /// Its hypervisor was started a short while ago.
    Boots,
    /// It was first seen a short while ago.
    New,
}

impl Alone {
    /// The reason in words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Off => "an operator switched that off (`terrace set VM balance=on` undoes it)",
            Self::Halted => "an operator paused it (`terrace resume VM` undoes it)",
            Self::Resized => {
                "an operator resized it (`terrace set VM balance=on` lets it take part again)"
            }
            Self::NoFloor => "it has no memory_floor",
            Self::HugePages => "its RAM comes from a pool of huge pages (hugetlbfs)",
            Self::Paused => "it is stopped",
            Self::Migrating => "it migrates",
            Self::Boots => "it was started a short while ago",
            Self::New => "it was first seen a short while ago",
        }
    }
}

/// The standing of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// What was seen last; `None` on a simulated host.
    seen: Option<MemoryStanding>,
    /// When it was first seen.
    since: Option<Tick>,
    /// Why an operator's word leaves it alone.
    word: Option<Alone>,
    /// Whether an operator paused it.
    is_halted: bool,
    /// Why it is left alone now.
    pub alone: Option<Alone>,
    /// Since when changes of it are counted that were said, and their number.
    said: (Tick, u8),
}

/// Changes of a VM's standing that are said in [`SAY_WITHIN`]: one that stops and goes on again and again fills no list of
/// events.
const MOST_SAID: u8 = 6;
/// See [`MOST_SAID`], ns: a minute.
const SAY_WITHIN: u64 = 60_000_000_000;

impl Standing {
    /// Takes in what was seen.
    pub fn see(&mut self, now: Tick, seen: MemoryStanding) {
        self.since.get_or_insert(now);
        let before = self.seen;
        // What could not be read now is as it was.
        self.seen = Some(MemoryStanding {
            is_paused: seen.is_paused.or(before.and_then(|seen| seen.is_paused)),
            is_migrating: seen
                .is_migrating
                .or(before.and_then(|seen| seen.is_migrating)),
            ..seen
        });
    }

    /// Whether a change is to be said.
    pub fn may_say(&mut self, now: Tick) -> bool {
        let (since, said) = self.said;
        if now.0.saturating_sub(since.0) >= SAY_WITHIN {
            self.said = (now, 1);
            return true;
        }
        self.said.1 = said.saturating_add(1);
        said < MOST_SAID
    }

    /// Takes in an operator's word.
    pub fn say(&mut self, said: MemoryBalance) {
        if said.is_pause {
            self.is_halted = !said.is_on;
        } else {
            self.word = (!said.is_on).then_some(Alone::Off);
        }
    }

    /// Takes in that an operator wants the VM to have another size.
    pub fn resized(&mut self) {
        self.word = self.word.or(Some(Alone::Resized));
    }

    /// Finds out whether the VM is left alone now. `true` if that changed.
    pub fn judge(&mut self, now: Tick, config: &ArbiterConfig) -> bool {
        let alone = self.reason(now, config);
        std::mem::replace(&mut self.alone, alone) != alone
    }

    /// The reason why no huge pages are made of its memory, if that is one of these: an operator paused it, it is stopped or
    /// migrates, or it has no single pages.
    pub fn keeps_single_pages(&self) -> Option<Alone> {
        let seen = self.seen.as_ref();
        let is = |of: fn(&MemoryStanding) -> bool| seen.is_some_and(of);
        match () {
            () if self.is_halted => Some(Alone::Halted),
            () if is(|seen| seen.is_hugetlb) => Some(Alone::HugePages),
            () if is(|seen| seen.is_migrating == Some(true)) => Some(Alone::Migrating),
            () if is(|seen| seen.is_paused == Some(true)) => Some(Alone::Paused),
            () => None,
        }
    }

    fn reason(&self, now: Tick, config: &ArbiterConfig) -> Option<Alone> {
        if self.is_halted {
            return Some(Alone::Halted);
        }
        let seen = self.seen.as_ref()?;
        let settle = ArbiterConfig::ns(config.settle_ms);
        let is_new = self
            .since
            .is_none_or(|since| now.0.saturating_sub(since.0) < settle);
        match () {
            () if self.word.is_some() => self.word,
            () if !seen.has_floor => Some(Alone::NoFloor),
            () if seen.is_hugetlb => Some(Alone::HugePages),
            () if seen.is_migrating == Some(true) => Some(Alone::Migrating),
            () if seen.is_paused == Some(true) => Some(Alone::Paused),
            () if seen.up_ms.is_some_and(|up| up < config.boot_ms) => Some(Alone::Boots),
            () if is_new => Some(Alone::New),
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_proto::ProviderId;

    const SECOND: u64 = 1_000_000_000;

    fn seen() -> MemoryStanding {
        MemoryStanding {
            provider: ProviderId(1),
            has_floor: true,
            is_paused: Some(false),
            is_migrating: Some(false),
            is_hugetlb: false,
            up_ms: Some(3_600_000),
        }
    }

    /// Why a VM is left alone so many seconds after it was first seen so.
    fn alone(seen: MemoryStanding, after_s: u64) -> Option<Alone> {
        let mut standing = Standing::default();
        standing.see(Tick(5 * SECOND), seen);
        standing.judge(Tick((5 + after_s) * SECOND), &ArbiterConfig::default());
        standing.alone
    }

    #[test]
    fn each_reason_leaves_a_vm_alone() {
        let all = seen();
        assert_eq!(alone(all, 30), None);
        assert_eq!(alone(all, 29), Some(Alone::New));
        let young = MemoryStanding {
            up_ms: Some(59_000),
            ..all
        };
        assert_eq!(alone(young, 40), Some(Alone::Boots));
        let cases = [
            (
                MemoryStanding {
                    has_floor: false,
                    ..all
                },
                Alone::NoFloor,
            ),
            (
                MemoryStanding {
                    is_hugetlb: true,
                    ..all
                },
                Alone::HugePages,
            ),
            (
                MemoryStanding {
                    is_migrating: Some(true),
                    ..all
                },
                Alone::Migrating,
            ),
            (
                MemoryStanding {
                    is_paused: Some(true),
                    ..all
                },
                Alone::Paused,
            ),
        ];
        for (seen, why) in cases {
            assert_eq!(alone(seen, 3600), Some(why), "{}", why.text());
        }
        let unknown = MemoryStanding {
            is_paused: None,
            is_migrating: None,
            up_ms: None,
            ..all
        };
        assert_eq!(alone(unknown, 30), None);
    }

    #[test]
    fn a_vm_that_stops_and_goes_on_is_not_said_for_ever() {
        let mut standing = Standing::default();
        let said = (0..600).filter(|s| standing.may_say(Tick((1000 + s) * SECOND)));
        assert_eq!(said.count(), 10 * usize::from(MOST_SAID));
    }

    #[test]
    fn an_operators_resize_ends_balancing_until_it_is_switched_on() {
        let config = ArbiterConfig::default();
        let mut standing = Standing::default();
        // Before it was seen, too.
        standing.resized();
        standing.see(Tick(0), seen());
        standing.judge(Tick(100 * SECOND), &config);
        assert_eq!(standing.alone, Some(Alone::Resized));
        let said = |is_on, is_pause| MemoryBalance {
            provider: ProviderId(1),
            is_on,
            is_pause,
        };
        // To resume it is no word on its size.
        standing.say(said(true, true));
        standing.judge(Tick(100 * SECOND), &config);
        assert_eq!(standing.alone, Some(Alone::Resized));
        standing.say(said(true, false));
        standing.judge(Tick(100 * SECOND), &config);
        assert_eq!(standing.alone, None);
        standing.say(said(false, true));
        standing.judge(Tick(100 * SECOND), &config);
        assert_eq!(standing.alone, Some(Alone::Halted));
        standing.say(said(true, true));
        standing.say(said(false, false));
        standing.resized();
        standing.judge(Tick(100 * SECOND), &config);
        assert_eq!(standing.alone, Some(Alone::Off));
    }
}
