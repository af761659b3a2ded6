//! Identities: VMs, tiers, processes, requests, plans, and the two address spaces.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $repr);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id!(
    /// One VM while it is managed; never reused within one run of the engine.
    VmId(u32)
);
id!(
    /// Position in the ordered list of tiers, fastest first.
    TierId(u8)
);
id!(
    /// One process inside a guest.
    ProcessId(u32)
);
id!(
    /// A question of the engine that an event answers (scan, placement).
    RequestId(u64)
);
id!(
    /// A batch of page moves that a [`crate::MoveReport`] answers.
    PlanId(u64)
);

id!(
    /// A provider, which resizes one VM, from when the VM was found until it is gone; never reused within one run of
    /// the engine.
    ProviderId(u32)
);
id!(
    /// An order to a provider: grows with each order of the engine.
    OrderId(u64)
);
id!(
    /// A request to resize a VM, which an answer echoes.
    ResizeId(u64)
);

impl TierId {
    /// The fastest tier.
    pub const FAST: Self = Self(0);
    /// The second tier.
    pub const SLOW: Self = Self(1);
    /// Most tiers that a machine may have.
    pub const MAX: usize = 4;

    /// As an index into per-tier arrays.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The address space that page numbers belong to. The two are never converted implicitly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Space {
    /// A VM's guest page numbers ([`crate::Gfn`]).
    Guest(VmId),
    /// The virtual pages ([`crate::Vpn`]) of one process inside a VM.
    Process(VmId, ProcessId),
}

impl Space {
    /// The VM that the space is part of.
    #[must_use]
    pub fn vm(self) -> VmId {
        match self {
            Self::Guest(vm) | Self::Process(vm, _) => vm,
        }
    }
}
