//! Landlock: threads that reach no file, no port and no other process.
//!
//! Best effort: a kernel may lack it or parts of it. What it takes away is out of reach without it, too, by the filter
//! of system calls; it stays where that is turned off.

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetError, RulesetStatus, Scope,
};

/// What a thread may reach by a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// What its user and capabilities allow.
    All,
    /// No file, no port, and no process but this one by a signal; what is open stays open.
    None,
}

/// Restricts the calling thread; says what this kernel could not do, for people.
pub fn restrict(files: Files) -> Option<String> {
    let status = match files {
        Files::All => return None,
        Files::None => rules(),
    };
    match status {
        Ok(RulesetStatus::FullyEnforced) => None,
        Ok(RulesetStatus::PartiallyEnforced) => {
            Some("this kernel has an older Landlock, without all of its rules".into())
        }
        Ok(RulesetStatus::NotEnforced) => Some("this kernel has no Landlock, or it is off".into()),
        Err(error) => Some(format!("Landlock: {error}")),
    }
}

fn rules() -> Result<RulesetStatus, RulesetError> {
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
