//! A kernel made of numbers, for tests: nodes with room, busy pages, huge pages.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

use terrace_proto::PAGE_SIZE;
use terrace_sys::{MoveOutcome, MoveScope, PageRun, SysError};

use super::Kernel;
use super::items::HUGE;
use crate::topology::NodeId;

/// A page (or a huge page, at its first address).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FakePage {
    pub node: u32,
    pub huge: bool,
    /// How many tries it refuses.
    pub busy: u32,
    /// Another process maps it too.
    pub others: bool,
}

impl FakePage {
    fn bytes(self) -> u64 {
        if self.huge { HUGE } else { PAGE_SIZE }
    }
}

#[derive(Debug, Default)]
pub(crate) struct FakeState {
    /// By first address.
    pub pages: BTreeMap<u64, FakePage>,
    /// Bytes left on each node.
    pub room: BTreeMap<u32, u64>,
    /// Every call to move: node and addresses.
    pub calls: Vec<(u32, Vec<u64>)>,
    /// The scope of each of these calls.
    pub scopes: Vec<MoveScope>,
    pub dead: bool,
    /// Calls to move after which the process is gone.
    pub dies_after: Option<usize>,
    /// Error number that each call to move answers.
    pub refuse: Option<i32>,
}

#[derive(Debug, Default)]
pub(crate) struct FakeKernel(pub Mutex<FakeState>);

impl FakeState {
    /// The first address of the page that holds `address`.
    pub fn page_at(&self, address: u64) -> Option<u64> {
        let (start, page) = self.pages.range(..=address).next_back()?;
        (address < start + page.bytes()).then_some(*start)
    }

    fn move_one(&mut self, address: u64, to: u32, scope: MoveScope) -> Result<i32, i32> {
        let Some(start) = self.page_at(address) else {
            return Ok(-libc::ENOENT);
        };
        let Some(page) = self.pages.get_mut(&start) else {
            return Ok(-libc::ENOENT);
        };
        if page.node == to {
            return Ok(i32::try_from(to).unwrap());
        }
        if page.others && scope == MoveScope::Exclusive {
            return Ok(-libc::EACCES);
        }
        if page.busy > 0 {
            page.busy -= 1;
            return Ok(-libc::EBUSY);
        }
        let bytes = page.bytes();
        let room = self.room.entry(to).or_default();
        if *room < bytes {
            return Err(libc::ENOMEM);
        }
        *room -= bytes;
        let from = std::mem::replace(&mut page.node, to);
        *self.room.entry(from).or_default() += bytes;
        Ok(i32::try_from(to).unwrap())
    }
}

fn error(errno: i32) -> SysError {
    SysError {
        call: "move_pages",
        what: "a fake process".into(),
        source: io::Error::from_raw_os_error(errno),
    }
}

impl Kernel for FakeKernel {
    fn is_alive(&self) -> bool {
        !self.0.lock().unwrap().dead
    }

    fn query(&self, addresses: &[u64], status: &mut [i32]) -> Result<(), SysError> {
        let state = self.0.lock().unwrap();
        if state.dead {
            return Err(error(libc::ESRCH));
        }
        for (address, status) in addresses.iter().zip(status) {
            *status = match state.page_at(*address) {
                Some(start) => i32::try_from(state.pages[&start].node).unwrap(),
                None => -libc::ENOENT,
            };
        }
        Ok(())
    }

    fn move_to(
        &self,
        addresses: &[u64],
        node: NodeId,
        scope: MoveScope,
        status: &mut [i32],
    ) -> Result<MoveOutcome, SysError> {
        let mut state = self.0.lock().unwrap();
        state.calls.push((node.0, addresses.to_vec()));
        state.scopes.push(scope);
        if state
            .dies_after
            .is_some_and(|calls| state.calls.len() > calls)
        {
            state.dead = true;
            return Err(error(libc::ESRCH));
        }
        if let Some(errno) = state.refuse {
            return Err(error(errno));
        }
        for (address, status) in addresses.iter().zip(status.iter_mut()) {
            *status = state.move_one(*address, node.0, scope).map_err(error)?;
        }
        let busy = status.contains(&-libc::EBUSY);
        Ok(if busy {
            MoveOutcome::Partial
        } else {
            MoveOutcome::Complete
        })
    }

    fn present(&self, start: u64, end: u64) -> Result<Vec<PageRun>, SysError> {
        let state = self.0.lock().unwrap();
        let first = state.page_at(start).unwrap_or(start);
        let run = |(at, page): (&u64, &FakePage)| PageRun {
            start: (*at).max(start),
            end: (at + page.bytes()).min(end),
            huge: page.huge,
        };
        Ok(state.pages.range(first..end).map(run).collect())
    }

    fn free_bytes(&self, node: NodeId) -> u64 {
        let state = self.0.lock().unwrap();
        state.room.get(&node.0).copied().unwrap_or(0)
    }
}
