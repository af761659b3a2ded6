//! The module's structures, as `guest/modules/terrace_guest/abi.h` has them: one layout for 32 and 64 bit.

/// Version of the interface.
pub const VERSION: u32 = 1;
/// Most pages of a list, or pairs of an exchange.
pub const MAX_BATCH: usize = 128;
/// The calls that INFO reports, in its order.
pub const CALLS: [&str; 4] = ["SCAN", "CONSOLIDATE", "EXCHANGE", "MIGRATE"];
/// No node is named: a block is of the node of its first page.
pub const ANY_NODE: i32 = -1;

/// SCAN clears accessed bits, too.
pub const SCAN_CLEAR: u32 = 1;
/// The array of SCAN is all zeros: nothing is written where there is no page for a GiB.
pub const SCAN_SPARSE: u32 = 2;
/// CONSOLIDATE may reclaim and compact memory for a block.
pub const CONSOLIDATE_COMPACT: u32 = 1;

/// The frame's number in an entry of a scan.
pub const ENTRY_FRAME: u64 = (1 << 52) - 1;
/// A page is there.
pub const ENTRY_PRESENT: u64 = 1 << 63;
/// The page was accessed.
pub const ENTRY_ACCESSED: u64 = 1 << 62;
/// The page is part of one of 2 MiB, which has one accessed bit for all: it is cleared only if the range has all of the
/// larger page. Without [`ENTRY_PRESENT`] it is no memory of the kernel's, and nothing of it was read.
pub const ENTRY_LARGE: u64 = 1 << 61;

/// One call, as INFO reports it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// 0 if it works, or the error number with which it fails.
    pub error: i32,
    /// 0.
    pub zero: u32,
    /// Reason for people, up to the first zero byte.
    pub why: [u8; 88],
}

/// The answer of INFO.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// Version of the interface.
    pub version: u32,
    /// Number of calls.
    pub calls: u32,
    /// The calls.
    pub call: [Call; CALLS.len()],
    /// Pages that each call scanned or moved since the module was loaded.
    pub pages: [u64; CALLS.len()],
}

impl Default for Info {
    fn default() -> Self {
        let call = Call {
            error: 0,
            zero: 0,
            why: [0; 88],
        };
        Self {
            version: 0,
            calls: 0,
            call: [call; CALLS.len()],
            pages: [0; CALLS.len()],
        }
    }
}

/// The argument of SCAN.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    /// Version of the interface.
    pub version: u32,
    /// [`SCAN_CLEAR`], [`SCAN_SPARSE`].
    pub flags: u32,
    /// The process.
    pub pid: i32,
    /// 0.
    pub zero: u32,
    /// First address of the range, of a page.
    pub start: u64,
    /// The address after it.
    pub end: u64,
    /// Address of one `u64` for each page.
    pub entries: u64,
    /// Base pages that are there.
    pub present: u64,
    /// Base pages that were accessed.
    pub accessed: u64,
}

/// The argument of CONSOLIDATE.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Consolidate {
    /// Version of the interface.
    pub version: u32,
    /// [`CONSOLIDATE_COMPACT`].
    pub flags: u32,
    /// The process.
    pub pid: i32,
    /// The block's node, or [`ANY_NODE`].
    pub node: i32,
    /// Address of `count` addresses.
    pub addresses: u64,
    /// Address of `count` statuses.
    pub statuses: u64,
    /// Number of pages.
    pub count: u32,
    /// Pages that were moved.
    pub moved: u32,
    /// First frame of the block that is open, or 0.
    pub block: u64,
    /// Free pages of it.
    pub left: u32,
    /// 0.
    pub zero: u32,
}

/// The argument of EXCHANGE.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Exchange {
    /// Version of the interface.
    pub version: u32,
    /// 0.
    pub flags: u32,
    /// The process of the first list.
    pub pid: i32,
    /// The process of the second list, or 0 if it is the same.
    pub other: i32,
    /// Number of pairs.
    pub count: u32,
    /// 0.
    pub zero: u32,
    /// Address of `count` addresses.
    pub first: u64,
    /// Address of `count` addresses.
    pub second: u64,
    /// Address of `count` statuses.
    pub statuses: u64,
    /// Pairs that changed nodes.
    pub exchanged: u32,
    /// Pairs of which one page did alone.
    pub halves: u32,
}

/// The argument of MIGRATE.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Migrate {
    /// Version of the interface.
    pub version: u32,
    /// 0.
    pub flags: u32,
    /// The target node.
    pub node: i32,
    /// Number of frames.
    pub count: u32,
    /// Address of `count` frame numbers.
    pub frames: u64,
    /// Address of `count` statuses.
    pub statuses: u64,
    /// Pages that were moved.
    pub moved: u32,
    /// 0.
    pub zero: u32,
}

const _: () = {
    assert!(size_of::<Info>() == 8 + 4 * 96 + 4 * 8);
    assert!(size_of::<Scan>() == 56);
    assert!(size_of::<Consolidate>() == 56);
    assert!(size_of::<Exchange>() == 56);
    assert!(size_of::<Migrate>() == 40);
};
