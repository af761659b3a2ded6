//! The balloons of a VM that moves to another host, as bytes.
//!
//! Bytes from elsewhere become a value only if every part of them fits; how many there may be is known beforehand
//! from the size of the VM.

use serde::{Deserialize, Serialize};
use terrace_proto::PageBitmap;

use crate::config::Config;
use crate::error::FlexError;
use crate::state::State;

const MAGIC: u32 = u32::from_le_bytes(*b"TRHX");
const VERSION: u16 = 1;

/// The state that migrates with a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Pages that shall be in each balloon.
    pub targets: Vec<u64>,
    /// Pages that are in each.
    pub balloons: Vec<PageBitmap>,
}

#[derive(Serialize, Deserialize)]
struct Raw {
    magic: u32,
    version: u16,
    nodes: Vec<u32>,
    targets: Vec<u64>,
    balloons: Vec<PageBitmap>,
}

/// Most bytes that the balloons of this VM take.
#[must_use]
pub fn most_bytes(config: &Config) -> u64 {
    // A word takes ten bytes at most; the rest is small.
    let words: u64 = config.tiers().iter().map(|t| t.pages().div_ceil(64)).sum();
    words * 10 + 1024
}

impl Exported {
    /// The balloons of now.
    #[must_use]
    pub fn of(state: &State) -> Self {
        Self {
            targets: state.targets(),
            balloons: (0..state.tiers()).map(|i| state.bitmap(i)).collect(),
        }
    }

    /// As bytes.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn to_bytes(&self, config: &Config) -> Result<Vec<u8>, FlexError> {
        let raw = Raw {
            magic: MAGIC,
            version: VERSION,
            nodes: config.tiers().iter().map(|tier| tier.node).collect(),
            targets: self.targets.clone(),
            balloons: self.balloons.clone(),
        };
        postcard::to_allocvec(&raw).map_err(|e| refuse(&e.to_string()))
    }

    /// An export from untrusted bytes.
    ///
    /// # Errors
    /// If they are no export of this version of a VM with these tiers, and nothing else.
    pub fn from_bytes(bytes: &[u8], config: &Config) -> Result<Self, FlexError> {
        if bytes.len() as u64 > most_bytes(config) {
            return Err(refuse("it is larger than those of this VM can be"));
        }
        // Before the rest, which a later version may have laid out otherwise.
        let head: Result<((u32, u16), _), _> = postcard::take_from_bytes(bytes);
        match head {
            Ok(((MAGIC, VERSION), _)) => {}
            Ok(((MAGIC, other), _)) => {
                return Err(refuse(&format!("it has version {other}, not {VERSION}")));
            }
            _ => return Err(refuse("it is no export of a HyperFlex device")),
        }
        let (raw, rest): (Raw, &[u8]) =
            postcard::take_from_bytes(bytes).map_err(|e| refuse(&e.to_string()))?;
        if !rest.is_empty() {
            return Err(refuse("there are bytes after its end"));
        }
        let tiers = config.tiers();
        let same_nodes = raw.nodes.iter().eq(tiers.iter().map(|tier| &tier.node));
        let same_pages = (raw.balloons.iter().map(PageBitmap::pages))
            .eq(tiers.iter().map(crate::config::TierConfig::pages));
        if !same_nodes || !same_pages {
            return Err(refuse("it is of a VM with other tiers"));
        }
        config.check_targets(&raw.targets)?;
        Ok(Self {
            targets: raw.targets,
            balloons: raw.balloons,
        })
    }
}

fn refuse(why: &str) -> FlexError {
    FlexError::State {
        what: "the export".into(),
        why: why.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_vm::MockVm;

    fn exported() -> (MockVm, Vec<u8>) {
        let vm = MockVm::two_tiers();
        let state = State::in_memory(vm.config()).unwrap();
        state.put_all(1, 3, 700, true);
        state.set_targets(&[1, 2000], 5);
        let bytes = Exported::of(&state).to_bytes(vm.config()).unwrap();
        (vm, bytes)
    }

    #[test]
    fn balloons_survive_the_way_and_the_largest_fit_the_bound() {
        let (vm, bytes) = exported();
        let back = Exported::from_bytes(&bytes, vm.config()).unwrap();
        assert_eq!(back.targets, [1, 2000]);
        assert_eq!(
            back.balloons[1].iter().collect::<Vec<_>>(),
            (3..703).collect::<Vec<_>>()
        );
        let full = Exported {
            targets: vec![0, 0],
            balloons: vec![PageBitmap::full(2048); 2],
        };
        let bytes = full.to_bytes(vm.config()).unwrap();
        assert!(bytes.len() as u64 <= most_bytes(vm.config()));
    }

    #[test]
    fn each_cut_and_each_addition_is_refused() {
        let (vm, mut bytes) = exported();
        for len in 0..bytes.len() {
            assert!(Exported::from_bytes(&bytes[..len], vm.config()).is_err());
        }
        bytes.push(0);
        let error = Exported::from_bytes(&bytes, vm.config()).unwrap_err();
        assert!(error.to_string().contains("after its end"), "{error}");
        let later = postcard::to_allocvec(&(MAGIC, 2_u16, 0_u8)).unwrap();
        let error = Exported::from_bytes(&later, vm.config()).unwrap_err();
        assert!(error.to_string().contains("version 2"), "{error}");
        assert!(Exported::from_bytes(&[0xff; 64 * 1024], vm.config()).is_err());
    }

    proptest! {
        #[test]
        fn damaged_bytes_never_become_anything_that_does_not_fit(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ) {
            let (vm, mut bytes) = exported();
            for (at, to) in changes {
                let at = at.index(bytes.len());
                bytes[at] = to;
            }
            if let Ok(back) = Exported::from_bytes(&bytes, vm.config()) {
                prop_assert!(vm.config().check_targets(&back.targets).is_ok());
                prop_assert!(back.balloons.iter().all(|b| b.pages() == 2048 && b.count() <= 2048));
            }
        }
    }
}
