//! Parts that the mechanisms of the Linux kernel share: watermarks, the hint scanner, two LRU lists per node and
//! kswapd.
//!
//! Responsible for: the time and the pages for which hints are set ([`scanner`]), the part of a node that stays free
//! ([`marks`]), and the choice of pages that are demoted ([`reclaim`]). Each mechanism has its own answer to a
//! hinting fault.

pub mod marks;
mod period;
pub mod reclaim;
pub mod scanner;
