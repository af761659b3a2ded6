//! The daemon's configuration file: its sections as written (`raw`), and the configuration that is made of them
//! ([`Config`], valid by construction). The `terrace` command checks it by the same rules, without a daemon.

mod agent;
mod balance;
mod beyond;
mod config;
mod discover;
mod gather;
mod hyperflex;
mod mover;
mod pins;
mod raw;
mod renamed;
mod security;
mod sizes;
mod sources;
mod tiers;
mod wording;
mod writes;

pub use agent::{AgentConfig, Fallback, Management, VmMode};
pub use balance::{Balance, BalanceMode};
pub use beyond::{TierBytes, has_a_unit};
pub use config::{Config, MAX_WEIGHT, TierNodes, VmConfig, tier_named};
pub use discover::Discover;
pub use hyperflex::Hyperflex;
pub use mover::Mover;
pub use pins::PinConfig;
pub use raw::{LOG_LIMIT, TrackerChoice, WriteSource};
pub use security::Security;
pub use sizes::Sizes;
pub use sources::{DEFAULT_FILE, Problem, Sources, shown};
pub use writes::Writes;
