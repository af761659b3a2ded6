//! VMs whose memory a test resizes by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use terrace_api::client::segment;
use terrace_api::provision::{Ordered, ProvisioningStatus, Resize};
use terrace_api::types::{Doctor, EventLine, Finding, VmDetail};
use terrace_host::sharers::Holders;

use super::super::Provisioning;
use super::super::provider::{Find, Finder, Provider, Wanted};
use super::GIB;
use crate::messages::State;
use crate::played::{Served, figures, play_process, process, put, serve_resizable};
use terrace_core::provision::ProvisionConfig;
use terrace_proto::provision::{
    Mechanism, ProviderError, ProviderKind, ProviderStatus, TierStatus, Verified,
};

/// A provider's script: its answers, and the questions that it got.
pub struct Script {
    pub kind: ProviderKind,
    pub status: Result<ProviderStatus, ProviderError>,
    pub answer: Result<(), ProviderError>,
    pub ordered: Vec<Vec<Option<u64>>>,
    /// Looks with and without verification.
    pub queries: [u64; 2],
    pub hangs: bool,
    pub hangs_at_orders: bool,
    /// From the second lease after a query on: the first is part of the query.
    pub hangs_at_leases: bool,
    leases: u32,
    /// Hang once an order was answered.
    pub hangs_after_orders: bool,
    /// Whether orders make it panic, as a fault of our own code would.
    pub panics_at_orders: bool,
    /// The process of the provider, if it reports one.
    pub process: Option<u32>,
}

#[derive(Clone)]
pub struct Scripted(Arc<(Mutex<Script>, Condvar)>);

impl Scripted {
    /// A VM that has all that was ordered: of each tier 2 GiB of 4 GiB, on the host's nodes 0 and 1.
    pub fn settled() -> Self {
        let script = Script {
            kind: ProviderKind::HyperFlex,
            status: Ok(status([2 * GIB, 2 * GIB])),
            answer: Ok(()),
            ordered: Vec::new(),
            queries: [0; 2],
            hangs: false,
            hangs_at_orders: false,
            hangs_at_leases: false,
            leases: 0,
            hangs_after_orders: false,
            panics_at_orders: false,
            process: None,
        };
        Self(Arc::new((Mutex::new(script), Condvar::new())))
    }

    pub fn lock(&self) -> MutexGuard<'_, Script> {
        self.0.0.lock().unwrap()
    }

    /// Changes the status that is seen.
    pub fn see(&self, change: impl FnOnce(&mut ProviderStatus)) {
        change(self.lock().status.as_mut().unwrap());
    }

    pub fn hang(&self, hangs: bool) {
        self.lock().hangs = hangs;
        self.0.1.notify_all();
    }

    pub fn hang_at_orders(&self, hangs: bool) {
        self.lock().hangs_at_orders = hangs;
        self.0.1.notify_all();
    }

    /// Hangs at the second lease of the next query, once those of the last one are over; or hangs no more.
    pub fn hang_at_leases(&self, hangs: bool) {
        let is_under_way = |script: &mut Script| hangs && script.leases < 2;
        let mut script = self.0.1.wait_while(self.lock(), is_under_way).unwrap();
        script.hangs_at_leases = hangs;
        drop(script);
        self.0.1.notify_all();
    }

    /// Hangs after orders, until [`Self::hang`] changes that.
    pub fn hang_after_orders(&self) {
        self.lock().hangs_after_orders = true;
    }

    /// Number of its holders.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    fn when_it_takes_orders(&self) -> MutexGuard<'_, Script> {
        let hangs = |script: &mut Script| script.hangs || script.hangs_at_orders;
        self.0.1.wait_while(self.lock(), hangs).unwrap()
    }

    fn when_it_answers(&self) -> MutexGuard<'_, Script> {
        let wait = self.0.1.wait_while(self.lock(), |script| script.hangs);
        wait.unwrap()
    }
}

impl Provider for Scripted {
    fn mechanism(&self) -> Mechanism {
        let kind = self.lock().kind;
        let message = match kind {
            ProviderKind::HyperFlex => "HyperFlex",
            ProviderKind::VirtioMem => "virtio-mem in 2 MiB blocks",
            ProviderKind::Balloon => "the balloon, which knows no tiers",
        };
        Mechanism {
            kind,
            name: message.into(),
            at: "script".into(),
        }
    }

    fn query(&mut self, verify: bool) -> Result<ProviderStatus, ProviderError> {
        let mut script = self.when_it_answers();
        script.queries[usize::from(!verify)] += 1;
        script.leases = 0;
        let mut status = script.status.clone()?;
        if !verify {
            status
                .tiers
                .iter_mut()
                .for_each(|tier| tier.verified = None);
        }
        Ok(status)
    }

    fn order(&mut self, size_bytes: &[Option<u64>]) -> Result<(), ProviderError> {
        let mut script = self.when_it_takes_orders();
        if script.panics_at_orders {
            // The script is used again after this.
            drop(script);
            panic!("a fault that a test wants");
        }
        script.ordered.push(size_bytes.to_vec());
        script.hangs |= script.hangs_after_orders;
        script.answer.clone()?;
        if let Ok(status) = &mut script.status {
            for (tier, size) in status.tiers.iter_mut().zip(size_bytes) {
                tier.target_bytes = size.unwrap_or(tier.target_bytes);
            }
        }
        Ok(())
    }

    fn lease(
        &mut self,
        _pin_checked: Option<(u64, Holders)>,
    ) -> Result<Option<Wanted>, ProviderError> {
        self.lock().leases += 1;
        self.0.1.notify_all();
        let hangs = |script: &mut Script| script.hangs_at_leases && script.leases > 1;
        let process = self.0.1.wait_while(self.lock(), hangs).unwrap().process;
        Ok(process.map(|process| Wanted {
            number: None,
            waits: false,
            files: BTreeSet::new(),
            process: Some(process),
        }))
    }
}

/// The status of a VM whose tiers have these sizes, which are their targets.
pub fn status(sizes: [u64; 2]) -> ProviderStatus {
    let tier = |(node, size): (u32, u64)| TierStatus {
        node: Some(node),
        host_nodes: vec![node],
        whole_bytes: 4 * GIB,
        target_bytes: size,
        size_bytes: size,
        verified: Some(Verified {
            present_bytes: size,
            claimed_bytes: 4 * GIB - size,
            retained_bytes: 0,
        }),
        ..TierStatus::default()
    };
    ProviderStatus {
        connected: true,
        targets_sent: true,
        total_bytes: Some(4 * GIB),
        tiers: (0..).zip(sizes).map(tier).collect(),
        ..ProviderStatus::default()
    }
}

/// Brings a tier to its size as an honest guest does.
pub fn resize_tier(tier: &mut TierStatus, size: u64) {
    tier.size_bytes = size;
    tier.verified = Some(Verified {
        present_bytes: size,
        claimed_bytes: tier.whole_bytes - size,
        retained_bytes: 0,
    });
}

pub fn pace(patience: Duration) -> ProvisionConfig {
    ProvisionConfig {
        under_way_ms: 20,
        idle_ms: 30,
        verify_ms: 40,
        patience_ms: u64::try_from(patience.as_millis()).unwrap(),
        driver_ms: 100,
        ..ProvisionConfig::default()
    }
}

/// A process that lives, and whose descriptors can be seen and pin nothing.
pub fn live(root: &Path, pid: u32) {
    play_process(root, process(pid));
    std::fs::create_dir_all(root.join(format!("proc/{pid}/fd"))).unwrap();
    std::fs::write(root.join(format!("proc/{pid}/maps")), "").unwrap();
}

/// Scripts by the VM's name.
type Scripts = Arc<Mutex<BTreeMap<&'static str, Scripted>>>;

pub struct Host {
    pub served: Served,
    pub scripts: Scripts,
}

/// A host with these VMs, whose process ids are 100 and up.
pub fn host<const N: usize>(vms: [(&'static str, &Scripted); N]) -> Host {
    host_with(Duration::from_secs(60), "", vms)
}

/// The same, with the time that a provider may take.
pub fn host_with<const N: usize>(
    patience: Duration,
    config: &str,
    vms: [(&'static str, &Scripted); N],
) -> Host {
    host_at(pace(patience), config, vms)
}

/// The same, with the times between queries.
pub fn host_at<const N: usize>(
    pace: ProvisionConfig,
    config: &str,
    vms: [(&'static str, &Scripted); N],
) -> Host {
    let scripts = vms.map(|(name, script)| (name, script.clone()));
    let scripts: BTreeMap<&str, Scripted> = scripts.into_iter().collect();
    let scripts = Arc::new(Mutex::new(scripts));
    let known = Arc::clone(&scripts);
    let finder: Finder = Arc::new(move |context| {
        let script = known.lock().unwrap().get(context.name.as_str())?.clone();
        let find: Find = Box::new(move || Ok(Some(Box::new(script.clone()) as Box<dyn Provider>)));
        Some(find)
    });
    let provisioning = Provisioning::new(finder, pace);
    let served = serve_resizable(|_| config.to_owned(), provisioning);
    let host = Host { served, scripts };
    host.free([8 * GIB, 8 * GIB]);
    for (pid, (name, _)) in (100..).zip(vms) {
        host.find(name, pid);
        host.until(name, |provisioning| {
            provisioning.age_s.is_some().then_some(())
        });
    }
    host
}

impl Host {
    pub fn root(&self) -> &Path {
        self.served.folder.path()
    }

    /// Another VM.
    pub fn add(&self, name: &'static str, script: &Scripted, pid: u32) {
        self.scripts.lock().unwrap().insert(name, script.clone());
        self.find(name, pid);
    }

    fn find(&self, name: &str, pid: u32) {
        live(self.root(), pid);
        let private = State::Unscannable("its RAM is private".into());
        self.served.find(name, Some(pid), private);
    }

    /// Free memory of the nodes.
    pub fn free(&self, bytes: [u64; 2]) {
        let zone = |(node, bytes): (u32, u64)| {
            let pages = bytes / 4096;
            format!("Node {node}, zone Normal\n  pages free {pages}\n  high 0\n")
        };
        let zones: String = (0..).zip(bytes).map(zone).collect();
        put(self.root(), "proc/zoneinfo", &zones);
    }

    pub fn resize(&self, vm: &str, sizes: [Option<u64>; 2]) -> Result<Ordered, String> {
        let [fast_bytes, slow_bytes] = sizes;
        let sizes = Resize {
            fast_bytes,
            slow_bytes,
            ..Resize::default()
        };
        let path = format!("/v1/vms/{}/resize", segment(vm));
        self.served.post_body(&path, &sizes)
    }

    pub fn provisioning(&self, vm: &str) -> Option<ProvisioningStatus> {
        let detail: VmDetail = self
            .served
            .get(&format!("/v1/vms/{}", segment(vm)))
            .unwrap();
        detail.provisioning
    }

    /// Waits until something is so.
    pub fn until<T>(&self, vm: &str, so: impl Fn(&ProvisioningStatus) -> Option<T>) -> T {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let provisioning = self.provisioning(vm);
            if let Some(found) = provisioning.as_ref().and_then(&so) {
                return found;
            }
            assert!(Instant::now() < until, "not yet: {provisioning:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn events(&self, vm: &str) -> Vec<String> {
        let events: Vec<EventLine> = self.served.get("/v1/events?after=0").unwrap();
        let events = events.into_iter();
        let events = events.filter(|event| event.vm.as_deref() == Some(vm));
        events.map(|event| event.text).collect()
    }

    /// Waits for an event with this in it.
    pub fn event(&self, vm: &str, has: &str) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let events = self.events(vm);
            if let Some(event) = events.iter().find(|event| event.contains(has)) {
                return event.clone();
            }
            assert!(Instant::now() < until, "no {has:?} in {events:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The text of `/metrics`.
    pub fn figures(&self) -> String {
        figures(&self.root().join("terraced.sock"))
    }

    /// The finding of `doctor` of this name, about a VM or the host.
    pub fn doctor(&self, vm: Option<&str>, name: &str) -> Finding {
        let doctor: Doctor = self.served.get("/v1/doctor").unwrap();
        let findings = vm.map_or(&doctor.host, |vm| &doctor.vms[vm]);
        let found = findings.iter().find(|finding| finding.name == name);
        found
            .unwrap_or_else(|| panic!("no {name} in {findings:?}"))
            .clone()
    }
}
