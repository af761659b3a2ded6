//! The test of the engine's memory per page, counted by the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use terrace_core::PolicyName;

use terrace_bench::{PAGES_OF_64_GIB, state_bytes_per_page};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MAX: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MAX.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's duties are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the block came from `alloc` above, so from the system's allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn policies_keep_at_most_eight_bytes_a_page_in_whole_rounds() {
    // Unoptimised, a 64 GiB VM takes minutes; what is kept per page does not depend on the size.
    let pages = if cfg!(debug_assertions) {
        PAGES_OF_64_GIB / 64
    } else {
        PAGES_OF_64_GIB
    };
    for policy in [PolicyName::Vtmm, PolicyName::Hmvisor, PolicyName::Terrace] {
        keeps_at_most_eight(policy, pages);
    }
}

fn keeps_at_most_eight(policy: PolicyName, pages: u64) {
    let before = NOW.load(Ordering::Relaxed);
    MAX.store(before, Ordering::Relaxed);
    let held = state_bytes_per_page(policy, pages, || NOW.load(Ordering::Relaxed));
    // Also what was allocated and freed again inside of one call, and what the host side of the bench
    // holds while it makes up an answer.
    let peak = (MAX.load(Ordering::Relaxed) - before) as f64 / pages as f64;
    println!("{policy:?}: held at most {held:.3}, peak {peak:.3} bytes a page");
    assert!(held > 4.0, "the allocator counts: {held}");
    assert!(held <= 8.0, "{held} bytes a page");
    assert!(peak <= 8.0, "{peak} bytes a page at the peak");
}
