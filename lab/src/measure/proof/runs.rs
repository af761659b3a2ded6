//! The runs of a proof: which there are, in an order that is drawn, and the file with those that were made.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::row::Row;
use super::way::Way;
use crate::progress::say;

/// The settings that all runs of a proof share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Seconds for which misses are counted.
    pub seconds: u64,
    /// Additional time of a miss in slow memory, ns.
    pub delay_ns: u64,
    /// The modelled cache of each processor, KiB.
    pub cache_kib: u64,
    /// Seed of the order.
    pub seed: u64,
}

/// A proof's runs so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Runs {
    pub settings: Settings,
    /// One row for each run of each way to place pages, in the order in which they were made.
    pub rows: Vec<Row>,
}

impl Runs {
    /// None yet.
    fn new(settings: Settings) -> Self {
        Self {
            settings,
            rows: Vec::new(),
        }
    }

    /// Those of a file.
    ///
    /// # Errors
    /// If it cannot be read, or its settings are others.
    pub fn resume(path: &Path, settings: &Settings) -> Result<Self> {
        let what = || format!("cannot go on with {}", path.display());
        let text = fs::read_to_string(path).with_context(what)?;
        let runs: Self = serde_json::from_str(&text).with_context(what)?;
        ensure!(
            runs.settings == *settings,
            "{}: its runs are of other settings, {:?}; give the same, or leave --resume out to begin anew",
            path.display(),
            runs.settings
        );
        Ok(runs)
    }

    /// None yet. Those of before, if the file has some, stay beside it, since they took long.
    ///
    /// # Errors
    /// If they cannot be put aside.
    pub fn anew(path: &Path, settings: Settings) -> Result<Self> {
        if path.exists() {
            let before = path.with_extension("before.json");
            fs::rename(path, &before)
                .with_context(|| format!("cannot put {} aside", path.display()))?;
            say(&format!("the runs of before are in {}", before.display()));
        }
        Ok(Self::new(settings))
    }

    /// Writes them to a file, which is whole at each moment.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let what = || format!("cannot write {}", path.display());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(what)?;
        }
        let new = path.with_extension("new");
        let json = serde_json::to_string_pretty(self)? + "\n";
        fs::write(&new, json).with_context(what)?;
        fs::rename(&new, path).with_context(what)
    }

    /// Whether a run of a way was made.
    pub fn has(&self, way: Way, run: u32) -> bool {
        let mut rows = self.rows.iter();
        rows.any(|row| row.run == run && row.name == way.name())
    }
}

/// All runs of some ways, in the order of a seed: each run has each way once.
pub fn drawn(ways: &[Way], runs: u32, seed: u64) -> Vec<(u32, Way)> {
    let mut order = Vec::new();
    for run in 1..=runs {
        let mut random = Xoshiro256StarStar::seed_from_u64(seed ^ u64::from(run) << 32);
        let mut left = ways.to_vec();
        while !left.is_empty() {
            let at = usize::try_from(random.next_u64() % left.len() as u64).unwrap_or(0);
            order.push((run, left.remove(at)));
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            seconds: 24,
            delay_ns: 220,
            cache_kib: 1024,
            seed: 1,
        }
    }

    #[test]
    fn each_run_has_each_way_once_in_an_order_of_its_own() {
        let order = drawn(&Way::ALL, 3, 1);
        for run in 1..=3 {
            let mut ways = order.iter().filter(|(of, _)| *of == run);
            assert!(Way::ALL.iter().all(|way| order.contains(&(run, *way))));
            assert_eq!(ways.by_ref().count(), Way::ALL.len());
        }
        let first: Vec<Way> = order[..Way::ALL.len()]
            .iter()
            .map(|(_, way)| *way)
            .collect();
        let second: Vec<Way> = order[Way::ALL.len()..][..Way::ALL.len()]
            .iter()
            .map(|(_, way)| *way)
            .collect();
        assert_ne!(first, second);
        assert_eq!(order, drawn(&Way::ALL, 3, 1));
        assert_ne!(order, drawn(&Way::ALL, 3, 2));
    }

    #[test]
    fn runs_that_were_made_are_not_made_again() {
        let folder = std::env::temp_dir().join(format!("proof-{}", std::process::id()));
        let path = folder.join("proof.json");
        let mut runs = Runs::new(settings());
        runs.rows.push(Row {
            name: Way::Terrace.name().into(),
            run: 2,
            ..Row::default()
        });
        runs.write(&path).unwrap();
        let read = Runs::resume(&path, &settings()).unwrap();
        assert_eq!(read, runs);
        assert!(read.has(Way::Terrace, 2));
        assert!(!read.has(Way::Terrace, 1) && !read.has(Way::Vtmm, 2));
        let others = Settings {
            delay_ns: 0,
            ..settings()
        };
        let error = Runs::resume(&path, &others).unwrap_err().to_string();
        assert!(
            error.contains("other settings") && error.contains("220"),
            "{error}"
        );
        assert!(Runs::anew(&path, settings()).unwrap().rows.is_empty());
        let before = Runs::resume(&folder.join("proof.before.json"), &settings());
        assert_eq!(before.unwrap(), runs);
        fs::remove_dir_all(folder).unwrap();
    }
}
