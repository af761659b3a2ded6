//! `fair`: the smallest largest slowdown, weighted.
//!
//! Responsible for: one size for each VM, of total memory or of the fast tier alike, by the time that it loses at each
//! size ([`super::Loss`]), and for naming those who are slower than their bound.
//!
//! A VM's *slowdown* is the time of its work over the time of the same work with all the memory that it could use. What
//! no memory saves, such as first accesses, is in both. What it is above 1, times weight / 1000, is made as small as it
//! can be for the VM for which it is largest: a bound on it gives each VM a least size, and the smallest bound for which
//! these fit together is found by halving. Then those who cannot be any faster keep their size, and the others go on.
//!
//! A VM whose lost time is not known keeps what it has as long as the floors of the others allow it. What saves nobody
//! any time is left free ([`super::in_proportion`] gives it away). The rule is ours.

use super::loss::Loss;
use super::need::FloorsExceed;
use super::pool::fill;

/// Parts in which slowdowns above 1 are counted.
const MILLION: u128 = 1_000_000;
/// A weight of one share, and a slowdown of 1 in thousandths.
const THOUSAND: u128 = 1000;
/// Turns after which those who could still be faster stay as they are: each turn settles one VM or more.
const MOST_TURNS: usize = 16;

/// A VM's bounds, and how slow it is without memory.
#[derive(Clone, Copy, Debug)]
pub struct FairNeed<'a> {
    /// The VM's weight: 1000 is one share, 0 counts as 1.
    pub weight: u32,
    /// Bytes that nobody takes from the VM.
    pub floor_bytes: u64,
    /// Most bytes that the VM may have; one below the floor counts as the floor.
    pub ceiling_bytes: u64,
    /// Bytes that the VM has, which it keeps if its lost time is not known.
    pub size_bytes: u64,
    /// Time lost per second by size, if it is known.
    pub loss: Option<&'a Loss>,
    /// Time per second in which the VM worked and lost nothing, all its vCPUs together, ns. 0 counts as 1.
    pub useful_ns: u64,
    /// Bound on the VM's slowdown, thousandths: 1200 is 1.2.
    pub max_slowdown: Option<u32>,
}

/// Sizes by the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fair {
    /// A size for each VM, bytes.
    pub sizes: Vec<u64>,
    /// Places of the VMs that are slower than their bound at that size.
    pub beyond: Vec<usize>,
}

impl FairNeed<'_> {
    /// The slowdown with so many bytes, parts of a million: 1,000,000 is none. `None` if lost time is not known.
    #[must_use]
    pub fn slowdown_ppm(&self, bytes: u64) -> Option<u64> {
        let loss = self.loss?;
        let lost = u128::from(loss.at(bytes) - loss.unavoidable_ns());
        Some(saturated(
            MILLION + (lost * MILLION).div_ceil(self.useful()),
        ))
    }

    fn useful(&self) -> u128 {
        u128::from(self.useful_ns.max(1))
    }

    fn most_bytes(&self) -> u64 {
        self.ceiling_bytes.max(self.floor_bytes)
    }

    /// The least size, within floor and ceiling, at which no more time is lost than this above what no memory saves.
    fn least_bytes(&self, loss: &Loss, avoidable_ns: u128) -> u64 {
        let lost = u128::from(loss.unavoidable_ns()).saturating_add(avoidable_ns);
        let bytes = loss.least_bytes(saturated(lost)).unwrap_or(u64::MAX);
        bytes.clamp(self.floor_bytes, self.most_bytes())
    }

    /// The least size at which the weighted slowdown is at most so many millionths above 1.
    fn size_within(&self, loss: &Loss, bound: u64) -> u64 {
        let weight = u128::from(self.weight.max(1)) * (MILLION / THOUSAND);
        self.least_bytes(loss, self.useful() * u128::from(bound) / weight)
    }

    /// The least size at which the VM keeps its own bound; its floor if it has none.
    fn size_by_bound(&self, loss: &Loss) -> u64 {
        let Some(bound) = self.max_slowdown else {
            return self.floor_bytes;
        };
        let above = u128::from(bound).saturating_sub(THOUSAND);
        self.least_bytes(loss, self.useful() * above / THOUSAND)
    }

    /// Whether the VM is slower than its bound with so many bytes.
    fn is_beyond(&self, bytes: u64) -> bool {
        let (Some(bound), Some(slowdown)) = (self.max_slowdown, self.slowdown_ppm(bytes)) else {
            return false;
        };
        slowdown > u64::from(bound.max(1000)) * 1000
    }
}

/// Sizes with the smallest largest weighted slowdown, at most `bytes` together.
///
/// # Errors
/// The floors exceed the memory.
pub fn least_slowdown(needs: &[FairNeed<'_>], bytes: u64) -> Result<Fair, FloorsExceed> {
    FloorsExceed::check(needs.iter().map(|need| need.floor_bytes), bytes)?;
    let mut division = Division::new(needs, bytes);
    division.keep_unknown();
    division.keep_bounds();
    division.level();
    let sizes = division.sizes;
    let beyond = (0..needs.len())
        .filter(|vm| needs[*vm].is_beyond(sizes[*vm]))
        .collect();
    Ok(Fair { sizes, beyond })
}

/// Sizes that only grow, from the floors on.
struct Division<'a> {
    needs: &'a [FairNeed<'a>],
    sizes: Vec<u64>,
    left: u64,
}

impl<'a> Division<'a> {
    fn new(needs: &'a [FairNeed<'a>], bytes: u64) -> Self {
        let sizes: Vec<u64> = needs.iter().map(|need| need.floor_bytes).collect();
        let left = bytes - sizes.iter().sum::<u64>();
        Self { needs, sizes, left }
    }

    fn keep_unknown(&mut self) {
        let weights: Vec<u32> = self.needs.iter().map(|need| need.weight).collect();
        let sizes = self.needs.iter().map(|need| match need.loss {
            None => need.size_bytes.min(need.most_bytes()),
            Some(_) => 0,
        });
        let caps: Vec<u64> = sizes.collect();
        self.left = fill(&mut self.sizes, &caps, &weights, self.left);
    }

    /// Bounds are met as far as memory goes: those of the heaviest VMs first.
    fn keep_bounds(&mut self) {
        let mut order: Vec<usize> = (0..self.needs.len()).collect();
        order.sort_by_key(|vm| std::cmp::Reverse(self.needs[*vm].weight));
        for vm in order {
            if let Some(loss) = self.needs[vm].loss {
                self.grow(vm, self.needs[vm].size_by_bound(loss));
            }
        }
    }

    /// Gives a VM a size if there is enough for it.
    fn grow(&mut self, vm: usize, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.sizes[vm]);
        if more > self.left {
            return false;
        }
        self.sizes[vm] += more;
        self.left -= more;
        true
    }

    /// Lowers the largest weighted slowdown, turn by turn of those that can still be faster.
    fn level(&mut self) {
        let mut open: Vec<(usize, &Loss)> = self
            .needs
            .iter()
            .enumerate()
            .filter_map(|(vm, need)| Some((vm, need.loss?)))
            .collect();
        for _ in 0..MOST_TURNS {
            let bound = self.smallest_bound(&open);
            if bound < u64::MAX {
                for (vm, loss) in &open {
                    self.grow(*vm, self.needs[*vm].size_within(loss, bound));
                }
            }
            let Some(smaller) = bound.checked_sub(1) else {
                return;
            };
            let more = |(vm, loss): &(usize, &Loss)| {
                let size = self.needs[*vm].size_within(loss, smaller);
                size.saturating_sub(self.sizes[*vm])
            };
            // Not all of them can go on together; the one that needs most stays if each could alone.
            let most = open.iter().map(more).max().unwrap_or(0);
            let stays = most.min(self.left.saturating_add(1));
            if stays == 0 {
                return;
            }
            let going: Vec<_> = open.iter().filter(|of| more(of) < stays).copied().collect();
            open = going;
        }
    }

    /// The smallest bound for which the sizes of all these VMs fit; `u64::MAX`: none does.
    fn smallest_bound(&self, open: &[(usize, &Loss)]) -> u64 {
        let fits = |bound: u64| {
            let more = open.iter().map(|(vm, loss)| {
                let size = self.needs[*vm].size_within(loss, bound);
                u128::from(size.saturating_sub(self.sizes[*vm]))
            });
            more.sum::<u128>() <= u128::from(self.left)
        };
        let (mut low, mut high) = (0, u64::MAX);
        while low < high {
            let middle = low.midpoint(high);
            if fits(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        high
    }
}

fn saturated(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
