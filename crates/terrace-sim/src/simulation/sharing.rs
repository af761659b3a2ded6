//! The sharing of memory between VMs: what the engine hears of it, once a second.
//!
//! The arbiter is the engine's, as it is live; here guests say what they need. All sizes are those of the full-size
//! machine.

use terrace_core::arbiter::{ArbiterConfig, Rule};
use terrace_proto::{
    Event, MemoryNeed, MemoryRights, MemoryTiers, MemoryTraffic, PAGE_SIZE, PageSize, SpeedRights,
    TierId,
};

use super::Simulation;
use crate::base::number::{float, whole};
use crate::base::tier::Tier;
use crate::host::device::Device;
use crate::host::provision::Provisioned;
use crate::host::vm::Vm;
use crate::machine::PS;
use crate::scenario::{self, HostShare, MAX_PRICE_RATIO, Scenario};

/// Time between two reports of a guest, ns of the full-size machine.
const EVERY: u64 = 1_000_000_000;

/// The arbiter's parameters for a scenario.
#[must_use]
pub fn config(scenario: &Scenario, given: ArbiterConfig) -> ArbiterConfig {
    let rule = match scenario.host.share {
        HostShare::Island | HostShare::Pool => Rule::Off,
        HostShare::Dp => Rule::Dp,
        HostShare::Trade => Rule::Trade,
        HostShare::Fair => Rule::Fair,
    };
    ArbiterConfig {
        rule,
        // Between 0 and 50, as the scenario's rules say.
        reserve_percent: u8::try_from(whole(scenario.host.reserve * 100.0)).unwrap_or(0),
        scale: scenario.machine.scale,
        price_ratio_milli: price_ratio_milli(scenario),
        slow_access_extra_ns: slow_access_extra_ns(scenario),
        capacity_tiers_bytes: match (rule, given.capacity_tiers_bytes.is_empty()) {
            // Who trades may have what the machine has: its price bounds it.
            (Rule::Trade, true) => free_tiers(scenario),
            _ => given.capacity_tiers_bytes,
        },
        ..given
    }
}

/// Thousandths in a price.
const THOUSAND: f64 = 1000.0;

/// The price of the first tier's memory over that of the last one, thousandths; at least 1000.
fn price_ratio_milli(scenario: &Scenario) -> u32 {
    let tiers = &scenario.machine.tiers;
    let price = |tier: Option<&Tier>| tier.and_then(|tier| tier.price_per_gib);
    let by_tiers = price(tiers.first()).zip(price(tiers.last()));
    let usual = float(ArbiterConfig::default().price_ratio_milli.into()) / THOUSAND;
    let ratio = scenario.host.price_ratio;
    let ratio = ratio.or(by_tiers.map(|(first, last)| first / last));
    let ratio = ratio.unwrap_or(usual).clamp(1.0, MAX_PRICE_RATIO);
    u32::try_from(whole(ratio * THOUSAND)).unwrap_or(u32::MAX)
}

/// Time that a read of the last tier takes longer than one of the first, ns; at least 1.
fn slow_access_extra_ns(scenario: &Scenario) -> u64 {
    let tiers = &scenario.machine.tiers;
    let read = |tier: Option<&Tier>| tier.map_or(0.0, |tier| tier.read_ns);
    whole((read(tiers.last()) - read(tiers.first())).max(1.0))
}

/// Memory of each tier that no VM without a device has, bytes.
fn free_tiers(scenario: &Scenario) -> Vec<u64> {
    let tiers = scenario.machine.tiers.iter().enumerate();
    let still = |tier: usize| {
        let vms = scenario.vms.iter().filter(|vm| vm.provision.is_none());
        let sizes = vms.filter_map(|vm| vm.sizes.get(tier));
        sizes.fold(0_u64, |sum, size| sum.saturating_add(*size))
    };
    tiers
        .map(|(i, tier)| tier.bytes.saturating_sub(still(i)))
        .collect()
}

/// The bounds of a VM's memory.
fn rights(vm: &Vm, spec: &scenario::Vm) -> Event {
    Event::MemoryRights(MemoryRights {
        provider: Simulation::provider(vm.id),
        vm: vm.stages.is_some().then_some(vm.id),
        floor_bytes: spec.memory_floor(),
        ceiling_bytes: spec.memory_ceiling(),
        weight: spec.claim.weight,
    })
}

/// The measure of a VM's slowdown, and its bound.
fn speed(vm: &Vm, spec: &scenario::Vm) -> Event {
    let bound = spec.claim.max_slowdown.map(|bound| whole(bound * THOUSAND));
    Event::SpeedRights(SpeedRights {
        provider: Simulation::provider(vm.id),
        vcpus: u32::try_from(vm.vcpus.len()).unwrap_or(u32::MAX),
        max_slowdown_milli: bound.map(|bound| u32::try_from(bound).unwrap_or(u32::MAX)),
    })
}

impl Simulation {
    /// The words of guests, if it is time.
    pub(super) fn report_needs(&mut self) -> Vec<Event> {
        let (now, scale) = (self.now().0, self.scenario.machine.scale);
        if !self.scenario.host.share.sizes_vms() || now < self.due.needs {
            return Vec::new();
        }
        let rule = self.scenario.host.share;
        let is_first = self.due.needs == 0;
        self.due.needs = now + EVERY;
        let engine = self.session.engine();
        let vms = self.vms.iter().zip(&self.scenario.vms);
        let events = vms.flat_map(|(vm, spec)| {
            let rights = (is_first && vm.provision.is_some()).then(|| rights(vm, spec));
            let bounds = rule == HostShare::Fair && rights.is_some();
            let speed = bounds.then(|| speed(vm, spec));
            let need = vm.provision.is_some().then(|| need(vm, spec, scale));
            let waiting = || engine.waiting_hot_bytes(vm.id) * scale;
            let device = vm.provision.as_ref();
            let device = device.filter(|_| spec.is_sized());
            let tiers = device.and_then(|device| tiers(vm, device, waiting()));
            let traffic = vm.stages.is_some().then(|| traffic(vm, scale));
            let events = rights.into_iter().chain(speed).chain(need).chain(tiers);
            events.chain(traffic)
        });
        events.collect()
    }
}

fn need(vm: &Vm, spec: &scenario::Vm, scale: u64) -> Event {
    let full = |pages: u64| pages * PAGE_SIZE * scale;
    let counts = &vm.space.counts;
    let reclaim = vm.answers.reclaim.as_ref();
    let given: u64 = vm.provision.iter().flat_map(|device| device.given()).sum();
    let free = match reclaim {
        Some(reclaim) => reclaim.free_pages(&vm.space),
        None => given.saturating_sub(vm.space.guest.pages()),
    };
    let unused = reclaim.map_or(spec.shortage.swap / PAGE_SIZE / scale, |reclaim| {
        reclaim.free_swap_pages()
    });
    Event::MemoryNeed(MemoryNeed {
        provider: Simulation::provider(vm.id),
        free_bytes: full(free),
        used_swap_bytes: spec.shortage.swap.saturating_sub(full(unused)),
        major_faults: counts.major_faults * scale,
        lost_ns: counts.memory_wait / PS * scale,
        huge_percent: match spec.pages.all(PageSize::Huge) {
            true => 100,
            false => 0,
        },
    })
}

/// The words about the tiers of a VM whose device sizes each of them. Which pages are hot is the engine's to find.
fn tiers(vm: &Vm, device: &Provisioned, waiting_hot_bytes: u64) -> Option<Event> {
    if device.by() == Device::Balloon {
        return None;
    }
    let full = |pages: u64| pages * PAGE_SIZE * device.scale();
    let free = |tier: usize| match tier < device.tiers() {
        true => full(vm.space.free_pages(tier)),
        false => 0,
    };
    let free_bytes: [u64; TierId::MAX] = std::array::from_fn(free);
    Some(Event::MemoryTiers(MemoryTiers {
        provider: Simulation::provider(vm.id),
        free_bytes,
        waiting_hot_bytes,
    }))
}

fn traffic(vm: &Vm, scale: u64) -> Event {
    Event::MemoryTraffic(MemoryTraffic {
        vm: vm.id,
        accesses: vm.space.counts.memory_accesses() * scale,
    })
}
