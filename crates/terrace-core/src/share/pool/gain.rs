//! Dividing the pool by the time that it saves.

use super::{Claim, fill};
use crate::config::PoolRelease;
use crate::share::{FastNeed, Heat, by_gain};

/// Heat of memory that cannot be moved: hotter than any that can, so that it counts before.
const STAYS: u64 = u64::MAX >> 16;

/// Divides `bytes` between the claimants by what each saves; one size for each. `heats`: their memory by heat, the
/// hottest first. Memory from which nobody gains goes as [`super::divide`] has it.
#[must_use]
pub fn divide_by_gain(
    bytes: u64,
    claims: &[Claim],
    heats: &[&[Heat]],
    release: PoolRelease,
) -> Vec<u64> {
    let needs: Vec<FastNeed> = claims
        .iter()
        .zip(heats)
        .map(|(claim, heat)| {
            let stays = Heat {
                bytes: claim.unseen,
                accesses_per_s: STAYS,
            };
            let stays = (claim.unseen > 0).then_some(stays);
            FastNeed {
                weight: claim.weight,
                floor_bytes: claim.protected(),
                ceiling_bytes: claim.upper,
                heat: stays.into_iter().chain(heat.iter().copied()).collect(),
                // All VMs have the same tiers.
                extra_ns: 1,
            }
        })
        .collect();
    let mut sizes = by_gain(&needs, bytes);
    let mut left = bytes.saturating_sub(sizes.iter().sum());
    if release == PoolRelease::OnDemand {
        let weights: Vec<u32> = claims.iter().map(|claim| claim.weight).collect();
        for cap in [
            |claim: &Claim| claim.held.min(claim.upper),
            |claim: &Claim| claim.nominal,
        ] {
            let caps: Vec<u64> = claims.iter().map(cap).collect();
            left = fill(&mut sizes, &caps, &weights, left);
        }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(held: u64) -> Claim {
        Claim {
            held,
            demand: 100,
            unseen: 0,
            lower: 0,
            nominal: 50,
            upper: 1000,
            weight: 1000,
        }
    }

    fn heat(bytes: u64, accesses_per_s: u64) -> Heat {
        Heat {
            bytes,
            accesses_per_s,
        }
    }

    #[test]
    fn memory_goes_to_whom_it_saves_most_and_the_rest_stays() {
        let busy = [heat(60, 600), heat(60, 60)];
        let calm = [heat(60, 61)];
        let claims = [claim(50), claim(50)];
        let divide = |bytes| divide_by_gain(bytes, &claims, &[&busy, &calm], PoolRelease::OnDemand);
        assert_eq!(divide(60), [60, 0]);
        assert_eq!(divide(130), [70, 60]);
        // Nobody gains from more than 180.
        assert_eq!(divide(200), [120, 60]);
    }

    #[test]
    fn memory_that_cannot_move_stays_and_its_owner_gains_beyond_it() {
        let stuck = Claim {
            unseen: 30,
            ..claim(40)
        };
        let hot = [heat(50, 500)];
        let claims = [stuck, claim(0)];
        let sizes = divide_by_gain(60, &claims, &[&hot, &[heat(50, 400)]], PoolRelease::Always);
        assert_eq!(sizes, [60, 0]);
        let sizes = divide_by_gain(60, &claims, &[&[], &[heat(50, 400)]], PoolRelease::Always);
        assert_eq!(sizes, [30, 30]);
    }
}
