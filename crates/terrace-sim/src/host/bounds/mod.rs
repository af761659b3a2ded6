//! Bounds: placements that no policy can know, to measure policies by.
//!
//! - **`static-best`** ([`profiled`]): the whole run is known from one with all memory fast; each page is placed once.
//! - **`clairvoyant`** ([`clairvoyant`]): each coming window is known; pages move for free, and so are prefetched.
//!
//! Both rank pages by what they cost in slow memory, and fill the first tier only as far as that pays under the tiers'
//! load ([`split`], [`estimate`]). The third bound, `all-fast`, needs no placement.

pub mod clairvoyant;
pub mod estimate;
pub mod profiled;
pub mod split;
