//! `terrace events [--follow]`.

use std::time::Duration;

use anyhow::Result;
use terrace_api::client::Client;
use terrace_api::types::EventLine;

use crate::output;

/// Time between two questions of `--follow`.
const POLL: Duration = Duration::from_millis(500);

pub async fn run(client: &Client, follow: bool, json: bool) -> Result<()> {
    let mut after = 0;
    loop {
        let events: Vec<EventLine> = client.get(&format!("/v1/events?after={after}")).await?;
        for event in &events {
            after = event.sequence;
            if json {
                output::print_line(serde_json::to_string(event)?)?;
            } else {
                let vm = event.vm.as_deref().unwrap_or("host");
                output::print_line(format_args!(
                    "{:>9.1} s  {vm:<12} {}",
                    event.at_s, event.text
                ))?;
            }
        }
        if !follow {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}
