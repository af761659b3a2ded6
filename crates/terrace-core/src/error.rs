//! Errors of a configuration.

/// A value that the engine cannot run with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A number outside of its range.
    #[error("{key} = {value} is out of range: allowed is {allowed}")]
    Range {
        /// Which parameter.
        key: String,
        /// The key's value.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// A name that is not in the registry.
    #[error("{key} = \"{value}\" is unknown: allowed is {allowed}")]
    Name {
        /// Which parameter.
        key: String,
        /// The key's value.
        value: String,
        /// The names there are.
        allowed: String,
    },
    /// A stage that works only with another one.
    #[error("{key}: {stage} needs {needs} as well")]
    Stages {
        /// Which parameter.
        key: String,
        /// The stage.
        stage: String,
        /// The other one, as `key = "value"`.
        needs: String,
    },
    /// A stage that no live host has.
    #[error(
        "{key}: {stage} works in the simulator only; a live host scans guest page tables (\"guest-scan\") and moves \
         pages with the kernel (\"linux\")"
    )]
    SimulatorOnly {
        /// Which parameter.
        key: String,
        /// The stage or the policy, as `key = "value"`.
        stage: String,
    },
}
