//! A device that gives memory back only while the daemon looks who has it, beside a process that has it.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{BASE, HUGE, MIB};
use crate::children::Guarded;
use crate::lab::alone::seeing_all_processes;
use crate::lab::beside::Daemon;
use crate::lab::flex::bench::median;
use crate::lab::flex::device::{CONTROL, Device, FOLDER};
use crate::lab::flex::guest::Shape;
use crate::lab::flex::product::Hyperflex;
use crate::lab::flex::{FlexGuest, NAME as MACHINE, NODE_BYTES, PAGE, PATIENCE, TIERS};
use crate::lab::{programs, tiered};
use crate::places;
use crate::progress::{Wait, say};

pub const NAME: &str =
    "hyperflex_shrinks_under_leases_and_not_beside_another_process_that_maps_the_ram";

const FAST: usize = 0;

/// What a shrink takes of the fast tier.
const SHRINK_MIB: u64 = 256;
const WHOLE_MIB: u64 = NODE_BYTES / MIB;

/// Shrinks of which the median counts.
const ROUNDS: usize = 3;

/// How often the device is asked whether it is done.
const LOOK: Duration = Duration::from_millis(5);

const LEASED: Shape = Shape {
    node_bytes: [NODE_BYTES; TIERS],
    orders: BASE,
    total_bytes: None,
    is_tiered: false,
    has_balloon: false,
    is_leased: true,
};

/// A guest whose device is ordered about by the daemon.
struct Leased {
    guest: FlexGuest<Hyperflex>,
    daemon: Daemon,
}

pub fn another_process_maps_the_ram() -> Result<()> {
    with_leases(&["lab", "test", "--only", NAME], |leased| {
        leased.shrink_under_leases()?;
        leased.shrink_beside_another()
    })
}

/// Prints what a lease costs.
pub fn cost() -> Result<()> {
    with_leases(&["lab", "bench", "leases"], Leased::measure)
}

fn with_leases(arguments: &[&str], work: impl FnOnce(&mut Leased) -> Result<()>) -> Result<()> {
    seeing_all_processes(arguments, || {
        let mut guest = FlexGuest::<Hyperflex>::start_as(LEASED)?;
        guest.insert()?;
        let mut daemon = Daemon::prepare(MACHINE, &places::lab("run")?.join(FOLDER))?;
        let control = daemon.path(CONTROL);
        daemon.start_looking(&format!("hyperflex = \"{control}\""))?;
        let mut leased = Leased { guest, daemon };
        leased.wait_for_the_device()?;
        work(&mut leased)?;
        leased.guest.device.expect_no_wrong_request()?;
        leased.guest.expect_a_quiet_kernel()
    })
}

impl Leased {
    fn wait_for_the_device(&mut self) -> Result<()> {
        let daemon = &self.daemon;
        self.guest.until("the daemon has seen the device", |_| {
            Ok(daemon.tiers().is_ok_and(|tiers| tiers.len() == TIERS))
        })
    }

    fn status(&self) -> Result<Value> {
        self.guest.device.status(false)
    }

    fn counter(&self, name: &str) -> Result<u64> {
        let status = self.status()?;
        let value = status["counters"][name].as_u64();
        value.with_context(|| format!("no {name}: {status}"))
    }

    /// Bytes of this machine's memory behind the fast tier.
    fn held(&self) -> Result<u64> {
        Ok(self.guest.host_bytes()?[FAST])
    }

    fn grow(&mut self) -> Result<()> {
        self.daemon.resize_and_wait(Some(WHOLE_MIB), None)?;
        self.guest.wait_for([0, 0])
    }

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

    /// By the daemon and by the device alone, which takes orders from others too.
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

    /// Prints what a lease costs: the same shrink with one and without.
    fn measure(&mut self) -> Result<()> {
        for (pages, orders) in [("4 KiB", BASE), ("4 KiB and 2 MiB", BASE | HUGE)] {
            let mut seconds = [0.0; 2];
            for (seconds, is_leased) in seconds.iter_mut().zip([true, false]) {
                let shape = Shape {
                    orders,
                    is_leased,
                    ..LEASED
                };
                self.guest.device.start_again_as(&shape)?;
                self.guest.replug()?;
                self.wait_until_ordered_about()?;
                let mut times = Vec::new();
                for _ in 0..ROUNDS {
                    times.push(self.time_shrink()?);
                }
                say(&format!(
                    "pages of {pages}, leased: {is_leased}: {times:.3?} s"
                ));
                *seconds = median(times);
            }
            let [leased, free] = seconds;
            let rate = |seconds: f64| SHRINK_MIB as f64 / seconds;
            println!(
                "{SHRINK_MIB} MiB by pages of {pages}: {leased:.3} s ({:.0} MiB/s) under leases, {free:.3} s ({:.0} MiB/s) \
                 with --nobody-pins; median of {ROUNDS}",
                rate(leased),
                rate(free)
            );
        }
        Ok(())
    }

    /// The daemon has the device again, which was started anew.
    fn wait_until_ordered_about(&mut self) -> Result<()> {
        let daemon = &self.daemon;
        self.guest
            .until("the daemon orders the new device about", |_| {
                Ok(daemon.resize(Some(WHOLE_MIB), Some(WHOLE_MIB)).is_ok())
            })?;
        self.guest.wait_for([0, 0])
    }

    /// Seconds from the order until the device has all of it.
    fn time_shrink(&mut self) -> Result<f64> {
        self.guest.touch()?;
        let target = [SHRINK_MIB * MIB / PAGE, 0];
        let begin = Instant::now();
        self.daemon.resize(Some(WHOLE_MIB - SHRINK_MIB), None)?;
        let mut wait = Wait::begin_silently("the memory is there", PATIENCE);
        while self.guest.device.actual()? != target {
            wait.go_on()?;
            std::thread::sleep(LOOK);
        }
        let seconds = begin.elapsed().as_secs_f64();
        self.grow()?;
        Ok(seconds)
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
