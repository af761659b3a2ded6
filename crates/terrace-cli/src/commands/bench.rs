//! `terrace bench`: the rows of the fast paths, each beside a baseline measured in the same run.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::args::Bench;

/// One row.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    value: f64,
    unit: &'static str,
    baseline_name: Option<&'static str>,
    baseline: Option<f64>,
    ratio: Option<f64>,
}

/// How a row is measured.
type Measure = fn() -> Row;

const ROWS: [(&str, Measure); 0] = [];

pub fn run(args: &Bench) -> Result<ExitCode> {
    if cfg!(debug_assertions) {
        bail!(
            "figures of a debug build mean nothing: use `cargo run --release -p terrace-cli -- bench`"
        );
    }
    let _ = (args, ROWS);
    Ok(ExitCode::SUCCESS)
}
