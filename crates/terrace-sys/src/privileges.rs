//! Giving up capabilities for good.

pub use caps::Capability;
use caps::errors::CapsError;
use caps::{CapSet, CapsHashSet};

/// Gives up all capabilities but these, of which only those that are there stay. Called while there is one
/// thread: threads inherit it.
///
/// # Errors
/// Where the kernel refuses.
pub fn keep_only(kept: &[Capability]) -> Result<(), CapsError> {
    let allowed = |cap: &Capability| kept.contains(cap);
    // Without CAP_SETPCAP the bounding set stays; no program that is started gains from it then,
    // because nothing is left to inherit.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for cap in caps::runtime::thread_all_supported()
            .into_iter()
            .filter(|c| !allowed(c))
        {
            caps::drop(None, CapSet::Bounding, cap)?;
        }
    }
    let permitted = caps::read(None, CapSet::Permitted)?;
    let kept: CapsHashSet = permitted.into_iter().filter(allowed).collect();
    for set in [CapSet::Ambient, CapSet::Inheritable] {
        caps::clear(None, set)?;
    }
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &kept)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_the_kept_capabilities_is_left() {
        let kept = [Capability::CAP_SYS_NICE, Capability::CAP_SYS_PTRACE];
        let look = move || {
            keep_only(&kept).unwrap();
            for set in [CapSet::Effective, CapSet::Permitted] {
                let left = caps::read(None, set).unwrap();
                assert!(left.iter().all(|c| kept.contains(c)), "{set:?}: {left:?}");
            }
            let changed = caps::raise(None, CapSet::Permitted, Capability::CAP_SYS_ADMIN);
            assert!(changed.is_err(), "what was given up comes back");
        };
        std::thread::spawn(look).join().unwrap();
    }
}
