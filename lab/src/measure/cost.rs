//! The cost of managing an idle VM: `terraced` at its default periods beside an emulated guest of 1 GiB on this
//! machine (no L1 around it). Figures for people; nothing is asserted.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::children::Guarded;
use crate::guests::beside::hypervisors;
use crate::guests::plain;
use crate::progress::{Wait, say};
use crate::{host, places};

const MEMORY_MIB: u64 = 1024;
const PATIENCE: Duration = Duration::from_secs(300);
/// The unit of CPU time in `/proc/PID/stat`, s.
const CLOCK_TICK: f64 = 0.01;

/// Measures for `seconds` and prints the figures.
pub fn run(seconds: u64) -> Result<()> {
    let images = plain::prepare()?;
    let programs = build_release()?;
    let folder = places::lab("run")?.join("cost");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let ram = PathBuf::from(format!("/dev/shm/terrace-cost-{}", std::process::id()));
    let guest = start_guest(&images, &folder, &ram);
    let measured = guest.and_then(|_guest| measure(&programs, &folder, &ram, seconds));
    fs::remove_file(&ram).ok();
    measured
}

fn measure(programs: &Path, folder: &Path, ram: &Path, seconds: u64) -> Result<()> {
    let wait = Wait::begin("booting the guest", PATIENCE);
    idle(&folder.join("truth"), wait)?;
    fs::remove_file(ram)?;
    let config = folder.join("terrace.toml");
    let place = folder.display();
    fs::write(
        &config,
        format!(
            "[daemon]\nsocket = \"{place}/api\"\n\
             [discover]\nqmp_folders = [\"{place}/qmp\"]\nprocesses = false\n\
             {}\n[defaults]\nscan = true\nmoves = true\n",
            hypervisors()
        ),
    )?;
    let log = fs::File::create(folder.join("terraced.log"))?;
    let daemon = Guarded::spawn(
        Command::new(programs.join("terraced"))
            .arg("--config")
            .arg(&config)
            .stderr(log),
    )?;
    let mut wait = Wait::begin("waiting for the first round", PATIENCE);
    while rounds(programs, folder) < 1 {
        wait.go_on()
            .with_context(|| format!("see {place}/terraced.log"))?;
        std::thread::sleep(Duration::from_millis(500));
    }
    say(&format!("measuring for {seconds} s …"));
    let pids = family(daemon.pid())?;
    let (begin, before, first) = (
        Instant::now(),
        cpu_seconds(&pids)?,
        rounds(programs, folder),
    );
    std::thread::sleep(Duration::from_secs(seconds));
    let (elapsed, after) = (begin.elapsed().as_secs_f64(), cpu_seconds(&pids)?);
    println!(
        "idle VM of {MEMORY_MIB} MiB, default periods, {elapsed:.0} s, {} rounds:",
        rounds(programs, folder) - first
    );
    println!(
        "  CPU of the daemon and its worker: {:.2} s, {:.2} % of a core",
        after - before,
        (after - before) / elapsed * 100.0
    );
    for (pid, name) in pids.iter().zip(["terraced", "its worker"]) {
        println!("  RssAnon of {name}: {:.1} MiB", rss_anon_mib(*pid)?);
    }
    Ok(())
}

fn build_release() -> Result<PathBuf> {
    say("building terraced and terrace, release …");
    let mut cargo = places::cargo();
    let packages = ["--package", "terraced", "--package", "terrace-cli"];
    let built = cargo
        .args(["build", "--release", "--quiet"])
        .args(packages)
        .status()?;
    if !built.success() {
        bail!("cargo could not build the product; its errors are above");
    }
    Ok(places::target()?.join("release"))
}

fn start_guest(images: &Path, folder: &Path, ram: &Path) -> Result<Guarded> {
    fs::create_dir_all(folder.join("qmp"))?;
    let place = folder.display();
    let options = format!(
        "-nodefaults -no-reboot -display none -accel tcg,thread=multi -cpu max,-svm -smp 1 -m {MEMORY_MIB}M \
         -name idle -machine q35,memory-backend=mem -serial file:{place}/console \
         -object memory-backend-file,id=mem,size={MEMORY_MIB}M,mem-path={},share=on,prealloc=on \
         -qmp unix:{place}/qmp/idle.sock,server=on,wait=off \
         -chardev socket,id=truth,path={place}/truth,server=on,wait=off \
         -device virtio-serial-pci -device virtserialport,chardev=truth,name=truth",
        ram.display()
    );
    // The distribution's own; with one processor it may be old.
    let mut qemu = host::program("usr/bin/qemu-system-x86_64")?;
    qemu.args(options.split_whitespace())
        .arg("-kernel")
        .arg(images.join("vmlinuz"))
        .arg("-initrd")
        .arg(images.join("initrd"))
        .args([
            "-append",
            "console=ttyS0 quiet panic=-1 pti=on region=512 hot=10 pause_ms=20",
        ])
        .stdin(Stdio::null())
        .stderr(fs::File::create(folder.join("qemu.log"))?);
    Guarded::spawn(&mut qemu)
}

/// Waits until the guest answers, and has it do nothing from then on.
fn idle(socket: &Path, mut wait: Wait) -> Result<()> {
    loop {
        if let Ok(mut stream) = UnixStream::connect(socket) {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(b"idle\n")?;
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer)?;
            return Ok(());
        }
        wait.go_on()?;
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Number of complete rounds of the guest; 0 while the daemon does not know it.
fn rounds(programs: &Path, folder: &Path) -> u64 {
    let mut ask = Command::new(programs.join("terrace"));
    ask.arg("--socket")
        .arg(folder.join("api"))
        .args(["vms", "--json"]);
    let answer = host::output(&mut ask).unwrap_or_default();
    let vms: Value = serde_json::from_str(&answer).unwrap_or_default();
    vms[0]["rounds"].as_u64().unwrap_or(0)
}

/// The daemon and its children.
fn family(daemon: u32) -> Result<Vec<u32>> {
    let path = format!("/proc/{daemon}/task");
    let mut pids = vec![daemon];
    for thread in fs::read_dir(&path).with_context(|| format!("cannot read {path}"))? {
        let children = fs::read_to_string(thread?.path().join("children"))?;
        pids.extend(
            children
                .split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    Ok(pids)
}

fn cpu_seconds(pids: &[u32]) -> Result<f64> {
    let mut sum = 0.0;
    for pid in pids {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let after_name = stat.rsplit(") ").next().unwrap_or_default();
        let fields = after_name.split(' ').skip(11).take(2);
        sum += fields
            .filter_map(|ticks| ticks.parse::<f64>().ok())
            .sum::<f64>()
            * CLOCK_TICK;
    }
    Ok(sum)
}

fn rss_anon_mib(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib: f64 = kib.context("no RssAnon")?.parse()?;
    Ok(kib / 1024.0)
}
