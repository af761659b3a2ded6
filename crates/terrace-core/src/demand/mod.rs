//! Memory demand: what a VM would miss with less memory or more, as a miss-ratio curve.
//!
//! Responsible for: distances between accesses to the same page ([`Stack`], [`Distances`]), the curve that they make
//! ([`Curve`]), and three ways to get one for less than every access costs: [`HotSet`] with [`restored`], [`Sampled`],
//! [`Ages`]; the working set of each second ([`WorkingSets`]), swapping ([`Swap`]) and phases ([`Phases`]; HPMBS §2.5,
//! §2.6, §4.1). It leaves to others: observing accesses, and deciding who gets memory. HPMBS §2 is the source of the hot
//! set and of restoring; the stack is Mattson's.
//!
//! Pages are numbered by the caller, from 0 and without large holes where it can; a distance is the number of other
//! pages accessed since the last access to the same page, so a memory of `s` pages misses distances of `s` and more.

mod ages;
mod config;
mod curve;
mod difference;
mod distances;
mod hot_set;
mod numbers;
mod phases;
mod rest;
mod restored;
mod sampled;
mod stack;
mod swap;
mod tracked;
mod tracker;
mod working_set;

pub use ages::{Aged, Ages};
pub use config::{DemandConfig, Track};
pub use curve::{Curve, CurveSource, Observed, Point, REDUCED_POINTS};
pub use difference::Difference;
pub use distances::Distances;
pub use hot_set::{DEFAULT_HOT_SET_PERCENT, Dynamic, HotSet, PAPER_HOT_SET};
pub use phases::{MAX_WINDOWS, PhaseChange, PhaseConfig, Phases, WINDOW_NS};
pub use rest::{DEFAULT_TRACKING_PERCENT, rest_ns};
pub use restored::{SHORT_DISTANCES, restored};
pub use sampled::{DEFAULT_SAMPLED_PAGES, Sampled};
pub use stack::Stack;
pub use swap::{Swap, VALUES};
pub use tracked::Tracked;
pub use tracker::Tracker;
pub use working_set::{WorkingSet, WorkingSets};
