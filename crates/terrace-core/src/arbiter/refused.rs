//! The sentence about memory that cannot be shared, because floors do not fit.

use super::standing::Alone;
use super::{Arbiter, Decision};
use crate::share::FloorsExceed;

impl Arbiter {
    /// Says once, of each VM, why nothing can be decided. VMs that are left alone for a short while are no news.
    pub(super) fn refuse(&mut self, exceed: &FloorsExceed) -> Vec<Decision> {
        let alone = self.members.values();
        let alone = alone.filter_map(|member| member.facts.standing.alone);
        let settles = alone
            .clone()
            .any(|why| matches!(why, Alone::New | Alone::Boots));
        let why = match alone.count() {
            _ if settles => return Vec::new(),
            0 => exceed.to_string(),
            _ => format!("with what VMs that are left alone have, {exceed}"),
        };
        if self.said.as_ref() == Some(&why) {
            return Vec::new();
        }
        let said = self.members.keys().map(|provider| Decision {
            provider: *provider,
            wanted: None,
            why: format!("its memory is not shared: {why}"),
        });
        let said = said.collect();
        self.said = Some(why);
        said
    }
}
