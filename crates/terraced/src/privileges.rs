//! What the daemon may do: it gives up all capabilities but the few that its job takes.

use anyhow::{Context as _, Result};
use caps::{CapSet, Capability, CapsHashSet};

/// Moving pages of other processes; looking at them; connecting to monitors that another user owns.
const KEPT: [Capability; 3] = [
    Capability::CAP_SYS_NICE,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_DAC_OVERRIDE,
];

/// Gives up everything else, for good. Called while there is one thread: threads inherit it.
pub fn give_up() -> Result<()> {
    let allowed = |cap: &Capability| KEPT.contains(cap);
    // Without CAP_SETPCAP the bounding set stays; no program that is started gains from it then,
    // because nothing is left to inherit.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for cap in caps::runtime::thread_all_supported()
            .into_iter()
            .filter(|c| !allowed(c))
        {
            caps::drop(None, CapSet::Bounding, cap).with_context(|| format!("giving up {cap}"))?;
        }
    }
    let permitted = caps::read(None, CapSet::Permitted)?;
    let kept: CapsHashSet = permitted.into_iter().filter(allowed).collect();
    for set in [CapSet::Ambient, CapSet::Inheritable] {
        caps::clear(None, set).with_context(|| format!("clearing the {set:?} capabilities"))?;
    }
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &kept).with_context(|| format!("giving up {set:?} capabilities"))?;
    }
    Ok(())
}

/// The calling thread gives up all but what connecting to another user's socket takes.
pub fn keep_what_connecting_takes() -> Result<()> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    let connecting = |cap: &Capability| *cap == Capability::CAP_DAC_OVERRIDE;
    let kept: CapsHashSet = permitted.into_iter().filter(connecting).collect();
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &kept).with_context(|| format!("giving up {set:?} capabilities"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_that_faces_guests_can_connect_and_nothing_else() {
        std::thread::spawn(|| {
            keep_what_connecting_takes().unwrap();
            let left = caps::read(None, CapSet::Permitted).unwrap();
            let connecting = |c: &Capability| *c == Capability::CAP_DAC_OVERRIDE;
            assert!(left.iter().all(connecting), "{left:?}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn nothing_but_the_kept_capabilities_is_left() {
        std::thread::spawn(|| {
            give_up().unwrap();
            for set in [CapSet::Effective, CapSet::Permitted] {
                let left = caps::read(None, set).unwrap();
                assert!(left.iter().all(|c| KEPT.contains(c)), "{set:?}: {left:?}");
            }
            let changed = caps::raise(None, CapSet::Permitted, Capability::CAP_SYS_ADMIN);
            assert!(changed.is_err(), "what was given up comes back");
        })
        .join()
        .unwrap();
    }
}
