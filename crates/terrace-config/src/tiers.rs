//! The tiers that the operator defined, as the host's topology wants them.

use terrace_host::topology::{NodeId, TierDefinition};

use crate::config::{Config, TierNodes};

impl Config {
    /// One definition for each `[[tier]]`; empty if the kernel's description of the host counts.
    #[must_use]
    pub fn tier_definitions(&self) -> Vec<TierDefinition> {
        let definition = |tier: &TierNodes| TierDefinition {
            name: tier.engine.name.clone(),
            nodes: tier.nodes.iter().copied().map(NodeId).collect(),
        };
        self.tiers.iter().map(definition).collect()
    }
}
