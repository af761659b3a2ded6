//! The use of a VM's memory, page by page: what the bounds place by.
//!
//! A profile counts accesses to the load's pages and lines read of page tables, and the time that the vCPUs spend on
//! them, so that the rest of their time is known too.

use super::TIERS;
use super::tier::{LastLines, Traffic};
use super::vcpu::Environment;
use crate::base::access::Access;
use crate::base::number::index;

/// Counts of a VM's accesses to memory by page.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Reads and writes of each 4 KiB page of the load.
    pages: Vec<[u32; 2]>,
    /// Lines read from memory of each page of the guest's tables, by frame.
    tables: Vec<u32>,
    totals: Totals,
    last_lines: LastLines,
}

/// Sums over all pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Reads and writes.
    pub data: [u64; 2],
    /// Time that the vCPUs waited for these, ps: a part of `latency_ps`, because misses overlap.
    pub waited_ps: u64,
    /// Latencies of these, ps.
    pub latency_ps: u64,
    /// Lines of the second stage's tables read from memory: the first tier's.
    pub host_lines: u64,
    /// Time that the vCPUs waited for lines of either stage's tables, ps.
    pub walked_ps: u64,
    /// Latencies of these, ps.
    pub walk_latency_ps: u64,
    /// Traffic of the data accesses on each tier's medium if all of them went there and it combined all writes of a line.
    pub traffic: [Traffic; TIERS],
}

impl Profile {
    /// A profile of nothing yet, for a load of so many pages and so many frames of tables.
    #[must_use]
    pub fn new(pages: u64, table_frames: u32) -> Self {
        Self {
            pages: vec![[0; 2]; crate::base::number::to_usize(pages)],
            tables: vec![0; index(table_frames)],
            totals: Totals::default(),
            last_lines: LastLines::default(),
        }
    }

    /// Counts a data access that reached memory, which `tier` served and the vCPU waited for.
    pub fn access(&mut self, env: &Environment, access: Access, tier: usize, waited_ps: u64) {
        let write = access.is_write();
        let page = crate::base::number::to_usize(access.page());
        if let Some(counts) = self.pages.get_mut(page) {
            counts[usize::from(write)] = counts[usize::from(write)].saturating_add(1);
        }
        let totals = &mut self.totals;
        totals.data[usize::from(write)] += 1;
        totals.waited_ps += waited_ps;
        totals.latency_ps += if write {
            env.write_ps[tier]
        } else {
            env.read_ps[tier]
        };
        for at in 0..=usize::from(env.last_tier) {
            let medium = self.last_lines.take(access, at, env.line[at], 0);
            totals.traffic[at].read += medium.read;
            totals.traffic[at].written += medium.written;
        }
    }

    /// Counts the way back of a line that became dirty in the last-level cache.
    pub fn write_back(&mut self, env: &Environment, access: Access) {
        for at in 0..=usize::from(env.last_tier) {
            let bytes = self.last_lines.write_back(access, at, env.line[at], 0);
            self.totals.traffic[at].written += bytes;
        }
    }

    /// Counts a line of a guest's table that was read from memory.
    pub fn table_line(&mut self, frame: u32, latency_ps: u64, overlap: u64) {
        if let Some(count) = self.tables.get_mut(index(frame)) {
            *count = count.saturating_add(1);
        }
        self.walked(latency_ps, overlap);
    }

    /// Counts a line of the second stage's tables that was read from memory.
    pub fn host_line(&mut self, latency_ps: u64, overlap: u64) {
        self.totals.host_lines += 1;
        self.walked(latency_ps, overlap);
    }

    fn walked(&mut self, latency_ps: u64, overlap: u64) {
        self.totals.walk_latency_ps += latency_ps;
        self.totals.walked_ps += latency_ps / overlap.max(1);
    }

    /// Reads and writes of each page of the load.
    #[must_use]
    pub fn pages(&self) -> &[[u32; 2]] {
        &self.pages
    }

    /// Lines read of each frame of tables.
    #[must_use]
    pub fn tables(&self) -> &[u32] {
        &self.tables
    }

    /// Sums over all pages.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Forgets all counts.
    pub fn clear(&mut self) {
        self.pages.fill([0; 2]);
        self.tables.fill(0);
        self.totals = Totals::default();
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.pages.capacity() * 8 + self.tables.capacity() * 4
    }
}
