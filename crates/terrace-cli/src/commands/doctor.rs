//! `terrace doctor`: exit code 1 where something does not work.

use std::process::ExitCode;

use anyhow::Result;
use terrace_api::client::Client;
use terrace_api::types::{Doctor, Finding, Health};

use super::print_json;

pub async fn run(client: &Client, json: bool) -> Result<ExitCode> {
    let doctor: Doctor = client.get("/v1/doctor").await?;
    if json {
        print_json(&doctor)?;
    } else {
        print!("{}", section("host", &doctor.host));
        for (name, findings) in &doctor.vms {
            print!("\n{}", section(name, findings));
        }
    }
    let mut all = doctor.host.iter().chain(doctor.vms.values().flatten());
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
