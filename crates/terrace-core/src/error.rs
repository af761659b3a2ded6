//! What is wrong with a configuration.

/// A value that the engine cannot run with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A number outside of its range.
    #[error("{key} = {value} is out of range: allowed is {allowed}")]
    Range {
        /// Which parameter.
        key: String,
        /// Its value.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// A name that is not in the registry.
    #[error("{key} = \"{value}\" is unknown: allowed is {allowed}")]
    Name {
        /// Which parameter.
        key: String,
        /// Its value.
        value: String,
        /// The names there are.
        allowed: String,
    },
}
