//! The shortage of memory in a guest: its swap device and its balloon.

use terrace_proto::PageSize;

use super::Pages;
use super::error::Fault;
use super::quantity::size_text;
use crate::guest::reclaim::BalloonStep;

/// The reasons for which a guest lacks memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Shortage {
    /// Size of the guest's swap device, bytes; 0: none.
    pub swap: u64,
    /// The sizes of the balloon by which the host takes memory from the guest, in order of time.
    pub balloon: Vec<BalloonStep>,
}

impl Shortage {
    /// Whether there is neither swap nor a balloon.
    pub(super) fn is_none(&self) -> bool {
        self.swap == 0 && self.balloon.is_empty()
    }

    /// The most memory that the balloon takes, bytes.
    pub(super) fn most_inflated(&self) -> u64 {
        let steps = self.balloon.iter().map(|step| step.bytes);
        steps.max().unwrap_or(0)
    }

    /// Checks the balloon of a VM that has so many bytes.
    pub(super) fn check_balloon(&self, path: &str, has: u64) -> Result<(), Fault> {
        for (s, step) in self.balloon.iter().enumerate() {
            if step.bytes >= has {
                let what = format!(
                    "{} is all that the VM has ({}): take less",
                    size_text(step.bytes),
                    size_text(has)
                );
                return Err(Fault::new(format!("{path}.balloon[{s}].size"), what));
            }
        }
        Ok(())
    }

    /// Checks the page sizes of a guest with swap, which gives whole pages, or with a balloon, which takes single 4 KiB
    /// pages.
    pub(super) fn check_pages(&self, path: &str, pages: Pages) -> Result<(), Fault> {
        if self.swap > 0 && !pages.agree() {
            let what = "a guest whose pages are not the host's cannot swap: set page, not guest_page and host_page";
            return Err(Fault::new(format!("{path}.swap"), what));
        }
        if !self.balloon.is_empty() && !pages.all(PageSize::Base) {
            let what = "only pages of 4KiB can be taken from a guest by steps: set page = \"4KiB\", or provision = \"balloon\"";
            return Err(Fault::new(format!("{path}.balloon"), what));
        }
        Ok(())
    }
}
