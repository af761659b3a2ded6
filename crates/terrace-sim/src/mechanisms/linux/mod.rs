//! What the mechanisms of the Linux kernel share: watermarks, the hint scanner, two LRU lists per node
//! and kswapd.
//!
//! Responsible for: when and where hints are set ([`scanner`]), how much of a node stays free
//! ([`marks`]), and which pages are demoted ([`reclaim`]). What a hinting fault leads to is each
//! mechanism's own.

pub mod marks;
pub mod reclaim;
pub mod scanner;
