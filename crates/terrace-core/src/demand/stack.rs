//! Mattson's stack: the exact distance of each access.
//!
//! Each access takes the next time slot, and one bit says whether a slot is its page's last. The distance is the
//! number of set bits after the slot of the page's access before. Bits are counted in a tree: a word has 64 slots, a
//! node counts 16 words or nodes in one cache line. A Fenwick tree of the same slots costs about twice as much: it
//! touches a line per bit of the slot's number. Slots that run out are numbered anew, without the unset ones.

use super::numbers::PageNumbers;

/// Slots of a word, as a power of two.
const WORD_BITS: u32 = 6;
/// Counters of a node, as a power of two: 16 counters of 4 bytes are a cache line.
const NODE_BITS: u32 = 4;
const NODE: usize = 1 << NODE_BITS;
/// Slots of the smallest tree: one node.
const LEAST_SLOTS: usize = 1 << (WORD_BITS + NODE_BITS);
/// Slots per page after numbering anew: so three accesses per page pay for each of its numberings.
const SLOTS_PER_PAGE: usize = 4;

/// A node's counters, in a cache line of their own.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Node([u32; NODE]);

/// An LRU stack of pages, exact.
#[derive(Clone, Debug)]
pub struct Stack {
    /// Last slot of each page.
    last: PageNumbers,
    /// A bit per slot: set if it is the last one of its page.
    bitmap: Vec<u64>,
    /// Levels of counters, the words' first.
    nodes: Vec<Node>,
    /// First node of each level.
    levels: Vec<usize>,
    next_slot: u32,
    /// Page of the last access: a page again at once needs no search.
    top: Option<u32>,
}

impl Default for Stack {
    fn default() -> Self {
        Self::new()
    }
}

impl Stack {
    /// An empty stack.
    #[must_use]
    pub fn new() -> Self {
        let mut stack = Self {
            last: PageNumbers::default(),
            bitmap: Vec::new(),
            nodes: Vec::new(),
            levels: Vec::new(),
            next_slot: 0,
            top: None,
        };
        stack.resize(LEAST_SLOTS);
        stack
    }

    /// Notes an access. The distance to the page's access before, 0 if no other page was accessed since; `None` if
    /// there was none: a cold miss.
    pub fn access(&mut self, page: u32) -> Option<u32> {
        if self.top == Some(page) {
            return Some(0);
        }
        if self.next_slot as usize == self.slots() {
            self.renumber();
        }
        let slot = self.next_slot;
        self.next_slot += 1;
        let before = self.last.replace(page, slot);
        let distance = before.map(|before| self.take(before));
        self.mark(slot);
        self.top = Some(page);
        distance
    }

    /// Forgets a page: it lies in nobody's way any more, and its next access is a cold miss.
    pub fn forget(&mut self, page: u32) {
        if let Some(slot) = self.last.remove(page) {
            self.take(slot);
        }
        if self.top == Some(page) {
            self.top = None;
        }
    }

    /// Number of pages in the stack.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.last.len()
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.last.heap_bytes()
            + self.bitmap.capacity() * size_of::<u64>()
            + self.nodes.capacity() * size_of::<Node>()
            + self.levels.capacity() * size_of::<usize>()
    }

    fn slots(&self) -> usize {
        self.bitmap.len() << WORD_BITS
    }

    /// Clears a slot and returns the number of set slots after it.
    fn take(&mut self, slot: u32) -> u32 {
        let mut index = (slot >> WORD_BITS) as usize;
        let bit = slot % u64::BITS;
        let word = &mut self.bitmap[index];
        let mut after = (*word >> bit >> 1).count_ones();
        *word &= !(1 << bit);
        for start in &self.levels {
            let within = index % NODE;
            index >>= NODE_BITS;
            let counts = &mut self.nodes[start + index].0;
            // All counters under a mask: a loop of fixed length has no branch to guess and becomes vector code.
            for (place, count) in counts.iter().enumerate() {
                after += if place > within { *count } else { 0 };
            }
            counts[within] -= 1;
        }
        after
    }

    fn mark(&mut self, slot: u32) {
        let mut index = (slot >> WORD_BITS) as usize;
        self.bitmap[index] |= 1 << (slot % u64::BITS);
        for start in &self.levels {
            let within = index % NODE;
            index >>= NODE_BITS;
            self.nodes[start + index].0[within] += 1;
        }
    }

    /// Numbers the set slots from 0 on, in order, with room for more.
    fn renumber(&mut self) {
        let mut before = Vec::with_capacity(self.bitmap.len());
        let mut set = 0;
        for word in &self.bitmap {
            before.push(set);
            set += word.count_ones();
        }
        let bitmap = std::mem::take(&mut self.bitmap);
        self.last.settle(|slot| {
            let word = (slot >> WORD_BITS) as usize;
            let below = bitmap[word] & ((1 << (slot % u64::BITS)) - 1);
            before[word] + below.count_ones()
        });
        drop(bitmap);
        self.resize((set as usize * SLOTS_PER_PAGE).max(LEAST_SLOTS));
        for slot in 0..set {
            self.mark(slot);
        }
        self.next_slot = set;
    }

    /// Makes room for at least so many slots, none of them set.
    fn resize(&mut self, slots: usize) {
        let len = slots.div_ceil(LEAST_SLOTS) * NODE;
        self.bitmap = vec![0; len];
        self.levels.clear();
        let (mut nodes, mut below) = (0, len);
        while below > 1 {
            below = below.div_ceil(NODE);
            self.levels.push(nodes);
            nodes += below;
        }
        self.nodes = vec![Node([0; NODE]); nodes];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A stack as a list, the last page accessed at its end.
    #[derive(Default)]
    struct Naive(Vec<u32>);

    impl Naive {
        fn access(&mut self, page: u32) -> Option<u32> {
            let found = self.forget(page);
            self.0.push(page);
            found
        }

        fn forget(&mut self, page: u32) -> Option<u32> {
            let at = self.0.iter().position(|other| *other == page)?;
            self.0.remove(at);
            Some(u32::try_from(self.0.len() - at).unwrap())
        }
    }

    /// Pages of a case: few or many, close together or spread over all numbers.
    fn pages() -> impl Strategy<Value = Vec<(u32, bool)>> {
        (1..400_u32, 0..4_u32, 1..3_000_usize).prop_flat_map(|(pages, spread, accesses)| {
            let step = [1, 3, 4_099, u32::MAX / 400][spread as usize];
            let forgets = (0..pages, 0..50_u32).prop_map(move |(p, f)| (p * step, f == 0));
            prop::collection::vec(forgets, accesses)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        #[test]
        fn equals_a_naive_stack(accesses in pages()) {
            let (mut stack, mut naive) = (Stack::new(), Naive::default());
            for (page, forget) in accesses {
                if forget {
                    stack.forget(page);
                    naive.forget(page);
                } else {
                    prop_assert_eq!(stack.access(page), naive.access(page));
                }
                prop_assert_eq!(stack.pages(), naive.0.len());
            }
        }
    }

    /// Pseudo-random numbers, so that a case of many pages needs no large input.
    fn spread(number: u32) -> u32 {
        number.wrapping_mul(0x9e37_79b1) >> 7
    }

    #[test]
    fn deep_trees_count_over_all_levels() {
        const PAGES: u32 = 300_000;
        let mut stack = Stack::new();
        assert!((0..PAGES).all(|page| stack.access(page).is_none()));
        for round in 0..4 {
            // Pages in the order of their accesses before: each lies under all others.
            assert!(
                (0..PAGES).all(|page| stack.access(page) == Some(PAGES - 1)),
                "{round}"
            );
        }
    }

    #[test]
    fn a_page_takes_at_most_64_bytes() {
        for sparse in [1, 37] {
            let mut stack = Stack::new();
            for number in 0..400_000 {
                stack.access(spread(number) % 100_000 * sparse);
                let limit = 64 * stack.pages() + 4096;
                assert!(
                    stack.heap_bytes() <= limit,
                    "{number} {sparse}: {} > {limit}",
                    stack.heap_bytes()
                );
            }
            assert!(stack.pages() > 90_000);
        }
    }
}
