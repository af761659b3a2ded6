//! Snapshots of L1 with its guest running, so that a lab starts in a second or two.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::process::Process;
use crate::places;
use crate::progress::Wait;

/// Number of snapshots that are stored: each is several hundred MiB.
const KEEP: usize = 3;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Path of the snapshot with this key, whether it exists or not.
pub fn path(key: &str) -> Result<PathBuf> {
    Ok(places::lab("snapshots")?.join(format!("{key}.migration")))
}

/// QEMU's option that starts from a snapshot. QEMU runs in a folder of `lab/run`.
pub fn restore_option(key: &str) -> String {
    // A relative path needs no quoting for the shell.
    format!("exec:cat ../../snapshots/{key}.migration")
}

/// Stops the machine, writes its whole state to the snapshot, and lets it continue.
pub fn take(process: &Process, key: &str) -> Result<()> {
    let path = path(key)?;
    let partial = path.with_added_extension("partial");
    let mut qmp = process.qmp()?;
    qmp.execute("stop", &json!({}))?;
    qmp.execute(
        "migrate-set-parameters",
        &json!({ "max-bandwidth": 1_u64 << 40 }),
    )?;
    let target = format!("exec:cat > ../../snapshots/{key}.migration.partial");
    qmp.execute("migrate", &json!({ "uri": target }))?;
    let mut wait = Wait::begin("taking a snapshot", Duration::from_secs(300));
    loop {
        let answer = qmp.execute("query-migrate", &json!({}))?;
        match answer["status"].as_str() {
            Some("completed") => break,
            Some("failed" | "cancelled") => bail!("QEMU cannot write a snapshot: {answer}"),
            _ => wait.go_on()?,
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    fs::rename(&partial, &path).with_context(|| format!("cannot create {}", path.display()))?;
    qmp.execute("cont", &json!({}))?;
    remove_old(&path)
}

/// Waits until a machine started with [`restore_option`] has read it all, and lets it run.
pub fn finish_restore(process: &Process) -> Result<()> {
    let result = wait_for_restore(process);
    if result.is_err() {
        // If QEMU has ended, its own words say more than the broken connection. It closes its
        // socket a little earlier than it ends.
        std::thread::sleep(Duration::from_millis(300));
        process.check_alive()?;
    }
    result
}

fn wait_for_restore(process: &Process) -> Result<()> {
    let mut qmp = process.qmp()?;
    let mut wait = Wait::begin_silently("restoring the snapshot", Duration::from_secs(120));
    while qmp.status()? == "inmigrate" {
        wait.go_on()?;
        std::thread::sleep(POLL_INTERVAL);
    }
    qmp.execute("cont", &json!({})).map(drop)
}

fn remove_old(newest: &Path) -> Result<()> {
    let folder = newest.parent().context("a snapshot lies in a folder")?;
    let mut by_age = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        by_age.push((entry.metadata()?.modified()?, entry.path()));
    }
    by_age.sort();
    let excess = by_age.len().saturating_sub(KEEP);
    for (_, path) in by_age.into_iter().take(excess) {
        fs::remove_file(path)?;
    }
    Ok(())
}
