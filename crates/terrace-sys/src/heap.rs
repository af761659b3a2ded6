//! The C library's heap. Held by a test of the daemon's threads (`crates/terraced/tests/threads.rs`).

/// Has all threads allocate from the process's one heap; call it before there are others.
///
/// A heap of a thread's own that glibc shrinks has it open `/proc/sys/vm/overcommit_memory` first (`malloc/arena.c`,
/// `check_may_shrink_heap`), in the midst of whatever the thread was at: a thread that may open nothing is refused, or
/// killed. Such heaps take 64 MiB of addresses each, too.
pub fn one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a knob of the allocator's that takes two numbers.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
