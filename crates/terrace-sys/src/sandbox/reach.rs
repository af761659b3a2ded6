//! Landlock: a thread that reaches nothing by a name.

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    Scope,
};
pub use landlock::{RulesetError, RulesetStatus};

/// Keeps the calling thread, and those that it starts, from reaching any file, port or abstract socket, and any
/// process but this one by a signal; what is open stays open. Best effort: the status has how much of it this kernel
/// has.
///
/// # Errors
/// If the kernel has Landlock and refuses.
pub fn reach_nothing_by_name() -> Result<RulesetStatus, RulesetError> {
    let abi = ABI::V6;
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .restrict_self()?;
    Ok(status.ruleset)
}
