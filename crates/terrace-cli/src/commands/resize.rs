//! `terrace resize VM`.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use terrace_api::client::{Client, segment};
use terrace_api::old_keys;
use terrace_api::provision::{OrderState, Ordered, ProvisionedTier, ProvisioningStatus, Resize};
use terrace_api::types::VmDetail;

use super::print_json;
use super::provisioning::state;
use crate::args;
use crate::output;

/// Time between two queries of a resize.
const STEP: Duration = Duration::from_millis(500);
/// Time without an answer of the VM's device or monitor after which there is no use in waiting.
const GONE: Duration = Duration::from_secs(30);

pub async fn run(client: &Client, args: args::Resize) -> Result<ExitCode> {
    let sizes = match args.total {
        Some(total) => whole(client, &args.vm, total.as_u64()).await?,
        None => Resize {
            fast_bytes: args.fast.map(|size| size.as_u64()),
            slow_bytes: args.slow.map(|size| size.as_u64()),
            tiers_bytes: args.tiers.as_ref().map(|tiers| {
                let sizes = tiers.iter().map(|tier| tier.0.map(|size| size.as_u64()));
                sizes.collect()
            }),
        },
    };
    let vm = segment(&args.vm);
    let ordered: Ordered = client.post(&format!("/v1/vms/{vm}/resize"), &sizes).await?;
    if !args.wait {
        if args.json {
            output::print_line(old_keys::with_old(&ordered)?)?;
        } else {
            output::print_line(&ordered.done)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !args.json {
        output::print_line(&ordered.done)?;
    }
    let waited = wait(client, &args, &ordered).await;
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let provisioning = waited?;
    if args.json {
        print_json(&old_keys::with_old(&provisioning)?)?;
    } else {
        output::print_line(format_args!("{}: {}", args.vm, state(&provisioning)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The sizes by which a VM has so much in all. Of one with tiers nobody said which tier that is to be.
async fn whole(client: &Client, vm: &str, total: u64) -> Result<Resize> {
    let detail: VmDetail = client.get(&format!("/v1/vms/{}", segment(vm))).await?;
    let tiers = detail
        .provisioning
        .map(|provisioning| provisioning.tiers.len());
    match tiers.unwrap_or(0) {
        1 => Ok(Resize {
            fast_bytes: Some(total),
            slow_bytes: Some(0),
            ..Resize::default()
        }),
        0 => bail!(
            "{vm}: what sizes its memory is not known yet; for a VM with a balloon say --fast SIZE --slow 0"
        ),
        tiers => {
            bail!("{vm} has {tiers} tiers: say the size of each by --fast and --slow, or --tiers")
        }
    }
}

/// Waits until every tier of the order has its size.
async fn wait(
    client: &Client,
    args: &args::Resize,
    ordered: &Ordered,
) -> Result<ProvisioningStatus> {
    let path = format!("/v1/vms/{}", segment(&args.vm));
    let until = args.timeout.map(|timeout| Instant::now() + timeout);
    let mut gone_since = None;
    let shows = std::io::stderr().is_terminal() && !args.json;
    loop {
        let detail: VmDetail = client.get(&path).await?;
        let Some(provisioning) = detail.provisioning else {
            bail!("{}: it has no resizable memory any more", args.vm);
        };
        if shows {
            eprint!("\r\x1b[K{}: {}", args.vm, state(&provisioning));
            // It is only for the eye.
            let _ = std::io::stderr().flush();
        }
        match outcome(&provisioning, ordered) {
            Outcome::Met => return Ok(provisioning),
            Outcome::Failed(why) => bail!("{}: {why}; {}", args.vm, state(&provisioning)),
            Outcome::UnderWay => {}
        }
        let since = provisioning.problem.as_ref();
        gone_since = since.map(|_| gone_since.unwrap_or_else(Instant::now));
        let is_gone = gone_since.is_some_and(|since| since.elapsed() >= GONE);
        if is_gone || until.is_some_and(|until| Instant::now() >= until) {
            let why = provisioning.problem.as_deref();
            let why = why.unwrap_or("not done in the time given");
            bail!(
                "{}: {why}; {}; the order stands",
                args.vm,
                state(&provisioning)
            );
        }
        tokio::time::sleep(STEP).await;
    }
}

enum Outcome {
    Met,
    UnderWay,
    Failed(String),
}

fn outcome(provisioning: &ProvisioningStatus, ordered: &Ordered) -> Outcome {
    let Some(order) = &provisioning.order else {
        return Outcome::Failed("the daemon was restarted and has lost the order".into());
    };
    if order.number != ordered.number {
        let replaced = order.size_bytes.iter().zip(&ordered.size_bytes);
        let mut replaced = replaced.filter_map(|(new, old)| Some((*new)? != (*old)?));
        if replaced.any(|other| other) {
            return Outcome::Failed("a newer order replaced it".into());
        }
        // The newer one is about another tier; both hold.
        let mut asked = ordered.size_bytes.iter().zip(&provisioning.tiers);
        let is_met = asked.all(|(size, tier)| size.is_none_or(|size| (size, size) == pair(tier)));
        return if is_met {
            Outcome::Met
        } else {
            Outcome::UnderWay
        };
    }
    let why = || {
        let why = order.why.clone();
        why.unwrap_or_else(|| "no reason was given".into())
    };
    match order.state {
        OrderState::Met => Outcome::Met,
        OrderState::Stuck => Outcome::Failed(format!("stuck: {}", why())),
        OrderState::Failed => Outcome::Failed(why()),
        OrderState::Sent | OrderState::UnderWay | OrderState::Unknown => Outcome::UnderWay,
    }
}

fn pair(tier: &ProvisionedTier) -> (u64, u64) {
    (tier.size_bytes, tier.target_bytes)
}
