//! The system's allocator with huge pages for large blocks.

use std::alloc::{GlobalAlloc, Layout, System};

/// Bytes from which on a block gets huge pages: what is lost at its ends is little then.
const LARGE: usize = 4 << 20;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// The system's allocator, which asks the kernel for huge pages below large blocks.
///
/// State per page is a hundred megabytes for a VM of 64 GiB, and the simulator looks it up at random: with base pages many
/// of such look-ups miss the processor's TLB. It is advice: a kernel whose `transparent_hugepage/enabled` is `never` ignores it. A
/// block of which little is written takes more memory than with base pages.
#[derive(Debug)]
pub struct HugePages;

// SAFETY: every call is handed to the system's allocator unchanged, and what it returns to the caller; advice changes
// neither contents nor rights of the block.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's duties are those of the system's allocator.
        advised(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the block came from here, so from the system's allocator.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's duties are those of the system's allocator.
        advised(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's duties are those of the system's allocator, which the block came from.
        advised(unsafe { System.realloc(ptr, layout, size) }, size)
    }
}

/// The block, for whose whole huge pages the kernel was asked if it is large.
fn advised(block: *mut u8, bytes: usize) -> *mut u8 {
    if bytes < LARGE || block.is_null() {
        return block;
    }
    let before = block.align_offset(HUGE);
    let whole = bytes.saturating_sub(before) / HUGE * HUGE;
    // SAFETY: the range lies within a block of ours, and the advice changes no contents. A kernel without huge pages says
    // EINVAL, which does not matter.
    unsafe {
        libc::madvise(
            block.wrapping_add(before).cast(),
            whole,
            libc::MADV_HUGEPAGE,
        )
    };
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags of the mapping that an address lies in, from `/proc/self/smaps`.
    fn flags(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut within = false;
        for line in maps.lines() {
            let range = line.split(' ').next().unwrap().split_once('-');
            let ends = range.and_then(|(a, b)| {
                let hex = |text| usize::from_str_radix(text, 16).ok();
                Some(hex(a)?..hex(b)?)
            });
            if let Some(range) = ends {
                within = range.contains(&address);
            }
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| within) {
                return flags.to_owned();
            }
        }
        panic!("{address:#x} is in no mapping")
    }

    #[test]
    fn large_blocks_get_huge_pages_and_small_ones_do_not() {
        let of = |bytes| Layout::from_size_align(bytes, 16).unwrap();
        // SAFETY: the layouts have bytes, each block is freed by the layout that it has then, and only its own bytes are
        // touched.
        unsafe {
            let large = HugePages.alloc_zeroed(of(40 << 20));
            let middle = large.wrapping_add(20 << 20);
            assert_eq!(
                (*large, *middle, *large.wrapping_add((40 << 20) - 1)),
                (0, 0, 0)
            );
            *middle = 7;
            if std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap() {
                assert!(flags(middle as usize).contains(" hg"));
            }
            let larger = HugePages.realloc(large, of(40 << 20), 80 << 20);
            assert_eq!(*larger.wrapping_add(20 << 20), 7);
            HugePages.dealloc(larger, of(80 << 20));
            let small = HugePages.alloc(of(1 << 20));
            assert!(!flags(small as usize).contains(" hg"));
            HugePages.dealloc(small, of(1 << 20));
        }
    }
}
