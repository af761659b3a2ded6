//! The daemon's configuration file: what may stand in it (`raw`, as written) and what the daemon runs with
//! ([`Config`], valid by construction). The `terrace` command checks it by the same rules, without a daemon.

mod agent;
mod beyond;
mod config;
mod pins;
mod raw;
mod security;
mod sources;
mod tiers;

pub use agent::{AgentConfig, Fallback, VmMode};
pub use beyond::{TierBytes, has_a_unit};
pub use config::{Config, MOST_WEIGHT, TierNodes, VmConfig, tier_named};
pub use pins::PinConfig;
pub use raw::{LOG_LIMIT, TrackerChoice, WriteSource};
pub use security::Security;
pub use sources::{DEFAULT_FILE, Problem, Sources};
