//! Attributes of an event for the kernel: `struct perf_event_attr`.

use std::ops::BitOr;

/// `PERF_TYPE_HARDWARE`: events of the processor by names that all processors share.
pub const HARDWARE: u32 = 0;
/// `PERF_COUNT_HW_INSTRUCTIONS`, of [`HARDWARE`]: instructions that ended.
pub const HARDWARE_INSTRUCTIONS: u64 = 1;

/// `PERF_TYPE_SOFTWARE`: events that the kernel counts itself.
pub const SOFTWARE: u32 = 1;
/// `PERF_COUNT_SW_PAGE_FAULTS`, of [`SOFTWARE`]: page faults, with the address that was touched.
pub const SOFTWARE_PAGE_FAULTS: u64 = 2;
/// `PERF_COUNT_SW_DUMMY`, of [`SOFTWARE`]: never counts anything.
pub const SOFTWARE_DUMMY: u64 = 9;

/// `PERF_TYPE_HW_CACHE`: events of caches by names that all processors share.
pub const HARDWARE_CACHE: u32 = 3;

/// The event of [`HARDWARE_CACHE`] for misses of the data TLB (`PERF_COUNT_HW_CACHE_DTLB`, `…_RESULT_MISS`): of stores, else
/// of loads.
#[must_use]
pub const fn cache_misses(stores: bool) -> u64 {
    const DATA_TLB: u64 = 3;
    DATA_TLB | if stores { 1 << 8 } else { 0 } | 1 << 16
}

/// Fields that each sample carries (`attr.sample_type`). Only those of fixed size are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Fields(u64);

impl Fields {
    /// The event's id, first in the record (`PERF_SAMPLE_IDENTIFIER`).
    pub const IDENTIFIER: Self = Self(1 << 16);
    /// The instruction's address (`PERF_SAMPLE_IP`).
    pub const IP: Self = Self(1 << 0);
    /// Process and thread (`PERF_SAMPLE_TID`).
    pub const TID: Self = Self(1 << 1);
    /// Time of the sample (`PERF_SAMPLE_TIME`).
    pub const TIME: Self = Self(1 << 2);
    /// The virtual address that was accessed (`PERF_SAMPLE_ADDR`).
    pub const ADDRESS: Self = Self(1 << 3);
    /// The CPU (`PERF_SAMPLE_CPU`).
    pub const CPU: Self = Self(1 << 7);
    /// The period that ended (`PERF_SAMPLE_PERIOD`).
    pub const PERIOD: Self = Self(1 << 8);
    /// Load or store, and what served it (`PERF_SAMPLE_DATA_SRC`, `union perf_mem_data_src`).
    pub const DATA_SOURCE: Self = Self(1 << 15);

    /// The fields as the kernel's bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// These fields and others.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of the other fields are among these.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Fields {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.and(other)
    }
}

/// The attributes of an event, as far as Terrace uses them. All events begin disabled, and their descriptors are
/// closed on exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct EventAttr {
    /// The PMU: `type` below `/sys/bus/event_source/devices`, or [`SOFTWARE`].
    pub pmu: u32,
    /// The event of the PMU.
    pub config: u64,
    /// More of the event, such as Intel's latency threshold.
    pub config1: u64,
    /// Still more of the event.
    pub config2: u64,
    /// Events for each sample; never a frequency. 0: the event counts and is not sampled.
    pub period: u64,
    /// The fields that each sample carries.
    pub fields: Fields,
    /// Required precision of a sample (`precise_ip`, 0 to 3); PEBS needs 1 or more.
    pub precise: u8,
    /// Whether to leave out what the kernel itself accesses.
    pub exclude_kernel: bool,
    /// Whether to leave out what a hypervisor below accesses, if the PMU can distinguish it.
    pub exclude_hypervisor: bool,
    /// Whether to leave out what guests of this kernel access: their addresses are in other address spaces.
    pub exclude_guest: bool,
    /// Whether to leave out what this kernel and its processes access: guests' are left.
    pub exclude_host: bool,
    /// Whether to follow children of a sampled process. (An event of a CPU follows everybody anyway.)
    pub inherit: bool,
    /// Bytes in the ring at which the descriptor becomes readable; 0: with each sample.
    pub wakeup_bytes: u32,
}

/// `struct perf_event_attr` up to `config2` (`PERF_ATTR_SIZE_VER1`, Linux 2.6.33). The kernel takes the size from the
/// struct and the fields behind it as zero, so the oldest version that has all fields we need is the one that works
/// everywhere.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
}

const SIZE: usize = size_of::<RawAttr>();
const _: () = assert!(SIZE == 72, "PERF_ATTR_SIZE_VER1");

/// `PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING`.
const READ_TIMES: u64 = 3;

/// Bits of the flags word, in the order of the header's bit field.
mod flag {
    pub const DISABLED: u64 = 1 << 0;
    pub const INHERIT: u64 = 1 << 1;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    pub const WATERMARK: u64 = 1 << 14;
    pub const PRECISE_SHIFT: u32 = 15;
    pub const EXCLUDE_HOST: u64 = 1 << 19;
    pub const EXCLUDE_GUEST: u64 = 1 << 20;
}

impl From<&EventAttr> for RawAttr {
    fn from(attr: &EventAttr) -> Self {
        let when = |condition, bit| if condition { bit } else { 0 };
        let flags = flag::DISABLED
            | when(attr.inherit, flag::INHERIT)
            | when(attr.exclude_kernel, flag::EXCLUDE_KERNEL)
            | when(attr.exclude_hypervisor, flag::EXCLUDE_HYPERVISOR)
            | when(attr.exclude_guest, flag::EXCLUDE_GUEST)
            | when(attr.exclude_host, flag::EXCLUDE_HOST)
            | when(attr.wakeup_bytes > 0, flag::WATERMARK)
            | (u64::from(attr.precise & 3) << flag::PRECISE_SHIFT);
        // 72 fits.
        #[allow(clippy::cast_possible_truncation)]
        let size = SIZE as u32;
        Self {
            kind: attr.pmu,
            size,
            config: attr.config,
            sample_period: attr.period,
            sample_type: attr.fields.bits(),
            read_format: READ_TIMES,
            flags,
            // Without a watermark the field is `wakeup_events`: one.
            wakeup_watermark: match (attr.period, attr.wakeup_bytes) {
                (0, _) => 0,
                (_, 0) => 1,
                (_, bytes) => bytes,
            },
            breakpoint_type: 0,
            config1: attr.config1,
            config2: attr.config2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_struct_has_each_value_at_its_place() {
        let attr = EventAttr {
            pmu: 4,
            config: 0x1cd,
            config1: 80,
            config2: 1,
            period: 4093,
            fields: Fields::IDENTIFIER | Fields::TID | Fields::ADDRESS,
            precise: 2,
            exclude_kernel: true,
            exclude_hypervisor: true,
            exclude_guest: true,
            exclude_host: true,
            inherit: true,
            wakeup_bytes: 0x20000,
        };
        let raw = RawAttr::from(&attr);
        // Offsets and bits from include/uapi/linux/perf_event.h, struct perf_event_attr.
        let bits = (1 << 0) | (1 << 1) | (1 << 5) | (1 << 6) | (1 << 14) | (2 << 15) | (3 << 19);
        assert_eq!((raw.kind, raw.size, raw.flags), (4, 72, bits));
        assert_eq!(raw.sample_type, 0x1000a);
        assert_eq!(std::mem::offset_of!(RawAttr, flags), 40);
        assert_eq!(std::mem::offset_of!(RawAttr, config1), 56);
        assert_eq!(
            (raw.sample_period, raw.wakeup_watermark, raw.config1),
            (4093, 0x20000, 80)
        );
    }

    #[test]
    fn large_pebs_is_not_spoilt_by_a_wake_up_per_sample() {
        let mut attr = EventAttr {
            period: 1,
            ..EventAttr::default()
        };
        let raw = RawAttr::from(&attr);
        assert_eq!((raw.flags & (1 << 14), raw.wakeup_watermark), (0, 1));
        attr.wakeup_bytes = 64;
        let raw = RawAttr::from(&attr);
        assert_eq!((raw.flags & (1 << 14), raw.wakeup_watermark), (1 << 14, 64));
    }
}
