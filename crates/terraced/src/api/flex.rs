//! Elastic memory: the API's way to the HyperFlex device of a VM.
//!
//! Devices are asked on threads of their own: one that hangs keeps neither the daemon nor other requests waiting.

use std::path::PathBuf;
use std::time::Duration;

use terrace_api::flex::{Flex, FlexTier, Resize};
use terrace_api::types::Done;
use terrace_hyperflex::control::{Client, ClientError, Status};

use super::Failure;

/// How long what is shown of a VM waits for its device.
const PATIENCE: Duration = Duration::from_secs(5);

/// How the device with this control socket stands, or why that is not known.
pub async fn look(control: PathBuf) -> Flex {
    let client = Client::new(&control);
    let control = control.display().to_string();
    let asked = tokio::task::spawn_blocking(move || client.status(true));
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(Ok(status))) => view(control, &status),
        Ok(Ok(Err(error))) => unknown(control, error.to_string()),
        Ok(Err(error)) => unknown(control, format!("asking it failed: {error}")),
        Err(_) => {
            let why = format!("no answer within {} s", PATIENCE.as_secs());
            unknown(control, why)
        }
    }
}

/// Orders sizes of a VM's device; it has none where `control` is absent.
pub async fn resize(
    name: String,
    control: Option<PathBuf>,
    sizes: Resize,
) -> Result<Done, Failure> {
    let Some(control) = control else {
        return Err(Failure::NotNow(format!(
            "{name} has no HyperFlex device: say hyperflex = \"/path/control.sock\" under [vm.{name}] where \
             one runs. Not yet by virtio-mem or the balloon"
        )));
    };
    let client = Client::new(&control);
    let ordered = tokio::task::spawn_blocking(move || order(&client, &name, sizes)).await;
    ordered.map_err(|error| Failure::NotNow(format!("asking the device failed: {error}")))?
}

fn order(client: &Client, name: &str, sizes: Resize) -> Result<Done, Failure> {
    let asked = [sizes.fast_bytes, sizes.slow_bytes];
    if asked == [None; 2] {
        let why = "say what to resize: fast_bytes, slow_bytes or both".into();
        return Err(Failure::Invalid(why));
    }
    let tiers = client.status(false).map_err(failure)?.tiers.len();
    if asked.iter().skip(tiers).any(Option::is_some) {
        let why = format!("{name}'s device has {tiers} tiers: there is no slow one to resize");
        return Err(Failure::Invalid(why));
    }
    let mut by_tier = vec![None; tiers];
    by_tier
        .iter_mut()
        .zip(asked)
        .for_each(|(to, from)| *to = from);
    let generation = client.resize(&by_tier).map_err(failure)?;
    let text =
        |tier: &str, bytes: Option<u64>| bytes.map(|n| format!("{tier} {}", bytesize::ByteSize(n)));
    let sizes = [text("fast", asked[0]), text("slow", asked[1])];
    let sizes: Vec<String> = sizes.into_iter().flatten().collect();
    Ok(Done {
        done: format!(
            "{name}: {} is ordered by HyperFlex (targets {generation}); `terrace show {name}` tells how far it is",
            sizes.join(", ")
        ),
    })
}

fn failure(error: ClientError) -> Failure {
    match error {
        ClientError::Refused(why) => Failure::Invalid(why),
        ClientError::Socket { .. } | ClientError::Answer { .. } => {
            Failure::NotNow(error.to_string())
        }
    }
}

fn unknown(control: String, problem: String) -> Flex {
    Flex {
        control,
        problem: Some(problem),
        connected: false,
        told: false,
        total_bytes: None,
        refused_entries: 0,
        tiers: Vec::new(),
    }
}

fn view(control: String, status: &Status) -> Flex {
    let tier = |tier: &terrace_hyperflex::control::TierStatus| FlexTier {
        node: tier.node,
        whole_bytes: tier.whole_bytes,
        target_bytes: tier.target_bytes,
        size_bytes: tier.size_bytes,
        present_bytes: tier.verified.map(|seen| seen.present_bytes),
        honesty: tier.honesty,
        is_stuck: tier.guest.is_stuck,
    };
    Flex {
        control,
        problem: None,
        connected: status.connected,
        told: status.told,
        total_bytes: status.total_bytes,
        refused_entries: status.counters.refused(),
        tiers: status.tiers.iter().map(tier).collect(),
    }
}
