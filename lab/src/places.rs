//! Paths: the repository, cargo's target folder, the lab's files, the download cache.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::progress::say;

/// The repository's root.
pub fn repository() -> &'static Path {
    let lab = Path::new(env!("CARGO_MANIFEST_DIR"));
    lab.parent().unwrap_or(lab)
}

/// A command that runs cargo: the one that runs this task, if one does.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(repository());
    command
}

/// The workspace as cargo sees it.
pub fn metadata() -> Result<&'static Value> {
    static METADATA: OnceLock<Value> = OnceLock::new();
    if let Some(known) = METADATA.get() {
        return Ok(known);
    }
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot start cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let parsed = serde_json::from_slice(&output.stdout).context("output of cargo metadata")?;
    Ok(METADATA.get_or_init(|| parsed))
}

/// Cargo's target folder, wherever the user has put it.
pub fn target() -> Result<PathBuf> {
    let folder = metadata()?["target_directory"]
        .as_str()
        .context("cargo metadata names no target_directory")?;
    Ok(PathBuf::from(folder))
}

/// The lab's images, snapshots and running machines; created if missing.
pub fn lab(part: &str) -> Result<PathBuf> {
    created(target()?.join("lab").join(part))
}

/// A folder in which the mutations are tried; created if missing.
pub fn mutations(part: &str) -> Result<PathBuf> {
    created(target()?.join("mutations").join(part))
}

/// Downloads that outlive `cargo clean`: `TERRACE_CACHE`, else `~/.cache/terrace`.
pub fn cache(part: &str) -> Result<PathBuf> {
    let root = match (env::var_os("TERRACE_CACHE"), env::var_os("XDG_CACHE_HOME")) {
        (Some(own), _) => PathBuf::from(own),
        (None, Some(xdg)) => PathBuf::from(xdg).join("terrace"),
        (None, None) => match env::var_os("HOME") {
            Some(dir) => PathBuf::from(dir).join(".cache/terrace"),
            None => target()?.join("lab/cache"),
        },
    };
    created(root.join(part))
}

/// Waits until no other task holds the lab's lock of this name, and holds it until dropped.
pub fn lock(name: &str) -> Result<File> {
    let path = lab("locks")?.join(name);
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    if file.try_lock().is_err() {
        say(&format!(
            "waiting for another task that holds {} …",
            path.display()
        ));
        file.lock()?;
    }
    Ok(file)
}

fn created(folder: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}
