//! The fake of `move_pages(2)` as one hypervisor's memory.

use terrace_sys::{PageRun, SysError};
use terrace_testkit::pages::FakePages;

use super::Kernel;
use crate::topology::NodeId;

/// The hypervisor.
pub(crate) const PID: u32 = 1;

impl Kernel for FakePages {
    fn pid(&self) -> u32 {
        PID
    }

    fn is_alive(&self) -> bool {
        !self.state().ended.contains(&PID)
    }

    fn present(&self, start: u64, end: u64) -> Result<Vec<PageRun>, SysError> {
        Ok(self.state().present(PID, start, end))
    }

    fn free_bytes(&self, node: NodeId) -> u64 {
        let node = i32::try_from(node.0).unwrap_or(-1);
        self.state().room.get(&node).copied().unwrap_or(0)
    }
}
