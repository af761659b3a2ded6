//! `terrace config check [FILE]`.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use terrace_api::plain;
use terrace_config::{Config as DaemonConfig, Problem, Sources, shown};
use terrace_proto::printable::printable;

use super::print_json;
use crate::args::Config;
use crate::output;

/// The output of `--json`.
#[derive(Serialize)]
struct Report {
    valid: bool,
    /// The files, in the order in which they override each other; empty if one could not be read.
    files: Vec<String>,
    problem: Option<Problem>,
    /// Settings that are valid and do not what they seem to.
    warnings: Vec<String>,
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
    let mut warnings = Vec::new();
    if let Ok(config) = &checked {
        warnings.extend(config.engine.renamed_policies());
        warnings.extend(config.warnings());
    }
    let problem = checked.err();
    let sources = sources.unwrap_or_default();
    warnings.extend(sources.renamed().map(str::to_owned));
    for warning in &warnings {
        output::tell(format_args!("terrace: warning: {}", printable(warning)));
    }
    if *json {
        let table = effective.then(|| sources.effective_table());
        let mut report = serde_json::to_value(Report {
            valid: problem.is_none(),
            files: sources.files().map(shown).collect(),
            problem: problem.clone(),
            warnings,
            effective: table.map(serde_json::to_value).transpose()?,
        })?;
        plain::escape(&mut report);
        print_json(&report)?;
    }
    if let Some(problem) = problem {
        return Err(problem.into());
    }
    if !json {
        if *effective {
            output::print(sources.effective())?;
        }
        let comment = if *effective { "# " } else { "" };
        output::print_line(format_args!("{comment}valid: {}", sources.text()))?;
    }
    Ok(ExitCode::SUCCESS)
}
