//! An operator's commands: the changes that the API makes. They run on the engine's thread and answer a sentence.

use terrace_api::types as api;
use terrace_core::VmView;
use terrace_proto::snapshot::PageExplanation;
use terrace_proto::{Command, Gpa, TierLimit, VmId};

use super::failure::{Failure, gone, no_vm};
use super::views::mode;
use crate::registry::VmKey;
use crate::served::{BalanceChange, Served};
use terrace_config::{MAX_WEIGHT, TierBytes, has_a_unit, tier_named};

impl dyn Served + '_ {
    /// `POST /v1/vms/{name}/plan`.
    pub fn plan(&mut self, name: &str) -> Result<api::Planning, Failure> {
        let id = self.managed_id(name)?;
        let before = self.view(id)?;
        self.command(Command::PlanRound(id))?;
        let after = self.view(id)?;
        match after.current_round {
            Some(round) if round.planned.is_some() && after.round > before.round => {
                Ok(api::Planning {
                    round: round.number,
                })
            }
            _ => {
                let last = after.reasons.last().map(|r| r.text.clone());
                let why = last.unwrap_or_else(|| "no round can start now".into());
                Err(Failure::NotNow(format!("{name}: {why}")))
            }
        }
    }

    /// `POST /v1/vms/{name}/set`.
    pub fn set(&mut self, name: &str, setting: &api::Setting) -> Result<api::Done, Failure> {
        if let Some(change) = balance(setting)? {
            return self.set_balance(name, setting, change);
        }
        if setting.key == "weight" {
            return self.set_weight(name, setting);
        }
        // A key that does not exist is that whatever the VM is.
        self.known(name)
            .and_then(|_| expect_setting(&setting.key))?;
        let id = self.managed_id(name)?;
        let command = match setting.key.as_str() {
            "moves" => Command::Moves(id, on_or_off("moves", &setting.value)?),
            "fast" => {
                let fast = bytes(&setting.value)?;
                self.within_tier("fast", 0, fast)?;
                Command::FastSize(id, fast)
            }
            key => Command::Limits(id, self.new_limits(id, key, &setting.value)?),
        };
        self.command(command)?;
        Ok(api::Done {
            done: format!("{name}: {} = {}", setting.key, setting.value),
        })
    }

    /// Sets the weight of a VM that is observed, shares memory, or both.
    fn set_weight(&mut self, name: &str, setting: &api::Setting) -> Result<api::Done, Failure> {
        let (vm, weight) = (self.known(name)?, weight(&setting.value)?);
        let shares = self.balance(vm, BalanceChange::Weight(weight)).is_ok();
        match self.id_of(vm) {
            Ok(id) => self.command(Command::Weight(id, weight))?,
            Err(_) if shares => {}
            Err(unmanaged) => return Err(unmanaged),
        }
        Ok(api::Done {
            done: format!("{name}: weight = {}", setting.value),
        })
    }

    fn set_balance(
        &mut self,
        name: &str,
        setting: &api::Setting,
        change: BalanceChange,
    ) -> Result<api::Done, Failure> {
        let vm = self.known(name)?;
        self.balance(vm, change)
            .map_err(|why| Failure::NotNow(format!("{name}: {why}")))?;
        Ok(api::Done {
            done: format!("{name}: {} = {}", setting.key, setting.value),
        })
    }

    fn new_limits(&self, id: VmId, key: &str, value: &str) -> Result<Vec<TierLimit>, Failure> {
        // Without a tier's name it is the first one's, as for `fast`.
        let (tier, which) = key.split_once('.').unwrap_or(("fast", key));
        let tiers = &self.engine().config().tiers;
        let tier = tier_named(tiers, tier).ok_or_else(|| {
            let names: Vec<&str> = tiers.iter().map(|tier| tier.name.as_str()).collect();
            let names = names.join(", ");
            Failure::Invalid(format!("there is no tier {tier}; there are: {names}"))
        })?;
        let mut limits: Vec<TierLimit> = self.view(id)?.tiers.iter().map(|t| t.limit).collect();
        let limit = limits
            .get_mut(tier.index())
            .ok_or_else(|| no_setting(key))?;
        match which {
            "floor" => limit.floor_bytes = bytes(value)?,
            "ceiling" => limit.ceiling_bytes = bytes(value)?,
            _ => return Err(no_setting(key)),
        }
        self.within_tier(key, tier.index(), bytes(value)?)?;
        if limit.floor_bytes > limit.ceiling_bytes {
            return Err(Failure::Invalid(format!(
                "{key} = {value}: the floor would be above the ceiling"
            )));
        }
        Ok(limits)
    }

    /// Checks that a size has its unit, and is not more than a tier of this host has.
    fn within_tier(&self, key: &str, tier: usize, bytes: u64) -> Result<(), Failure> {
        has_a_unit(key, bytes).map_err(Failure::Invalid)?;
        let tiers = self.tiers();
        let Some(tier) = tiers.get(tier) else {
            return Ok(());
        };
        let tier = TierBytes {
            name: tier.name.clone(),
            total_bytes: tier.total_bytes,
        };
        tier.has(key, bytes).map_err(Failure::Invalid)
    }

    /// `POST /v1/vms/{name}/pause` and `/resume`: the engine's moves and scans, and the agent.
    pub fn halt(&mut self, name: &str, halt: bool) -> Result<api::Done, Failure> {
        let vm = self.known(name)?;
        let agent = self.halt_agent(vm, halt);
        let balanced = self.balance(vm, BalanceChange::Halted(halt)).is_ok();
        let command = if halt {
            Command::Pause
        } else {
            Command::Resume
        };
        match self.id_of(vm) {
            Ok(id) => self.command(command(Some(id)))?,
            Err(_) if agent || balanced => {}
            Err(unmanaged) => return Err(unmanaged),
        }
        let said = if halt { "paused" } else { "resumed" };
        Ok(api::Done {
            done: format!("{name}: {said}"),
        })
    }

    /// The engine's id of the VM of this name, if it is managed.
    pub fn managed_id(&self, name: &str) -> Result<VmId, Failure> {
        self.id_of(self.known(name)?)
    }

    fn id_of(&self, vm: VmKey) -> Result<VmId, Failure> {
        let entry = self.vms().get(vm).ok_or_else(gone)?;
        entry.managed.as_ref().map(|m| m.id).ok_or_else(|| {
            let (_, reason) = mode(entry, None);
            let name = &entry.name;
            Failure::NotFound(format!("{name} is not under management: {reason}"))
        })
    }

    /// The engine's explanation of one page.
    pub fn page(&self, name: &str, gpa: Gpa) -> Result<PageExplanation, Failure> {
        let id = self.managed_id(name)?;
        let page = self.engine().explain_page(id, gpa.gfn(), self.now());
        page.ok_or_else(|| {
            Failure::NotFound(format!("{name} has no RAM at guest physical address {gpa}"))
        })
    }

    /// The key of the VM of this name. From here on the key stands for the VM, under any name.
    pub fn known(&self, name: &str) -> Result<VmKey, Failure> {
        let vms = self.vms();
        vms.key(name).ok_or_else(|| no_vm(name, vms.names()))
    }

    fn view(&self, id: VmId) -> Result<VmView, Failure> {
        self.engine().vm(id).ok_or_else(gone)
    }
}

/// Checks that there is such a setting, of observed VMs.
fn expect_setting(key: &str) -> Result<(), Failure> {
    let of_tier = key.split_once('.').map_or(key, |(_, which)| which);
    match (key, of_tier) {
        ("moves" | "fast", _) | (_, "floor" | "ceiling") => Ok(()),
        _ => Err(no_setting(key)),
    }
}

fn no_setting(key: &str) -> Failure {
    Failure::Invalid(format!(
        "no setting {key}: there are moves, weight, fast, floor, ceiling, TIER.floor, TIER.ceiling, balance, memory_floor, \
         memory_ceiling"
    ))
}

fn bytes(value: &str) -> Result<u64, Failure> {
    let size: Result<bytesize::ByteSize, _> = value.parse();
    size.map(|size| size.as_u64())
        .map_err(|_| Failure::Invalid(format!("{value}: not a size; write it as 512MiB or 2GiB")))
}

fn weight(value: &str) -> Result<u32, Failure> {
    let weight = value.parse().ok().filter(|w| (1..=MAX_WEIGHT).contains(w));
    weight.ok_or_else(|| {
        Failure::Invalid(format!(
            "{value}: not a weight; write a number from 1 to {MAX_WEIGHT} (1000 is normal)"
        ))
    })
}

/// The change of a VM's part in the sharing of memory that a setting names, if it names one.
fn balance(setting: &api::Setting) -> Result<Option<BalanceChange>, Failure> {
    let size = |key: &str| {
        let size = bytes(&setting.value)?;
        has_a_unit(key, size).map_err(Failure::Invalid)?;
        Ok::<_, Failure>(size)
    };
    Ok(Some(match setting.key.as_str() {
        "balance" => BalanceChange::On(on_or_off("balance", &setting.value)?),
        "memory_floor" => BalanceChange::Floor(size("memory_floor")?),
        "memory_ceiling" => BalanceChange::Ceiling(size("memory_ceiling")?),
        _ => return Ok(None),
    }))
}

fn on_or_off(key: &str, value: &str) -> Result<bool, Failure> {
    match value {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(Failure::Invalid(format!(
            "{key} = {value} is not valid: write on or off"
        ))),
    }
}
