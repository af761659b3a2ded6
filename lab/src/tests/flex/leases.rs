//! A device that gives memory back only while the daemon makes pin checks, beside a process that has it mapped.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::children::Guarded;
use crate::guests::flex::device::Device;
use crate::guests::flex::leased::{FAST, Leased, SHRINK_MIB, WHOLE_MIB, with_leases};
use crate::guests::flex::machine::NAME as MACHINE;
use crate::guests::flex::shape::{NODE_BYTES, PAGE};
use crate::guests::tiered::{self, MIB};
use crate::programs;
use crate::progress::say;

pub fn another_process_maps_the_ram() -> Result<()> {
    with_leases(|leased| {
        leased.shrink_under_leases()?;
        leased.shrink_beside_another()
    })
}

impl Leased {
    fn shrink_under_leases(&mut self) -> Result<()> {
        self.guest.touch()?;
        let before = self.held()?;
        ensure!(
            before > NODE_BYTES - SHRINK_MIB / 2 * MIB,
            "only {before} bytes are there"
        );
        self.daemon
            .resize_and_wait(Some(WHOLE_MIB - SHRINK_MIB), None)?;
        let (status, after) = (self.status()?, self.held()?);
        let leases = &status["leases"];
        say(&format!(
            "{} → {} MiB under leases: {leases}",
            before / MIB,
            after / MIB
        ));
        ensure!(
            after <= NODE_BYTES - SHRINK_MIB * MIB,
            "{after} bytes are there"
        );
        ensure!(
            leases["needed"] == true && leases["last"].to_string().contains("nobody"),
            "{leases}"
        );
        for tier in status["tiers"].as_array().context("tiers")? {
            ensure!(
                tier["unproven_bytes"] == 0 && tier["withheld_bytes"] == 0,
                "{tier}"
            );
        }
        self.grow()
    }

    /// Shrinks the fast tier, by the daemon and by the device alone, which takes orders from others too.
    fn shrink_beside_another(&mut self) -> Result<()> {
        self.guest.touch()?;
        let before = self.held()?;
        let other = Other::start()?;
        let Err(refused) = self.daemon.resize(Some(WHOLE_MIB - SHRINK_MIB), None) else {
            bail!("a shrink was ordered while another process maps the RAM");
        };
        let said = format!("{refused:#}");
        println!("{said}");
        other.expect_named(&said)?;
        let shown = self.daemon.show()?;
        other.expect_named(&shown)?;
        self.guest
            .device
            .set_targets([SHRINK_MIB * MIB / PAGE, 0])?;
        let mut last = Value::Null;
        self.guest.until(
            "the device has refused, or its target is taken back",
            |guest| {
                last = guest.device.status(false)?;
                let refused = last["counters"]["refused_pinned"].as_u64() > Some(0);
                Ok(refused || last["tiers"][FAST]["target_bytes"] == NODE_BYTES)
            },
        )?;
        say(&format!("beside another process: {}", last["counters"]));
        self.guest.until("its target is taken back", |guest| {
            Ok(guest.device.status(false)?["tiers"][FAST]["target_bytes"] == NODE_BYTES)
        })?;
        self.guest.wait_for([0, 0])?;
        let after = self.held()?;
        ensure!(after >= before, "{before} bytes were there, now {after}");
        ensure!(self.counter("withheld_pages")? == 0);
        let pid = other.child.pid();
        drop(other);
        self.daemon
            .resize_and_wait(Some(WHOLE_MIB - SHRINK_MIB), None)?;
        let held = self.held()?;
        say(&format!("after process {pid} ended: {} MiB", held / MIB));
        ensure!(
            held <= NODE_BYTES - SHRINK_MIB * MIB,
            "{held} bytes are there"
        );
        self.grow()
    }
}

/// A process that maps the fast tier's memory and is neither the hypervisor nor the product's; it ends with this
/// value.
struct Other {
    child: Guarded,
    program: String,
}

impl Other {
    fn start() -> Result<Self> {
        let file = tiered::host_files(MACHINE)?;
        let file = file.get(FAST).context("no file of memory")?;
        let program = &programs::build_lab()?.native;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .arg("hold")
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = Guarded::spawn(&mut command)?;
        let said = child.stdout().context("no output")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        ensure!(
            line.contains("mapped"),
            "{} maps nothing: {line}",
            program.display()
        );
        Ok(Self {
            child,
            program: program.display().to_string(),
        })
    }

    fn expect_named(&self, text: &str) -> Result<()> {
        let process = format!("process {}", self.child.pid());
        ensure!(
            text.contains(&process)
                && text.contains(&self.program)
                && text.contains("maps its RAM"),
            "{process} ({}) is not named: {text}",
            self.program
        );
        Ok(())
    }
}
