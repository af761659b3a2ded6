//! A kernel made of numbers behind the port over `move_pages(2)`: processes with pages, nodes with room, busy pages,
//! huge pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use terrace_proto::{PAGE_SIZE, PAGES_PER_HUGE};
use terrace_sys::{MoveOutcome, MoveScope, MoveTo, PageRun, Pages, SysError};

/// Bit of an entry of `/proc/PID/pagemap`: the page is in memory.
const PRESENT: u64 = 1 << 63;

/// Writes the pagemap of a process below `root`: its page `n` lies in the frame at place `n` of the list, 0 for none.
///
/// # Panics
/// If it cannot be written.
pub fn put_pagemap(root: &Path, pid: u32, frames: &[u64]) {
    let folder = root.join(format!("proc/{pid}"));
    fs::create_dir_all(&folder).expect("a folder below the root");
    let entries = frames.iter().map(|frame| match frame {
        0 => 0,
        frame => PRESENT | frame,
    });
    let bytes: Vec<u8> = entries.flat_map(u64::to_ne_bytes).collect();
    fs::write(folder.join("pagemap"), bytes).expect("a file below the root");
}

/// A page (or a huge page, at its first address).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FakePage {
    /// The node that holds the page.
    pub node: i32,
    /// Whether the page is one of 2 MiB.
    pub huge: bool,
    /// Number of tries to move that fail because the page is busy.
    pub busy: u32,
    /// Whether another process maps the page too.
    pub others: bool,
}

impl FakePage {
    /// A page of 4 KiB.
    #[must_use]
    pub fn base(node: i32) -> Self {
        Self {
            node,
            huge: false,
            busy: 0,
            others: false,
        }
    }

    /// A page of 2 MiB.
    #[must_use]
    pub fn huge(node: i32) -> Self {
        Self {
            huge: true,
            ..Self::base(node)
        }
    }

    /// The page's size, bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        if self.huge {
            PAGES_PER_HUGE * PAGE_SIZE
        } else {
            PAGE_SIZE
        }
    }
}

/// A call to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The process whose pages they are.
    pub pid: u32,
    /// Addresses of the pages.
    pub addresses: Vec<u64>,
    /// The target of the move: the node, and which pages may go.
    pub to: MoveTo,
}

/// The kernel's state.
#[derive(Debug, Default)]
pub struct State {
    /// The pages by process and first address.
    pub pages: BTreeMap<(u32, u64), FakePage>,
    /// Node of base pages that are not among `pages`. `None` if there are no others.
    pub others_on: Option<i32>,
    /// Bytes left on each node.
    pub room: BTreeMap<i32, u64>,
    /// Fewest bytes that were left on each node that pages came to or went from.
    pub least: BTreeMap<i32, u64>,
    /// Every call to move.
    pub calls: Vec<Call>,
    /// Processes that are gone.
    pub ended: BTreeSet<u32>,
    /// Number of calls to move after which the process is gone.
    pub ends_after: Option<usize>,
    /// The process and address of the page in each frame, if frames can be moved by their numbers.
    pub frames: Option<BTreeMap<u64, (u32, u64)>>,
    /// Statuses that frames answer which no process has.
    pub other_frames: BTreeMap<u64, i32>,
    /// Whether pages can be exchanged in place.
    pub swaps: bool,
    /// Pairs that were exchanged in place.
    pub swapped: u64,
    /// Error number that each call to move a process's pages answers.
    pub refuses: BTreeMap<u32, i32>,
}

/// The fake kernel. Clones share its state.
#[derive(Clone, Debug, Default)]
pub struct FakePages(Arc<Mutex<State>>);

impl FakePages {
    /// The kernel's state, to look at and to change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    /// Gives a process a page.
    pub fn put(&mut self, pid: u32, address: u64, page: FakePage) {
        self.pages.insert((pid, address), page);
    }

    /// The first address of the page that holds `address`.
    #[must_use]
    pub fn page_at(&self, pid: u32, address: u64) -> Option<u64> {
        let of_process = self.pages.range((pid, 0)..=(pid, address));
        let ((_, start), page) = of_process.last()?;
        (address < start + page.bytes()).then_some(*start)
    }

    /// The node of the page that holds `address`.
    #[must_use]
    pub fn node_at(&self, pid: u32, address: u64) -> Option<i32> {
        let start = self.page_at(pid, address);
        start.map_or(self.others_on, |start| Some(self.pages[&(pid, start)].node))
    }

    /// Pages of a range, and which of them are huge.
    #[must_use]
    pub fn present(&self, pid: u32, start: u64, end: u64) -> Vec<PageRun> {
        let first = self.page_at(pid, start).unwrap_or(start);
        let run = |((_, at), page): (&(u32, u64), &FakePage)| PageRun {
            start: (*at).max(start),
            end: (at + page.bytes()).min(end),
            huge: page.huge,
        };
        let pages = self.pages.range((pid, first)..(pid, end));
        pages.map(run).collect()
    }

    /// Bytes of all pages on a node.
    #[must_use]
    pub fn bytes_on(&self, node: i32) -> u64 {
        let there = self.pages.values().filter(|page| page.node == node);
        there.map(|page| page.bytes()).sum()
    }

    fn move_one(&mut self, pid: u32, address: u64, to: MoveTo) -> Result<i32, i32> {
        if let (None, Some(node)) = (self.page_at(pid, address), self.others_on) {
            self.put(pid, address, FakePage::base(node));
        }
        let Some(start) = self.page_at(pid, address) else {
            return Ok(-libc::ENOENT);
        };
        let page = self.pages.get_mut(&(pid, start)).unwrap();
        if page.node == to.node {
            return Ok(to.node);
        }
        if page.others && to.scope == MoveScope::Exclusive {
            return Ok(-libc::EACCES);
        }
        if page.busy > 0 {
            page.busy -= 1;
            return Ok(-libc::EBUSY);
        }
        let bytes = page.bytes();
        if self.room.get(&to.node).is_none_or(|room| *room < bytes) {
            return Err(libc::ENOMEM);
        }
        let from = std::mem::replace(&mut page.node, to.node);
        self.room_changes(to.node, |room| room - bytes);
        self.room_changes(from, |room| room + bytes);
        Ok(to.node)
    }

    fn room_changes(&mut self, node: i32, change: impl Fn(u64) -> u64) {
        let room = self.room.entry(node).or_default();
        let least = self.least.entry(node).or_insert(*room);
        *room = change(*room);
        *least = (*least).min(*room);
    }

    /// Exchanges a pair; returns its status.
    fn swap_one(&mut self, pids: [u32; 2], addresses: [u64; 2]) -> i32 {
        let keys = [0, 1].map(|side| (pids[side], addresses[side]));
        for key in keys {
            if let (None, Some(node)) = (self.pages.get(&key), self.others_on) {
                self.pages.insert(key, FakePage::base(node));
            }
        }
        let [Some(up), Some(down)] = keys.map(|key| self.pages.get(&key).copied()) else {
            return -libc::ENOENT;
        };
        if up.huge || down.huge {
            return -libc::E2BIG;
        }
        if up.busy > 0 || down.busy > 0 || up.others || down.others {
            return -libc::EBUSY;
        }
        if up.node == down.node {
            return -libc::EXDEV;
        }
        self.pages.insert(keys[0], FakePage::base(down.node));
        self.pages.insert(keys[1], FakePage::base(up.node));
        self.swapped += 1;
        0
    }

    /// Moves the page in a frame; returns its status.
    fn move_frame(&mut self, frame: u64, node: i32) -> i32 {
        if let Some(status) = self.other_frames.get(&frame) {
            return *status;
        }
        let frames = self.frames.iter();
        let key = frames.flatten().find(|(number, _)| **number == frame);
        let Some(key) = key.map(|(_, key)| *key) else {
            return -libc::ENOENT;
        };
        match self.pages.get(&key) {
            None => return -libc::ENOENT,
            Some(page) if page.huge => return -libc::E2BIG,
            Some(page) if page.others => return -libc::EACCES,
            Some(page) if page.node == node => return -libc::EEXIST,
            Some(_) => {}
        }
        let to = MoveTo {
            node,
            scope: MoveScope::Exclusive,
        };
        let moved = self.move_one(key.0, key.1, to);
        if moved == Ok(node) {
            // It has another frame now.
            self.frames.as_mut().map(|frames| frames.remove(&frame));
        }
        moved.map_or_else(|errno| -errno, |status| status.min(0))
    }

    fn migrate(
        &mut self,
        pid: u32,
        addresses: &[u64],
        to: MoveTo,
        status: &mut [i32],
    ) -> Result<MoveOutcome, i32> {
        self.calls.push(Call {
            pid,
            addresses: addresses.to_vec(),
            to,
        });
        if self.ends_after.is_some_and(|most| self.calls.len() > most) {
            self.ended.insert(pid);
        }
        if self.ended.contains(&pid) {
            return Err(libc::ESRCH);
        }
        if let Some(errno) = self.refuses.get(&pid) {
            return Err(*errno);
        }
        for (address, status) in addresses.iter().zip(status.iter_mut()) {
            *status = self.move_one(pid, *address, to)?;
        }
        Ok(if status.contains(&-libc::EBUSY) {
            MoveOutcome::Partial
        } else {
            MoveOutcome::Complete
        })
    }
}

impl Pages for FakePages {
    fn call(
        &self,
        pid: u32,
        addresses: &[u64],
        to: Option<MoveTo>,
        status: &mut [i32],
    ) -> Result<MoveOutcome, SysError> {
        assert_eq!(addresses.len(), status.len(), "one status for each address");
        let error = |errno| SysError {
            call: "move_pages",
            what: "a fake process".into(),
            source: io::Error::from_raw_os_error(errno),
        };
        let mut state = self.state();
        if let Some(to) = to {
            return state.migrate(pid, addresses, to, status).map_err(error);
        }
        if state.ended.contains(&pid) {
            return Err(error(libc::ESRCH));
        }
        for (address, status) in addresses.iter().zip(status) {
            *status = state.node_at(pid, *address).unwrap_or(-libc::ENOENT);
        }
        Ok(MoveOutcome::Complete)
    }

    fn swaps(&self) -> Result<(), String> {
        match self.state().swaps {
            true => Ok(()),
            false => Err("the fake kernel has no module".into()),
        }
    }

    fn swap(
        &self,
        up: (u32, &[u64]),
        down: (u32, &[u64]),
        status: &mut [i32],
    ) -> Result<(), SysError> {
        let mut state = self.state();
        status.fill(terrace_sys::NOT_ANSWERED);
        let error = |errno| SysError {
            call: "exchange",
            what: "a fake process".into(),
            source: io::Error::from_raw_os_error(errno),
        };
        if !state.swaps {
            return Err(error(libc::EOPNOTSUPP));
        }
        if state.ended.contains(&up.0) || state.ended.contains(&down.0) {
            return Err(error(libc::ESRCH));
        }
        for ((first, second), status) in up.1.iter().zip(down.1).zip(status) {
            *status = state.swap_one([up.0, down.0], [*first, *second]);
        }
        Ok(())
    }

    fn migrates(&self) -> Result<(), String> {
        match self.state().frames {
            Some(_) => Ok(()),
            None => Err("the fake kernel has no module".into()),
        }
    }

    fn migrate(&self, node: u32, frames: &[u64], status: &mut [i32]) -> Result<(), SysError> {
        let mut state = self.state();
        for (frame, status) in frames.iter().zip(status) {
            *status = state.move_frame(*frame, i32::try_from(node).unwrap());
        }
        Ok(())
    }
}
