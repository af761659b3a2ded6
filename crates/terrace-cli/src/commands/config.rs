//! `terrace config check [FILE]`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use terrace_config::{Config as DaemonConfig, Problem, Sources};

use super::print_json;
use crate::args::Config;

/// The output of `--json`.
#[derive(Serialize)]
struct Report {
    valid: bool,
    /// The files, in the order in which they override each other; empty if one could not be read.
    files: Vec<PathBuf>,
    problem: Option<Problem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effective: Option<serde_json::Value>,
}

pub fn run(command: &Config) -> Result<ExitCode> {
    let Config::Check {
        file,
        effective,
        json,
    } = command;
    let sources = Sources::read(file.as_deref());
    let checked = match &sources {
        Ok(sources) => DaemonConfig::new(sources),
        Err(problem) => Err(problem.clone()),
    };
    for renamed in checked.iter().flat_map(|c| c.engine.renamed_policies()) {
        eprintln!("terrace: {renamed}");
    }
    let problem = checked.err();
    let sources = sources.unwrap_or_default();
    for renamed in sources.renamed() {
        eprintln!("terrace: {renamed}");
    }
    if *json {
        let table = effective.then(|| sources.effective_table());
        print_json(&Report {
            valid: problem.is_none(),
            files: sources.files().map(Path::to_owned).collect(),
            problem: problem.clone(),
            effective: table.map(serde_json::to_value).transpose()?,
        })?;
    }
    if let Some(problem) = problem {
        return Err(problem.into());
    }
    if !json {
        if *effective {
            print!("{}", sources.effective());
        }
        let comment = if *effective { "# " } else { "" };
        println!("{comment}valid: {}", sources.text());
    }
    Ok(ExitCode::SUCCESS)
}
