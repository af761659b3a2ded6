//! The device's end of the control socket. Its users are the host's operator and daemon, not the guest; still no
//! request is larger than the VM explains, and none keeps the others waiting for long.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytesize::ByteSize;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::timed::{Limits, Timed};
use super::{
    LeaseRequest, LeaseStatus, MAX_LINE, PinCheckResult, Reply, Request, Status, TierStatus,
};
use crate::abi::PAGE_BYTES;
use crate::backend::Shared;
use crate::config::Config;
use crate::error::FlexError;
use crate::export::{Exported, most_bytes};
use crate::sweep::{Scope, Sweeps};

/// How long a client may take for its part: the others wait for it.
const PATIENCE: Limits = Limits {
    wait: Duration::from_secs(5),
    whole: Duration::from_secs(30),
};

/// The time for which files may be verified for one answer, well below the time that clients wait for it; the next
/// request continues.
const MAX_VERIFY_TIME: Duration = Duration::from_millis(500);

/// How long to wait if no connection can be taken (no descriptors left, for one).
const PAUSE: Duration = Duration::from_millis(100);

/// Answers requests until `ended` is readable.
///
/// # Errors
/// If the kernel refuses to wait.
pub(crate) fn serve(
    listener: &UnixListener,
    ended: &EventFd,
    shared: &Arc<Shared>,
) -> std::io::Result<()> {
    let epoll = Epoll::new()?;
    for (fd, data) in [(listener.as_raw_fd(), 0), (ended.as_raw_fd(), 1)] {
        let event = EpollEvent::new(EventSet::IN, data);
        epoll.ctl(ControlOperation::Add, fd, event)?;
    }
    let mut events = [EpollEvent::default(); 2];
    let mut sweeps = Sweeps::default();
    loop {
        let ready = match epoll.wait(-1, &mut events) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            ready => ready?,
        };
        if events.iter().take(ready).any(|event| event.data() == 1) {
            return Ok(());
        }
        match listener.accept() {
            // A client that went away has lost its answer, and nothing else happened.
            Ok((socket, _)) => drop(answer(&socket, shared, &mut sweeps)),
            Err(error) => {
                tracing::warn!("control socket: {error}");
                std::thread::sleep(PAUSE);
            }
        }
    }
}

fn answer(socket: &UnixStream, shared: &Shared, sweeps: &mut Sweeps) -> std::io::Result<()> {
    let mut reader = BufReader::new(Timed::new(socket, PATIENCE));
    let mut line = Vec::new();
    (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line)?;
    let done = match serde_json::from_slice::<Request>(&line) {
        Ok(request) => carry_out(request, &mut reader, shared, sweeps),
        Err(error) => Err(FlexError::Refused(format!("not a request: {error}"))),
    };
    let (reply, behind) = done.unwrap_or_else(|error| {
        let message = error.to_string();
        (Reply::Error { message }, Vec::new())
    });
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    // The time that the request took counts for itself.
    let mut socket = Timed::new(socket, PATIENCE);
    socket.write_all(&line)?;
    socket.write_all(&behind)
}

fn carry_out(
    request: Request,
    reader: &mut impl std::io::Read,
    shared: &Shared,
    sweeps: &mut Sweeps,
) -> Result<(Reply, Vec<u8>), FlexError> {
    let accepted = |generation| (Reply::Accepted { generation }, Vec::new());
    match request {
        Request::Status { verify } => {
            let mut status = status(shared);
            if verify {
                verify_tiers(shared, sweeps, &mut status);
            }
            Ok((Reply::Status(Box::new(status)), Vec::new()))
        }
        Request::Lease { pin_checked } => {
            Ok((Reply::Lease(lease(shared, pin_checked)), Vec::new()))
        }
        Request::Resize { size_bytes } => {
            let mut device = shared.device();
            let now = device.state().targets();
            let targets = targets(device.config(), &now, &size_bytes)?;
            let ordered = device.problems().iter().zip(&targets).zip(&size_bytes);
            for ((problem, target), size) in ordered {
                if let (Some(why), true) = (problem, *target > 0 && size.is_some()) {
                    return Err(FlexError::Refused(why.clone()));
                }
            }
            device.set_targets(&targets, now_s())?;
            let generation = device.state().generation();
            drop(device);
            tracing::info!("targets {generation}: {targets:?} pages in the balloons");
            shared.poke();
            Ok(accepted(generation))
        }
        Request::Export => {
            let device = shared.device();
            let exported = Exported::of(device.state());
            let bytes = exported.to_bytes(device.config())?;
            let len = bytes.len() as u64;
            Ok((Reply::Exported { bytes: len }, bytes))
        }
        Request::Import { bytes } => {
            let config = shared.device().config().clone();
            if bytes > most_bytes(&config) {
                let why = "the import is larger than any export of this VM can be";
                return Err(FlexError::Refused(why.into()));
            }
            let mut sent = Vec::new();
            reader
                .take(bytes)
                .read_to_end(&mut sent)
                .map_err(|e| FlexError::Refused(format!("the import: {e}")))?;
            let exported = Exported::from_bytes(&sent, &config)?;
            let mut device = shared.device();
            device.take_over(&exported.targets, &exported.balloons, now_s())?;
            Ok(accepted(device.state().generation()))
        }
    }
}

/// Takes the result of a pin check, and returns the one that is wanted next.
fn lease(shared: &Shared, pin_checked: Option<PinCheckResult>) -> LeaseRequest {
    let (now, mut device) = (shared.now_ns(), shared.device());
    if pin_checked.is_some_and(|l| !device.pin_checked(l.number, l.found, now)) {
        tracing::info!("the result of an outdated pin check was ignored");
    }
    let request = LeaseRequest {
        number: device.next_pin_check(now),
        waits: device.awaits_pin_check(),
        files: device.files().ids(),
    };
    drop(device);
    shared.poke();
    request
}

/// Pages in the balloons that leave each tier its target size.
fn targets(config: &Config, now: &[u64], sizes: &[Option<u64>]) -> Result<Vec<u64>, FlexError> {
    if sizes.len() != config.tiers().len() {
        let (n, want) = (sizes.len(), config.tiers().len());
        return Err(FlexError::Refused(format!("{n} sizes for {want} tiers")));
    }
    let block = config.block_bytes();
    let tiers = config.tiers().iter().zip(now).zip(sizes).enumerate();
    tiers
        .map(|(i, ((tier, now), size))| {
            let Some(size) = size else { return Ok(*now) };
            if size % block != 0 {
                let (size, block) = (ByteSize(*size), ByteSize(block));
                let why = format!(
                    "tier {i}: {size} are no whole pages of {block}, the smallest that the guest may give"
                );
                return Err(FlexError::Refused(why));
            }
            let pages = tier.pages();
            pages.checked_sub(size / PAGE_BYTES).ok_or_else(|| {
                let most = pages * PAGE_BYTES;
                FlexError::Refused(format!("tier {i} of this VM has {most} bytes at most"))
            })
        })
        .collect()
}

fn status(shared: &Shared) -> Status {
    let now = shared.now_ns();
    let device = shared.device();
    let state = device.state();
    let targets = state.targets();
    let block_bytes = device.config().block_bytes();
    let tiers = device
        .config()
        .tiers()
        .iter()
        .zip(targets)
        .zip(device.tier_maps());
    let said = device.actual().iter().zip(device.statistics());
    let files_of = device.node_policies().iter().zip(device.problems());
    let tiers = tiers
        .zip(said)
        .zip(files_of)
        .enumerate()
        .map(
            |(i, ((((tier, target), map), (actual, guest)), (policy, problem)))| {
                let bytes = |balloon: u64| tier.pages().saturating_sub(balloon) * PAGE_BYTES;
                let unproven = state.unproven(i) * PAGE_BYTES;
                let (withheld_bytes, unproven_bytes) = if state.is_withheld(i) {
                    (unproven, 0)
                } else {
                    (0, unproven)
                };
                TierStatus {
                    unproven_bytes,
                    withheld_bytes,
                    node: tier.node,
                    host_node: tier.host_node,
                    node_policy: *policy,
                    problem: problem.clone(),
                    block_bytes,
                    page_bytes: device.files().page_bytes(map),
                    whole_bytes: bytes(0),
                    target_bytes: bytes(target),
                    size_bytes: bytes(*actual),
                    verified: None,
                    verified_ratio: None,
                    verified_age_s: None,
                    guest: guest.into(),
                }
            },
        )
        .collect();
    let total = device.config().limits().total_pages;
    Status {
        connected: device.is_connected(),
        hypervisor_pid: shared.hypervisor_pid(),
        generation: state.generation(),
        targets_sent: device.has_sent_targets(),
        resets: state.resets(),
        total_bytes: total.map(|pages| pages * PAGE_BYTES),
        leases: Some(LeaseStatus {
            needed: device.leases().is_some(),
            stands: device.leases().is_none_or(|leases| leases.stands(now)),
            waits: device.awaits_pin_check(),
            last: device.leases().and_then(|leases| leases.last().cloned()),
        }),
        tiers,
        counters: *device.counters(),
    }
}

/// Continues the verifications of the files, and puts the results of the last complete ones into `status`.
fn verify_tiers(shared: &Shared, sweeps: &mut Sweeps, status: &mut Status) {
    let device = shared.device();
    let (state, maps) = (Arc::clone(device.state()), device.tier_maps().to_vec());
    let files = device.is_connected().then(|| device.files().clone());
    // Files are verified while the queues run on.
    drop(device);
    let Some(files) = files else { return };
    let scope = Scope {
        files: &files,
        maps: &maps,
        state: &state,
    };
    let begun = Instant::now();
    sweeps.go_on(
        &scope,
        || shared.device(),
        || begun.elapsed() < MAX_VERIFY_TIME,
    );
    // A verdict on the guest before the reset does not apply to the current one.
    if state.resets() != status.resets {
        return;
    }
    for (tier, verdict) in status.tiers.iter_mut().zip(sweeps.verdicts()) {
        tier.verified = verdict.map(|(seen, _)| seen);
        tier.verified_ratio = verdict.map(|(seen, _)| seen.verified_ratio());
        tier.verified_age_s = verdict.map(|(_, begun)| begun.elapsed().as_secs_f64());
    }
}

fn now_s() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u32::try_from(now.as_secs()).unwrap_or(u32::MAX))
}
