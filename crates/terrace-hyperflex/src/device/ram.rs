//! The memory that a hypervisor shares: the parts that fit the tiers, and the host nodes that they come from.

use bytesize::ByteSize;
use vm_memory::{GuestAddressSpace as _, GuestMemoryMmap};

use super::Device;
use crate::abi::{ORDER_2M, PAGE_BYTES};
use crate::config::Config;
use crate::memory::{Backing, GuestFiles};
use crate::policy::{self, NodePolicy};
use crate::ring::Memory;
use crate::tier::{Run, TierMap};

/// The guest's memory, as far as a hypervisor shares it.
pub(super) struct Ram<B> {
    backing: B,
    /// `None`: no hypervisor is connected.
    memory: Option<Memory>,
    /// The outcome for each tier's host node; `None` if the operator set none.
    node_policies: Vec<Option<NodePolicy>>,
    /// The reason why a tier cannot be resized, per tier.
    problems: Vec<Option<String>>,
}

impl<B> Ram<B> {
    /// RAM of which nothing is shared yet.
    pub fn new(config: &Config, backing: B) -> Self {
        let waiting = |node: Option<u32>| node.map(|_| NodePolicy::Waiting);
        let tiers = config.tiers();
        Self {
            backing,
            memory: None,
            node_policies: tiers.iter().map(|tier| waiting(tier.host_node)).collect(),
            problems: vec![None; tiers.len()],
        }
    }

    /// Memory for rings alone.
    pub fn set_memory(&mut self, memory: Memory) {
        self.memory = Some(memory);
    }

    /// The memory that rings are read from.
    pub fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }
}

impl<B: Backing> Ram<B> {
    /// The region that a run is in.
    pub fn region_of(&self, run: &Run) -> Option<usize> {
        self.backing.region_of(run)
    }

    /// Gives pages back to the host; false if the kernel does not take them.
    pub fn free(&self, region: usize, run: &Run) -> bool {
        self.backing.free(region, run)
    }
}

impl Device<GuestFiles> {
    /// Takes the memory that the hypervisor shares. Parts that do not fit are logged, and the guest runs on: QEMU does
    /// not survive a device that ends while it is started.
    pub fn set_memory(&mut self, memory: Memory) {
        let refused = self.ram.share(&memory, &self.config, self.balloons.tiers());
        self.counters.refused_node_policies += refused;
    }

    /// The files behind the guest's memory.
    #[must_use]
    pub fn files(&self) -> &GuestFiles {
        &self.ram.backing
    }

    /// The outcome for each tier's host node; `None` if the operator set none.
    #[must_use]
    pub fn node_policies(&self) -> &[Option<NodePolicy>] {
        &self.ram.node_policies
    }

    /// The reason why a tier cannot be resized, if so: its files cannot give back the page sizes that are offered to
    /// the guest.
    #[must_use]
    pub fn problems(&self) -> &[Option<String>] {
        &self.ram.problems
    }
}

impl Ram<GuestFiles> {
    /// Takes the memory that the hypervisor shares; returns how many tiers do not prefer their nodes.
    fn share(&mut self, memory: &Memory, config: &Config, maps: &[TierMap]) -> u64 {
        let files = GuestFiles::new(&memory.memory());
        // Each of these is logged and none ends the device: the VM would end with it.
        self.check_page_sizes(&files, maps, config.block_bytes());
        for (i, tier) in maps.iter().enumerate() {
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
            tracing::warn!("{n} memory regions have no file that can be verified");
        }
        let refused = self.prefer_nodes(&files, &memory.memory(), config, maps);
        self.backing = files;
        // Reads and holes use one table: the hypervisor's may be a newer one already.
        self.memory = Some(Memory::new(GuestMemoryMmap::clone(&memory.memory())));
        refused
    }

    /// Notes the tiers whose files cannot give back the page sizes that are offered: the guest has read by now which
    /// page sizes it may give.
    fn check_page_sizes(&mut self, files: &GuestFiles, maps: &[TierMap], smallest: u64) {
        let tiers = maps.iter().zip(&mut self.problems).enumerate();
        for (i, (tier, problem)) in tiers {
            let now = Some(files.page_bytes(tier))
                // No part of a page of the host's can be given back.
                .filter(|pages| *pages > smallest)
                .map(|pages| too_large(i, pages, smallest));
            // Hypervisors that share region by region come here once for each.
            if let Some(what) = now.as_ref().filter(|_| now != *problem) {
                tracing::error!("{what}");
            }
            // Overwritten by `None` too: a later table may be without the problem of this one.
            *problem = now;
        }
    }

    fn prefer_nodes(
        &mut self,
        files: &GuestFiles,
        memory: &GuestMemoryMmap,
        config: &Config,
        maps: &[TierMap],
    ) -> u64 {
        let mut refused = 0;
        let tiers = maps.iter().zip(config.tiers()).enumerate();
        for ((i, (map, tier)), before) in tiers.zip(&mut self.node_policies) {
            let Some(node) = tier.host_node else { continue };
            let now = policy::prefer(files, memory, map, node).unwrap_or_else(|why| {
                refused += 1;
                // Hypervisors that share region by region come here once for each.
                if *before != Some(NodePolicy::Refused) {
                    tracing::warn!(
                        "tier {i} does not prefer host node {node}, so its memory comes from the nodes of the \
                         hypervisor's own settings: {why}"
                    );
                }
                NodePolicy::Refused
            });
            *before = Some(now);
        }
        refused
    }
}

/// The message that a tier's pages are larger than the smallest ones that are offered.
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
