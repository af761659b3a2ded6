//! Events: the engine's input.

use serde::{Deserialize, Serialize};

use crate::provision::{
    CollapseReport, OrderOutcome, OrderWithdrawal, ProviderReport, ProviderSpec, SizesWanted,
};
use crate::{
    AgentMemory, FaultReport, Gfn, GuestMemory, GuestMoves, GuestNodes, GuestWalks, HostMemory,
    MemoryBalance, MemoryNeed, MemoryRights, MemoryStanding, MemoryTiers, MemoryTraffic,
    PAGES_PER_HUGE, PageSize, PartAnswer, PlanId, ProviderId, RequestId, Samples, ScanAnswer,
    SpeedRights, TablesAnswer, TierId, VmId, VmStatistics,
};

/// One thing that happened. New kinds are added at the end: their position is their number in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A VM came under management.
    VmArrived(VmSpec),
    /// A VM is gone; all its state is dropped.
    VmDeparted(VmId),
    /// The locations of pages.
    Placement(PlacementReport),
    /// Sizes and free memory of the tiers.
    Memory(Vec<TierMemory>),
    /// A scan's answer.
    Scanned(Box<ScanAnswer>),
    /// A pass over a part is over.
    ScannedPart(Box<PartAnswer>),
    /// A scan that could not be done.
    ScanFailed(ScanFailure),
    /// The outcome of moves, page by page.
    Moved(MoveReport),
    /// The host split or collapsed a 2 MiB page.
    BackingChanged(BackingChange),
    /// An operator's command.
    Command(Command),
    /// `poll_timeout`'s time has come.
    Timer,
    /// CPU time that scans of a VM took, by the kernel's count.
    ScanSpent(ScanSpent),
    /// A VM's RAM is another one, or elsewhere.
    RamChanged(RamChange),
    /// A provider, which resizes a VM, was found.
    ProviderArrived(ProviderSpec),
    /// A provider is gone, or its VM is; all its state is dropped.
    ProviderDeparted(ProviderId),
    /// A report of a provider's state.
    ProviderSeen(Box<ProviderReport>),
    /// Somebody wants a VM to have other sizes.
    SizesWanted(SizesWanted),
    /// The outcome of an order.
    OrderOutcome(OrderOutcome),
    /// The outcome of taking an order back.
    OrderWithdrawal(OrderWithdrawal),
    /// A provider may stand otherwise than it was seen, or be gone.
    ProviderChanged(ProviderId),
    /// Accesses that protection faults showed.
    Faulted(FaultReport),
    /// A VM's counters and its guest's memory.
    Statistics(VmStatistics),
    /// Bounds of a VM's part of the memory that VMs share. A VM of which this was never said keeps what it has.
    MemoryRights(MemoryRights),
    /// A guest's word on its memory.
    MemoryNeed(MemoryNeed),
    /// How often a VM accesses memory.
    MemoryTraffic(MemoryTraffic),
    /// How a VM uses each of its tiers.
    MemoryTiers(MemoryTiers),
    /// The measure of a VM's slowdown, and its bound.
    SpeedRights(SpeedRights),
    /// Facts that decide whether a VM's memory is balanced.
    MemoryStanding(MemoryStanding),
    /// An operator's word on whether a VM's memory is balanced.
    MemoryBalance(MemoryBalance),
    /// The statistics of a stock guest.
    GuestMemory(Box<GuestMemory>),
    /// The host's own memory.
    HostMemory(HostMemory),
    /// The word of an agent in a guest on its memory.
    AgentMemory(AgentMemory),
    /// Huge pages were made of single ones, or not.
    Collapsed(Box<CollapseReport>),
    /// The page walks of a guest's programs.
    GuestWalks(GuestWalks),
    /// Who moves a VM's pages.
    GuestMoves(GuestMoves),
    /// The tiers of a guest's nodes.
    GuestNodes(GuestNodes),
    /// The page tables that a pass found in use; the pass's own answer follows.
    Tables(Box<TablesAnswer>),
    /// Single accesses of a VM, by its processor's counters or by its agent.
    Samples(Samples),
    /// How many processors a VM has. A VM of which this was never said counts as one with one.
    Processors(Processors),
}

/// The virtual processors of a VM, of whose time tracking takes a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processors {
    /// The VM.
    pub vm: VmId,
    /// Number of virtual CPUs.
    pub vcpus: u32,
}

/// A run of guest RAM (guest physical space has holes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RamRange {
    /// First page.
    pub start: Gfn,
    /// Number of pages.
    pub pages: u64,
}

/// Least and most bytes of one tier that a VM may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierLimit {
    /// Bytes reserved for the VM even if others' pages are hotter.
    pub floor_bytes: u64,
    /// Never exceeded by the engine's moves, bytes.
    pub ceiling_bytes: u64,
}

/// A VM as it arrives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSpec {
    /// The VM's id.
    pub vm: VmId,
    /// The VM's name, for people.
    pub name: String,
    /// Guest RAM in ascending order, no overlaps. Page numbers of the VM are below the last one's end.
    pub ram: Vec<RamRange>,
    /// The unit of ranking and moving: 4 KiB, or 2 MiB if the host backs the VM with huge pages.
    pub unit: PageSize,
    /// Limits per tier, fastest first; as many as the engine has tiers.
    pub limits: Vec<TierLimit>,
    /// Share when several VMs compete; 1000 is normal.
    pub weight: u32,
    /// Whether pages may be moved; otherwise the VM is only observed.
    pub moves: bool,
}

impl VmSpec {
    /// One more than the highest guest page number.
    #[must_use]
    pub fn span_pages(&self) -> u64 {
        self.ram
            .iter()
            .map(|r| r.start.0.saturating_add(r.pages))
            .max()
            .unwrap_or(0)
    }

    /// Pages of RAM, holes left out.
    #[must_use]
    pub fn ram_pages(&self) -> u64 {
        self.ram
            .iter()
            .fold(0, |sum, r| sum.saturating_add(r.pages))
    }
}

/// The location of one page, in a byte: bits 0–2 the tier or 7 for "no page there", bit 3 "part of a huge page of the
/// host".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PageCode(pub u8);

impl PageCode {
    /// No host page backs the guest page, or it is on a node of no tier.
    pub const ABSENT: Self = Self(7);
    const HUGE: u8 = 8;

    /// A page in a tier.
    #[must_use]
    pub fn new(tier: TierId, huge: bool) -> Self {
        Self((tier.0 & 7) | if huge { Self::HUGE } else { 0 })
    }

    /// The tier, if any. Whether the engine has that tier is for it to check.
    #[must_use]
    pub fn tier(self) -> Option<TierId> {
        (self.0 & 7 < 7).then_some(TierId(self.0 & 7))
    }

    /// Part of a 2 MiB page of the host.
    #[must_use]
    pub fn huge(self) -> bool {
        self.0 & Self::HUGE != 0
    }
}

/// The locations of a run of pages. A whole VM comes in several reports; `last` ends them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementReport {
    /// The request's id.
    pub id: RequestId,
    /// The VM that has the pages.
    pub vm: VmId,
    /// Page of the first code.
    pub start: Gfn,
    /// One code a page.
    pub codes: Vec<PageCode>,
    /// No more reports for this request.
    pub last: bool,
}

/// Size and free memory of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierMemory {
    /// The tier.
    pub tier: TierId,
    /// All memory of its nodes, bytes.
    pub total_bytes: u64,
    /// Free now, less the kernel's watermarks, bytes.
    pub free_bytes: u64,
}

/// RAM was plugged in or taken out, or it is elsewhere in the hypervisor's memory: nothing of the old map counts.
/// Settings that an operator made for the VM stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RamChange {
    /// The VM that has the RAM.
    pub vm: VmId,
    /// All RAM from now on, as in [`VmSpec::ram`]; empty: its location is not known before the next event of this
    /// kind.
    pub ram: Vec<RamRange>,
    /// As in [`VmSpec::unit`].
    pub unit: PageSize,
}

/// A scan that could not be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanFailure {
    /// The request's id.
    pub id: RequestId,
    /// The VM.
    pub vm: VmId,
    /// The cause of the failure, for people.
    pub reason: String,
    /// No scan of this VM will work (it left long mode, its worker is gone for good).
    pub fatal: bool,
}

/// CPU time of the VM's worker since the last such report: passes, searches, and requests that led to no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanSpent {
    /// The VM.
    pub vm: VmId,
    /// CPU time, ns.
    pub cpu_ns: u64,
}

/// The outcome of one page's move. New kinds are added at the end: their position is their number in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MoveStatus {
    /// The page is in the wanted tier now.
    Moved,
    /// The page was in the wanted tier before.
    AlreadyThere,
    /// Pinned or in use, also after retries; it stays on its node.
    Busy,
    /// No page backs it.
    Absent,
    /// The target node had no free page.
    NoMemory,
    /// Not tried: the budget, a pause or the VM's end came first.
    NotTried,
    /// The kernel returned another error (an errno).
    Failed(i32),
    /// Processes other than the hypervisor and ours map it, and it is theirs too: merged by KSM, or of a template file.
    /// The page stays on its node.
    MappedByOthers,
}

/// One page's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageResult {
    /// The page (first of its unit).
    pub gfn: Gfn,
    /// The outcome.
    pub status: MoveStatus,
    /// The page's location after the move, by the kernel's word.
    pub now: PageCode,
}

/// Results of one [`crate::MovePlan`], every page of it once, in the plan's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    /// The plan's id.
    pub id: PlanId,
    /// The VM that has the pages.
    pub vm: VmId,
    /// Page by page.
    pub results: Vec<PageResult>,
    /// Wall time that the moves took, ns.
    pub elapsed_ns: u64,
}

/// The host split a huge page, or made one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackingChange {
    /// The VM that has the page.
    pub vm: VmId,
    /// Number of the 2 MiB block (guest page number / 512).
    pub block: u64,
    /// The block is one huge page now.
    pub huge: bool,
}

impl BackingChange {
    /// First page of the block.
    #[must_use]
    pub fn start(self) -> Gfn {
        Gfn(self.block.saturating_mul(PAGES_PER_HUGE))
    }
}

/// An operator's command; `None` as VM means all. New kinds are added at the end: their position is their
/// number in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Neither scan nor move until resumed.
    Pause(Option<VmId>),
    /// Go on.
    Resume(Option<VmId>),
    /// Turn moves of one VM on or off.
    Moves(VmId, bool),
    /// Replace limits (one per tier).
    Limits(VmId, Vec<TierLimit>),
    /// Start a round now instead of at the next period.
    RoundNow(VmId),
    /// Give a VM a nominal size of the first tier, bytes; 0: it has none.
    FastSize(VmId, u64),
    /// Replace a VM's weight; 1000 is normal, 0 counts as 1.
    Weight(VmId, u32),
    /// Start a round now as `RoundNow` does, but the round only proposes: none of its moves is made.
    PlanRound(VmId),
}
