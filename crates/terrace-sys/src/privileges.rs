//! Giving up capabilities for good.

pub use caps::Capability;
use caps::errors::CapsError;
use caps::{CapSet, CapsHashSet};

/// Gives up all capabilities of the calling thread but these, of which only those it has stay; threads that it starts
/// inherit that. A program that it starts has none: the bounding, ambient and inheritable sets are emptied.
///
/// # Errors
/// If the kernel refuses.
pub fn keep_only(allowed: &[Capability]) -> Result<(), CapsError> {
    // Without CAP_SETPCAP the bounding set stays; no program that is started gains from it then,
    // because nothing is left to inherit.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for cap in caps::runtime::thread_all_supported() {
            caps::drop(None, CapSet::Bounding, cap)?;
        }
    }
    let permitted = caps::read(None, CapSet::Permitted)?;
    let remaining: CapsHashSet = permitted
        .into_iter()
        .filter(|cap| allowed.contains(cap))
        .collect();
    for set in [CapSet::Ambient, CapSet::Inheritable] {
        caps::clear(None, set)?;
    }
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &remaining)?;
    }
    Ok(())
}

/// Disables all capabilities of the calling thread; threads that it starts may take them up by [`keep_only`].
///
/// # Errors
/// If the kernel refuses.
pub fn keep_none_at_work() -> Result<(), CapsError> {
    caps::clear(None, CapSet::Effective)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_the_kept_capabilities_is_left() {
        let allowed = [Capability::CAP_SYS_NICE, Capability::CAP_SYS_PTRACE];
        let check = move || {
            keep_only(&allowed).unwrap();
            for set in [CapSet::Effective, CapSet::Permitted] {
                let left = caps::read(None, set).unwrap();
                assert!(
                    left.iter().all(|c| allowed.contains(c)),
                    "{set:?}: {left:?}"
                );
            }
            for set in [CapSet::Ambient, CapSet::Inheritable] {
                assert_eq!(
                    caps::read(None, set).unwrap(),
                    CapsHashSet::new(),
                    "{set:?}"
                );
            }
            let changed = caps::raise(None, CapSet::Permitted, Capability::CAP_SYS_ADMIN);
            assert!(changed.is_err(), "what was given up comes back");
        };
        std::thread::spawn(check).join().unwrap();
    }
}
