//! The product at work in the lab: starts `terraced` in L1 and asks it by `terrace`.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use terrace_lab::pages::total;

use super::running::Lab;

/// The guest that every lab has.
pub const VM: &str = "vm1";
/// L1's node of fast memory.
pub const FAST: i32 = 0;

/// Longest time for three rounds on a busy machine.
const ROUNDS: Duration = Duration::from_secs(400);
/// Longest time until the daemon has found its VM.
const START: Duration = Duration::from_secs(120);

const FILE: &str = "/run/terrace/terrace.toml";
const LOG: &str = "/run/terrace/terraced.log";

/// What a test changes in the daemon's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The engine's policy.
    pub policy: &'static str,
    /// Whether pages may be moved.
    pub moves: bool,
}

impl Setup {
    /// The main job.
    pub const VTMM: Self = Self {
        policy: "vtmm",
        moves: true,
    };

    /// Rounds of the default length, but started more often than once a minute, and a fast tier that
    /// holds little more than the hot set, so that pages are exchanged when it moves.
    fn text(self) -> String {
        let Self { policy, moves } = self;
        format!(
            "[discover]\nevery = \"1s\"\n\
             [engine]\npolicy = \"{policy}\"\nperiod_ms = 8000\n\
             [defaults]\nscan = true\nmoves = {moves}\nceiling = {{ fast = \"24MiB\" }}\n"
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
    /// At least 95 % of the hot pages.
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
    /// Starts the daemon and waits until it has taken the guest under management.
    pub fn start_daemon(&mut self, setup: Setup) -> Result<()> {
        let write = format!("mkdir -p /run/terrace && cat >{FILE}");
        let output = self.run_with_input(&write, &setup.text(), START)?;
        if output.exit != 0 {
            bail!("writing {FILE} in L1 failed: {}", output.stderr);
        }
        // What moves pages shall be Terrace alone.
        self.check("echo 0 >/proc/sys/kernel/numa_balancing")?;
        self.check(&format!("terrace config check {FILE}"))?;
        self.check(&format!(
            "setsid terraced --config {FILE} </dev/null >{LOG} 2>&1 & echo $! >/run/terrace/pid"
        ))?;
        self.wait_until("terraced manages the guest", START, |lab| {
            let vm = lab.vm()?;
            let mode = vm.as_ref().and_then(|vm| vm["mode"].as_str());
            match mode {
                Some("managed" | "observed") => Ok(Some(())),
                Some("unscannable") => bail!("the guest is unscannable: {vm:?}"),
                _ => Ok(None),
            }
        })
    }

    /// The guest as `terrace vms --json` lists it; none while the daemon does not know it.
    pub fn vm(&mut self) -> Result<Option<Value>> {
        let output = self.run("terrace vms --json", START)?;
        if output.exit != 0 {
            return Ok(None);
        }
        let list: Value = serde_json::from_str(&output.stdout).context("terrace vms --json")?;
        let found = list
            .as_array()
            .and_then(|vms| vms.iter().find(|vm| vm["name"] == VM));
        Ok(found.cloned())
    }

    /// Rounds that the daemon has completed.
    pub fn rounds(&mut self) -> Result<u64> {
        let vm = self
            .vm()?
            .context("the daemon does not know the guest any more")?;
        vm["rounds"]
            .as_u64()
            .context("no rounds in `terrace vms --json`")
    }

    /// Waits until the daemon has completed that many rounds.
    pub fn wait_for_round(&mut self, round: u64) -> Result<()> {
        self.wait_until(&format!("round {round} is complete"), ROUNDS, |lab| {
            Ok((lab.rounds()? >= round).then_some(()))
        })
    }

    /// Compares the guest's own word with the kernel's.
    pub fn hot_on_fast(&mut self) -> Result<HotOnFast> {
        let hot = self.hot_pages(VM)?;
        let placement = self.placement(VM, &hot)?;
        Ok(HotOnFast {
            fast: placement.on(FAST),
            hot: total(&hot),
        })
    }

    /// Whether the hot set is in fast memory within three rounds from now; says how it goes.
    pub fn converges_within_three_rounds(&mut self) -> Result<bool> {
        let first = self.rounds()?;
        println!("before: {}", self.hot_on_fast()?);
        for round in 1..=3 {
            self.wait_for_round(first + round)?;
            let now = self.hot_on_fast()?;
            println!("after round {round}: {now}");
            if now.is_placed() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Every byte of the guest's region is what the guest wrote.
    pub fn expect_intact(&mut self) -> Result<()> {
        let verified = self.guest("verify")?;
        if verified["bad"] != 0 || verified["errors"] != 0 {
            bail!("the guest's memory is damaged: {verified}");
        }
        Ok(())
    }
}
