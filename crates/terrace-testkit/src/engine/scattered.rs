//! The heat of a VM of 4,096 pages whose hot fifth is scattered.

use super::draw;

/// Pages of the VM.
pub const PAGES: u64 = 4096;
/// Pages that the VM may hold in the first tier.
pub const FAST: u64 = 900;
/// Golden: pages that the first round promotes, and as many that it demotes.
pub const EXCHANGED: u64 = 699;

/// Whether a page is of the hot fifth.
pub fn hot(page: u64) -> bool {
    page % 5 == 3
}

/// The load: a fifth of the pages, scattered, takes nearly all accesses.
pub fn scattered(page: u64, scan: u64) -> (bool, bool) {
    let d = draw(page, scan);
    if hot(page) {
        (d < 230, d < 80)
    } else {
        (d < 10, d < 2)
    }
}
