//! The sharing of memory between VMs: what a VM may have, and what its guest needs.
//!
//! What it has and is on its way to comes with its provider's reports ([`crate::provision`]). All sizes are bytes of
//! the machine that the provider sizes.

use serde::{Deserialize, Serialize};

use crate::{Gfn, ProviderId, TierId, VmId};

/// Bounds of a VM's part of the memory that VMs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryRights {
    /// The provider that resizes the VM.
    pub provider: ProviderId,
    /// The VM under management, if the engine observes it; otherwise its sizes alone are known.
    pub vm: Option<VmId>,
    /// Memory that nobody takes from it, bytes.
    pub floor_bytes: u64,
    /// Memory above which it is given none, bytes.
    pub ceiling_bytes: u64,
    /// How much its lost time counts; 1000 is normal.
    pub weight: u32,
}

/// A guest's words about its memory, once a second. Untrusted. Counters begin anywhere, and may begin anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryNeed {
    /// The provider that resizes the VM.
    pub provider: ProviderId,
    /// Memory of the guest that nobody uses, bytes.
    pub free_bytes: u64,
    /// Swap space that is in use, bytes.
    pub used_swap_bytes: u64,
    /// Major faults so far.
    pub major_faults: u64,
    /// Time that vCPUs waited for memory so far, ns: major faults, and reclaim that they did themselves.
    pub lost_ns: u64,
    /// Share of the guest's memory in huge pages, percent.
    pub huge_percent: u8,
}

/// Accesses of a VM that reach memory, once a second: those that no processor cache serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryTraffic {
    /// The VM.
    pub vm: VmId,
    /// Accesses so far, a counter that may begin anew.
    pub accesses: u64,
}

/// The use of each tier of a VM, once a second: by its guest's words and by what was observed. Untrusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryTiers {
    /// The provider that resizes the VM.
    pub provider: ProviderId,
    /// Memory of each tier that nobody uses, bytes, fastest tier first.
    pub free_bytes: [u64; TierId::MAX],
    /// Hot pages outside of the first tier, bytes.
    pub waiting_hot_bytes: u64,
}

/// A right to speed: what a VM's slowdown is measured by, and a bound on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpeedRights {
    /// The provider that resizes the VM.
    pub provider: ProviderId,
    /// The number of vCPUs.
    pub vcpus: u32,
    /// The largest slowdown that it is to have, thousandths: 1200 is 1.2; `None`: it has no bound.
    pub max_slowdown_milli: Option<u32>,
}

/// Facts that decide whether a VM's memory is balanced, at each look at its provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStanding {
    /// The provider that resizes the VM.
    pub provider: ProviderId,
    /// Whether the operator named the least memory that the VM is to have.
    pub has_floor: bool,
    /// Whether the VM is stopped; `None`: not known.
    pub is_paused: Option<bool>,
    /// Whether the VM is on its way to another host, or from one; `None`: not known.
    pub is_migrating: Option<bool>,
    /// Whether the VM's RAM comes from a pool of huge pages.
    pub is_hugetlb: bool,
    /// Time since the hypervisor's process was started, ms; `None`: not known.
    pub up_ms: Option<u64>,
}

/// An operator's word on whether a VM's memory is balanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryBalance {
    /// The provider that resizes the VM.
    pub provider: ProviderId,
    /// Whether it is.
    pub is_on: bool,
    /// Whether that is by `pause` and `resume`, apart from the setting.
    pub is_pause: bool,
}

/// The statistics of a stock guest's balloon driver or agent, as they were read. Untrusted; `None`: not said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestMemory {
    /// The provider that resizes the VM.
    pub provider: ProviderId,
    /// Time since the figures changed last, ms, by the host's clock; `None`: the driver never reported any.
    pub age_ms: Option<u64>,
    /// Memory that nobody uses, bytes.
    pub free_bytes: Option<u64>,
    /// Memory that could be had without swapping, by the guest's estimate, bytes. Never taken for free.
    pub available_bytes: Option<u64>,
    /// Page cache, bytes.
    pub cache_bytes: Option<u64>,
    /// Memory of the guest by its own count, bytes.
    pub total_bytes: Option<u64>,
    /// Major faults, a counter.
    pub major_faults: Option<u64>,
    /// Bytes swapped in, a counter.
    pub swapped_in_bytes: Option<u64>,
    /// Bytes swapped out, a counter.
    pub swapped_out_bytes: Option<u64>,
    /// Time that tasks waited for memory, ns, a counter.
    pub waited_ns: Option<u64>,
    /// Bytes read from the VM's disks, a counter of the hypervisor's; `None`: it has none.
    pub disk_read_bytes: Option<u64>,
}

/// The word of an agent in a guest on its memory, beside what its balloon driver says. Untrusted; `None`: not said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentMemory {
    /// The provider that resizes the VM.
    pub provider: ProviderId,
    /// Swap space that is in use, bytes.
    pub used_swap_bytes: Option<u64>,
    /// Swap space that is left, bytes.
    pub free_swap_bytes: Option<u64>,
    /// Time in which some task waited for memory, ns, a counter (`some total` of /proc/pressure/memory).
    pub waited_ns: Option<u64>,
}

/// Who moves a VM's pages (coordinated mode).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestMoves {
    /// The VM.
    pub vm: VmId,
    /// Free memory of the guest's nodes in each tier, bytes, by its agent's word: the guest moves what is named to it. `None`: the host
    /// moves pages.
    pub free_bytes: Option<Vec<u64>>,
}

/// A run of guest memory that lies in one tier: a memory node of the guest, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestNode {
    /// The first page.
    pub start: Gfn,
    /// Pages of 4 KiB.
    pub pages: u64,
    /// The tier of the host's nodes from which the hypervisor takes its memory.
    pub tier: TierId,
}

/// The tier of each of a guest's nodes (coordinated mode); none: it is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestNodes {
    /// The VM.
    pub vm: VmId,
    /// The nodes, ascending.
    pub nodes: Vec<GuestNode>,
    /// The host moves nothing while the guest does not (`fallback = "observe"`).
    pub only_guest: bool,
}

/// The page walks that the host's processors made for a guest's programs, while they are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestWalks {
    /// The provider that resizes the VM.
    pub provider: ProviderId,
    /// Walks, a counter.
    pub walks: u64,
}

/// The host's own memory, every few seconds while memory is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMemory {
    /// All memory, bytes.
    pub total_bytes: u64,
    /// Memory that could be had without swapping, by the kernel's estimate, bytes.
    pub available_bytes: u64,
    /// Share of the last ten seconds in which some task waited for memory, hundredths of a percent (`some avg10` of
    /// /proc/pressure/memory); `None`: a kernel without it.
    pub waits_centi: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{LogReader, Record, frame, header};
    use crate::{Event, Tick};

    #[test]
    fn records_of_sharing_are_read_back() {
        let provider = ProviderId(3);
        let all = [
            Event::MemoryRights(MemoryRights {
                provider,
                vm: Some(VmId(4)),
                floor_bytes: 1,
                ceiling_bytes: 2,
                weight: 1000,
            }),
            Event::MemoryNeed(MemoryNeed {
                provider,
                free_bytes: 1,
                used_swap_bytes: 2,
                major_faults: 3,
                lost_ns: 4,
                huge_percent: 5,
            }),
            Event::MemoryTraffic(MemoryTraffic {
                vm: VmId(6),
                accesses: 7,
            }),
            Event::MemoryTiers(MemoryTiers {
                provider,
                free_bytes: [1, 2, 3, 4],
                waiting_hot_bytes: 5,
            }),
            Event::SpeedRights(SpeedRights {
                provider,
                vcpus: 2,
                max_slowdown_milli: Some(1200),
            }),
            Event::MemoryStanding(MemoryStanding {
                provider,
                has_floor: true,
                is_paused: Some(false),
                is_migrating: None,
                is_hugetlb: true,
                up_ms: Some(6),
            }),
            Event::MemoryBalance(MemoryBalance {
                provider,
                is_on: true,
                is_pause: false,
            }),
            Event::GuestMemory(Box::new(GuestMemory {
                provider,
                age_ms: Some(7),
                swapped_out_bytes: Some(8),
                ..GuestMemory::default()
            })),
            Event::HostMemory(HostMemory {
                total_bytes: 9,
                available_bytes: 8,
                waits_centi: Some(7),
            }),
        ];
        // Their kinds stay: a log is read by later versions.
        for (kind, event) in (0x115_u16..).zip(all) {
            let framed = frame(Tick(3), &Record::Event(event.clone())).unwrap();
            assert_eq!(framed[..2], kind.to_le_bytes());
            let log = [header(), framed].concat();
            let mut reader = LogReader::new(log.as_slice()).unwrap();
            let read = reader.next_record().unwrap();
            assert_eq!(read, Some((Tick(3), Record::Event(event))));
        }
    }
}
