//! The plugin by which the emulator's slow node costs something, and its counters.
//!
//! Responsible for: building it, QEMU's option for it, and its file. It leaves to others: what is measured by it
//! ([`crate::measure::proof`]).

use std::fs::{self, File};
use std::iter::Sum;
use std::ops::{Add, Sub};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{emulator, options as machine};
use crate::{host, places};

/// Path of the plugin's counters in the machine's folder.
pub const COUNTERS: &str = "slow_node.counters";

/// The modelled cache of a processor if nothing else is asked for, KiB.
pub const CACHE_KIB: u64 = 1024;

/// Ranges of L1's nodes: the first 2 GiB, and the 2 GiB that q35 puts above the hole for devices.
const NODES: [(u64, u64); 2] = [(0, 2 << 30), (4 << 30, 2 << 30)];

const SOURCE: &str = "lab/plugins/slow_node.c";
const MAGIC: u64 = 0x3165_6c6f_6e77_6c73;
const COMPILER: &str = "gcc-12";
const COMPILER_PATH: &str = "usr/bin/gcc-12";

/// Places in the plugin's file, in words: settings of a node, counts of a processor, counts of it in a node.
const SETTINGS: usize = 8;
const COUNTS: usize = 64;
const CPU_STRIDE: usize = 64;
const NODE_STRIDE: usize = 8;
/// Place of the delay among a node's settings.
const DELAY: usize = 2;

/// Accesses of all processors to one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub loads: u64,
    pub stores: u64,
    /// Of these, those that the modelled cache had not.
    pub load_misses: u64,
    pub store_misses: u64,
}

impl Counts {
    /// Accesses that the modelled cache had not.
    pub fn misses(self) -> u64 {
        self.load_misses + self.store_misses
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            loads: self.loads + other.loads,
            stores: self.stores + other.stores,
            load_misses: self.load_misses + other.load_misses,
            store_misses: self.store_misses + other.store_misses,
        }
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        let since = u64::saturating_sub;
        Self {
            loads: since(self.loads, before.loads),
            stores: since(self.stores, before.stores),
            load_misses: since(self.load_misses, before.load_misses),
            store_misses: since(self.store_misses, before.store_misses),
        }
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Self::add)
    }
}

/// QEMU's options for the plugin, with a cache of so many KiB for each processor. Its counters are in the machine's folder.
///
/// # Errors
/// If it cannot be built, or no plugin for this QEMU is known.
pub fn options(cache_kib: u64) -> Result<Vec<String>> {
    let plugin = build()?;
    let nodes = NODES.map(|(base, size)| format!("node={base:#x}:{size:#x}"));
    let option = format!(
        "file={},out={COUNTERS},{},cache_kib={cache_kib}",
        plugin.display(),
        nodes.join(",")
    );
    Ok(vec!["-plugin".to_owned(), option])
}

/// The version of the plugin API by which the plugin is built for this machine's emulator.
///
/// # Errors
/// If L1 is not emulated, or no plugin for this QEMU is known.
pub fn api() -> Result<u32> {
    ensure!(
        !machine::wants_kvm(),
        "TERRACE_LAB_ACCEL=kvm has L1 run on the processor, where no plugin sees its accesses"
    );
    emulator::plugin_api()
}

fn build() -> Result<PathBuf> {
    let api = api()?;
    host::install(&[(COMPILER, COMPILER_PATH)])?;
    let library = places::lab("plugins")?.join(format!("slow_node-{api}.so"));
    let mut compile = Command::new(host::find(COMPILER_PATH)?);
    compile
        .arg(format!("-DAPI={api}"))
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"])
        .arg("-fvisibility=hidden")
        .arg(places::repository().join(SOURCE))
        .arg("-o")
        .arg(&library);
    host::output(&mut compile)?;
    Ok(library)
}

/// The file of a running machine's plugin.
pub struct SlowNode {
    file: File,
    cpus: usize,
}

impl SlowNode {
    /// Opens the counters in a machine's folder.
    ///
    /// # Errors
    /// If the plugin does not run there.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(COUNTERS);
        let what = || format!("the plugin's counters in {}", path.display());
        let file = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .with_context(what)?;
        let values = values(&fs::read(&path).with_context(what)?);
        ensure!(
            values.first() == Some(&MAGIC) && values.get(2) == Some(&(NODES.len() as u64)),
            "{} are not those of this plugin",
            what()
        );
        let cpus = usize::try_from(values[1])?;
        Ok(Self { file, cpus })
    }

    /// The counts of each node up to now.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn counts(&self) -> Result<[Counts; NODES.len()]> {
        let mut bytes = vec![0; (COUNTS + self.cpus * CPU_STRIDE) * 8];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(counts(&values(&bytes), self.cpus))
    }

    /// Sets what a miss on a node takes longer, ns.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn delay(&self, node: usize, ns: u64) -> Result<()> {
        let value = SETTINGS + node * NODE_STRIDE + DELAY;
        Ok(self
            .file
            .write_all_at(&ns.to_le_bytes(), value as u64 * 8)?)
    }
}

fn values(bytes: &[u8]) -> Vec<u64> {
    let values = bytes.as_chunks::<8>().0.iter();
    values.map(|value| u64::from_le_bytes(*value)).collect()
}

fn counts(values: &[u64], cpus: usize) -> [Counts; NODES.len()] {
    std::array::from_fn(|node| {
        (0..cpus)
            .map(|cpu| {
                let at = COUNTS + cpu * CPU_STRIDE + node * NODE_STRIDE;
                Counts {
                    loads: values[at],
                    stores: values[at + 1],
                    load_misses: values[at + 2],
                    store_misses: values[at + 3],
                }
            })
            .sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_all_processors_by_node() {
        let mut values = vec![0; COUNTS + 2 * CPU_STRIDE];
        values[COUNTS] = 5;
        values[COUNTS + CPU_STRIDE] = 7;
        values[COUNTS + CPU_STRIDE + NODE_STRIDE + 3] = 11;
        let [fast, slow] = counts(&values, 2);
        assert_eq!((fast.loads, fast.misses()), (12, 0));
        assert_eq!((slow.loads, slow.store_misses, slow.misses()), (0, 11, 11));
        assert_eq!((slow - fast).loads, 0, "a file that began anew");
    }

    #[test]
    fn a_file_of_another_program_is_refused() {
        let folder = std::env::temp_dir().join(format!("slow-node-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(COUNTERS), [0; 4096]).expect("a file");
        assert!(SlowNode::open(&folder).is_err());
        fs::remove_dir_all(&folder).expect("the folder");
    }
}
