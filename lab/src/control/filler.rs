//! Fills a node, so that no other program gets its memory.

use anyhow::{Context, Result};

use super::lab::Lab;

impl Lab {
    /// Fills nearly all that is free on the fast node; see [`Lab::fill_node`].
    pub fn fill_fast_node(&mut self, left_mib: u64) -> Result<()> {
        self.fill_node(0, left_mib)
    }

    /// Fills nearly all that is free on a node, by a file bound to it. If something else took memory meanwhile, the
    /// kernel ends the program that writes it (and not the largest process, QEMU): the node is as full as it gets then.
    pub fn fill_node(&mut self, node: u32, left_mib: u64) -> Result<()> {
        let free = self.check(&format!(
            "awk '/MemFree/ {{print $4}}' /sys/devices/system/node/node{node}/meminfo"
        ))?;
        let free_mib = free.trim().parse::<u64>().context("MemFree of a node")? >> 10;
        // The kernel keeps what is below the high watermark for itself; the daemon leaves it alone.
        let high = self.check(&format!(
            "awk '/^Node/ {{node=$2}} $1==\"high\" && node==\"{node},\" {{sum+=$2}} END {{print sum}}' /proc/zoneinfo"
        ))?;
        let high_mib = (high.trim().parse::<u64>().context("high watermarks")? * 4) >> 10;
        let fill = free_mib.saturating_sub(high_mib + left_mib);
        let folder = folder(node);
        self.check(&format!(
            "mkdir -p {folder} && mount -t tmpfs -o size={fill}m,mpol=bind:{node} filler {folder}"
        ))?;
        self.check(&format!(
            "(echo 1000 >/proc/self/oom_score_adj; exec dd if=/dev/zero of={folder}/all bs=1M count={fill} 2>/dev/null) || true"
        ))?;
        Ok(())
    }

    /// Gives the fast node's memory back.
    pub fn empty_fast_node(&mut self) -> Result<()> {
        let folder = folder(0);
        self.check(&format!("rm {folder}/all && umount {folder}"))
            .map(drop)
    }
}

fn folder(node: u32) -> String {
    format!("/run/filler{node}")
}
