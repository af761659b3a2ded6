//! The mover's kernel interface, behind a trait so that tests bring a kernel of their own.

use std::collections::BTreeMap;
use std::sync::Mutex;

use terrace_sys::{
    KernelPages, MoveOutcome, MoveScope, MoveTo, PageRun, Pagemap, Pages, Process, SysError,
};

use crate::topology::{NodeId, node_free_bytes};
use crate::{Finding, HostRoot};

/// One hypervisor process's memory.
pub(crate) trait Kernel: Pages + Sync {
    /// The process.
    fn pid(&self) -> u32;
    /// Whether the process is still the one that was meant.
    fn is_alive(&self) -> bool;
    /// Present pages, and which of them are huge.
    fn present(&self, start: u64, end: u64) -> Result<Vec<PageRun>, SysError>;
    /// Free memory of a node, bytes.
    fn free_bytes(&self, node: NodeId) -> u64;
}

/// The real one.
pub(crate) struct LiveKernel<'a> {
    process: &'a Process,
    pagemap: Result<Pagemap, SysError>,
    free: BTreeMap<NodeId, u64>,
    state: Mutex<State>,
}

struct State {
    /// Pages that others map may not be moved: `CAP_SYS_NICE` is missing.
    own_only: bool,
    confined: bool,
}

impl<'a> LiveKernel<'a> {
    pub(crate) fn open(root: &HostRoot, process: &'a Process) -> Self {
        Self {
            process,
            pagemap: Pagemap::open(&root.process(process.pid(), "pagemap")),
            free: node_free_bytes(root),
            state: Mutex::new(State {
                own_only: false,
                confined: false,
            }),
        }
    }

    fn state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// The findings: the mechanisms that did not work as well as they could.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        match &self.pagemap {
            Err(error) => findings.push(Finding::degraded(
                "pagemap",
                format!("{error}: huge pages are not recognised"),
                "give the daemon CAP_SYS_PTRACE or the VM's user",
            )),
            Ok(map) if !map.sees_huge_pages() => findings.push(Finding::degraded(
                "pagemap",
                "the kernel has no PAGEMAP_SCAN: huge pages are not recognised",
                "run Linux 6.7 or later",
            )),
            Ok(_) => {}
        }
        let (own_only, confined) = self.state(|s| (s.own_only, s.confined));
        if own_only {
            findings.push(Finding::degraded(
                "move-shared",
                "pages that another process maps too (the scanning worker, vhost-user) cannot be moved",
                "give the daemon CAP_SYS_NICE",
            ));
        }
        if confined {
            findings.push(Finding::missing(
                "cpuset",
                "the VM's process may not use the target node",
                "do not confine QEMU: widen cpuset.mems, drop libvirt's <numatune> and --membind",
            ));
        }
        findings
    }
}

impl Pages for LiveKernel<'_> {
    /// Calls `move_pages`. Pages that other processes map move only as long as the kernel permits it.
    fn call(
        &self,
        pid: u32,
        addresses: &[u64],
        to: Option<MoveTo>,
        status: &mut [i32],
    ) -> Result<MoveOutcome, SysError> {
        let own_only = self.state(|s| s.own_only);
        let exclusive = to.map(|to| MoveTo {
            scope: MoveScope::Exclusive,
            ..to
        });
        let to = if own_only { exclusive } else { to };
        let mut result = KernelPages.call(pid, addresses, to, status);
        let not_permitted = matches!(&result, Err(e) if e.errno() == libc::EPERM);
        if not_permitted && to != exclusive {
            result = KernelPages.call(pid, addresses, exclusive, status);
            if result.is_ok() {
                self.state(|s| s.own_only = true);
            }
        }
        if to.is_some() && matches!(&result, Err(e) if e.errno() == libc::EACCES) {
            self.state(|s| s.confined = true);
        }
        result
    }
}

impl Kernel for LiveKernel<'_> {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    fn present(&self, start: u64, end: u64) -> Result<Vec<PageRun>, SysError> {
        match &self.pagemap {
            Ok(map) => map.present(start, end),
            // Every page counts as a base page that may be there; `query` knows better.
            Err(_) => Ok(vec![PageRun {
                start,
                end,
                huge: false,
            }]),
        }
    }

    fn free_bytes(&self, node: NodeId) -> u64 {
        self.free.get(&node).copied().unwrap_or(0)
    }
}
