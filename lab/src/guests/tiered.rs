//! Shared parts of guests with a node per tier.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::control::lab::Lab;
use crate::places;

/// Number of tiers: fast and slow.
pub const TIERS: usize = 2;

pub const MIB: u64 = 1 << 20;

/// QEMU's options by which the firmware says that the second node is slower, so that the guest's kernel has memory tiers.
pub fn distances() -> String {
    let mut text = " -numa dist,src=0,dst=1,val=30".to_owned();
    for (node, latency, bandwidth) in [(0, 80, "80G"), (1, 250, "20G")] {
        let of = format!(" -numa hmat-lb,initiator=0,target={node},hierarchy=memory");
        text.push_str(&format!(
            "{of},data-type=access-latency,latency={latency}\
             {of},data-type=access-bandwidth,bandwidth={bandwidth}"
        ));
    }
    text
}

/// A number from the `meminfo` of a guest's node, in bytes.
pub fn meminfo(lab: &mut Lab, node: usize, name: &str) -> Result<u64> {
    let path = format!("/sys/devices/system/node/node{node}/meminfo");
    let text = lab.check(&format!("cat {path}"))?;
    let line = text.lines().find(|line| line.contains(name));
    let number = line.and_then(|line| line.split_whitespace().nth(3));
    let kib: u64 = number
        .with_context(|| format!("no {name} in {path}"))?
        .parse()?;
    Ok(kib << 10)
}

/// Free memory of a guest's node, bytes, with what rests in the lists of each processor: up to an eighth of the node may
/// stay there for a minute, and `MemFree` does not count it.
pub fn free_bytes(lab: &mut Lab, node: usize) -> Result<u64> {
    let pages = lab.check(&format!(
        "awk '/^Node/ {{ on = ($2 == \"{node},\") }} \
         on && ($1 == \"nr_free_pages\" || $1 == \"count:\") {{ n += $2 }} \
         END {{ print n }}' /proc/zoneinfo"
    ))?;
    let pages: u64 = pages.trim().parse().context("free pages in zoneinfo")?;
    Ok(pages * 4096)
}

/// Bytes of this machine's memory behind each memory backend of a machine, by the kernel's count and in the order of
/// QEMU's options.
pub fn host_bytes(machine: &str) -> Result<Vec<u64>> {
    let files = host_files(machine)?;
    let bytes = |path| Ok(fs::metadata(path)?.blocks() * 512);
    files.into_iter().map(bytes).collect()
}

/// The files behind the memory backends of a machine, in the order of QEMU's options, among the descriptors of its
/// QEMU.
pub fn host_files(machine: &str) -> Result<Vec<PathBuf>> {
    let pid = fs::read_to_string(places::lab("run")?.join(machine).join("pid"))?;
    let mut fds = Vec::new();
    for entry in fs::read_dir(PathBuf::from(format!("/proc/{pid}/fd")))? {
        let path = entry?.path();
        let Ok(target) = fs::read_link(&path) else {
            continue;
        };
        let is_memory = target.to_string_lossy().contains("memory-backend-memfd");
        if let (true, Some(name)) = (is_memory, path.file_name()) {
            fds.push((name.to_string_lossy().parse::<u32>()?, path));
        }
    }
    fds.sort();
    Ok(fds.into_iter().map(|(_, path)| path).collect())
}

/// Fails if a guest's kernel complained after the line with this word.
pub fn expect_a_quiet_kernel(lab: &mut Lab, after: &str) -> Result<()> {
    let log = lab.check(&format!("dmesg | sed 1,/{after}/d"))?;
    for word in [
        "BUG",
        "WARNING",
        "Oops",
        "Bad page",
        "Out of memory",
        "hung",
    ] {
        if let Some(line) = log.lines().find(|line| line.contains(word)) {
            bail!("the guest's kernel: {line}\n{log}");
        }
    }
    Ok(())
}
