//! Rules for the parts of a scenario together: whole pages at its scale, memory that exists, loads that fit.

use terrace_core::arbiter::ArbiterConfig;
use terrace_proto::PageSize;

use super::error::Fault;
use super::policy::check_threshold;
use super::quantity::size_text;
use super::{GuestPolicy, HostPolicy, HostShare, Scenario, SmallVms, Vm};
use crate::base::load::{MAX_PAGES, Stop};
use crate::base::number::float;
use crate::base::side::Side;
use crate::machine::tlb::Cached;
use crate::mechanisms::needs::{Memory, Part};
use crate::workload::WorkloadError;

/// Least pages of `host_page` of a VM after scaling; with fewer, one page is too large a part of it.
const MIN_PAGES: u64 = 1024;

/// Largest scale: the engine's numbers of bytes are divided by it and may not vanish.
pub(super) const MAX_SCALE: u64 = 1024;

/// Largest scale with protection faults: there are as many per access at any scale, and a second has fewer accesses the
/// larger the scale is. With one fault in 10 million accesses, the fewest that a hot set is resized for, a busy VM of
/// eight vCPUs has some ten a second at scale 4: fewer would give no 95 % of a second's distances.
const MAX_FAULTS_SCALE: u64 = 4;

/// Most memory of one VM, bytes: half of the reach of a program's 47 bits of addresses.
const MAX_BYTES: u64 = 1 << 46;

/// Longest time of a load, ns: 100 days. The machine counts in ps, of which 64 bits hold 213 days.
const MAX_NS: u64 = 100 * 24 * 3600 * 1_000_000_000;

/// A number of bytes that must be whole pages.
struct Extent {
    path: String,
    bytes: u64,
    page: PageSize,
}

impl Scenario {
    /// Checks the rules for the parts together. Paths are those of a scenario that gives `tiers`.
    ///
    /// # Errors
    /// If a rule is broken; the error names the first one.
    pub fn check(&self) -> Result<(), Fault> {
        for (i, vm) in self.vms.iter().enumerate() {
            let path = format!("vm[{i}]");
            check_limits(vm, &path)?;
            vm.shortage.check_pages(&path, vm.pages)?;
            let pool = self.host.share == HostShare::Pool;
            vm.claim.check(&path, vm.sizes[0], pool)?;
            vm.check_provision(&path)?;
            vm.check_guest_moves(&path)?;
            vm.check_memory(&path)?;
        }
        self.check_share()?;
        self.check_baselines()?;
        self.check_capacity()?;
        self.check_memory_mode()?;
        self.check_thresholds()?;
        // Before the scale: a load's own error goes before that of a VM's size.
        let mut loads = Vec::new();
        for (i, vm) in self.vms.iter().enumerate() {
            let pages = vm.workload.pages(self.machine.scale, &self.folder);
            let wrong =
                |error: WorkloadError| Fault::new(format!("vm[{i}].workload"), error.to_string());
            loads.push(pages.map_err(wrong)?);
            vm.workload.check_vcpus(vm.vcpus).map_err(wrong)?;
        }
        self.check_scale()?;
        self.check_faults()?;
        for (i, (vm, pages)) in self.vms.iter().zip(loads).enumerate() {
            self.check_load(vm, pages, &format!("vm[{i}].workload"))?;
        }
        Ok(())
    }

    /// Checks that the host can share as it is to. Under `dp` and `fair` a VM without a device keeps its memory, and its part of the
    /// first tier is shared all the same.
    pub(crate) fn check_share(&self) -> Result<(), Fault> {
        let share = self.host.share;
        let (given, usual) = (&self.engine.arbiter, ArbiterConfig::default());
        for (key, differs, by) in [
            ("rule", given.rule != usual.rule, "host.share"),
            (
                "reserve_percent",
                given.reserve_percent != usual.reserve_percent,
                "host.reserve",
            ),
            ("scale", given.scale != usual.scale, "machine.scale"),
            (
                "price_ratio_milli",
                given.price_ratio_milli != usual.price_ratio_milli,
                "host.price_ratio",
            ),
            (
                "slow_access_extra_ns",
                given.slow_access_extra_ns != usual.slow_access_extra_ns,
                "machine.tiers",
            ),
        ] {
            if differs {
                let what = format!("{by} says that of a simulated host: set it there");
                return Err(Fault::new(format!("engine.arbiter.{key}"), what));
            }
        }
        self.host.check_reserve()?;
        match share {
            HostShare::Dp | HostShare::Fair => self.check_room(share.name()),
            _ => Ok(()),
        }
    }

    /// Checks that each tier has room for all that VMs which a device sizes may have there: a guest that was given memory
    /// which the host has not would wait for it for ever.
    fn check_room(&self, share: &str) -> Result<(), Fault> {
        let sum = |of: &dyn Fn(&Vm) -> u64| self.vms.iter().map(of).fold(0, u64::saturating_add);
        let together = sum(&|vm| vm.provision.as_ref().map_or(0, |_| vm.bytes()));
        for (t, tier) in self.machine.tiers.iter().enumerate() {
            let node = |vm: &Vm| match &vm.provision {
                Some(provision) => provision.nodes.get(t).copied().unwrap_or(0),
                None => 0,
            };
            let still = |vm: &Vm| match vm.provision {
                Some(_) => 0,
                None => vm.sizes.get(t).copied().unwrap_or(0),
            };
            let most = sum(&node).min(together).saturating_add(sum(&still));
            if most > tier.bytes {
                let what = format!(
                    "\"{}\" has {}, less than VMs may have there under host.share = \"{share}\" ({}): make it that large",
                    tier.name,
                    size_text(tier.bytes),
                    size_text(most)
                );
                return Err(Fault::new(format!("machine.sizes[{t}]"), what));
            }
        }
        Ok(())
    }

    /// Whether a run needs the profiles of one with all memory fast ([`crate::Simulation::with_profiles`]).
    #[must_use]
    pub fn needs_profiles(&self) -> bool {
        let mut policies = self.vms.iter().map(|vm| &vm.policy);
        policies.any(|policy| *policy == HostPolicy::StaticBest)
    }

    /// The work of simulating the scenario, for the order of runs alone: time of vCPUs as simulated, roughly in ns. A
    /// trace, whose length is known only when it is read, counts as much as a load without end.
    #[must_use]
    pub fn work(&self) -> f64 {
        const ACCESS_NS: f64 = 100.0;
        let of = |vm: &Vm| match vm.stop {
            Stop::Duration(ns) => float(ns) * f64::from(vm.vcpus),
            Stop::Ops(ops) => float(ops) * ACCESS_NS,
            Stop::Trace => f64::INFINITY,
        };
        // Profiles come from a whole run before.
        let runs = if self.needs_profiles() { 2.0 } else { 1.0 };
        runs * self.vms.iter().map(of).sum::<f64>() / float(self.machine.scale)
    }

    /// Checks the conditions that mechanisms of other systems set for a VM.
    pub(crate) fn check_baselines(&self) -> Result<(), Fault> {
        for (i, vm) in self.vms.iter().enumerate() {
            vm.check_owner(&format!("vm[{i}].provision"))?;
            vm.check_gathering(&format!("vm[{i}].guest_policy"))?;
            let Some((name, side)) = vm.baseline() else {
                continue;
            };
            let name = name.name();
            let key = match (&vm.policy, vm.guest_policy.and_then(GuestPolicy::places)) {
                (_, Some(_)) => "guest_policy",
                _ => "policy",
            };
            let path = format!("vm[{i}].{key}");
            if side == Side::Guest && !vm.pages.agree() {
                let what = format!(
                    "{name} in the guest needs pages of one size in guest and host: set page, not guest_page and host_page"
                );
                return Err(Fault::new(path, what));
            }
            if !vm.shortage.is_none() {
                let what =
                    format!("{name} cannot be simulated with swap or a balloon: leave them out");
                return Err(Fault::new(path, what));
            }
            if vm.workload.frees_memory() {
                let what = format!(
                    "{name} cannot be simulated with programs that free their memory: set fresh = false in the load"
                );
                return Err(Fault::new(path, what));
            }
            self.check_needs(vm, &path)?;
            self.check_splits(vm, &format!("vm[{i}].workload"))?;
        }
        Ok(())
    }

    /// Checks that a VM is not too small for the constants of the mechanism that places its pages.
    fn check_needs(&self, vm: &Vm, path: &str) -> Result<(), Fault> {
        let Some((name, _)) = vm
            .baseline()
            .filter(|_| self.machine.small_vms == SmallVms::Refuse)
        else {
            return Ok(());
        };
        let memory = Memory {
            all: vm.bytes(),
            first: vm.sizes[0],
            page: vm.pages.host.bytes() * self.machine.scale,
        };
        let needs = name.needs(memory);
        let Some(need) = needs.iter().find(|need| need.is_missed(memory)) else {
            return Ok(());
        };
        let (of, larger) = match need.part {
            Part::All => (String::new(), "the VM"),
            Part::First => (
                format!(" of \"{}\"", self.machine.tiers[0].name),
                "its first tier",
            ),
        };
        let what = format!(
            "\"{}\" {}, {} {}{of}: make {larger} at least {}, name another policy, or set machine.small_vms = \"allow\"",
            name.name(),
            need.constant,
            need.relation,
            size_text(need.has(memory)),
            size_text(need.least),
        );
        Err(Fault::new(path, what))
    }

    /// Checks that a load whose pages can be split leaves a bit of a translation's key free to mark parts of split
    /// pages.
    fn check_splits(&self, vm: &Vm, path: &str) -> Result<(), Fault> {
        if !vm.splits() {
            return Ok(());
        }
        let pages = vm.workload.pages(self.machine.scale, &self.folder);
        let pages = pages.map_err(|error| Fault::new(path, error.to_string()))?;
        if pages > u64::from(Cached::KEYS / 2) {
            let what = "the load has too many pages to split any: at most 1 TiB can be run";
            return Err(Fault::new(path, what));
        }
        Ok(())
    }

    fn check_capacity(&self) -> Result<(), Fault> {
        for (t, tier) in self.machine.tiers.iter().enumerate() {
            let (name, has) = (&tier.name, size_text(tier.bytes));
            let mut sum = 0;
            for (i, vm) in self.vms.iter().enumerate() {
                let bytes = vm.sizes[t];
                let path = format!("vm[{i}].tiers[{t}]");
                if bytes > tier.bytes {
                    let what = format!(
                        "{} is more than the machine has of \"{name}\" ({has}): make the VM smaller or machine.sizes larger",
                        size_text(bytes)
                    );
                    return Err(Fault::new(path, what));
                }
                sum += bytes;
                if sum > tier.bytes {
                    let what = format!(
                        "the VMs up to this one have {} of \"{name}\", the machine has {has}: make VMs smaller or machine.sizes larger",
                        size_text(sum)
                    );
                    return Err(Fault::new(path, what));
                }
            }
        }
        Ok(())
    }

    /// Whether DRAM is a cache, for all VMs at once.
    pub(crate) fn has_memory_mode(&self) -> bool {
        let of = |vm: &Vm| matches!(vm.policy, HostPolicy::MemoryMode(_));
        self.vms.iter().any(of)
    }

    /// Checks memory mode, which is the machine's: all VMs are under it, and live in the second tier alone.
    pub(crate) fn check_memory_mode(&self) -> Result<(), Fault> {
        if !self.has_memory_mode() {
            return Ok(());
        }
        let tiers = self.machine.tiers.len();
        if tiers != 2 {
            let what = format!("memory-mode has two tiers, DRAM before another: {tiers} are named");
            return Err(Fault::new("machine.tiers", what));
        }
        let slow = &self.machine.tiers[1];
        let mut needed: u64 = 0;
        for (i, vm) in self.vms.iter().enumerate() {
            if !matches!(vm.policy, HostPolicy::MemoryMode(_)) {
                let what = "memory-mode is the machine's, and another VM is under it: name it for every VM, or for none";
                return Err(Fault::new(format!("vm[{i}].policy"), what));
            }
            if !vm.shortage.is_none() {
                let what = "memory-mode cannot be simulated with swap or a balloon: leave them out";
                return Err(Fault::new(format!("vm[{i}].policy"), what));
            }
            if vm.workload.frees_memory() {
                let what = "memory-mode cannot be simulated with programs that free their memory: set fresh = false in the load";
                return Err(Fault::new(format!("vm[{i}].policy"), what));
            }
            let path = format!("vm[{i}].workload");
            let pages = vm.workload.pages(self.machine.scale, &self.folder);
            let pages = pages.map_err(|error| Fault::new(path.as_str(), error.to_string()))?;
            let bytes = pages.saturating_mul(self.machine.scale * PageSize::Base.bytes());
            needed = needed.saturating_add(bytes);
            if needed > slow.bytes {
                let what = format!(
                    "under memory-mode DRAM adds no capacity: the loads up to this one use {}, \"{}\" has {}: make loads smaller or machine.sizes larger",
                    size_text(needed),
                    slow.name,
                    size_text(slow.bytes)
                );
                return Err(Fault::new(path, what));
            }
        }
        Ok(())
    }

    fn check_scale(&self) -> Result<(), Fault> {
        let scale = self.machine.scale;
        let extents = self.extents();
        for e in &extents {
            if !e.bytes.is_multiple_of(e.page.bytes()) {
                let what = format!(
                    "{} is no whole number of pages of {}",
                    size_text(e.bytes),
                    size_text(e.page.bytes())
                );
                return Err(Fault::new(e.path.as_str(), what));
            }
        }
        for (i, vm) in self.vms.iter().enumerate() {
            let (pages, page) = (
                vm.bytes() / vm.pages.host.bytes(),
                size_text(vm.pages.host.bytes()),
            );
            if pages < MIN_PAGES {
                let what = format!(
                    "the VM has {pages} pages of {page} (host_page), a simulation takes at least {MIN_PAGES}: make it larger"
                );
                return Err(Fault::new(format!("vm[{i}]"), what));
            }
            if pages / scale < MIN_PAGES {
                let what = format!(
                    "at scale {scale}, VM \"{}\" has {} pages of {page} (host_page), a simulation takes at least {MIN_PAGES}: {}",
                    vm.name,
                    pages / scale,
                    self.largest(&extents)
                );
                return Err(Fault::new("machine.scale", what));
            }
        }
        for e in &extents {
            if !(e.bytes / e.page.bytes()).is_multiple_of(scale) {
                let what = format!(
                    "at scale {scale}, {} is no whole number of pages of {}: {}",
                    size_text(e.bytes),
                    size_text(e.page.bytes()),
                    self.largest(&extents)
                );
                return Err(Fault::new(e.path.as_str(), what));
            }
        }
        let all: u64 = self
            .vms
            .iter()
            .map(|vm| (vm.bytes() + vm.shortage.swap) / scale)
            .sum();
        if all / PageSize::Base.bytes() > MAX_PAGES {
            let what = format!(
                "at scale {scale}, all VMs have {}, of which every page is simulated: at most {}; choose a larger scale",
                size_text(all),
                size_text(MAX_PAGES * PageSize::Base.bytes())
            );
            return Err(Fault::new("machine.scale", what));
        }
        Ok(())
    }

    /// Checks that under hot lists some page can be hot.
    fn check_thresholds(&self) -> Result<(), Fault> {
        let slowest = self.machine.tiers.last();
        let weights = slowest.map_or((1, 1), |tier| tier.kind.weights());
        for (i, vm) in self.vms.iter().enumerate() {
            check_threshold(&vm.policy, weights, &format!("vm[{i}].policy"))?;
        }
        Ok(())
    }

    /// Checks that a second has faults enough for the policies that live on them.
    fn check_faults(&self) -> Result<(), Fault> {
        let scale = self.machine.scale;
        let vm = self.vms.iter().find(|vm| vm.policy.tracks_faults());
        let Some(vm) = vm.filter(|_| scale > MAX_FAULTS_SCALE) else {
            return Ok(());
        };
        let largest = self.largest_scale(&self.extents(), MAX_FAULTS_SCALE);
        let what = format!(
            "at scale {scale}, a second has too few protection faults for \"{}\" of VM \"{}\", because there are as \
             many per access at any scale: the largest scale allowed is {largest}",
            vm.policy.name(),
            vm.name
        );
        Err(Fault::new("machine.scale", what))
    }

    /// All sizes that must be whole pages; no size is 0.
    fn extents(&self) -> Vec<Extent> {
        let mut all = Vec::new();
        for (i, vm) in self.vms.iter().enumerate() {
            let page = vm.pages.largest();
            let mut add = |key: String, bytes| {
                all.push(Extent {
                    path: format!("vm[{i}].{key}"),
                    bytes,
                    page,
                });
            };
            for (t, bytes) in vm.sizes.iter().enumerate() {
                add(format!("tiers[{t}]"), *bytes);
            }
            add("floor".into(), vm.claim.floor.unwrap_or(0));
            add("ceiling".into(), vm.claim.ceiling.unwrap_or(0));
            add("memory_floor".into(), vm.claim.memory_floor.unwrap_or(0));
            add(
                "memory_ceiling".into(),
                vm.claim.memory_ceiling.unwrap_or(0),
            );
            add("swap".into(), vm.shortage.swap);
            for (s, step) in vm.shortage.balloon.iter().enumerate() {
                add(format!("balloon[{s}].size"), step.bytes);
            }
            for (t, bytes) in vm.provision.iter().flat_map(|p| p.nodes.iter().enumerate()) {
                add(format!("provision.nodes[{t}]"), *bytes);
            }
            let resizes = vm.provision.iter().flat_map(|p| &p.resizes).enumerate();
            for (i, resize) in resizes {
                for (t, bytes) in resize.sizes.iter().enumerate() {
                    add(format!("resize[{i}].tiers[{t}]"), *bytes);
                }
            }
        }
        let sizes = self.machine.tiers.iter().enumerate();
        let sizes = sizes.map(|(t, tier)| (format!("machine.sizes[{t}]"), tier.bytes));
        let room = self.machine.slow_room.unwrap_or(0);
        all.extend(
            sizes
                .chain([("machine.slow_room".into(), room)])
                .map(|(path, bytes)| Extent {
                    path,
                    bytes,
                    page: PageSize::Base,
                }),
        );
        all.retain(|e| e.bytes > 0);
        all
    }

    /// A sentence with the largest scale at which all sizes are whole pages and enough of them.
    fn largest(&self, extents: &[Extent]) -> String {
        let tracks = self.vms.iter().any(|vm| vm.policy.tracks_faults());
        let most = if tracks { MAX_FAULTS_SCALE } else { MAX_SCALE };
        let largest = self.largest_scale(extents, most);
        format!("the largest scale allowed is {largest}")
    }

    /// The largest scale up to `most` at which all sizes are whole pages and enough of them.
    fn largest_scale(&self, extents: &[Extent], most: u64) -> u64 {
        let pages = extents.iter().map(|e| e.bytes / e.page.bytes());
        let common = pages.fold(0, gcd);
        let enough = self
            .vms
            .iter()
            .map(|vm| vm.bytes() / vm.pages.host.bytes() / MIN_PAGES);
        let most = enough.min().unwrap_or(1).min(most);
        let largest = (1..=most).rev().find(|scale| common.is_multiple_of(*scale));
        largest.unwrap_or(1)
    }

    fn check_load(&self, vm: &Vm, pages: u64, path: &str) -> Result<(), Fault> {
        let scale = self.machine.scale;
        check_end(vm.stop, scale, path)?;
        for (number, stop) in vm.workload.phase_ends().into_iter().enumerate() {
            check_end(stop, scale, &format!("{path}.of[{number}]"))?;
        }
        let inflated = vm.shortage.most_inflated();
        let least = vm.least_bytes();
        let room = least - inflated + vm.shortage.swap;
        let room_pages = room / PageSize::Base.bytes() / scale;
        if pages > room_pages {
            let needs = u128::from(pages) * u128::from(scale) * u128::from(PageSize::Base.bytes());
            let needs = u64::try_from(needs).map_or_else(|_| format!("{needs}B"), size_text);
            let less = match (inflated > 0, least < vm.bytes()) {
                (true, _) => ", balloon taken off",
                (_, true) => " after its smallest resize",
                _ => "",
            };
            let what = format!(
                "the load uses {needs}, the VM has {} with its swap{less}: make the load smaller, or the VM or its swap larger",
                size_text(room)
            );
            return Err(Fault::new(path, what));
        }
        Ok(())
    }
}

/// Checks that a load or a phase lasts for something at the scale, and no longer than a simulation.
fn check_end(stop: Stop, scale: u64, path: &str) -> Result<(), Fault> {
    match stop {
        Stop::Ops(ops) if ops < scale => {
            let what = format!("{ops} operations at scale {scale} are less than one: give more");
            Err(Fault::new(format!("{path}.ops"), what))
        }
        Stop::Duration(ns) if ns < scale => {
            let what = format!("{ns} ns at scale {scale} are less than one: give more");
            Err(Fault::new(format!("{path}.duration"), what))
        }
        Stop::Duration(ns) if ns > MAX_NS => {
            let what = "longer than a simulation can last: allowed is at most 100days";
            Err(Fault::new(format!("{path}.duration"), what))
        }
        _ => Ok(()),
    }
}

impl Vm {
    /// The VM's memory in all tiers, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }
}

fn check_limits(vm: &Vm, path: &str) -> Result<(), Fault> {
    let mut sum: u64 = 0;
    for (t, bytes) in vm.sizes.iter().enumerate() {
        sum = sum.saturating_add(*bytes);
        if sum > MAX_BYTES {
            let what = format!(
                "a VM has at most {}, this one has more: make it smaller",
                size_text(MAX_BYTES)
            );
            return Err(Fault::new(format!("{path}.tiers[{t}]"), what));
        }
    }
    vm.shortage.check_balloon(path, sum)
}

fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
