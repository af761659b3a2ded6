//! The rules that the engine was configured to keep to.

use terrace_core::EngineConfig;

/// Rules of moves.
pub struct Rules {
    /// Every demotion is forced, so that floors are strict.
    all_forced: bool,
    plan_bytes: u64,
    /// Free bytes of each tier that moves leave alone.
    reserve: u64,
    /// Rounds for which a unit that moved is left alone.
    cool_down: u64,
}

impl Rules {
    pub fn new(config: &EngineConfig, all_forced: bool) -> Self {
        Self {
            all_forced,
            plan_bytes: config.plan_max_bytes,
            reserve: config.tiers[0].reserve_bytes,
            cool_down: u64::from(config.cool_down_rounds),
        }
    }

    pub fn are_strict(&self) -> bool {
        self.all_forced
    }

    /// Bytes of a tier with so many free that moves may fill.
    pub fn room(&self, free: u64) -> u64 {
        free.saturating_sub(self.reserve)
    }

    /// Whether a unit that moved in a round (0: never) may move again in another.
    pub fn may_move_again(&self, moved_in: u64, round: u64) -> bool {
        moved_in == 0 || round > moved_in + self.cool_down
    }

    /// The bytes by which a demotion of a unit may go below the floor of a tier of which so much is held.
    pub fn dip(&self, held: u64, unit: u64) -> u64 {
        if self.all_forced {
            return 0;
        }
        self.plan_bytes.min(held / 8).max(unit)
    }
}
