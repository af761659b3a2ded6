//! The product at work in the lab: starts `terraced` in L1 and asks it by `terrace`.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use terrace_lab_programs::pages::total;

use super::lab::Lab;

/// The guest that every lab has.
pub const VM: &str = "vm1";
/// L1's node of fast memory.
pub const FAST: i32 = 0;

/// Longest time for three rounds on a busy machine.
const ROUNDS: Duration = Duration::from_secs(400);
/// Rounds in which a policy must place the hot set. They come about once a second, and an emulated guest takes longer to touch all of it once.
const SHORT_ROUNDS: u64 = 90;
/// Longest time until the daemon has found its VM.
const START: Duration = Duration::from_secs(120);

const FILE: &str = "/run/terrace/terrace.toml";
const LOG: &str = "/run/terrace/terraced.log";

/// The settings that a test changes in the daemon's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The engine's policy.
    pub policy: &'static str,
    /// Whether pages may be moved.
    pub moves: bool,
    /// Time from one round of a VM to the next, ms, if its scans have the CPU time for it.
    pub period_ms: u64,
    /// More lines of `[engine]`.
    pub engine: &'static str,
    /// More lines of `[defaults]`, which hold for every VM.
    pub defaults: &'static str,
    /// More sections of the configuration.
    pub sections: &'static str,
}

impl Setup {
    /// The main job, with a fast tier that holds little more than the hot set, so that pages are exchanged when the
    /// hot set moves.
    pub const DEFAULT: Self = Self {
        policy: "terrace",
        moves: true,
        period_ms: 8000,
        engine: "",
        defaults: "ceiling = { fast = \"24MiB\" }",
        sections: "",
    };

    /// The same under the policy whose rounds are `period_ms` apart.
    pub const VTMM: Self = Self {
        policy: "vtmm",
        ..Self::DEFAULT
    };

    /// The text of the configuration: rounds of the default length, but started more often than once a minute.
    fn text(self) -> String {
        let Self {
            policy,
            moves,
            period_ms,
            engine,
            defaults,
            sections,
        } = self;
        format!(
            "[discover]\nevery = \"1s\"\n\
             [engine]\npolicy = \"{policy}\"\nperiod_ms = {period_ms}\nhuge_period_ms = {period_ms}\n{engine}\n\
             [defaults]\nscan = true\nmoves = {moves}\n{defaults}\n{sections}\n"
        )
    }
}

/// How much of the true hot set is in fast memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotOnFast {
    /// Hot pages on the fast node, by the word of L1's kernel.
    pub fast: u64,
    /// Hot pages, by the guest's own word.
    pub hot: u64,
}

impl HotOnFast {
    /// Whether at least 95 % of the hot pages are on the fast node.
    pub fn is_placed(self) -> bool {
        self.fast * 100 >= self.hot * 95
    }
}

impl std::fmt::Display for HotOnFast {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "hot pages on fast: {} of {}", self.fast, self.hot)
    }
}

impl Lab {
    /// Starts the daemon and waits until it has taken the first guest under management.
    pub fn start_daemon(&mut self, setup: Setup) -> Result<()> {
        self.start_daemon_for(setup, VM)
    }

    /// The same with another guest.
    pub fn start_daemon_for(&mut self, setup: Setup, vm: &str) -> Result<()> {
        self.configure(setup)?;
        self.launch_daemon()?;
        self.wait_until_managed(vm)
    }

    /// Writes the daemon's configuration.
    pub fn configure(&mut self, setup: Setup) -> Result<()> {
        let write = format!("mkdir -p /run/terrace && cat >{FILE}");
        let output = self.run_with_input(&write, &setup.text(), START)?;
        if output.exit != 0 {
            bail!("writing {FILE} in L1 failed: {}", output.stderr);
        }
        // Only Terrace shall move pages.
        self.check("echo 0 >/proc/sys/kernel/numa_balancing")?;
        self.check(&format!("terrace config check {FILE}"))?;
        Ok(())
    }

    /// Starts the daemon with the configuration that was written before.
    pub fn launch_daemon(&mut self) -> Result<()> {
        self.check(&format!(
            "setsid terraced --config {FILE} </dev/null >>{LOG} 2>&1 & echo $! >/run/terrace/pid"
        ))?;
        Ok(())
    }

    /// Ends the daemon that was started last.
    pub fn end_daemon(&mut self) -> Result<()> {
        self.check("kill $(cat /run/terrace/pid); while pidof terraced; do sleep 0.1; done")?;
        Ok(())
    }

    /// Waits until the daemon has taken a guest under management.
    pub fn wait_until_managed(&mut self, name: &str) -> Result<()> {
        self.wait_until("terraced manages the guest", START, |lab| {
            let vm = lab.vm(name)?;
            let mode = vm.as_ref().and_then(|vm| vm["mode"].as_str());
            match mode {
                Some("managed" | "observed") => Ok(Some(())),
                Some("unscannable") => bail!("the guest is unscannable: {vm:?}"),
                _ => Ok(None),
            }
        })
    }

    /// A guest as `terrace vms --json` lists it. `None` while the daemon does not know it.
    pub fn vm(&mut self, name: &str) -> Result<Option<Value>> {
        let output = self.run("terrace vms --json", START)?;
        if output.exit != 0 {
            return Ok(None);
        }
        let list: Value = serde_json::from_str(&output.stdout).context("terrace vms --json")?;
        let found = list
            .as_array()
            .and_then(|vms| vms.iter().find(|vm| vm["name"] == name));
        Ok(found.cloned())
    }

    /// Rounds of a guest that the daemon has completed.
    pub fn rounds(&mut self, name: &str) -> Result<u64> {
        let vm = self
            .vm(name)?
            .context("the daemon does not know the guest any more")?;
        vm["rounds"]
            .as_u64()
            .context("no rounds in `terrace vms --json`")
    }

    /// Waits until the daemon has completed that many rounds of a guest.
    pub fn wait_for_round(&mut self, name: &str, round: u64) -> Result<()> {
        self.wait_until(&format!("round {round} is complete"), ROUNDS, |lab| {
            Ok((lab.rounds(name)? >= round).then_some(()))
        })
    }

    /// Compares the guest's own word with the kernel's.
    pub fn hot_on_fast(&mut self, name: &str) -> Result<HotOnFast> {
        let hot = self.hot_pages(name)?;
        let placement = self.placement(name, &hot)?;
        Ok(HotOnFast {
            fast: placement.on(FAST),
            hot: total(&hot),
        })
    }

    /// Whether the hot set is in fast memory within the rounds that a policy may take, short ones or long ones; prints the progress.
    pub fn converges(&mut self, name: &str) -> Result<bool> {
        self.converges_within_rounds(name, SHORT_ROUNDS)
    }

    /// Whether it is within so many rounds from now.
    pub fn converges_within_rounds(&mut self, name: &str, rounds: u64) -> Result<bool> {
        let first = self.rounds(name)?;
        println!("before: {}", self.hot_on_fast(name)?);
        for round in 1..=rounds {
            self.wait_for_round(name, first + round)?;
            let now = self.hot_on_fast(name)?;
            println!("after round {round}: {now}");
            if now.is_placed() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Expects every byte of a guest's region to be what the guest wrote.
    pub fn expect_intact(&mut self, name: &str) -> Result<()> {
        let verified = self.guest_of(name, "verify")?;
        if verified["bad"] != 0 || verified["errors"] != 0 {
            bail!("the guest's memory is damaged: {verified}");
        }
        Ok(())
    }
}
