//! The memory that a hypervisor shares: what of it fits the tiers, and which host nodes it comes from.

use bytesize::ByteSize;
use vm_memory::{GuestAddressSpace as _, GuestMemoryMmap};

use super::{Device, Memory};
use crate::abi::PAGE_BYTES;
use crate::error::FlexError;
use crate::memory::GuestFiles;
use crate::policy::{self, NodePolicy};

impl Device<GuestFiles> {
    /// Takes the memory that the hypervisor shares.
    ///
    /// # Errors
    /// Where pages of a size are offered to the guest that a tier's files cannot give back.
    pub fn set_memory(&mut self, memory: Memory) -> Result<(), FlexError> {
        let files = GuestFiles::new(&memory.memory());
        self.check_page_sizes(&files)?;
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
        self.memory = Some(memory);
        Ok(())
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

    /// The configuration space was read by now, so a page size that is no use cannot be taken back from the guest.
    fn check_page_sizes(&self, files: &GuestFiles) -> Result<(), FlexError> {
        let smallest = PAGE_BYTES << self.config.orders().trailing_zeros();
        for (i, tier) in self.tiers.iter().enumerate() {
            let Some(pages) = files.pieces_of(tier).map(|p| p.page_bytes).max() else {
                continue;
            };
            if pages <= smallest {
                continue;
            }
            let what = format!(
                "tier {i} is on hugetlbfs with pages of {}, of which no part can be given back, and {} are offered \
                 to the guest",
                ByteSize(pages),
                ByteSize(smallest)
            );
            let largest = PAGE_BYTES << (u32::BITS - 1 - self.config.orders().leading_zeros());
            let change = if pages <= largest.max(2 << 20) {
                "start the device with --pages 2MiB, which is for all tiers"
            } else {
                "back the tier with huge pages of 2 MiB and start the device with --pages 2MiB"
            };
            return Err(FlexError::Config(format!("{what}: {change}")));
        }
        Ok(())
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
