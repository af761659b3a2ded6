//! The memory that a hypervisor shares: what of it fits the tiers, and which host nodes it comes from.

use bytesize::ByteSize;
use vm_memory::{GuestAddressSpace as _, GuestMemoryMmap};

use super::{Device, Memory};
use crate::abi::{ORDER_2M, PAGE_BYTES};
use crate::memory::GuestFiles;
use crate::policy::{self, NodePolicy};

impl Device<GuestFiles> {
    /// Takes the memory that the hypervisor shares. What of it does not fit is told, and the guest runs on: QEMU does
    /// not survive a device that ends while it is started.
    pub fn set_memory(&mut self, memory: Memory) {
        let files = GuestFiles::new(&memory.memory());
        self.check_page_sizes(&files);
        for (i, tier) in self.tiers.iter().enumerate() {
            let bytes = files.uncovered_bytes(tier);
            if bytes > 0 {
                tracing::warn!(
                    "{bytes} bytes of tier {i} are in no shared file of the hypervisor and will be refused; \
                     compare --tier with the memory that the VM was started with"
                );
            }
        }
        if files.unusable() > 0 {
            let n = files.unusable();
            tracing::warn!("{n} memory regions have no file that can be looked at");
        }
        self.prefer_nodes(&files, &memory.memory());
        self.backing = files;
        // What is read and what is punched are of one table: the hypervisor's may be a newer one already.
        self.memory = Some(Memory::new(GuestMemoryMmap::clone(&memory.memory())));
    }

    /// The files behind the guest's memory.
    #[must_use]
    pub fn files(&self) -> &GuestFiles {
        &self.backing
    }

    /// What became of each tier's host node; `None` where it has none.
    #[must_use]
    pub fn node_policies(&self) -> &[Option<NodePolicy>] {
        &self.node_policies
    }

    /// Why a tier cannot be resized, if so: its files cannot give back what is offered to the guest.
    #[must_use]
    pub fn problems(&self) -> &[Option<String>] {
        &self.problems
    }

    /// The guest has read by now which page sizes it may give.
    fn check_page_sizes(&mut self, files: &GuestFiles) {
        let smallest = self.config.block_bytes();
        let tiers = self.tiers.iter().zip(&mut self.problems).enumerate();
        for (i, (tier, problem)) in tiers {
            let now = Some(files.page_bytes(tier))
                .filter(|pages| *pages > smallest)
                .map(|pages| too_large(i, pages, smallest));
            // Hypervisors that share region by region come here once for each.
            if let Some(what) = now.as_ref().filter(|_| now != *problem) {
                tracing::error!("{what}");
            }
            *problem = now;
        }
    }

    fn prefer_nodes(&mut self, files: &GuestFiles, memory: &GuestMemoryMmap) {
        let tiers = self.tiers.iter().zip(self.config.tiers()).enumerate();
        for ((i, (map, tier)), before) in tiers.zip(&mut self.node_policies) {
            let Some(node) = tier.host_node else { continue };
            let now = policy::prefer(files, memory, map, node).unwrap_or_else(|why| {
                self.counters.refused_node_policies += 1;
                // Hypervisors that share region by region come here once for each.
                if *before != Some(NodePolicy::Refused) {
                    tracing::warn!(
                        "tier {i} does not prefer host node {node}, so its memory comes from where the \
                         hypervisor's own settings say: {why}"
                    );
                }
                NodePolicy::Refused
            });
            *before = Some(now);
        }
    }
}

/// That a tier's pages are larger than the smallest ones that are offered.
fn too_large(tier: usize, pages: u64, smallest: u64) -> String {
    let change = if pages == PAGE_BYTES << ORDER_2M {
        "start the device with --pages 2MiB, which is for all tiers"
    } else {
        "back the tier with huge pages of 2 MiB and start the device with --pages 2MiB"
    };
    format!(
        "tier {tier} is on hugetlbfs with pages of {}, of which no part can be given back, and {} are offered to the \
         guest: {change}",
        ByteSize(pages),
        ByteSize(smallest)
    )
}
