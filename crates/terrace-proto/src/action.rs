//! Actions: the engine's decisions.

use serde::{Deserialize, Serialize};

use crate::provision::{CollapseRequest, ProviderQuery, SizeOrder, SizesAnswer};
use crate::{
    Gfn, OrderId, PartRequest, PlanId, Protection, ProviderId, RequestId, ScanRequest, Space,
    TierId, VmId,
};

/// One thing that the engine wants done. New kinds are added at the end: their position is their
/// number in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Scan page tables; answered by `Scanned` or `ScanFailed`.
    Scan(ScanRequest),
    /// Scan a part of them; answered by `ScannedPart` or `ScanFailed`.
    ScanPart(PartRequest),
    /// Query the nodes of all pages of a VM; answered by `Placement` reports.
    QueryPlacement(PlacementQuery),
    /// Move pages; answered by one `Moved`.
    Move(MovePlan),
    /// Look at a provider; answered by one `ProviderSeen`.
    QueryProvider(ProviderQuery),
    /// Give a provider an order; answered by one `OrderOutcome`, if it is not withdrawn before.
    Resize(SizeOrder),
    /// Take an order back that was not given yet; answered by one `OrderWithdrawal`.
    Withdraw(ProviderId, OrderId),
    /// Send the outcome of an order of sizes to its client.
    Answer(SizesAnswer),
    /// No provider resizes the VM: leave it alone until an operator requests it again.
    LetGo(ProviderId),
    /// Take the permission of blocks away; each next access is reported by `Faulted`.
    Protect(Protection),
    /// Give all blocks of a VM their permission back.
    Unprotect(VmId),
    /// Make huge pages of single ones; answered by one `Collapsed`.
    Collapse(CollapseRequest),
    /// Have the next pass that is asked for over this space name page tables, too; answered by `Tables` before its own answer.
    NameTables(Space),
}

impl Action {
    /// The managed VM that the action is about; `None` for one about a provider.
    #[must_use]
    pub fn vm(&self) -> Option<VmId> {
        match self {
            Self::Scan(request) => Some(request.space.vm()),
            Self::ScanPart(request) => Some(request.space.vm()),
            Self::QueryPlacement(query) => Some(query.vm),
            Self::Move(plan) => Some(plan.vm),
            Self::Protect(protection) => Some(protection.vm),
            Self::Unprotect(vm) => Some(*vm),
            Self::NameTables(space) => Some(space.vm()),
            Self::QueryProvider(_)
            | Self::Resize(_)
            | Self::Withdraw(..)
            | Self::Answer(_)
            | Self::LetGo(_)
            | Self::Collapse(_) => None,
        }
    }
}

/// A query of the nodes of all pages of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementQuery {
    /// Echoed in the reports.
    pub id: RequestId,
    /// The VM that has the pages.
    pub vm: VmId,
}

/// The move of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageMove {
    /// First page of the unit.
    pub gfn: Gfn,
    /// The target tier.
    pub to: TierId,
}

/// Pages of one VM to move, in this order: demotions that make room come before the promotions that
/// use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovePlan {
    /// Echoed in the report.
    pub id: PlanId,
    /// The VM that has the pages.
    pub vm: VmId,
    /// The moves.
    pub moves: Vec<PageMove>,
}
