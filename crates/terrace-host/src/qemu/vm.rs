//! One VM: its monitor and its process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use terrace_proto::PagingRegisters;
use terrace_sys::Process;

use super::{Candidate, Monitor, QemuError, command_line};
use crate::HostRoot;
use crate::memory_map::{GuestMemory, MemoryMapError, read_guest_addresses, read_guest_memory};

/// Who a VM is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmIdentity {
    /// `query-name`, else the UUID, else the socket's file name.
    pub name: String,
    /// `query-uuid`; `None` where it was never given.
    pub uuid: Option<String>,
    /// Its monitor.
    pub socket: PathBuf,
    /// QEMU's process.
    pub pid: u32,
    /// When that started, clock ticks after boot.
    pub start_time: u64,
    /// Runs under KVM; otherwise it is emulated (TCG).
    pub kvm: bool,
}

/// What a VM does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmStatus {
    /// Its virtual CPUs run.
    pub running: bool,
    /// QEMU's word for it, such as `running`, `paused`, `prelaunch`.
    pub state: String,
}

/// A VM with an open monitor.
#[derive(Debug)]
pub struct Vm {
    root: HostRoot,
    identity: VmIdentity,
    process: Arc<Process>,
    monitor: Monitor,
}

impl Vm {
    /// Connects to a monitor and takes hold of the process behind it. `timeout` holds for this and for
    /// each later question.
    ///
    /// # Errors
    /// Where the monitor does not answer or the process cannot be told.
    pub fn open(
        root: &HostRoot,
        candidate: &Candidate,
        timeout: Duration,
    ) -> Result<Self, QemuError> {
        let mut monitor = Monitor::connect(&candidate.socket, timeout)?;
        let uuid = monitor.uuid()?;
        let pid = process_behind(root, &monitor, candidate, uuid.as_deref())?;
        let process = Process::open(&root.proc(), pid).map_err(|error| QemuError::NoProcess {
            socket: candidate.socket.clone(),
            reason: error.to_string(),
        })?;
        let file_name = || {
            let name = candidate.socket.file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        };
        let identity = VmIdentity {
            name: monitor.name()?.or(uuid.clone()).unwrap_or_else(file_name),
            uuid,
            socket: candidate.socket.clone(),
            pid,
            start_time: process.start_time(),
            kvm: monitor.kvm()?,
        };
        Ok(Self {
            root: root.clone(),
            identity,
            process: Arc::new(process),
            monitor,
        })
    }

    /// Who it is.
    #[must_use]
    pub fn identity(&self) -> &VmIdentity {
        &self.identity
    }

    /// Its process.
    #[must_use]
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Whether it runs.
    ///
    /// # Errors
    /// Where QEMU does not answer.
    pub fn status(&mut self) -> Result<VmStatus, QemuError> {
        self.monitor.status()
    }

    /// Its RAM with what was plugged in, bytes; nothing of it is looked at.
    ///
    /// # Errors
    /// Where QEMU does not answer.
    pub fn ram_bytes(&mut self) -> Result<u64, QemuError> {
        self.monitor.ram_bytes()
    }

    /// Control registers of each virtual CPU.
    ///
    /// # Errors
    /// Where QEMU does not answer.
    pub fn registers(&mut self) -> Result<Vec<PagingRegisters>, QemuError> {
        self.monitor.registers()
    }

    /// QEMU's word for a migration from or to here that goes on; `None` where there is none.
    ///
    /// # Errors
    /// Where QEMU does not answer.
    pub fn migration(&mut self) -> Result<Option<String>, QemuError> {
        self.monitor.migration()
    }

    /// Where its RAM is in host memory, and the files behind it.
    ///
    /// # Errors
    /// Where it cannot be scanned, with the option that would change that.
    pub fn memory(&mut self) -> Result<GuestMemory, MemoryMapError> {
        read_guest_memory(&self.root, self.process.pid(), &mut self.monitor)
    }

    /// Where its RAM is in host memory alone, also where only QEMU sees it: it can be watched by DAMON and
    /// moved, not scanned.
    ///
    /// # Errors
    /// Where it cannot be moved either.
    pub fn addresses(&mut self) -> Result<GuestMemory, MemoryMapError> {
        read_guest_addresses(&self.root, self.process.pid(), &mut self.monitor)
    }
}

/// The socket's peer where that is a QEMU; else the process whose command line named the socket; else
/// the one with this UUID on its command line (libvirt opens the socket itself and hands it over).
fn process_behind(
    root: &HostRoot,
    monitor: &Monitor,
    candidate: &Candidate,
    uuid: Option<&str>,
) -> Result<u32, QemuError> {
    let peer = monitor.peer();
    let qemu_peer = peer.filter(|pid| command_line::of_process(root, *pid).is_some());
    let by_uuid = || {
        let running = uuid
            .map(|_| command_line::running(root))
            .unwrap_or_default();
        let same = |line: &command_line::CommandLine| line.uuid.as_deref() == uuid;
        running
            .into_iter()
            .find(|(_, line)| same(line))
            .map(|(pid, _)| pid)
    };
    let pid = qemu_peer.or(candidate.pid).or_else(by_uuid);
    pid.ok_or_else(|| QemuError::NoProcess {
        socket: candidate.socket.clone(),
        reason: match peer {
            Some(peer) => format!(
                "process {peer} listens there and is no QEMU, and none has this VM's UUID on its command line"
            ),
            None => "its listener is in another pid namespace: run on the host".into(),
        },
    })
}
