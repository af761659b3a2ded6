//! An operator's settings for a VM, and the commands that change them.
//!
//! Responsible for: keeping it, and saying that it changed. It leaves to others: keeping to it.

use terrace_proto::{Tick, TierId, TierLimit, VmSpec};

use super::Shared;
use super::pool;
use super::refusal::MoveRefusal;
use super::vm::Vm;

/// An operator's settings for a VM.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Floor and ceiling of each tier.
    limits: Vec<TierLimit>,
    /// Pages may be moved; otherwise the VM is only observed.
    pub moves_on: bool,
    /// Neither scanned nor moved until resumed.
    pub paused: bool,
}

impl Settings {
    /// Those that a VM arrives with.
    ///
    /// # Errors
    /// If its limits do not name every tier, or a floor is above its ceiling.
    pub fn new(spec: &VmSpec, tiers: usize) -> Result<Self, String> {
        check_limits(&spec.limits, tiers)?;
        Ok(Self {
            limits: spec.limits.clone(),
            moves_on: spec.moves,
            paused: false,
        })
    }

    /// Floor and ceiling of a tier.
    pub fn limit(&self, tier: TierId) -> TierLimit {
        self.limits.get(tier.index()).copied().unwrap_or(TierLimit {
            floor_bytes: 0,
            ceiling_bytes: 0,
        })
    }
}

impl Vm {
    pub fn pause(&mut self, now: Tick) {
        if !self.settings.paused {
            self.abandon(now, "paused");
            self.settings.paused = true;
            self.history.say(now, "paused: neither scanned nor moved");
        }
    }

    pub fn resume(&mut self, now: Tick) {
        if self.settings.paused {
            self.settings.paused = false;
            self.history.say(now, "resumed");
        }
    }

    pub fn set_moves(&mut self, now: Tick, on: bool, shared: &Shared) {
        self.settings.moves_on = on;
        if !on {
            self.drop_waiting(MoveRefusal::MovesOff);
        }
        self.history
            .say(now, if on { "moves are on" } else { "moves are off" });
        if on {
            // Frames that have to be put back first can be now.
            self.try_guest_again(now, shared);
        }
    }

    pub fn set_fast_size(&mut self, now: Tick, bytes: u64) {
        self.size.nominal = bytes;
        self.history.say(
            now,
            match bytes {
                0 => "it has no nominal fast size".into(),
                _ => format!("nominal fast size is {}", pool::size(bytes)),
            },
        );
    }

    pub fn set_weight(&mut self, now: Tick, weight: u32) {
        self.size.weight = weight.max(1);
        self.history
            .say(now, format!("weight is now {}", self.size.weight));
    }

    pub fn set_limits(&mut self, now: Tick, limits: Vec<TierLimit>, tiers: usize) {
        match check_limits(&limits, tiers) {
            Ok(()) => {
                let mib = |l: &TierLimit| match l.ceiling_bytes {
                    u64::MAX => format!("{} MiB or more", l.floor_bytes >> 20),
                    most => format!("{} to {} MiB", l.floor_bytes >> 20, most >> 20),
                };
                let text: Vec<_> = limits.iter().map(mib).collect();
                self.settings.limits = limits;
                self.history
                    .say(now, format!("limits are now {}", text.join(", ")));
            }
            Err(why) => self.history.say(now, format!("limits stay: {why}")),
        }
    }
}

/// Limits must name every tier, floors at or below ceilings.
fn check_limits(limits: &[TierLimit], tiers: usize) -> Result<(), String> {
    if limits.len() != tiers {
        return Err(format!(
            "limits for {} tiers were given, the machine has {tiers}",
            limits.len()
        ));
    }
    match limits.iter().position(|l| l.floor_bytes > l.ceiling_bytes) {
        Some(tier) => Err(format!(
            "the floor of tier {tier}, {} bytes, is above its ceiling, {} bytes",
            limits[tier].floor_bytes, limits[tier].ceiling_bytes
        )),
        None => Ok(()),
    }
}
