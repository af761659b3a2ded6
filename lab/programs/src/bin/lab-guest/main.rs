//! Init of an L2 guest: a workload whose hot pages and contents are known exactly.
//!
//! It fills a region with a pattern, keeps touching a scattered hot set in it, and answers questions
//! on a virtio-serial port: which guest frames are hot, and is every byte still what it should be.
//! When asked to, it lets processes come and go beside that, or has pages that are special to a kernel:
//! freed lazily, of processes that sleep, in the page cache alone, full of words like entries; or it starts the guest
//! agent beside itself.

mod agent;
mod anonymous;
mod cache;
mod commands;
mod held;
mod lazyfree;
mod options;
mod pagemap;
mod sleepers;
mod startup;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use agent::Agent;
use anyhow::{Context, Result};
use commands::Guest;
use options::Options;
use sleepers::Sleepers;
use terrace_lab_programs::churn::Churn;
use terrace_lab_programs::hotset::Layout;
use terrace_lab_programs::region::{MappingAddress, Region};
use terrace_lab_programs::workload::Workload;
use terrace_lab_programs::{numa, port};

fn main() {
    // The kernel panics when init ends, and with it ends the guest: the supervisor notices.
    if let Err(error) = run() {
        eprintln!("lab-guest: {error:#}");
    }
}

fn run() -> Result<()> {
    startup::mount_filesystems()?;
    startup::name_this_process(c"lab-guest")?;
    let options = Options::from_kernel_command_line()?;
    let region = fill(&options)?;
    let mut workload = Workload::new(region, options.hot_percent, options.layout, options.seed);
    if let Layout::Sparse { each } = options.layout {
        workload.set_hot_pages(options.region_mib / 2 * each);
    }
    println!(
        "lab-guest: {} pages, {} hot",
        workload.pages(),
        workload.hot_pages()
    );
    let mut guest = Guest {
        workload,
        churn: Churn::new()?,
        sleepers: Sleepers::default(),
        agent: Agent::default(),
        lazyfree: None,
        cache: None,
        held: None,
    };
    let mut port = port::open(port::TRUTH, false)?;
    serve(&mut port, &mut guest, options.pause_ms)
}

/// Fills the region from the node on which it starts.
fn fill(options: &Options) -> Result<Region> {
    // A kernel without NUMA has no policies, and needs none.
    let wanted = options.node > 0;
    if wanted {
        numa::prefer(options.node).context("cannot prefer a node")?;
    }
    let region = Region::new(options.region_mib, options.thp, MappingAddress::FarAway)?;
    if wanted {
        numa::prefer_none().context("cannot go back to no preference")?;
    }
    Ok(region)
}

/// Passes over the hot set until the end of the machine, with a check of the port in between.
fn serve(port: &mut File, guest: &mut Guest, pause_ms: i32) -> Result<()> {
    let mut line = Vec::new();
    loop {
        let workload = &mut guest.workload;
        if workload.running {
            workload.pass();
        }
        let timeout = if workload.running { pause_ms } else { -1 };
        if !wait_for_input(port, timeout)? {
            continue;
        }
        // To answer takes time that is no pass's.
        workload.interrupted();
        let mut chunk = [0; 4096];
        let read = port.read(&mut chunk).context("reading the truth port")?;
        line.extend_from_slice(&chunk[..read]);
        while let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            let request = String::from_utf8_lossy(&line[..end]).into_owned();
            line.drain(..=end);
            let answer = guest.answer(&request);
            port.write_all(format!("{answer}\n").as_bytes())
                .context("writing to the truth port")?;
        }
    }
}

fn wait_for_input(port: &File, timeout_ms: i32) -> Result<bool> {
    let mut request = libc::pollfd {
        fd: port.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd is passed, and it lives through the call.
    let ready = unsafe { libc::poll(&raw mut request, 1, timeout_ms) };
    if ready < 0 {
        return Err(std::io::Error::last_os_error()).context("polling the truth port");
    }
    let hung_up = request.revents & libc::POLLHUP != 0;
    if hung_up {
        // No process listens on the other side; poll would return at once for ever.
        thread::sleep(Duration::from_millis(20));
    }
    Ok(ready > 0 && !hung_up)
}
