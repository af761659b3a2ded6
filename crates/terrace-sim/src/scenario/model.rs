//! The same scenario on another model of the machine: each part of the model that is known only roughly, changed alone.

use super::Scenario;
use super::rules::MAX_SCALE;
use crate::base::access::Pace;
use crate::host::start::Tables;

/// Factor between the scale of a scenario and that of its coarser or finer variant.
const SCALES: u64 = 4;

/// Factors of the load's `compute_ns`: what a published request rate or a count of instructions leaves open.
const PACES: [(&str, f64); 2] = [("compute_ns halved", 0.5), ("compute_ns doubled", 2.0)];

impl Scenario {
    /// This scenario with other seeds, at another scale, and with each part of the machine's model changed that is known
    /// only roughly: names of the changes, and scenarios. Changes that change nothing here, or that the scenario does
    /// not allow, are left out.
    #[must_use]
    pub fn models(&self) -> Vec<(String, Self)> {
        let mut all: Vec<(String, Self)> = (1..=2)
            .map(|more| {
                let seed = self.seed.wrapping_add(more);
                (
                    format!("seed {seed}"),
                    Self {
                        seed,
                        ..self.clone()
                    },
                )
            })
            .collect();
        all.extend(self.at_another_scale());
        all.push(("loaded latency of a queue".into(), self.with_queues()));
        all.push(("no cache in front".into(), self.without_cache()));
        all.push(("page tables fast".into(), self.with_tables(Tables::First)));
        all.push((
            "slow memory slower by half".into(),
            self.with_slower_memory(),
        ));
        all.push(("half the vCPUs".into(), self.with_half_the_vcpus()));
        for (name, factor) in PACES {
            all.push((name.into(), self.with_paces(factor)));
        }
        all.retain(|(_, model)| model != self && model.check().is_ok());
        all
    }

    /// This scenario at a coarser scale, or if it allows none at a finer one.
    fn at_another_scale(&self) -> Option<(String, Self)> {
        let scale = self.machine.scale;
        let scales = [scale.saturating_mul(SCALES), scale / SCALES];
        let allowed = scales.into_iter().filter(|s| (1..=MAX_SCALE).contains(s));
        let mut models = allowed.map(|scale| {
            let mut model = self.clone();
            model.machine.scale = scale;
            (format!("scale {scale}"), model)
        });
        models.find(|(_, model)| model.check().is_ok())
    }

    fn with_queues(&self) -> Self {
        let mut model = self.clone();
        for tier in &mut model.machine.tiers {
            tier.service = None;
        }
        model
    }

    fn without_cache(&self) -> Self {
        let mut model = self.clone();
        model.machine.cache = None;
        model
    }

    fn with_tables(&self, tables: Tables) -> Self {
        let mut model = self.clone();
        for vm in &mut model.vms {
            vm.initial.tables = tables;
        }
        model
    }

    /// This scenario with all tiers but the first slower by half, at idle: devices of a kind differ as much.
    fn with_slower_memory(&self) -> Self {
        let mut model = self.clone();
        for tier in &mut model.machine.tiers[1..] {
            tier.read_ns *= 1.5;
            tier.write_ns *= 1.5;
        }
        model
    }

    fn with_half_the_vcpus(&self) -> Self {
        let mut model = self.clone();
        for vm in &mut model.vms {
            vm.vcpus = (vm.vcpus / 2).max(1);
        }
        model
    }

    /// This scenario with each VM's load at its pace times `factor`.
    fn with_paces(&self, factor: f64) -> Self {
        let mut model = self.clone();
        for vm in &mut model.vms {
            let pace = vm.workload.pace();
            vm.workload = vm.workload.with_pace(Pace {
                compute_ns: pace.compute_ns * factor,
                ..pace
            });
        }
        model
    }
}
