//! The daemon beside a guest on this machine, and the command line that orders it about, as an operator has them.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::device::{CONTROL, FOLDER, MONITORS};
use super::{NAME, PATIENCE, TIERS};
use crate::children::Guarded;
use crate::lab::programs;
use crate::places;
use crate::progress::Wait;

const SOCKET: &str = "daemon";
const FILE: &str = "daemon.toml";
const LOG: &str = "daemon.log";

/// `terraced` that knows one VM and its device; it ends with this value.
pub struct Daemon {
    process: Guarded,
    folder: ShortName,
}

/// A short name of the device's folder: addresses of sockets hold 107 bytes.
struct ShortName(PathBuf);

/// What `terrace show` says of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Tier {
    pub target_bytes: u64,
    pub size_bytes: u64,
    pub present_bytes: Option<u64>,
    pub honesty: Option<f64>,
}

impl Daemon {
    /// Starts it and waits until it knows the VM.
    pub fn start() -> Result<Self> {
        programs::build_product()?;
        let folder = ShortName::new()?;
        let path = |name: &str| folder.0.join(name).display().to_string();
        let text = format!(
            "[daemon]\nsocket = \"{}\"\n\
             [discover]\nqmp_folders = [\"{}\"]\nprocesses = false\nevery = \"1s\"\n\
             [vm.{NAME}]\nhyperflex = \"{}\"\n",
            path(SOCKET),
            path(MONITORS),
            path(CONTROL)
        );
        fs::write(folder.0.join(FILE), text)?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(programs::program("terraced")?)
            .arg("--config")
            .arg(folder.0.join(FILE))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.0.join(LOG))?);
        let process = Guarded::spawn(&mut command)?;
        let daemon = Self { process, folder };
        let mut wait = Wait::begin_silently("waiting until terraced knows the guest", PATIENCE);
        while let Err(error) = daemon.tiers() {
            if let Some(status) = daemon.process.ended()? {
                bail!("terraced ended ({status}): {}", daemon.log());
            }
            wait.go_on()
                .with_context(|| format!("{error:#}\n{}", daemon.log()))?;
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        Ok(daemon)
    }

    /// `terrace resize`, with more options; a tier without a size in MiB stays as it is.
    pub fn resize(&self, mib: [Option<u64>; TIERS], more: &[&str]) -> Result<()> {
        let sizes = mib.map(|mib| mib.map(|mib| format!("{mib}MiB")));
        let mut arguments = vec!["resize", NAME];
        for (flag, size) in ["--fast", "--slow"].into_iter().zip(&sizes) {
            if let Some(size) = size {
                arguments.extend([flag, size]);
            }
        }
        arguments.extend(more);
        self.terrace(&arguments).map(drop)
    }

    /// `terrace show --json`: how the VM's elastic memory stands, fast and slow.
    pub fn tiers(&self) -> Result<[Tier; TIERS]> {
        let text = self.terrace(&["show", NAME, "--json"])?;
        let mut detail: Value = serde_json::from_str(&text).context("terrace show --json")?;
        let tiers = detail["elastic"]["tiers"].take();
        serde_json::from_value(tiers)
            .with_context(|| format!("no two tiers in terrace show --json: {text}"))
    }

    /// What `terrace show` prints.
    pub fn show(&self) -> Result<String> {
        self.terrace(&["show", NAME])
    }

    fn terrace(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(programs::program("terrace")?)
            .arg("--socket")
            .arg(self.folder.0.join(SOCKET))
            .args(arguments)
            .output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "terrace {arguments:?}: {error}");
        Ok(String::from_utf8(output.stdout)?)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.0.join(LOG)).unwrap_or_default()
    }
}

impl ShortName {
    fn new() -> Result<Self> {
        let name = std::env::temp_dir().join(format!("terrace-flex-{}", std::process::id()));
        let folder = places::lab("run")?.join(FOLDER);
        remove(&name)?;
        symlink(&folder, &name).with_context(|| format!("cannot make {}", name.display()))?;
        Ok(Self(name))
    }
}

/// One of a task that was killed and had the same process id may be there.
fn remove(link: &Path) -> Result<()> {
    match fs::remove_file(link) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", link.display()))
        }
        _ => Ok(()),
    }
}

impl Drop for ShortName {
    fn drop(&mut self) {
        // It leads nowhere where it stays.
        remove(&self.0).ok();
    }
}
