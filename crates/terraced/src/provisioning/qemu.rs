//! Providers that a VM's QEMU has: virtio-mem, else the balloon.
//!
//! The monitor is connected for each query and each order, and disconnected after it. QEMU serves one client of a
//! monitor at a time: if the VM is scanned, its own thread holds the connection and this one shares it
//! (`terrace_host::qemu`); if it is not, it is free between two queries, and other programs get their turn.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use terrace_host::HostRoot;
use terrace_host::huge::{HugeKernel, HugePass, HugeTarget, StepLimits};
use terrace_host::providers::{
    self, Backing, Balloon, Means, Plan, ResizeError, Seen, Tier, Watch,
};
use terrace_host::qemu::{Monitor, who};
use terrace_proto::PAGE_SIZE;
use terrace_proto::provision::{
    CollapseRequest, Mechanism, NotCollapsed, ProviderError, ProviderKind, ProviderStatus,
    TierStatus, Verified,
};
use terrace_sys::{KernelCollapse, KernelPages, ProcessId};

use super::guest::{GuestReader, Readings};
use super::provider::{CollapseStep, Find, Provider, VmContext, plain};
use super::step;

/// Time that the monitor may take to greet, and to answer each command: less than any client waits for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A function that finds the provider that the QEMU of a VM has.
pub fn find(context: &VmContext) -> Find {
    let context = context.clone();
    Box::new(move || {
        let monitor = Door {
            path: context.monitor.clone(),
            process: context.process,
            root: context.root.clone(),
        };
        let is_balanced = context.config.balance.takes_part();
        let found = providers::probe(&mut monitor.connect()?).map_err(trouble)?;
        Ok(found.map(|means| -> Box<dyn Provider> {
            match means {
                Means::VirtioMem(_) => Box::new(VirtioMem {
                    guest: GuestReader::new(monitor.clone(), is_balanced),
                    monitor,
                    root: context.root.clone(),
                    watches: Vec::new(),
                }),
                Means::Balloon(_) => Box::new(OneBalloon {
                    guest: GuestReader::new(monitor.clone(), is_balanced),
                    monitor,
                    root: context.root.clone(),
                    target: None,
                    is_met: false,
                    watch: Watch::default(),
                    pass: Arc::default(),
                }),
            }
        }))
    })
}

/// A VM's monitor, and its process: the path may change hands when the VM ends.
#[derive(Clone)]
pub(super) struct Door {
    pub path: PathBuf,
    pub process: Option<ProcessId>,
    /// The root folder of the host's files.
    pub root: HostRoot,
}

/// A VM with virtio-mem devices.
struct VirtioMem {
    monitor: Door,
    guest: GuestReader,
    root: HostRoot,
    /// One per tier.
    watches: Vec<Watch>,
}

/// A VM with a balloon.
struct OneBalloon {
    monitor: Door,
    guest: GuestReader,
    root: HostRoot,
    /// The last ordered size, bytes, until another program orders a size; QEMU does not report it.
    target: Option<u64>,
    /// Whether that size was reached.
    is_met: bool,
    watch: Watch,
    /// The knowledge that the steps of a pass through its memory share.
    pass: Arc<Mutex<HugePass>>,
}

impl Provider for VirtioMem {
    fn mechanism(&self) -> Mechanism {
        mechanism(ProviderKind::VirtioMem, "virtio-mem", &self.monitor.path)
    }

    fn query(&mut self, verify: bool) -> Result<ProviderStatus, ProviderError> {
        let mut monitor = self.monitor.connect()?;
        let tiers = plugged(&mut monitor)?;
        self.guest.read(&mut monitor);
        let now = Instant::now();
        self.watches.resize(tiers.len(), Watch::default());
        let each = tiers.iter().zip(&mut self.watches);
        let each = each.map(|(tier, watch)| tier_status(tier, watch, now));
        let mut statuses: Vec<TierStatus> = each.collect();
        if let Some(pid) = self.monitor.pid().filter(|_| verify) {
            // Not all RAM can be inspected from outside; the figures that are known without that stay.
            let seen = providers::backing(&self.root, pid, &mut monitor, &tiers);
            let seen = seen.unwrap_or_default();
            for ((status, tier), seen) in statuses.iter_mut().zip(&tiers).zip(seen) {
                status.verified = seen.map(|seen| verified(tier, seen));
            }
        }
        Ok(seen_by_qemu(statuses))
    }

    fn guest(&mut self) -> Option<Readings> {
        self.guest.take()
    }

    fn order(&mut self, size_bytes: &[Option<u64>]) -> Result<(), ProviderError> {
        let mut monitor = self.monitor.connect()?;
        let plan = Plan::new(&plugged(&mut monitor)?, size_bytes).map_err(trouble)?;
        plan.carry_out(&mut monitor).map_err(trouble)
    }
}

impl Provider for OneBalloon {
    fn mechanism(&self) -> Mechanism {
        let text = "the balloon, which knows no tiers (the guest chooses which tier loses)";
        mechanism(ProviderKind::Balloon, text, &self.monitor.path)
    }

    fn query(&mut self, verify: bool) -> Result<ProviderStatus, ProviderError> {
        let mut monitor = self.monitor.connect()?;
        let seen = balloon(&mut monitor)?;
        let Balloon { size, ram } = seen;
        self.guest.read(&mut monitor);
        let verified = match self.monitor.pid().filter(|_| verify) {
            Some(pid) => self.verify(pid, seen, &mut monitor)?,
            None => None,
        };
        // From a target that was reached the size goes away by another program's order, or the guest's need.
        let mine = self.target.filter(|target| !self.is_met || *target == size);
        self.target = mine;
        let target = mine.unwrap_or(size);
        self.is_met = mine.is_some() && size == target;
        let stuck = self.watch.update(Seen { size, target }, Instant::now());
        Ok(seen_by_qemu(vec![TierStatus {
            whole_bytes: ram,
            block_bytes: PAGE_SIZE,
            target_bytes: target,
            size_bytes: size,
            stuck: stuck.map(|stuck| stuck.by_balloon()),
            verified,
            ..TierStatus::default()
        }]))
    }

    fn guest(&mut self) -> Option<Readings> {
        self.guest.take()
    }

    fn order(&mut self, size_bytes: &[Option<u64>]) -> Result<(), ProviderError> {
        let mut monitor = self.monitor.connect()?;
        let total = balloon(&mut monitor)?.total(size_bytes);
        let total = total.map_err(trouble)?;
        Balloon::order(&mut monitor, total).map_err(trouble)?;
        (self.target, self.is_met) = (Some(total), false);
        Ok(())
    }

    fn collapse(&mut self, request: &CollapseRequest) -> Result<CollapseStep, NotCollapsed> {
        let not_now = |why: String| NotCollapsed::NotNow(plain(&why));
        let process = self.monitor.process;
        let process = process.ok_or_else(|| not_now("its process is not known".into()))?;
        let monitor = self.monitor.connect();
        let mut monitor = monitor.map_err(|error| not_now(error.to_string()))?;
        let target = HugeTarget::read(&self.root, process, &mut monitor).map_err(printable)?;
        let (root, request, pass) = (self.root.clone(), request.clone(), Arc::clone(&self.pass));
        // Its thread reads nothing of QEMU's.
        Ok(Box::new(move |is_over| {
            let kernel = HugeKernel {
                collapse: &KernelCollapse,
                pages: &KernelPages,
            };
            let limits = StepLimits {
                deadline: step::DEADLINE,
                is_over,
            };
            // What a step knew that panicked is read again if it does not hold.
            let mut pass = pass.lock().unwrap_or_else(PoisonError::into_inner);
            let done = target.collapse(&root, &request, kernel, limits, &mut pass);
            done.map_err(printable)
        }))
    }
}

/// A reason without control characters: it may quote QEMU.
fn printable(why: NotCollapsed) -> NotCollapsed {
    match why {
        NotCollapsed::NotNow(why) => NotCollapsed::NotNow(plain(&why)),
        NotCollapsed::Never(why) => NotCollapsed::Never(plain(&why)),
    }
}

impl OneBalloon {
    /// The host's figures for the VM's RAM. A size that the guest raises meanwhile is no lie; pages that it reported free are
    /// not present, and count as its own.
    fn verify(
        &self,
        pid: u32,
        seen: Balloon,
        monitor: &mut Monitor,
    ) -> Result<Option<Verified>, ProviderError> {
        let present = seen.present(&self.root, pid, monitor);
        let size = balloon(monitor)?.size.max(seen.size);
        Ok(present.ok().flatten().map(|present| Verified {
            present_bytes: present,
            claimed_bytes: seen.ram.saturating_sub(size),
            retained_bytes: present.saturating_sub(size),
        }))
    }
}

/// The host's figures for a tier. QEMU frees blocks as the guest unplugs them: no more of its devices' files may be
/// present than is plugged.
fn verified(tier: &Tier, seen: Backing) -> Verified {
    let plugged = tier.size_bytes.saturating_sub(tier.boot_bytes);
    Verified {
        present_bytes: seen.boot_bytes.saturating_add(seen.device_bytes),
        claimed_bytes: tier.max_bytes.saturating_sub(tier.size_bytes),
        retained_bytes: seen.device_bytes.saturating_sub(plugged),
    }
}

fn mechanism(kind: ProviderKind, text: &str, monitor: &Path) -> Mechanism {
    Mechanism {
        kind,
        name: text.into(),
        at: monitor.display().to_string(),
    }
}

fn tier_status(tier: &Tier, watch: &mut Watch, now: Instant) -> TierStatus {
    let seen = Seen {
        size: tier.size_bytes,
        target: tier.target_bytes,
    };
    TierStatus {
        node: Some(tier.node),
        host_nodes: tier.host_nodes.clone(),
        whole_bytes: tier.max_bytes,
        least_bytes: tier.boot_bytes,
        block_bytes: tier.block_bytes(),
        target_bytes: tier.target_bytes,
        size_bytes: tier.size_bytes,
        stuck: watch.update(seen, now).map(|stuck| stuck.by_virtio_mem()),
        ..TierStatus::default()
    }
}

/// The status of a VM that QEMU resizes: QEMU is connected if it answers, and has the targets itself.
fn seen_by_qemu(tiers: Vec<TierStatus>) -> ProviderStatus {
    ProviderStatus {
        connected: true,
        targets_sent: true,
        tiers,
        ..ProviderStatus::default()
    }
}

impl Door {
    fn pid(&self) -> Option<u32> {
        self.process.map(|process| process.pid)
    }

    /// A connection to the monitor.
    pub fn connect(&self) -> Result<Monitor, ProviderError> {
        let may = |peer| who::may_answer_for(self.pid(), peer);
        let connected = Monitor::connect_to(&self.path, ANSWER_TIMEOUT, &may);
        connected.map_err(|error| trouble(error.into()))
    }
}

fn plugged(monitor: &mut Monitor) -> Result<Vec<Tier>, ProviderError> {
    match providers::probe(monitor).map_err(trouble)? {
        Some(Means::VirtioMem(tiers)) => Ok(tiers),
        _ => Err(ProviderError::Gone(
            "its virtio-mem devices are gone".into(),
        )),
    }
}

fn balloon(monitor: &mut Monitor) -> Result<Balloon, ProviderError> {
    match providers::probe(monitor).map_err(trouble)? {
        Some(Means::Balloon(balloon)) => Ok(balloon),
        Some(Means::VirtioMem(_)) => Err(ProviderError::Gone(
            "the VM has virtio-mem devices now; restart terraced to use them".into(),
        )),
        None => Err(ProviderError::Gone("its balloon is gone".into())),
    }
}

/// A refusal if the sizes are impossible; every other error is a QEMU that does not follow its orders.
fn trouble(error: ResizeError) -> ProviderError {
    let why = plain(&error.to_string());
    match error {
        ResizeError::Qemu(_) | ResizeError::HalfWay { .. } | ResizeError::Contradiction(_) => {
            ProviderError::Gone(why)
        }
        _ => ProviderError::Refused(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qemu_that_was_taken_over_steers_no_terminal() {
        let said = ResizeError::Contradiction("\x1b]0;owned\x07".into());
        let ProviderError::Gone(why) = trouble(said) else {
            panic!("what does not fit together is no refusal");
        };
        assert!(!why.contains(char::is_control), "{why:?}");
    }
}
