//! The progress of `kmigrated` on its way over the pages.

use crate::mechanisms::Unit;

/// The state of a walk of `kmigrated` over the pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Walk {
    /// No walk.
    #[default]
    None,
    /// A walk that begins when `kmigrated` wakes.
    Wanted,
    /// A walk that has come to a page.
    At(Unit),
}

/// Walks over all pages: one cools them, one only sorts them into lists. Cooling goes first.
#[derive(Debug, Default)]
pub(super) struct Walks {
    cooling: Walk,
    sorting: Walk,
}

impl Walks {
    /// Asks for a cooling; returns whether there was none yet.
    pub(super) fn want_cooling(&mut self) -> bool {
        let is_new = self.cooling == Walk::None;
        if is_new {
            self.cooling = Walk::Wanted;
        }
        is_new
    }

    pub(super) fn want_sorting(&mut self) {
        self.sorting = Walk::Wanted;
    }

    /// Begins the walk that is wanted.
    pub(super) fn begin(&mut self) {
        if self.cooling == Walk::Wanted {
            self.cooling = Walk::At(0);
            // Sorting is part of it.
            self.sorting = Walk::None;
        } else if self.sorting == Walk::Wanted {
            self.sorting = Walk::At(0);
        }
    }

    /// The page that the walk under way has come to.
    pub(super) fn at(&self) -> Option<Unit> {
        match (self.cooling, self.sorting) {
            (Walk::At(unit), _) | (Walk::None, Walk::At(unit)) => Some(unit),
            _ => None,
        }
    }

    /// Moves the walk under way on to a page, or to the end.
    pub(super) fn come_to(&mut self, unit: Option<Unit>) {
        let next = unit.map_or(Walk::None, Walk::At);
        if self.cooling == Walk::None {
            self.sorting = next;
        } else {
            self.cooling = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cooling_goes_before_sorting_and_is_one_too() {
        let mut walks = Walks::default();
        walks.want_sorting();
        walks.begin();
        assert_eq!(walks.at(), Some(0));
        walks.come_to(Some(7));
        assert!(walks.want_cooling() && !walks.want_cooling());
        assert_eq!(walks.at(), None);
        walks.begin();
        assert_eq!(walks.at(), Some(0));
        walks.come_to(None);
        assert_eq!(walks.at(), None);
    }
}
