//! The daemon's allocator with a count of bytes, so that `terrace bench` can report the engine's memory.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use terrace_sys::HugePages;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is handed to the daemon's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller's duties are those of the daemon's allocator.
        unsafe { HugePages.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the block came from `alloc` above, so from the daemon's allocator.
        unsafe { HugePages.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller's duties are those of the daemon's allocator.
        unsafe { HugePages.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let now = NOW.fetch_add(size, Relaxed) + size - layout.size();
        NOW.fetch_sub(layout.size(), Relaxed);
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller's duties are those of the daemon's allocator, which the block came from.
        unsafe { HugePages.realloc(ptr, layout, size) }
    }
}

/// Bytes that are allocated now.
pub fn now() -> usize {
    NOW.load(Relaxed)
}

/// Restarts the peak at the bytes that are allocated now, and returns their number.
pub fn restart_peak() -> usize {
    let now = now();
    PEAK.store(now, Relaxed);
    now
}

/// Most bytes that were allocated at once since [`restart_peak`].
pub fn peak() -> usize {
    PEAK.load(Relaxed)
}
