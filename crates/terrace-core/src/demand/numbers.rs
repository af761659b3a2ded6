//! A number for each page: a list where page numbers are dense, else a map.

use std::collections::HashMap;

/// Page numbers per page that a list may have, 4 bytes each and twice that while it grows.
const NUMBERS_PER_PAGE: usize = 4;
/// Page numbers that a list may always have.
const LEAST_NUMBERS: usize = 1024;
/// The number of a page that has none.
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
enum Form {
    Dense(Vec<u32>),
    Sparse(HashMap<u32, u32>),
}

/// Numbers by page. No result depends on the map's order.
#[derive(Clone, Debug)]
pub(super) struct PageNumbers {
    form: Form,
    len: usize,
}

impl Default for PageNumbers {
    fn default() -> Self {
        Self {
            form: Form::Dense(Vec::new()),
            len: 0,
        }
    }
}

impl PageNumbers {
    /// Number of pages.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Sets a page's number, which is below `u32::MAX`, and returns the one before.
    pub(super) fn replace(&mut self, page: u32, number: u32) -> Option<u32> {
        if let Form::Dense(list) = &mut self.form
            && let Some(held) = list.get_mut(page as usize)
        {
            let before = std::mem::replace(held, number);
            if before != NONE {
                return Some(before);
            }
            self.len += 1;
            return None;
        }
        let before = self.insert(page, number);
        self.len += usize::from(before.is_none());
        before
    }

    /// Sets the number of a page that is not in the list.
    fn insert(&mut self, page: u32, number: u32) -> Option<u32> {
        if let Form::Dense(list) = &mut self.form {
            if is_dense(page, self.len) {
                list.resize(page as usize + 1, NONE);
                list[page as usize] = number;
                return None;
            }
            let held = (0..).zip(&*list).filter(|(_, number)| **number != NONE);
            self.form = Form::Sparse(held.map(|(page, number)| (page, *number)).collect());
        }
        let Form::Sparse(map) = &mut self.form else {
            return None;
        };
        map.insert(page, number)
    }

    /// Removes a page and returns its number.
    pub(super) fn remove(&mut self, page: u32) -> Option<u32> {
        let number = match &mut self.form {
            Form::Dense(list) => {
                let held = list.get_mut(page as usize)?;
                let number = std::mem::replace(held, NONE);
                (number != NONE).then_some(number)
            }
            Form::Sparse(map) => map.remove(&page),
        }?;
        self.len -= 1;
        Some(number)
    }

    /// Changes all numbers, and the form if the other one is better by now.
    pub(super) fn settle(&mut self, mut change: impl FnMut(u32) -> u32) {
        match &mut self.form {
            Form::Dense(list) => {
                for number in list.iter_mut().filter(|number| **number != NONE) {
                    *number = change(*number);
                }
            }
            Form::Sparse(map) => {
                for number in map.values_mut() {
                    *number = change(*number);
                }
                let highest = map.keys().copied().max().unwrap_or(0);
                if is_dense(highest, self.len) {
                    let mut list = vec![NONE; highest as usize + 1];
                    for (page, number) in &*map {
                        list[*page as usize] = *number;
                    }
                    self.form = Form::Dense(list);
                }
            }
        }
    }

    /// Bytes on the heap: a map has a byte beside each entry, and one of eight entries is free.
    pub(super) fn heap_bytes(&self) -> usize {
        match &self.form {
            Form::Dense(list) => list.capacity() * size_of::<u32>(),
            Form::Sparse(map) => (map.capacity() * 8 / 7 + 1) * (size_of::<(u32, u32)>() + 1),
        }
    }
}

/// Whether a list may reach to this page, with so many pages in it.
fn is_dense(page: u32, len: usize) -> bool {
    (page as usize) < (len * NUMBERS_PER_PAGE).max(LEAST_NUMBERS)
}
