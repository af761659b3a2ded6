//! The machine's constants. The source of each is in `docs/machine.md`; none is fitted to a result.

use super::PS;

/// Sizes of the processor's structures, and times of the processor and of the kernel's work. Times in ps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Entries of the first-level TLB for 4 KiB pages, of a full-size vCPU.
    pub l1_entries: u64,
    /// Entries of the first-level TLB for 2 MiB pages, of a full-size vCPU.
    pub l1_huge_entries: u64,
    /// Entries of the second-level TLB.
    pub l2_entries: u64,
    /// Entries of the cache of level 2 entries (each leads to a table of 4 KiB leaves), guest and host
    /// each.
    pub pde_entries: u64,
    /// Entries of the cache of level 3 entries.
    pub pdpte_entries: u64,
    /// Bytes of page-table lines that the processor's caches hold beside data, over all VMs.
    pub table_cache_bytes: u64,
    /// Time between two changes of a vCPU's address space, each of which empties its TLBs: ns of the
    /// full-size machine.
    pub flush_every_ns: u64,
    /// A hit in the second-level TLB.
    pub l2_hit: u64,
    /// Reading a table's line from the last-level cache.
    pub cached_line: u64,
    /// Setting A or D in an entry.
    pub set_bit: u64,
    /// Page walks that one vCPU has in flight at a time.
    pub walkers: u64,
    /// One exit to the host and back, with little work in between.
    pub exit: u64,
    /// A second-stage fault: exit, the host's look-up of the page, filling the mapping.
    pub second_stage_fault: u64,
    /// Loads and stores that a program retires per µs of its own computing, beside the accesses that are simulated.
    pub instructions_per_us: u64,
    /// A hinting fault, in guest or host: the processor's fault, finding the page, restoring its entry.
    pub hint_fault: u64,
    /// Taking the present bit from one leaf entry, or giving it back.
    pub hint_page: u64,
    /// Test of one page of an LRU list: finding its mapping, testing A.
    pub lru_page: u64,
    /// Delivery to a vCPU of an interrupt that another vCPU sent, without an exit.
    pub guest_interrupt: u64,
    /// Writing one record of a sample, by the processor.
    pub sample: u64,
    /// The interrupt of a full buffer of samples: the exit, and the handler's way in and out.
    pub sample_interrupt: u64,
    /// A kernel's or a daemon's work on one record.
    pub sample_work: u64,
    /// The sender's cost of a TLB shootdown, per vCPU.
    pub shootdown_send: u64,
    /// Entries of a PML buffer.
    pub pml_entries: usize,
    /// Reading one leaf entry whose A bit is clear.
    pub scan_leaf: u64,
    /// Reading and clearing one leaf entry whose A bit is set.
    pub scan_accessed: u64,
    /// Visiting one table page.
    pub scan_table: u64,
    /// Ranking one page at a round's end.
    pub classify_page: u64,
    /// Query for the location of one 4 KiB page.
    pub query_page: u64,
    /// The kernel's work to move one page, beside copying it.
    pub move_page: u64,
    /// Pages that the kernel unmaps together before it copies them.
    pub move_batch: usize,
    /// Lines that one processor's copy has in flight.
    pub copy_lines: u64,
    /// A guest's page fault that is served from the swap device.
    pub major_fault: u64,
    /// Writing one page to the swap device, by whoever reclaims it.
    pub swap_write: u64,
    /// Reading one more page that lies behind another on the swap device.
    pub swap_next_read: u64,
    /// Writing one more page behind another to the swap device.
    pub swap_next_write: u64,
    /// Freeing or filling one page, by the guest's kernel.
    pub guest_page_work: u64,
    /// Allocating a page for a balloon in the guest, and telling the device.
    pub balloon_page: u64,
    /// Finding a page that a guest gave, and taking its memory, by the device.
    pub balloon_host_page: u64,
    /// Taking one page of a block off the guest's free lists, or putting it there.
    pub plug_page: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            l1_entries: 64,
            l1_huge_entries: 32,
            l2_entries: 1536,
            pde_entries: 32,
            pdpte_entries: 4,
            table_cache_bytes: 8 << 20,
            flush_every_ns: 100_000_000,
            l2_hit: 4 * PS,
            cached_line: 25 * PS,
            set_bit: 100 * PS,
            walkers: 2,
            exit: 1_000 * PS,
            second_stage_fault: 2_500 * PS,
            instructions_per_us: 1_000,
            hint_fault: 1_500 * PS,
            hint_page: 20 * PS,
            lru_page: 150 * PS,
            guest_interrupt: 700 * PS,
            sample: 200 * PS,
            sample_interrupt: 4_000 * PS,
            sample_work: 100 * PS,
            shootdown_send: 1_000 * PS,
            pml_entries: 512,
            scan_leaf: 3 * PS,
            scan_accessed: 10 * PS,
            scan_table: 50 * PS,
            classify_page: 3 * PS,
            query_page: 30 * PS,
            move_page: 2_000 * PS,
            move_batch: 512,
            copy_lines: 12,
            major_fault: 100_000 * PS,
            swap_write: 20_000 * PS,
            swap_next_read: 1_463 * PS,
            swap_next_write: 2_048 * PS,
            guest_page_work: 500 * PS,
            balloon_page: 1_680 * PS,
            balloon_host_page: 560 * PS,
            plug_page: 100 * PS,
        }
    }
}
