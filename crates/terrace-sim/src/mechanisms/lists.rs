//! Lists of units, like the kernel's LRU lists: each unit is on one of them, or on none.

use super::Unit;
use crate::base::number::index;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// Several lists over the same units: 9 bytes a unit.
#[derive(Clone, Debug)]
pub struct Lists {
    next: Vec<u32>,
    previous: Vec<u32>,
    /// The number of the list that each unit is on, from 1; 0: none.
    on: Vec<u8>,
    /// Head, tail and length of each list.
    ends: Vec<(u32, u32, u64)>,
}

impl Lists {
    /// So many empty lists (at most 255) over so many units.
    #[must_use]
    pub fn new(lists: u8, units: u32) -> Self {
        Self {
            next: vec![NONE; index(units)],
            previous: vec![NONE; index(units)],
            on: vec![0; index(units)],
            ends: vec![(NONE, NONE, 0); usize::from(lists)],
        }
    }

    /// The list that a unit is on, if any.
    #[must_use]
    pub fn list_of(&self, unit: Unit) -> Option<u8> {
        self.on[index(unit)].checked_sub(1)
    }

    /// Number of units on a list.
    #[must_use]
    pub fn len(&self, list: u8) -> u64 {
        self.ends[usize::from(list)].2
    }

    /// Whether a list is empty.
    #[must_use]
    pub fn is_empty(&self, list: u8) -> bool {
        self.len(list) == 0
    }

    /// The unit that has been on a list longest, at its tail.
    #[must_use]
    pub fn tail(&self, list: u8) -> Option<Unit> {
        Some(self.ends[usize::from(list)].1).filter(|unit| *unit != NONE)
    }

    /// The unit before another, towards the head.
    #[cfg(test)]
    #[must_use]
    pub fn before(&self, unit: Unit) -> Option<Unit> {
        Some(self.previous[index(unit)]).filter(|unit| *unit != NONE)
    }

    /// Puts a unit at a list's head, off whichever list it was on.
    pub fn push(&mut self, list: u8, unit: Unit) {
        self.remove(unit);
        let (head, tail, len) = &mut self.ends[usize::from(list)];
        self.next[index(unit)] = *head;
        self.previous[index(unit)] = NONE;
        if *head == NONE {
            *tail = unit;
        } else {
            self.previous[index(*head)] = unit;
        }
        *head = unit;
        *len += 1;
        self.on[index(unit)] = list + 1;
    }

    /// Takes a unit off its list.
    pub fn remove(&mut self, unit: Unit) {
        let Some(list) = self.list_of(unit) else {
            return;
        };
        let (next, previous) = (self.next[index(unit)], self.previous[index(unit)]);
        let (head, tail, len) = &mut self.ends[usize::from(list)];
        match previous {
            NONE => *head = next,
            other => self.next[index(other)] = next,
        }
        match next {
            NONE => *tail = previous,
            other => self.previous[index(other)] = previous,
        }
        *len -= 1;
        self.on[index(unit)] = 0;
    }

    /// Takes the unit at a list's tail off it.
    pub fn pop(&mut self, list: u8) -> Option<Unit> {
        let unit = self.tail(list)?;
        self.remove(unit);
        Some(unit)
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        4 * (self.next.capacity() + self.previous.capacity()) + self.on.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_first_goes_first_and_a_unit_is_on_one_list() {
        let mut lists = Lists::new(2, 4);
        (0..4).for_each(|unit| lists.push(0, unit));
        lists.push(1, 2);
        lists.push(0, 0);
        assert_eq!((lists.len(0), lists.len(1)), (3, 1));
        assert_eq!(lists.list_of(2), Some(1));
        assert_eq!(lists.before(1), Some(3));
        let order: Vec<Unit> = std::iter::from_fn(|| lists.pop(0)).collect();
        assert_eq!(order, [1, 3, 0]);
        assert!(lists.is_empty(0) && lists.tail(0).is_none());
    }
}
