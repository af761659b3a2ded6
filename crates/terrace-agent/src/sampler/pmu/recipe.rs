//! Recipes: which events to ask of which PMU.

use std::path::Path;

use terrace_sys::perf::{EventAttr, Fields, SOFTWARE, SOFTWARE_PAGE_FAULTS};
use terrace_sys::{HostRoot, ReadError};

use super::format::{put_field, terms};

/// The folder in which the kernel describes PMUs.
pub(super) const DEVICES: &str = "sys/bus/event_source/devices";
/// The file that lists the CPUs that run.
pub(super) const ONLINE: &str = "sys/devices/system/cpu/online";

/// The period of PEBS events: one of so many is sampled (HyperTier §4.2.1). Prime, so that it keeps step with no
/// loop.
const PEBS_PERIOD: u64 = 4093;
/// Cycles from which on a load is slow enough to be sampled (HyperTier §6.4): a faster one is a hit in a cache.
const LOAD_LATENCY_CYCLES: u64 = 80;
/// `MEM_TRANS_RETIRED.LOAD_LATENCY`: event and mask.
const LOAD_LATENCY: (u64, u64) = (0xcd, 0x01);
/// `MEM_INST_RETIRED.ALL_STORES`.
const ALL_STORES: (u64, u64) = (0xd0, 0x82);
/// `precise_ip`: the instruction itself, which PEBS gives for all of its events. (3 only one counter gives.)
const PRECISE: u8 = 2;
/// The period of IBS: one of so many micro-operations. IBS counts all of them and takes an interrupt for each sample,
/// and the kernel takes no period that is not a multiple of 16. A core that retires 6·10⁹ of them a second gives
/// 23,000 samples, one that waits for memory a fifth of that, of which a third access memory: some 300 to 1,000 per
/// epoch and CPU. At PEBS's period a core would do nothing but take interrupts.
const IBS_PERIOD: u64 = 1 << 18;

/// A kind of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleKind {
    /// Intel's Processor Event-Based Sampling.
    Pebs,
    /// AMD's Instruction-Based Sampling of micro-operations.
    Ibs,
    /// Page faults, which the kernel samples without a PMU: for tests and diagnosis. They show where a process
    /// touches memory for the first time, not where it is hot.
    PageFaults,
}

impl SampleKind {
    /// The kind's name in `status`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pebs => "pebs",
            Self::Ibs => "ibs",
            Self::PageFaults => "page-faults",
        }
    }
}

/// The kind of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read.
    Load,
    /// A write.
    Store,
    /// Not reported by the event.
    Unknown,
}

/// An event to open on each CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The event's attributes for the kernel.
    pub attr: EventAttr,
    /// The kind of access that its samples show.
    pub access: Access,
    /// An event that must be counted in the same group for this one to work, if there is one.
    pub leader: Option<EventAttr>,
}

/// Events of a PMU that together show accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The kind of samples.
    pub kind: SampleKind,
    /// The events; all of them carry the same fields, since they share a ring.
    pub events: Vec<Wanted>,
    /// The file below the root that lists the PMU's CPUs, if it does not have all of them (hybrid processors).
    pub cpus: Option<String>,
    /// The kernel's name of the microarchitecture, such as `sapphire_rapids`; empty if it gives none.
    pub microarchitecture: String,
}

/// The reason why there is no recipe.
#[derive(Debug, thiserror::Error)]
pub enum Lacks {
    /// No such PMU.
    #[error("there is no such PMU")]
    Device,
    /// The PMU cannot say which instruction a sample is of.
    #[error("the PMU gives no precise samples (caps/max_precise is 0)")]
    Precise,
    /// The PMU cannot sample loads by latency.
    #[error("the PMU does not sample loads by latency (no {0})")]
    LoadLatency(&'static str),
    /// The PMU's description makes no sense.
    #[error("{0}: not in the kernel's format")]
    Format(String),
    /// The PMU's description cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Recipe {
    /// Fields of the samples.
    #[must_use]
    pub fn fields(&self) -> Fields {
        self.events
            .first()
            .map_or(Fields::default(), |wanted| wanted.attr.fields)
    }

    /// The recipe for PEBS: loads of 80 cycles or more and all stores, one of 4093 each, in the mode in which the
    /// kernel lets PEBS fill its buffer and drains it at context switches ("large PEBS"): `intel_pmu_hw_config` in
    /// `arch/x86/events/intel/core.c` grants it to events that are precise, have a fixed period (no frequency), do
    /// not ask for a wake-up per sample, and whose samples carry nothing but what is in `LARGE_PEBS_FLAGS`
    /// (`arch/x86/events/perf_event.h`), as the three fields here are. It takes effect only as long as each PEBS
    /// event on the CPU, anybody's, is of that mode.
    ///
    /// # Errors
    /// If the PMU is not there or cannot do that.
    pub fn pebs(root: &HostRoot) -> Result<Self, Lacks> {
        // On a hybrid processor there is one PMU per kind of core.
        let device = ["cpu", "cpu_core"]
            .into_iter()
            .map(|name| Device { root, name })
            .find(Device::exists)
            .ok_or(Lacks::Device)?;
        // Older kernels do not report it; then opening the event shows it.
        let most = device.read("caps/max_precise")?;
        let most = most.map_or(Some(PRECISE), |text| text.trim().parse().ok());
        let precise = most
            .ok_or_else(|| device.malformed("caps/max_precise"))?
            .min(PRECISE);
        if precise == 0 {
            return Err(Lacks::Precise);
        }
        for file in ["format/ldlat", "events/mem-loads"] {
            if device.read(file)?.is_none() {
                return Err(Lacks::LoadLatency(file));
            }
        }
        let plain = EventAttr {
            pmu: device.pmu()?,
            exclude_kernel: true,
            exclude_hypervisor: true,
            exclude_guest: true,
            ..EventAttr::default()
        };
        let sampled = EventAttr {
            period: PEBS_PERIOD,
            fields: Fields::IDENTIFIER | Fields::TID | Fields::ADDRESS,
            precise,
            ..plain
        };
        let mut loads = device.event(sampled, LOAD_LATENCY)?;
        device.set("ldlat", LOAD_LATENCY_CYCLES, &mut loads)?;
        let load = Wanted {
            attr: loads,
            access: Access::Load,
            leader: device.load_companion(plain)?,
        };
        let store = Wanted {
            attr: device.event(sampled, ALL_STORES)?,
            access: Access::Store,
            leader: None,
        };
        let cpus = (device.name == "cpu_core").then(|| device.path("cpus"));
        let microarchitecture = device.read("caps/pmu_name")?.unwrap_or_default();
        Ok(Self {
            kind: SampleKind::Pebs,
            events: vec![load, store],
            cpus,
            microarchitecture: microarchitecture.trim().into(),
        })
    }

    /// The recipe for IBS: micro-operations, one of 262,144; the sample shows whether it was a load or a store and
    /// what served it. IBS can leave nothing out beforehand (`PERF_PMU_CAP_NO_EXCLUDE` in
    /// `arch/x86/events/amd/ibs.c`). Addresses are in samples since Linux 6.1.
    ///
    /// # Errors
    /// If the PMU is not there.
    pub fn ibs(root: &HostRoot) -> Result<Self, Lacks> {
        let device = Device {
            root,
            name: "ibs_op",
        };
        if !device.exists() {
            return Err(Lacks::Device);
        }
        let mut attr = EventAttr {
            pmu: device.pmu()?,
            period: IBS_PERIOD,
            fields: Fields::TID | Fields::ADDRESS | Fields::DATA_SOURCE,
            ..EventAttr::default()
        };
        // The first generation counts only cycles, which shows what the core waits for more often.
        if device.read("format/cnt_ctl")?.is_some() {
            device.set("cnt_ctl", 1, &mut attr)?;
        }
        let wanted = Wanted {
            attr,
            access: Access::Unknown,
            leader: None,
        };
        Ok(Self {
            kind: SampleKind::Ibs,
            events: vec![wanted],
            cpus: None,
            microarchitecture: String::new(),
        })
    }

    /// The recipe for page faults, each of them.
    #[must_use]
    pub fn page_faults() -> Self {
        let attr = EventAttr {
            pmu: SOFTWARE,
            config: SOFTWARE_PAGE_FAULTS,
            period: 1,
            fields: Fields::TID | Fields::ADDRESS,
            exclude_kernel: true,
            exclude_hypervisor: true,
            ..EventAttr::default()
        };
        let wanted = Wanted {
            attr,
            access: Access::Unknown,
            leader: None,
        };
        Self {
            kind: SampleKind::PageFaults,
            events: vec![wanted],
            cpus: None,
            microarchitecture: String::new(),
        }
    }
}

/// A PMU's folder.
struct Device<'a> {
    root: &'a HostRoot,
    name: &'static str,
}

impl Device<'_> {
    fn path(&self, file: impl AsRef<Path>) -> String {
        format!("{DEVICES}/{}/{}", self.name, file.as_ref().display())
    }

    fn exists(&self) -> bool {
        self.root.join(self.path("type")).exists()
    }

    /// A file's text; `None` if it is not there.
    fn read(&self, file: &str) -> Result<Option<String>, Lacks> {
        match self.root.read(self.path(file)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn malformed(&self, file: &str) -> Lacks {
        Lacks::Format(self.path(file))
    }

    fn pmu(&self) -> Result<u32, Lacks> {
        let text = self.root.read(self.path("type"))?;
        text.trim().parse().map_err(|_| self.malformed("type"))
    }

    /// Puts a value into the bits that the PMU's format names.
    fn set(&self, name: &str, value: u64, attr: &mut EventAttr) -> Result<(), Lacks> {
        let file = format!("format/{name}");
        let format = self.root.read(self.path(&file))?;
        put_field(&format, value, attr).ok_or_else(|| self.malformed(&file))
    }

    fn event(&self, attr: EventAttr, (event, mask): (u64, u64)) -> Result<EventAttr, Lacks> {
        let mut attr = attr;
        self.set("event", event, &mut attr)?;
        self.set("umask", mask, &mut attr)?;
        Ok(attr)
    }

    /// The companion that the load-latency event needs from Sapphire Rapids and Alder Lake on, where it works only
    /// beside another event (`mem-loads-aux`, 0x8203; `is_mem_loads_aux_event` in the kernel's
    /// `intel_pmu_hw_config`). The kernel names the companion if it is needed. The kernel insists on it only if
    /// samples carry the data source, the hardware in any case.
    fn load_companion(&self, plain: EventAttr) -> Result<Option<EventAttr>, Lacks> {
        let file = "events/mem-loads-aux";
        let Some(text) = self.read(file)? else {
            return Ok(None);
        };
        let mut attr = plain;
        for (name, value) in terms(&text).ok_or_else(|| self.malformed(file))? {
            self.set(name, value, &mut attr)?;
        }
        Ok(Some(attr))
    }
}
