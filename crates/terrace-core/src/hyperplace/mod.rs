//! HyperPlace: a guest finds the hot ranges of its programs and keeps them in fast memory (HyperTier
//! §4.2; published later as Demeter, SOSP '25).
//!
//! Responsible for: the tree of virtual ranges of each process ([`tree`]), ranking them together, and
//! which pages should travel ([`plan`]). It leaves to others: samples, walking page tables, moving, time.
//!
//! Once per epoch the owner calls [`tree::RangeTree::end_epoch`] of each tree, ranks with [`plan::rank`],
//! counts the pages of the ranked ranges, asks [`plan::Plan::new`] what to exchange, and lets the trees
//! forget ([`tree::RangeTree::decay`]).

pub mod plan;
pub mod tree;

pub use plan::{Held, Plan, Ranked, Share, rank};
pub use tree::{Leaf, Params, Range, RangeTree};
