//! The statistics of a stock guest, taken for what they can be: its balloon driver or its agent says them, and may be wrong,
//! old, or lie.

use terrace_proto::provision::ProviderStatus;
use terrace_proto::{
    AgentMemory, GuestMemory, MemoryNeed, MemoryTiers, PAGE_SIZE, ProviderId, Tick, TierId,
};

use crate::config::ArbiterConfig;

/// The reason why a guest's statistics say nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The driver never reported any.
    Never,
    /// They did not change for so many seconds.
    Old(u64),
    /// There is no figure for free memory.
    NoFree,
    /// More is free than the VM has.
    TooMuch,
}

impl Silence {
    /// The reason in words.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::Never => "its balloon driver has reported no statistics".into(),
            Self::Old(s) => format!("its statistics are {s} s old"),
            Self::NoFree => "its statistics lack its free memory".into(),
            Self::TooMuch => "its statistics say that more is free than it has".into(),
        }
    }
}

/// Counters of pages swapped, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Swapped {
    inward: u64,
    outward: u64,
}

/// The statistics of one guest so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guest {
    /// The first counters of swapping that were seen since it started.
    first: Option<Swapped>,
    /// The last ones.
    last: Option<Swapped>,
    /// Why the last statistics said nothing, if so.
    pub silence: Option<Silence>,
    /// The last statistics.
    pub seen: Option<GuestMemory>,
    /// Reports of the guest to its device, and when that number was first seen.
    reports: Option<(u64, Tick)>,
    /// The last word of an agent in the guest, and when it came.
    pub agent: Option<(Tick, AgentMemory)>,
    lost: Lost,
    /// Whether used swap is an estimate; `None` before the first statistics.
    pub estimates_swap: Option<bool>,
    /// Whether the last used swap is of another source than the one before: they do not compare.
    pub has_other_source: bool,
}

/// Time that a guest lost for want of memory: what its agent says, else an estimate by its faults. The one may begin or end
/// while the other goes on, so what each adds is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lost {
    total_ns: u64,
    /// Counters by the last statistics: major faults, and the time that was said.
    last: Option<(u64, Option<u64>)>,
}

impl Lost {
    /// Takes in the counters of now, and returns the time lost so far, ns. Counters that fall are those of a guest that
    /// started anew.
    fn add(&mut self, faults: u64, waited_ns: Option<u64>, config: &ArbiterConfig) -> u64 {
        let last = self.last.replace((faults, waited_ns));
        let (had, waited_before) = last.unwrap_or((faults, waited_ns));
        let more = match (waited_before, waited_ns) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => faults.saturating_sub(had).saturating_mul(config.fault_ns),
        };
        self.total_ns = self.total_ns.saturating_add(more);
        self.total_ns
    }
}

impl Guest {
    /// The need that these statistics tell of; `None` if they tell nothing. `whole`: the size that the VM was started with,
    /// bytes.
    pub fn need(
        &mut self,
        now: Tick,
        seen: &GuestMemory,
        whole: u64,
        config: &ArbiterConfig,
    ) -> Option<MemoryNeed> {
        self.seen = Some(*seen);
        let free = free_bytes(seen, whole);
        self.silence = free.err();
        let free_bytes = free.ok()?;
        let major_faults = seen.major_faults.unwrap_or(0);
        let estimate = self.used_swap(seen);
        let agent = self.agent_now(now);
        let waited_ns = seen.waited_ns.or(agent.and_then(|said| said.waited_ns));
        let used = agent.and_then(|said| said.used_swap_bytes);
        let before = self.estimates_swap.replace(used.is_none());
        self.has_other_source = before.is_some_and(|before| before != used.is_none());
        Some(MemoryNeed {
            provider: seen.provider,
            free_bytes,
            used_swap_bytes: used.unwrap_or(estimate),
            major_faults,
            lost_ns: self.lost.add(major_faults, waited_ns, config),
            // Not told by any stock guest.
            huge_percent: 0,
        })
    }

    /// The agent's word, unless it is too old.
    pub fn agent_now(&self, now: Tick) -> Option<AgentMemory> {
        let lasts = |at: Tick| now.0.saturating_sub(at.0) <= super::member::NEED_LASTS;
        self.agent
            .filter(|(at, _)| lasts(*at))
            .map(|(_, said)| said)
    }

    /// Swap space that the guest has left, bytes: by its agent while that speaks, or any amount if it ever swapped.
    pub fn free_swap(&self, now: Tick) -> u64 {
        let said = self.agent_now(now).and_then(|said| said.free_swap_bytes);
        let swapped = self.seen.and_then(|seen| seen.swapped_out_bytes);
        match (said, swapped) {
            (Some(free), _) => free,
            (None, Some(out)) if out > 0 => u64::MAX,
            _ => 0,
        }
    }

    /// The statistics that a guest reports to its device; `None` if it reports none.
    pub fn of_device(
        &mut self,
        now: Tick,
        provider: ProviderId,
        status: &ProviderStatus,
    ) -> Option<(GuestMemory, MemoryTiers)> {
        let mut free_bytes = [0; TierId::MAX];
        for (free, tier) in free_bytes.iter_mut().zip(&status.tiers) {
            *free = tier.guest.free_bytes?;
        }
        let first = &status.tiers.first()?.guest;
        let bytes = |pages: Option<u64>| pages.map(|pages| pages.saturating_mul(PAGE_SIZE));
        let reports = status.reports.unwrap_or(0);
        let same = self.reports.filter(|(last, _)| *last == reports);
        let (_, since) = *self.reports.insert(same.unwrap_or((reports, now)));
        let memory = GuestMemory {
            provider,
            age_ms: Some(now.0.saturating_sub(since.0) / 1_000_000),
            free_bytes: Some(super::sum(&free_bytes)),
            major_faults: first.major_faults,
            swapped_in_bytes: bytes(first.swapped_in_pages),
            swapped_out_bytes: bytes(first.swapped_out_pages),
            ..GuestMemory::default()
        };
        let tiers = MemoryTiers {
            provider,
            free_bytes,
            // No hot page of a live guest is known to wait.
            waiting_hot_bytes: 0,
        };
        Some((memory, tiers))
    }

    /// Bytes that were swapped out and not in again since the guest was first seen: an estimate, since pages of programs
    /// that ended leave swap without being swapped in.
    fn used_swap(&mut self, seen: &GuestMemory) -> u64 {
        let (Some(inward), Some(outward)) = (seen.swapped_in_bytes, seen.swapped_out_bytes) else {
            return 0;
        };
        let now = Swapped { inward, outward };
        // Counters that fall are those of a guest that started anew.
        let is_new = |last: Swapped| now.inward < last.inward || now.outward < last.outward;
        if self.last.is_some_and(is_new) {
            self.first = None;
        }
        self.last = Some(now);
        let first = *self.first.get_or_insert(now);
        let since = (now.outward - first.outward).saturating_sub(now.inward - first.inward);
        // One that ever swapped has some in use, too: how much is not known. Pages that are read again and again without
        // being written count inward alone.
        let some = if outward > 0 { PAGE_SIZE } else { 0 };
        since.max(some)
    }
}

/// Free memory, if the figure is one.
fn free_bytes(seen: &GuestMemory, whole: u64) -> Result<u64, Silence> {
    let age = seen.age_ms.ok_or(Silence::Never)?;
    if age > super::member::NEED_LASTS / 1_000_000 {
        return Err(Silence::Old(age / 1000));
    }
    match seen.free_bytes.ok_or(Silence::NoFree)? {
        free if free > whole => Err(Silence::TooMuch),
        free => Ok(free),
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::provision::{GuestTier, TierStatus};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn said(free_mib: u64, swapped: (u64, u64)) -> GuestMemory {
        GuestMemory {
            age_ms: Some(0),
            free_bytes: Some(free_mib * MIB),
            swapped_in_bytes: Some(swapped.0 * MIB),
            swapped_out_bytes: Some(swapped.1 * MIB),
            ..GuestMemory::default()
        }
    }

    fn need(guest: &mut Guest, seen: GuestMemory) -> Option<MemoryNeed> {
        guest.need(Tick(0), &seen, 1024 * MIB, &ArbiterConfig::default())
    }

    fn agent_says(used_mib: Option<u64>, waited_ms: Option<u64>) -> AgentMemory {
        AgentMemory {
            provider: ProviderId(7),
            used_swap_bytes: used_mib.map(|mib| mib * MIB),
            free_swap_bytes: None,
            waited_ns: waited_ms.map(|ms| ms * 1_000_000),
        }
    }

    #[test]
    fn used_swap_is_the_agents_while_it_speaks_and_an_estimate_else() {
        let mut guest = Guest::default();
        let mut used = |s: u64, said_at: Option<u64>| {
            guest.agent = said_at.map(|s| (Tick(s * 1_000_000_000), agent_says(Some(300), None)));
            let at = Tick(s * 1_000_000_000);
            let config = ArbiterConfig::default();
            let need = guest.need(at, &said(0, (0, 600)), 1024 * MIB, &config);
            (need.unwrap().used_swap_bytes / MIB, guest.has_other_source)
        };
        assert_eq!(used(0, None), (0, false));
        assert_eq!(used(2, Some(1)), (300, true));
        assert_eq!(used(4, Some(3)), (300, false));
        // It fell silent.
        assert_eq!(used(30, Some(3)), (0, true));
    }

    #[test]
    fn swap_that_is_left_is_its_agents_word_while_that_speaks() {
        let mut guest = Guest::default();
        let at = |s: u64| Tick(s * 1_000_000_000);
        guest.agent = Some((
            at(1),
            AgentMemory {
                free_swap_bytes: Some(7),
                ..agent_says(None, None)
            },
        ));
        assert_eq!((guest.free_swap(at(2)), guest.free_swap(at(30))), (7, 0));
        guest.seen = Some(said(0, (0, 1)));
        assert_eq!(guest.free_swap(at(2)), 7);
        assert_eq!(guest.free_swap(at(30)), u64::MAX, "it has swapped");
    }

    #[test]
    fn lost_time_goes_on_when_an_agent_begins_to_say_it() {
        let config = ArbiterConfig::default();
        let mut lost = Lost::default();
        let fault = config.fault_ns;
        assert_eq!(lost.add(1000, None, &config), 0);
        assert_eq!(lost.add(1010, None, &config), 10 * fault);
        // Its counter is as old as the guest: that is no time of now.
        assert_eq!(lost.add(1010, Some(1 << 40), &config), 10 * fault);
        assert_eq!(lost.add(1090, Some((1 << 40) + 7), &config), 10 * fault + 7);
        assert_eq!(lost.add(1091, None, &config), 11 * fault + 7);
        // The guest started anew.
        assert_eq!(lost.add(3, Some(5), &config), 11 * fault + 7);
    }

    #[test]
    fn statistics_that_say_nothing_are_no_need_and_have_a_reason() {
        let mut guest = Guest::default();
        let good = said(100, (0, 0));
        let cases = [
            (
                GuestMemory {
                    age_ms: None,
                    ..good
                },
                Silence::Never,
            ),
            (
                GuestMemory {
                    age_ms: Some(31_000),
                    ..good
                },
                Silence::Old(31),
            ),
            (
                GuestMemory {
                    free_bytes: None,
                    ..good
                },
                Silence::NoFree,
            ),
            (said(1025, (0, 0)), Silence::TooMuch),
        ];
        for (seen, why) in cases {
            assert_eq!(need(&mut guest, seen), None);
            assert_eq!(guest.silence, Some(why));
        }
        assert!(need(&mut guest, good).is_some());
        assert_eq!(guest.silence, None);
    }

    #[test]
    fn a_device_reports_by_tier_and_what_it_repeats_is_old() {
        let tier = |free: Option<u64>| TierStatus {
            guest: GuestTier {
                free_bytes: free.map(|mib| mib * MIB),
                swapped_out_pages: Some(256),
                ..GuestTier::default()
            },
            ..TierStatus::default()
        };
        let mut status = ProviderStatus {
            reports: Some(4),
            tiers: vec![tier(Some(3)), tier(Some(5))],
            ..ProviderStatus::default()
        };
        let mut guest = Guest::default();
        let mut said = |s: u64, status: &ProviderStatus| {
            guest.of_device(Tick(s * 1_000_000_000), ProviderId(7), status)
        };
        let (memory, tiers) = said(1, &status).unwrap();
        assert_eq!((memory.free_bytes, memory.age_ms), (Some(8 * MIB), Some(0)));
        assert_eq!(memory.swapped_out_bytes, Some(MIB));
        assert_eq!(tiers.free_bytes[..2], [3 * MIB, 5 * MIB]);
        assert_eq!(said(9, &status).unwrap().0.age_ms, Some(8000));
        status.reports = Some(5);
        assert_eq!(said(10, &status).unwrap().0.age_ms, Some(0));
        status.tiers[1] = tier(None);
        assert_eq!(said(11, &status), None);
    }

    #[test]
    fn available_memory_is_never_taken_for_free() {
        let seen = GuestMemory {
            available_bytes: Some(900 * MIB),
            cache_bytes: Some(800 * MIB),
            ..said(100, (0, 0))
        };
        assert_eq!(
            need(&mut Guest::default(), seen).unwrap().free_bytes,
            100 * MIB
        );
    }

    #[test]
    fn used_swap_is_what_went_out_and_not_in_since_first_seen() {
        let mut guest = Guest::default();
        let mut used = |swapped| need(&mut guest, said(0, swapped)).unwrap().used_swap_bytes / MIB;
        assert_eq!(used((50, 500)), 0);
        assert_eq!(used((50, 600)), 100);
        assert_eq!(used((90, 600)), 60);
        // More came in than went out since then.
        assert_eq!(used((300, 610)), 0);
    }

    #[test]
    fn one_that_swapped_before_has_some_swap_in_use() {
        let seen = said(0, (50, 500));
        let need = need(&mut Guest::default(), seen).unwrap();
        assert_eq!(need.used_swap_bytes, PAGE_SIZE);
    }

    /// A real guest that read what it had swapped out came to 0, and got no more memory.
    #[test]
    fn one_that_reads_its_swap_again_and_again_has_some_in_use() {
        let mut guest = Guest::default();
        for inward in [100, 300, 900] {
            let need = need(&mut guest, said(0, (inward, 200))).unwrap();
            assert_eq!(need.used_swap_bytes, PAGE_SIZE);
        }
    }

    #[test]
    fn counters_that_fall_begin_anew() {
        let mut guest = Guest::default();
        let mut used = |swapped| need(&mut guest, said(0, swapped)).unwrap().used_swap_bytes / MIB;
        assert_eq!(used((0, 500)), 0);
        assert_eq!(used((0, 600)), 100);
        assert_eq!(used((0, 3)), 0);
        assert_eq!(used((0, 8)), 5);
        assert_eq!(used((u64::MAX / MIB, u64::MAX / MIB)), 0);
    }

    #[test]
    fn statistics_without_swap_counters_tell_of_no_swap() {
        let seen = GuestMemory {
            swapped_in_bytes: None,
            ..said(5, (0, 9))
        };
        assert_eq!(
            need(&mut Guest::default(), seen).unwrap().used_swap_bytes,
            0
        );
    }
}
