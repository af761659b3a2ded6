//! Options of the workload, from the kernel command line.

use std::fs;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use terrace_lab_programs::hotset::Layout;

/// The workload's size and behaviour.
pub struct Options {
    pub region_mib: usize,
    pub hot_percent: usize,
    pub seed: u64,
    pub layout: Layout,
    pub thp: bool,
    /// The guest's node on which the region starts.
    pub node: u32,
    pub pause_ms: i32,
}

impl Options {
    pub fn from_kernel_command_line() -> Result<Self> {
        let line = fs::read_to_string("/proc/cmdline").context("cannot read /proc/cmdline")?;
        Self::parse(&line)
    }

    fn parse(line: &str) -> Result<Self> {
        let layout = match (value(line, "sparse", 0)?, value(line, "clustered", 0)?) {
            (0, 0) => Layout::Scattered,
            (0, _) => Layout::Clustered,
            (each, _) => Layout::Sparse { each },
        };
        Ok(Self {
            region_mib: value(line, "region", 192)?,
            hot_percent: value(line, "hot", 10)?,
            seed: value(line, "seed", 1)?,
            layout,
            thp: value(line, "thp", 0)? != 0,
            node: value(line, "node", 0)?,
            pause_ms: value(line, "pause_ms", 20)?,
        })
    }
}

fn value<T: FromStr>(line: &str, key: &str, default: T) -> Result<T> {
    let mut pairs = line.split_whitespace().filter_map(|w| w.split_once('='));
    // As for the kernel's own options, the last one counts.
    match pairs.rfind(|(name, _)| *name == key) {
        None => Ok(default),
        Some((_, text)) => text
            .parse()
            .map_err(|_| anyhow!("{key}={text} on the kernel command line is no number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_defaults_and_the_last_one_counts() {
        let options = Options::parse("console=ttyS0 region=64 quiet region=32 thp=1\n").unwrap();
        assert_eq!(options.region_mib, 32);
        assert_eq!(options.hot_percent, 10);
        assert!(options.thp);
        assert!(Options::parse("hot=many").is_err());
    }
}
