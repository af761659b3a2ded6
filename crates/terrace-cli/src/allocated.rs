//! The system's allocator with a count of bytes, so that `terrace bench` can report the engine's memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is handed to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller's duties are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the block came from `alloc` above, so from the system's allocator.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller's duties are those of the system's allocator.
        unsafe { System.alloc_zeroed(layout) }
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
