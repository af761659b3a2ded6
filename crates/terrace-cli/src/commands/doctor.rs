//! `terrace doctor`: exit code 1 if something does not work.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use terrace_api::client::{Client, ClientError};
use terrace_api::types::{Doctor, Finding, Health};

use super::{doctor_alone, print_json};
use crate::output;

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    daemon: Daemon<'a>,
    #[serde(flatten)]
    doctor: &'a Doctor,
}

/// The daemon's part of the output: whether it answered.
#[derive(Serialize)]
struct Daemon<'a> {
    answers: bool,
    #[serde(flatten)]
    finding: Option<&'a Finding>,
}

pub async fn run(
    client: &Client,
    socket: &Path,
    config: Option<&Path>,
    json: bool,
) -> Result<ExitCode> {
    let (doctor, unreached) = match client.get("/v1/doctor").await {
        Ok(doctor) => (doctor, None),
        // The daemon is there, and has given its reason.
        Err(error @ ClientError::Refused(_)) => return Err(error.into()),
        Err(error) => {
            let (doctor, daemon) = doctor_alone::inspect(&error, socket, config);
            (doctor, Some(daemon))
        }
    };
    if json {
        let daemon = Daemon {
            answers: unreached.is_none(),
            finding: unreached.as_ref(),
        };
        print_json(&Report {
            daemon,
            doctor: &doctor,
        })?;
    } else {
        if let Some(daemon) = &unreached {
            output::print_line(section("daemon", std::slice::from_ref(daemon)))?;
        }
        output::print(section("host", &doctor.host))?;
        for (name, findings) in &doctor.vms {
            output::print(format_args!("\n{}", section(name, findings)))?;
        }
    }
    if let Some(daemon) = &unreached {
        output::tell(format_args!("terrace: {}", daemon.found));
    }
    let findings = doctor.host.iter().chain(doctor.vms.values().flatten());
    let mut all = findings.chain(&unreached);
    Ok(if all.any(|f| f.health == Health::Missing) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn section(title: &str, findings: &[Finding]) -> String {
    let mut out = format!("{title}\n");
    for f in findings {
        let mark = match f.health {
            Health::Ok => "ok      ",
            Health::Degraded => "degraded",
            Health::Missing => "missing ",
        };
        out += &format!("  {mark}  {:<18} {}\n", f.name, f.found);
        if let Some(advice) = &f.advice {
            out += &format!("  {:<8}  {:<18} -> {advice}\n", "", "");
        }
    }
    out
}
