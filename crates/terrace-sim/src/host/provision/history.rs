//! The history of a VM's sizes.

use crate::machine::TIERS;

/// Most entries of a list over time.
const MOST: usize = 1024;

/// The sizes of a VM's nodes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Time since the start, ns.
    pub at_ns: u64,
    /// 4 KiB pages per tier, as simulated.
    pub pages: [u64; TIERS],
}

/// An order for sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// Time since the start, ns.
    pub at_ns: u64,
    /// The sizes of the VM's nodes when it came, 4 KiB pages as simulated.
    pub from: [u64; TIERS],
    /// The size that each tier is to have, bytes; `None`: unchanged. The balloon's orders have one for all.
    pub to_bytes: Vec<Option<u64>>,
    /// The giver of the order.
    pub origin: String,
    /// The reason of the order, a sentence for people; empty if none was given.
    pub reason: String,
}

/// The sizes of a VM's nodes over time, and the orders that led to them.
#[derive(Debug, Default)]
pub struct History {
    sizes: Vec<Sizes>,
    /// Least time between two entries of `sizes`, ns: it doubles as the list fills.
    gap_ns: u64,
    orders: Vec<Ordered>,
    /// Number of orders beyond those that are kept.
    more_orders: u64,
}

impl History {
    /// Takes in the sizes of the nodes, if they changed since the last entry and that is not too new.
    pub(super) fn see(&mut self, at_ns: u64, pages: [u64; TIERS]) {
        if let Some(last) = self.sizes.last()
            && (last.pages == pages || at_ns - last.at_ns < self.gap_ns)
        {
            return;
        }
        self.sizes.push(Sizes { at_ns, pages });
        if self.sizes.len() > MOST {
            let mut stays = (0..=MOST).map(|i| i % 2 == 0);
            self.sizes.retain(|_| stays.next().unwrap_or(true));
            let span = at_ns - self.sizes[0].at_ns;
            self.gap_ns = (2 * self.gap_ns).max(span / MOST as u64);
        }
    }

    /// Takes in an order.
    pub(super) fn order(&mut self, order: Ordered) {
        if self.orders.len() == MOST {
            self.more_orders += 1;
        } else {
            self.orders.push(order);
        }
    }

    /// The sizes over time, oldest first.
    #[must_use]
    pub fn sizes(&self) -> &[Sizes] {
        &self.sizes
    }

    /// The first orders, oldest first, and the number of those after them.
    #[must_use]
    pub fn orders(&self) -> (&[Ordered], u64) {
        (&self.orders, self.more_orders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_kept_from_first_to_last_however_many_there_are() {
        for steps in [10, 1023, 1024, 5000, 100_000_u64] {
            let mut history = History::default();
            for step in 0..steps {
                history.see(step * 1000, [step, 0, 0, 0]);
                history.see(step * 1000 + 1, [step, 0, 0, 0]);
            }
            let sizes = history.sizes();
            assert!(sizes.len() <= MOST, "{}", sizes.len());
            assert!(steps < 1024 || sizes.len() > MOST / 4, "{}", sizes.len());
            assert_eq!(sizes[0].at_ns, 0);
            assert!(sizes.is_sorted_by_key(|size| size.at_ns));
            let last = sizes[sizes.len() - 1];
            assert!(last.pages[0] >= steps - 1 - steps / 100, "{last:?}");
        }
    }

    #[test]
    fn orders_beyond_the_most_are_counted() {
        let mut history = History::default();
        for at_ns in 0..1030 {
            history.order(Ordered {
                at_ns,
                from: [0; TIERS],
                to_bytes: Vec::new(),
                origin: String::new(),
                reason: String::new(),
            });
        }
        let (orders, more) = history.orders();
        assert_eq!((orders.len(), more), (1024, 6));
    }
}
