//! Static binaries for the inside of the lab, built by cargo.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::places;
use crate::progress::{Wait, say};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Time after which a build is given up.
const MAX_BUILD: Duration = Duration::from_secs(3600);

/// Time between two checks of whether a build has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The package of the programs that run inside the lab.
const LAB: &str = "terrace-lab-programs";

/// The product: cargo package and program.
const PRODUCT: [(&str, &str); 3] = [
    ("terraced", "terraced"),
    ("terrace-cli", "terrace"),
    ("terrace-agent", AGENT),
];

/// Names of the product's programs.
pub const PRODUCT_NAMES: [&str; 4] = ["terraced", "terrace", AGENT, "terrace-hyperflex"];

/// The guest agent's program.
pub const AGENT: &str = "terrace-agent";

/// Whether this task measures.
static MEASURES: AtomicBool = AtomicBool::new(false);

/// Has this task's programs built with a release's optimization: it measures them.
pub fn for_figures() {
    MEASURES.store(true, Ordering::Relaxed);
}

/// The programs that are part of the lab's images.
pub struct LabPrograms {
    /// The program that runs in L1.
    pub host: PathBuf,
    /// The program that runs in L2.
    pub guest: PathBuf,
    /// Workloads of L1 itself; pushed if a test wants them.
    pub native: PathBuf,
}

/// Builds the programs that run in L1 and L2, once per task.
pub fn build_lab() -> Result<&'static LabPrograms> {
    static BUILT: OnceLock<LabPrograms> = OnceLock::new();
    if let Some(built) = BUILT.get() {
        return Ok(built);
    }
    build("terrace-lab", &[LAB])?;
    let built = LabPrograms {
        host: program("lab-host")?,
        guest: program("lab-guest")?,
        native: program("lab-native")?,
    };
    Ok(BUILT.get_or_init(|| built))
}

/// Builds the HyperFlex device, which runs on this machine beside a guest's emulator.
pub fn build_hyperflex() -> Result<PathBuf> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(built) = BUILT.get() {
        return Ok(built.clone());
    }
    build("terrace-hyperflex", &["terrace-hyperflex"])?;
    let built = program("terrace-hyperflex")?;
    Ok(BUILT.get_or_init(|| built).clone())
}

/// Builds the product, once per task; packages that the workspace does not have are left out, loudly.
pub fn build_product() -> Result<&'static [PathBuf]> {
    static BUILT: OnceLock<Vec<PathBuf>> = OnceLock::new();
    if let Some(built) = BUILT.get() {
        return Ok(built);
    }
    let built = build_product_now()?;
    Ok(BUILT.get_or_init(|| built))
}

fn build_product_now() -> Result<Vec<PathBuf>> {
    let (there, missing): (Vec<_>, Vec<_>) = {
        let present = packages()?;
        PRODUCT
            .into_iter()
            .partition(|(package, _)| present.iter().any(|name| name == package))
    };
    for (package, program) in missing {
        say(&format!(
            "WARNING: the workspace has no package {package}: L1 will have no `{program}`"
        ));
    }
    if !there.is_empty() {
        let names: Vec<&str> = there.iter().map(|(package, _)| *package).collect();
        build(&names.join(", "), &names)?;
    }
    there.iter().map(|(_, name)| program(name)).collect()
}

/// Builds packages; `what` names them in messages.
fn build(what: &str, packages: &[&str]) -> Result<()> {
    let mut wait = Wait::begin(&format!("building {what} for the lab"), MAX_BUILD);
    let mut cargo = places::cargo();
    cargo
        .args(["build", "--profile", "lab", "--target", TARGET])
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    if MEASURES.load(Ordering::Relaxed) {
        cargo.args(["--config", "profile.lab.opt-level=3"]);
    }
    for package in packages {
        cargo.args(["--package", package]);
    }
    // On a terminal cargo shows its own progress; hundreds of lines would bury the tests in a log.
    let is_watched = std::io::stderr().is_terminal();
    if !is_watched {
        cargo.arg("--quiet");
    }
    let mut build = cargo.spawn().context("cannot start cargo")?;
    let status = loop {
        if let Some(status) = build.try_wait()? {
            break status;
        }
        if !is_watched && let Err(late) = wait.go_on() {
            build.kill()?;
            return Err(late);
        }
        sleep(POLL_INTERVAL);
    };
    if !status.success() {
        bail!("cargo could not build {what} for the lab; its errors are above");
    }
    Ok(())
}

/// The folder of programs that were built.
pub fn folder() -> Result<PathBuf> {
    Ok(places::target()?.join(TARGET).join("lab"))
}

/// A program that was built.
pub fn program(name: &str) -> Result<PathBuf> {
    let path = folder()?.join(name);
    if !path.exists() {
        bail!("cargo built no {}", path.display());
    }
    Ok(path)
}

fn packages() -> Result<Vec<String>> {
    let packages = places::metadata()?["packages"]
        .as_array()
        .context("cargo metadata lists no packages")?;
    let names = packages
        .iter()
        .filter_map(|package| package["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}
