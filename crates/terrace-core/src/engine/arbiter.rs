//! The arbiter's place in the engine: what it learns, and its orders.

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_proto::provision::{
    AgesPoint, AgesStatus, Origin, ProvisioningStatus, SharedMemory, SizeChange,
};
use terrace_proto::{Command, Event, ProviderId, Tick, VmId};

use super::vm::Vm;
use super::{Engine, Shared};
use crate::arbiter::{Known, KnownDemand, Sizes};
use crate::demand::Aged;
use crate::provision::Provision;
use crate::share::Heat;

/// Time for which ages are scanned after no VM swaps any more.
const AGES_LAST: Duration = Duration::from_secs(600);

/// Points of a curve by age as it is shown.
const AGES_POINTS: usize = 64;

/// The rest of the engine, for the arbiter.
struct Others<'a> {
    provision: &'a Provision,
    vms: &'a BTreeMap<VmId, Vm>,
    now: Tick,
    scale: u64,
}

impl<'a> Others<'a> {
    fn of(
        provision: &'a Provision,
        vms: &'a BTreeMap<VmId, Vm>,
        now: Tick,
        shared: &Shared,
    ) -> Self {
        Self {
            provision,
            vms,
            now,
            scale: shared.config.arbiter.scale,
        }
    }
}

impl Known for Others<'_> {
    fn sizes(&self, provider: ProviderId) -> Option<Sizes> {
        self.provision.sizes(provider)
    }

    fn name(&self, provider: ProviderId) -> String {
        self.provision.name(provider)
    }

    fn demand(&self, vm: VmId) -> Option<KnownDemand> {
        let vm = self.vms.get(&vm)?;
        let heat = vm.size.heat().iter().map(|group| Heat {
            bytes: group.bytes.saturating_mul(self.scale),
            ..*group
        });
        let mut known = KnownDemand {
            heat: heat.collect(),
            hot: vm
                .size
                .hot_bytes(vm.pages.unit_bytes())
                .saturating_mul(self.scale),
            ..KnownDemand::default()
        };
        if let Some(demand) = vm.observer.demand.as_deref() {
            let estimate = demand.estimate().filter(|estimate| !estimate.is_swapping);
            let set = estimate.map(|estimate| estimate.demand_bytes.saturating_mul(self.scale));
            known.working_set = set;
            known.is_stable = demand.is_stable();
            known.curve = demand.curve(self.now).map(|curve| curve.scaled(self.scale));
        }
        let aged = vm.observer.ages.as_ref().and_then(|ages| ages.aged());
        known.aged = aged.map(|aged| Aged {
            mapped_bytes: aged.mapped_bytes.saturating_mul(self.scale),
            unused_bytes: aged.unused_bytes.saturating_mul(self.scale),
            ..aged
        });
        Some(known)
    }
}

impl Engine {
    /// Takes in an event that concerns the sharing of memory, before others do.
    pub(super) fn hear_of_sharing(&mut self, now: Tick, event: &Event) {
        match event {
            Event::MemoryRights(rights) => {
                self.provision.observed(rights.provider, rights.vm);
                self.arbiter.rights(now, *rights);
            }
            Event::MemoryNeed(need) => {
                let sizes = self.provision.sizes(need.provider);
                self.arbiter.need(now, *need, sizes);
            }
            Event::MemoryTiers(seen) => self.arbiter.tiers(*seen),
            Event::SpeedRights(rights) => self.arbiter.speed(now, *rights),
            Event::MemoryStanding(seen) => {
                if seen.has_floor {
                    self.provision.balanced(seen.provider);
                }
                self.arbiter.standing(now, *seen);
            }
            Event::Command(Command::Pause(None)) => self.arbiter.halt(now, true),
            Event::Command(Command::Resume(None)) => self.arbiter.halt(now, false),
            Event::MemoryBalance(said) => self.arbiter.balance(now, *said),
            Event::GuestMemory(seen) => {
                let sizes = self.provision.sizes(seen.provider);
                self.arbiter.guest(now, seen, sizes);
            }
            Event::HostMemory(seen) => self.arbiter.host_memory(now, *seen),
            Event::AgentMemory(seen) => self.arbiter.agent(now, seen),
            Event::GuestWalks(seen) => self.arbiter.walks(now, *seen),
            Event::SizesWanted(wanted) if wanted.origin == Origin::Operator => {
                self.arbiter.resized(now, wanted.provider);
            }
            Event::ProviderDeparted(provider) => self.arbiter.depart(now, *provider),
            Event::ProviderSeen(report) => {
                self.arbiter.changed(now, report.provider);
                if let Ok(status) = &report.status {
                    let sizes = self.provision.sizes(report.provider);
                    self.arbiter.device(now, report.provider, status, sizes);
                }
            }
            _ => {}
        }
    }

    /// The view of a VM's resizable memory for people; `None` if it is not to be shown.
    #[must_use]
    pub fn provisioning(&self, id: ProviderId, now: Tick) -> Option<ProvisioningStatus> {
        let mut view = self.provision.view(id, now)?;
        view.balance = self.arbiter.view(id, now);
        view.changes = self.arbiter.changes(id, now);
        if let Some(balance) = &mut view.balance {
            balance.ages = self.arbiter.vm(id).and_then(|vm| self.ages_of(vm));
        }
        Some(view)
    }

    /// The changes of VMs' memory that would be ordered if all were decided now; nothing is ordered.
    #[must_use]
    pub fn size_plan(&self, now: Tick) -> Vec<(String, SizeChange)> {
        let others = self.others(now);
        let plan = self.arbiter.plan(now, &others).into_iter();
        plan.map(|(id, change)| (others.name(id), change)).collect()
    }

    /// The memory that VMs share; `None`: no VM takes part.
    #[must_use]
    pub fn shared_memory(&self, now: Tick) -> Option<SharedMemory> {
        self.arbiter.shared(now)
    }

    /// The ages of a VM's memory for people.
    fn ages_of(&self, vm: VmId) -> Option<AgesStatus> {
        let ages = self.vms.get(&vm)?.observer.ages.as_ref()?;
        let (aged, curve) = (ages.aged()?, ages.curve().reduced(AGES_POINTS));
        let per_s = |pages: u32| curve.misses_per_s(pages).unwrap_or(0);
        let points = curve.points().iter().map(|point| AgesPoint {
            bytes: u64::from(point.pages).saturating_mul(curve.page_bytes),
            misses_per_s: per_s(point.pages),
        });
        Some(AgesStatus {
            observed_s: Duration::from_nanos(aged.span_ns).as_secs_f64(),
            mapped_bytes: aged.mapped_bytes,
            unused_bytes: aged.unused_bytes,
            curve: points.collect(),
        })
    }

    /// Has the ages of VMs' memory scanned while one that shares memory swaps, and for a while after it: in its next burst they
    /// are known.
    fn follow_ages(&mut self, now: Tick) {
        let config = &self.shared.config.arbiter;
        if !config.live || config.age_window_ms == 0 {
            return;
        }
        if self.arbiter.is_short(now) {
            self.ages_until = Some(now.after(AGES_LAST));
        }
        let Some(until) = self.ages_until else {
            return;
        };
        let is_over = until <= now;
        for (id, vm) in &mut self.vms {
            let wanted = !is_over && self.arbiter.shares(*id);
            vm.follow_ages(
                now,
                wanted,
                self.arbiter.phase_since(*id),
                &self.shared.config,
            );
        }
        if is_over {
            self.ages_until = None;
        }
    }

    fn others(&self, now: Tick) -> Others<'_> {
        Others::of(&self.provision, &self.vms, now, &self.shared)
    }

    /// The shortage of the host's own memory in words; `None`: it has enough.
    #[must_use]
    pub fn shortage(&self, now: Tick) -> Option<String> {
        self.arbiter.shortage(now)
    }

    /// Lets the arbiter decide what is due, and gives its orders.
    pub(super) fn arbitrate(&mut self, now: Tick) {
        self.follow_ages(now);
        for answer in self.provision.take_answers() {
            self.arbiter.answered(now, &answer);
        }
        let others = Others::of(&self.provision, &self.vms, now, &self.shared);
        for decision in self.arbiter.advance(now, &others) {
            match decision.wanted {
                Some(wanted) => self.provision.wanted(now, wanted, Some(decision.why)),
                None => self.provision.say(now, decision.provider, decision.why),
            }
        }
        for (vm, is_double_sided) in self.arbiter.sides() {
            if let Some(vm) = self.vms.get_mut(&vm) {
                vm.size.exchanges = is_double_sided;
            }
        }
    }
}
