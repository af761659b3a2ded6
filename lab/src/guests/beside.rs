//! The daemon beside a guest on this machine, and the command line that orders it about, as an operator has them.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::children::Guarded;
use crate::machine::emulator;
use crate::programs;
use crate::progress::Wait;

/// The folder of monitors in the daemon's folder.
pub const MONITORS: &str = "monitors";

const SOCKET: &str = "daemon";
const FILE: &str = "daemon.toml";
const LOG: &str = "daemon.log";

/// Longest time until the daemon knows a guest, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// `terraced`, which finds a guest by its monitor; it ends with this value.
pub struct Daemon {
    vm: &'static str,
    process: Option<Guarded>,
    folder: ShortName,
}

/// A short name of the daemon's folder: addresses of sockets hold 107 bytes.
struct ShortName(PathBuf);

/// A tier as `terrace show` reports it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Tier {
    pub name: String,
    pub target_bytes: u64,
    pub size_bytes: u64,
    pub present_bytes: Option<u64>,
    pub verified_ratio: Option<f64>,
    pub stuck: Option<String>,
}

/// The daemon's section about our own QEMUs, in whatever cgroup they and it are.
pub fn hypervisors() -> String {
    let programs = emulator::programs();
    format!("[hypervisors]\nexecutables = {programs:?}\nown_cgroups = [\"/*\"]")
}

impl Daemon {
    /// The daemon for a guest of that name whose monitor is in `folder`; it is not started yet.
    pub fn prepare(vm: &'static str, folder: &Path) -> Result<Self> {
        programs::build_product()?;
        fs::create_dir_all(folder.join(MONITORS))?;
        Ok(Self {
            vm,
            process: None,
            folder: ShortName::of(vm, folder)?,
        })
    }

    /// Path of a file in the daemon's folder, by a short name.
    pub fn path(&self, name: &str) -> String {
        self.folder.0.join(name).display().to_string()
    }

    /// Starts the daemon with these lines about the guest, and waits until it knows the guest. The daemon does not
    /// search for processes that pinned the guest's memory: in a container the first process is beyond what may be
    /// inspected.
    pub fn start(&mut self, about_the_guest: &str) -> Result<()> {
        self.start_with_pin_checks(&format!("nobody_pins = true\n{about_the_guest}"))
    }

    /// Starts the daemon as [`Daemon::start`] does, but it makes pin checks of the guest's memory.
    pub fn start_with_pin_checks(&mut self, about_the_guest: &str) -> Result<()> {
        let text = format!(
            "[daemon]\nsocket = \"{}\"\n\
             [discover]\nqmp_folders = [\"{}\"]\nprocesses = false\nevery = \"1s\"\n\
             {}\n[vm.{}]\n{about_the_guest}\n",
            self.path(SOCKET),
            self.path(MONITORS),
            hypervisors(),
            self.vm,
        );
        fs::write(self.path(FILE), text)?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(programs::program("terraced")?)
            .args(["--config", &self.path(FILE)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(self.path(LOG))?);
        let process = self.process.insert(Guarded::spawn(&mut command)?);
        let mut wait = Wait::begin_silently("waiting until terraced knows the guest", PATIENCE);
        loop {
            let known = self.folder.terrace(&["vms", "--json"]);
            if known.as_ref().is_ok_and(|vms| vms.contains(self.vm)) {
                return Ok(());
            }
            if let Some(status) = process.ended()? {
                bail!("terraced ended ({status}): {}", self.folder.log());
            }
            wait.go_on()
                .with_context(|| format!("{known:?}\n{}", self.folder.log()))?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Runs `terrace resize`; a tier without a size stays as it is. Returns the answer.
    pub fn resize(&self, fast: Option<u64>, slow: Option<u64>) -> Result<String> {
        self.order(fast, slow, &[])
    }

    /// Runs `terrace resize --wait`, which ends once the guest has done it. Returns the answer.
    pub fn resize_and_wait(&self, fast: Option<u64>, slow: Option<u64>) -> Result<String> {
        self.order(fast, slow, &["--wait", "--timeout", "3m"])
    }

    /// Runs `terrace set` of the VM.
    pub fn set(&self, setting: &str) -> Result<String> {
        self.set_of(self.vm, setting)
    }

    /// The same of another VM.
    pub fn set_of(&self, vm: &str, setting: &str) -> Result<String> {
        self.folder.terrace(&["set", vm, setting])
    }

    /// Runs `terrace resize` of any VM to sizes in MiB, each after its flag.
    pub fn resize_vm(&self, vm: &str, sizes: &[(&str, u64)]) -> Result<String> {
        let sizes = sizes.iter();
        let sizes = sizes.flat_map(|(flag, mib)| [(*flag).to_owned(), format!("{mib}MiB")]);
        let arguments: Vec<String> = ["resize".to_owned(), vm.to_owned()]
            .into_iter()
            .chain(sizes)
            .collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.folder.terrace(&arguments)
    }

    fn order(&self, fast: Option<u64>, slow: Option<u64>, more: &[&str]) -> Result<String> {
        let mut arguments = vec!["resize".to_owned(), self.vm.to_owned()];
        for (flag, mib) in [("--fast", fast), ("--slow", slow)] {
            if let Some(mib) = mib {
                arguments.extend([flag.to_owned(), format!("{mib}MiB")]);
            }
        }
        let arguments = arguments.iter().map(String::as_str);
        let arguments: Vec<&str> = arguments.chain(more.iter().copied()).collect();
        let answer = self.folder.terrace(&arguments)?;
        print!("terrace {}: {answer}", arguments.join(" "));
        Ok(answer)
    }

    /// The guest's entry in `terrace vms --json`.
    pub fn vm(&self) -> Result<Value> {
        let text = self.folder.terrace(&["vms", "--json"])?;
        let list: Value = serde_json::from_str(&text).context("terrace vms --json")?;
        let mut all = list.as_array().into_iter().flatten();
        let found = all.find(|vm| vm["name"] == self.vm);
        found
            .cloned()
            .with_context(|| format!("no {}: {text}", self.vm))
    }

    /// The last round of the guest that ended, by `terrace show --json`. `None` before there was one.
    pub fn last_round(&self) -> Result<Option<Value>> {
        let text = self.folder.terrace(&["show", self.vm, "--json"])?;
        let detail: Value = serde_json::from_str(&text).context("terrace show --json")?;
        let rounds = detail["history"].as_array();
        Ok(rounds.and_then(|rounds| rounds.last().cloned()))
    }

    /// The output of `terrace events`.
    pub fn events(&self) -> Result<String> {
        self.folder.terrace(&["events"])
    }

    /// The daemon and the processes that it started.
    pub fn processes(&self) -> Result<Vec<u32>> {
        let daemon = self
            .process
            .as_ref()
            .context("terraced is not started")?
            .pid();
        let tasks = fs::read_dir(format!("/proc/{daemon}/task"))?;
        let mut all = vec![daemon];
        for task in tasks {
            let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
            all.extend(
                children
                    .split_whitespace()
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
        Ok(all)
    }

    /// The guest's resizable memory, by `terrace show --json`.
    pub fn tiers(&self) -> Result<Vec<Tier>> {
        let text = self.folder.terrace(&["show", self.vm, "--json"])?;
        let mut detail: Value = serde_json::from_str(&text).context("terrace show --json")?;
        let tiers = detail["provisioning"]["tiers"].take();
        serde_json::from_value(tiers)
            .with_context(|| format!("no tiers in terrace show --json: {text}"))
    }

    /// What `terrace show VM --json` says.
    pub fn show_json(&self, vm: &str) -> Result<Value> {
        let text = self.folder.terrace(&["show", vm, "--json"])?;
        serde_json::from_str(&text).context("terrace show --json")
    }

    /// The output of `terrace show`.
    pub fn show(&self) -> Result<String> {
        self.folder.terrace(&["show", self.vm])
    }
}

impl ShortName {
    fn of(vm: &str, folder: &Path) -> Result<Self> {
        let name = std::env::temp_dir().join(format!("terrace-{vm}-{}", std::process::id()));
        remove(&name)?;
        symlink(folder, &name).with_context(|| format!("cannot make {}", name.display()))?;
        Ok(Self(name))
    }

    fn terrace(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(programs::program("terrace")?)
            .arg("--socket")
            .arg(self.0.join(SOCKET))
            .args(arguments)
            .output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "terrace {arguments:?}: {error}");
        Ok(String::from_utf8(output.stdout)?)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.join(LOG)).unwrap_or_default()
    }
}

/// Removes a link, if it exists: a task that was killed and had the same process id may have left one.
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
