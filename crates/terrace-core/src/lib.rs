//! The pure engine: stages and policies, without clock, file, socket or thread.
//!
//! Responsible for: deciding which pages of which VM are scanned, which are hot, and which move
//! where. It leaves to others: doing any of it. Events go into [`Session::hear`], actions come out of it,
//! time is an argument; the same events give the same actions, byte for byte.
//!
//! One loop, five stages: [`track`] observes, [`estimate`] ranks, [`share`] divides the first tier
//! between VMs within limits set from outside, [`place`] proposes, and [`engine`] checks each proposal
//! and has it moved. [`policy`] names compositions of stages.
//!
//! [`ranges`] is the second controller: a guest that keeps the hot ranges of its programs in fast memory. [`gather`]
//! chooses the blocks of a guest's memory whose few hot pages are worth gathering.

pub mod arbiter;
pub mod config;
pub mod demand;
pub mod engine;
mod error;
pub mod estimate;
pub mod gather;
pub mod naming;
pub mod pages;
pub mod place;
pub mod policy;
pub mod provision;
pub mod ram;
pub mod ranges;
mod reasons;
pub mod session;
pub mod share;
mod tier;
pub mod track;

pub use config::{EngineConfig, PoolRelease, TablePlace, TerraceConfig};
pub use engine::Engine;
pub use engine::heat::{HeatMaking, HeatPages};
pub use engine::refusal::MoveRefusal;
pub use engine::view::{
    Counters, DemandEstimate, DemandView, Mechanism, PartView, PhaseView, TierView, TrackingView,
    VmView,
};
pub use error::ConfigError;
pub use policy::{PolicyChoice, PolicyName, Share};
pub use reasons::Reason;
pub use session::{Controller, Log, Session};
pub use tier::{TierConfig, TierKind};

/// The page's worked example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/add-a-policy.md")]
struct AddAPolicy;
