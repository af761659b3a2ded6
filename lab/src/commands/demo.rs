//! The demonstration: a person watches a real VM's hot pages come into fast memory, and sees why.

use std::fs;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use terrace_lab_programs::vm::VmSpec;

use crate::control::daemon::{HotOnFast, Setup, VM};
use crate::control::lab::Lab;
use crate::machine::blueprint::Blueprint;
use crate::machine::process::Lifetime;
use crate::places;
use crate::progress::say;

/// Longest time for the hot set to come into fast memory.
const PATIENCE: Duration = Duration::from_secs(400);
const BAR: u64 = 40;

/// Starts a fresh lab and shows Terrace at work in it.
pub fn run() -> Result<()> {
    let blueprint = Blueprint::prepare(&VmSpec::default(), false)?;
    let begin = Instant::now();
    let mut lab = Lab::start(&blueprint, "demo", Lifetime::Task)?;
    say(&format!(
        "lab ready after {:.1} s",
        begin.elapsed().as_secs_f64()
    ));
    lab.install_product()?;
    show(&mut lab).map_err(|error| error.context(lab.diagnosis()))
}

fn show(lab: &mut Lab) -> Result<()> {
    heading("A KVM host with two memory tiers, and a VM on the slow one");
    lab.start_daemon(Setup {
        moves: false,
        ..Setup::DEFAULT
    })?;
    terrace(lab, "doctor")?;
    terrace(lab, "vms")?;

    heading("Moves are off: Terrace only observes");
    lab.wait_for_round(VM, 1)?;
    terrace(lab, &format!("show {VM} --map"))?;
    let before = picture(lab, "before")?;
    terrace(lab, &format!("plan {VM} --dry-run"))?;

    heading("Moves are on: hot pages come into fast memory");
    println!("What is hot is the guest's own word, over a channel that terraced cannot open.\n");
    terrace(lab, &format!("set {VM} moves=on"))?;
    watch(lab)?;
    let after = picture(lab, "after")?;

    heading("What was decided, and why");
    terrace(lab, &format!("show {VM} --map"))?;
    terrace(lab, "top --once")?;
    terrace(lab, &format!("explain {VM}"))?;
    explain_one_of_each(lab)?;

    heading("The guest's hot set moves: Terrace follows");
    lab.guest("move 99")?;
    watch(lab)?;
    terrace(lab, &format!("show {VM}"))?;
    lab.expect_intact(VM)?;
    println!("\nThe guest checked every byte of its memory: intact.");
    println!("Pictures: {before} and {after}");
    Ok(())
}

fn heading(text: &str) {
    println!("\n== {text}\n");
}

/// Runs `terrace …` in L1 and shows the command and its answer.
fn terrace(lab: &mut Lab, arguments: &str) -> Result<()> {
    println!("$ terrace {arguments}");
    // Its output comes through a pipe of the lab to this program's terminal, if it has one.
    let colours = if std::io::stdout().is_terminal() {
        "CLICOLOR_FORCE=1 "
    } else {
        ""
    };
    // A finding of `doctor` makes it exit with 1; that is no failure of the demonstration.
    lab.stream(&format!("{colours}terrace {arguments}"), PATIENCE, |line| {
        println!("{line}")
    })?;
    println!();
    Ok(())
}

/// Prints a line for each change until the hot set is in fast memory and the round's moves are done.
fn watch(lab: &mut Lab) -> Result<()> {
    let begin = Instant::now();
    let first = lab.rounds(VM)?;
    let mut last = None;
    lab.wait_until("the hot set is in fast memory", PATIENCE, |lab| {
        let now = lab.hot_on_fast(VM)?;
        let rounds = lab.rounds(VM)? - first;
        if last != Some((now, rounds)) {
            last = Some((now, rounds));
            println!("{}", line(begin.elapsed(), rounds, now));
        }
        Ok((now.is_placed() && rounds > 0).then_some(()))
    })
}

fn line(elapsed: Duration, rounds: u64, now: HotOnFast) -> String {
    let filled = now.fast * BAR / now.hot.max(1);
    let bar: String = (0..BAR)
        .map(|i| if i < filled { '█' } else { '░' })
        .collect();
    let HotOnFast { fast, hot } = now;
    format!(
        "{:>6.1} s  rounds completed {rounds}  {bar} {fast:>5} of {hot} hot pages on fast",
        elapsed.as_secs_f64()
    )
}

/// Asks why one hot and one cold page are where they are.
fn explain_one_of_each(lab: &mut Lab) -> Result<()> {
    let hot = lab.hot_pages(VM)?;
    let page = hot.first().context("the guest has no hot page")?.first;
    let cold = (page..)
        .find(|frame| !hot.iter().any(|range| range.frames().any(|f| f == *frame)))
        .context("all pages are hot")?;
    for frame in [page, cold] {
        terrace(lab, &format!("explain {VM} --page {:#x}", frame << 12))?;
    }
    Ok(())
}

/// Has `terrace` draw the guest's memory, and fetches the picture.
fn picture(lab: &mut Lab, name: &str) -> Result<String> {
    lab.check(&format!(
        "terrace show {VM} --svg /tmp/{name}.svg >/dev/null"
    ))?;
    let svg = lab.check(&format!("cat /tmp/{name}.svg"))?;
    let folder = places::lab("pictures")?;
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{name}.svg"));
    fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))?;
    Ok(path.display().to_string())
}
