//! Fills the fast node, so that no other program gets its memory.

use anyhow::{Context, Result};

use super::lab::Lab;

impl Lab {
    /// Fills nearly all that is free on the fast node, by a file bound to it. If something else took memory
    /// meanwhile, the kernel ends the program that writes it (and not the largest process, QEMU): the node is as full
    /// as it gets then.
    pub fn fill_fast_node(&mut self, left_mib: u64) -> Result<()> {
        let free =
            self.check("awk '/MemFree/ {print $4}' /sys/devices/system/node/node0/meminfo")?;
        let free_mib = free.trim().parse::<u64>().context("MemFree of node 0")? >> 10;
        // The kernel keeps what is below the high watermark for itself; the daemon leaves it alone.
        let high = self.check(
            "awk '/^Node/ {node=$2} $1==\"high\" && node==\"0,\" {sum+=$2} END {print sum}' /proc/zoneinfo",
        )?;
        let high_mib = (high.trim().parse::<u64>().context("high watermarks")? * 4) >> 10;
        let fill = free_mib.saturating_sub(high_mib + left_mib);
        self.check(&format!(
            "mkdir -p /run/filler && mount -t tmpfs -o size={fill}m,mpol=bind:0 filler /run/filler"
        ))?;
        self.check(&format!(
            "(echo 1000 >/proc/self/oom_score_adj; exec dd if=/dev/zero of=/run/filler/all bs=1M count={fill} 2>/dev/null) || true"
        ))?;
        Ok(())
    }

    /// Gives the memory back.
    pub fn empty_fast_node(&mut self) -> Result<()> {
        self.check("rm /run/filler/all && umount /run/filler")
            .map(drop)
    }
}
