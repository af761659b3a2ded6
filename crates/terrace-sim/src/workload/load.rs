//! Loads as scenarios write them: one table with the kind, its keys, and when it ends.
//!
//! The table is read whole; a preset adds the keys that are missing; the common keys are taken out, and the rest must
//! be the kind's own keys.

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use toml::{Table, Value};

use super::phases::Phases;
use super::{Workload, WorkloadError, WorkloadKind, presets, values};
use crate::base::access::Pace;
use crate::base::load::Stop;

/// A load, and its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The load's kind and its keys.
    pub workload: Workload,
    /// The end of the load.
    pub stop: Stop,
}

/// Every kind, with its default pace: time of the processor per access (ns) and parallelism. Estimates; the reasons
/// are in `docs/workloads.md`.
pub(super) const KINDS: [(&str, f64, f64); 17] = [
    ("hotset", 10.0, 4.0),
    ("sequential", 5.0, 8.0),
    ("gups", 5.0, 4.0),
    ("zipf", 10.0, 4.0),
    ("gauss", 10.0, 4.0),
    ("kv", 50.0, 2.0),
    ("ycsb", 50.0, 2.0),
    ("graph", 5.0, 4.0),
    ("btree", 10.0, 1.0),
    ("xsbench", 5.0, 3.0),
    ("stencil", 5.0, 8.0),
    ("multigrid", 5.0, 8.0),
    ("linear", 5.0, 6.0),
    ("swapmix", 10.0, 4.0),
    ("masim", 2.0, 4.0),
    ("phases", 0.0, 1.0),
    ("trace", 0.0, 1.0),
];

/// Keys that loads of all kinds share.
#[derive(Deserialize)]
struct Common {
    #[serde(default, deserialize_with = "values::optional_time")]
    duration: Option<u64>,
    #[serde(default, deserialize_with = "values::operations")]
    ops: Option<u64>,
    #[serde(default, deserialize_with = "values::compute_ns")]
    compute_ns: Option<f64>,
    #[serde(default, deserialize_with = "values::parallelism")]
    parallelism: Option<f64>,
    before_cache: Option<bool>,
}

impl<'de> Deserialize<'de> for Load {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut load = Draft::new(Table::deserialize(from)?).map_err(D::Error::custom)?;
        let stop = load.stop().map_err(D::Error::custom)?;
        let workload = load.workload.clone();
        Ok(Self { workload, stop })
    }
}

/// A load whose end may be missing.
pub(super) struct Draft {
    pub(super) kind: &'static str,
    pub(super) workload: Workload,
    /// The load's own end, if it is given.
    pub(super) own: Option<Stop>,
}

impl Draft {
    pub(super) fn new(mut table: Table) -> Result<Self, WorkloadError> {
        let (kind, compute_ns, parallelism) = kind_of(&mut table)?;
        let in_kind = |why: String| WorkloadError(format!("workload of kind {kind:?}: {why}"));
        presets::apply(kind, &mut table).map_err(in_kind)?;
        let mut common = Table::new();
        let keys: &[&str] = match kind {
            // A trace has keys of these names of its own, phases have them each.
            "trace" | "phases" => &["duration", "ops"],
            _ => &[
                "duration",
                "ops",
                "compute_ns",
                "parallelism",
                "before_cache",
            ],
        };
        for key in keys {
            if let Some(value) = table.remove(*key) {
                common.insert((*key).to_owned(), value);
            }
        }
        let common: Common = parse(common).map_err(in_kind)?;
        let own = match (common.duration, common.ops) {
            (Some(_), Some(_)) => {
                return Err(in_kind(
                    "duration and ops: give one of them, not both".into(),
                ));
            }
            (Some(ns), None) => Some(Stop::Duration(ns)),
            (None, Some(ops)) => Some(Stop::Ops(ops)),
            (None, None) => None,
        };
        let workload = Workload {
            kind: parse_kind(kind, table).map_err(in_kind)?,
            pace: Pace {
                compute_ns: common.compute_ns.unwrap_or(compute_ns),
                parallelism: common.parallelism.unwrap_or(parallelism),
                // Generators make the accesses of a program.
                before_cache: common.before_cache.unwrap_or(true),
            },
        };
        Ok(Self {
            kind,
            workload,
            own,
        })
    }

    fn stop(&mut self) -> Result<Stop, WorkloadError> {
        if let WorkloadKind::Phases(phases) = &mut self.workload.kind {
            return phases.settle(self.own);
        }
        match (self.own, &self.workload.kind) {
            (Some(stop), _) => Ok(stop),
            (None, WorkloadKind::Masim(_) | WorkloadKind::Trace(_)) => Ok(Stop::Trace),
            (None, _) => Err(WorkloadError(format!(
                "workload of kind {:?}: it does not say when it ends: give duration = \"600s\" or \
                 ops = 1000000",
                self.kind
            ))),
        }
    }
}

fn kind_of(table: &mut Table) -> Result<(&'static str, f64, f64), WorkloadError> {
    let names = || KINDS.map(|(name, ..)| name).join(", ");
    match table.remove("kind") {
        Some(Value::String(kind)) => KINDS
            .into_iter()
            .find(|(name, ..)| *name == kind)
            .ok_or_else(|| {
                WorkloadError(format!(
                    "kind = {kind:?} is no kind of workload: allowed are {}",
                    names()
                ))
            }),
        Some(other) => Err(WorkloadError(format!(
            "kind = {other} is no text: allowed are {}",
            names()
        ))),
        None => Err(WorkloadError(format!(
            "a workload needs a kind: one of {}",
            names()
        ))),
    }
}

fn parse_kind(kind: &str, table: Table) -> Result<WorkloadKind, String> {
    Ok(match kind {
        "hotset" => WorkloadKind::Hotset(parse(table)?),
        "sequential" => WorkloadKind::Sequential(parse(table)?),
        "gups" => WorkloadKind::Gups(parse(table)?),
        "zipf" => WorkloadKind::Zipf(parse(table)?),
        "gauss" => WorkloadKind::Gauss(parse(table)?),
        "kv" => WorkloadKind::Kv(parse(table)?),
        "ycsb" => WorkloadKind::Ycsb(parse(table)?),
        "graph" => WorkloadKind::Graph(parse(table)?),
        "btree" => WorkloadKind::Btree(parse(table)?),
        "xsbench" => WorkloadKind::Xsbench(parse(table)?),
        "stencil" => WorkloadKind::Stencil(parse(table)?),
        "multigrid" => WorkloadKind::Multigrid(parse(table)?),
        "linear" => WorkloadKind::Linear(parse(table)?),
        "swapmix" => WorkloadKind::Swapmix(parse(table)?),
        "masim" => WorkloadKind::Masim(parse(table)?),
        "phases" => WorkloadKind::Phases(Phases::new(table)?),
        _ => WorkloadKind::Trace(parse(table)?),
    })
}

/// Reads a table; an error names the key and is one line.
pub(super) fn parse<T: DeserializeOwned>(table: Table) -> Result<T, String> {
    let read: Result<T, toml::de::Error> = Value::Table(table).try_into();
    read.map_err(|why| {
        let text = why.to_string();
        // The key stands in a line below, if there is one.
        match text.trim_end().rsplit_once("\nin ") {
            Some((what, key)) => format!("{key}: {what}"),
            None => text.trim_end().to_owned(),
        }
    })
}
