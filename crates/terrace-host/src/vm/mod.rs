//! One VM: its monitor and its process.
//!
//! Responsible for: taking hold of both, and asking them together. It leaves to others: who may be a VM, what the
//! monitor's answers mean ([`crate::qemu`]), and where guest RAM is ([`crate::memory_map`]).

mod ram;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use terrace_proto::printable::is_vm_name;
use terrace_proto::{GuestNode, PagingRegisters, Readings};
use terrace_sys::{Peer, Process, ProcessId};

pub use ram::{host_bytes, may_have_ram};

use crate::HostRoot;
use crate::memory_map::{
    GuestMemory, MapWatch, MemoryMapError, guest_nodes, read_guest_addresses, read_guest_memory,
};
use crate::qemu::who::{self, ProcessFacts, Refusal, Rules, SocketFacts, bad_name};
use crate::qemu::{Candidate, Monitor, QemuError, Reader, VmStatus, has_uuid, hypervisors};
use crate::topology::Topology;

/// The identity of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmIdentity {
    /// `query-name`, else the UUID, else the socket's file name.
    pub name: String,
    /// The UUID by `query-uuid`; `None` if it was never given.
    pub uuid: Option<String>,
    /// The VM's monitor.
    pub socket: PathBuf,
    /// QEMU's process.
    pub pid: u32,
    /// Start of that process, clock ticks after boot.
    pub start_time: u64,
    /// Runs under KVM; otherwise it is emulated (TCG).
    pub kvm: bool,
}

impl VmIdentity {
    /// QEMU's process.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        ProcessId {
            start_time: self.start_time,
            pid: self.pid,
        }
    }
}

/// A VM with an open monitor.
#[derive(Debug)]
pub struct Vm {
    root: HostRoot,
    identity: VmIdentity,
    process: Arc<Process>,
    monitor: Monitor,
    reader: Reader,
}

impl Vm {
    /// Connects to a monitor and takes hold of the process behind it, if both may be a VM's. `timeout` holds for
    /// this and for each later question.
    ///
    /// # Errors
    /// If the process there may not be a VM, the monitor does not answer, or the process cannot be determined.
    pub fn open(
        root: &HostRoot,
        rules: &Rules,
        candidate: &Candidate,
        timeout: Duration,
    ) -> Result<Self, QemuError> {
        let socket = &candidate.socket;
        let refused = |refusal| QemuError::NotAVm {
            socket: socket.clone(),
            refusal,
        };
        let place = SocketFacts::read(socket).map_err(|source| QemuError::NoSocket {
            socket: socket.clone(),
            source,
        })?;
        who::may_be_monitor(&place, None, rules).map_err(refused)?;
        let mut monitor =
            Monitor::connect_to(&place.path, timeout, &|peer| may_listen(peer, rules))?;
        let uuid = monitor.uuid()?;
        let held = process_behind(root, rules, &monitor, uuid.as_deref())?;
        who::may_be_monitor(&place, Some(held.facts.uids[0]), rules).map_err(refused)?;
        let identity = VmIdentity {
            name: name(&mut monitor, uuid.as_deref(), socket)?,
            uuid,
            socket: socket.clone(),
            pid: held.process.pid(),
            start_time: held.process.start_time(),
            kvm: monitor.kvm()?,
        };
        held.has_stayed(root).map_err(refused)?;
        Ok(Self {
            root: root.clone(),
            identity,
            process: Arc::new(held.process),
            monitor,
            reader: Reader::default(),
        })
    }

    /// The VM's identity.
    #[must_use]
    pub fn identity(&self) -> &VmIdentity {
        &self.identity
    }

    /// The VM's hypervisor process.
    #[must_use]
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Whether it runs.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub fn status(&mut self) -> Result<VmStatus, QemuError> {
        self.monitor.status()
    }

    /// The VM's RAM with what was plugged in, bytes; nothing of it is read.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub fn ram_bytes(&mut self) -> Result<u64, QemuError> {
        self.monitor.ram_bytes()
    }

    /// Control registers of each virtual CPU.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub fn registers(&mut self) -> Result<Vec<PagingRegisters>, QemuError> {
        self.monitor.registers()
    }

    /// The readings that a scan starts from: the registers that count, and how often the VM was reset before they
    /// were read. If its processor can run nested guests, only registers of virtual CPUs count that ran none around
    /// the reading.
    ///
    /// # Errors
    /// If QEMU does not answer, or does not report what makes registers count.
    pub fn readings(&mut self) -> Result<Readings, QemuError> {
        self.reader.read(&mut self.monitor, self.identity.kvm)
    }

    /// Rises with each thing that QEMU reported after which the guest's memory may have other contents: resets, stops. QEMU is asked
    /// nothing; `None` if not all that it reported was read.
    #[must_use]
    pub(crate) fn run_events(&self) -> Option<u64> {
        self.monitor.run_events()
    }

    /// QEMU's word for a migration from or to here in progress; `None` if there is none.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub fn migration(&mut self) -> Result<Option<String>, QemuError> {
        self.monitor.migration()
    }

    /// The map of the VM's RAM in host memory, and the files behind it.
    ///
    /// # Errors
    /// If it cannot be scanned, with the option that would change that.
    pub fn memory(&mut self) -> Result<GuestMemory, MemoryMapError> {
        read_guest_memory(&self.root, self.process.pid(), &mut self.monitor)
    }

    /// A watch that checks whether a map of the VM still holds.
    #[must_use]
    pub fn watch(&self, memory: &GuestMemory) -> MapWatch {
        let monitor = self.monitor.shared();
        MapWatch::new(
            self.root.clone(),
            Arc::clone(&self.process),
            monitor,
            memory,
        )
    }

    /// The tier of each run of the VM's memory, as its backends have them.
    ///
    /// # Errors
    /// If they do not lie in one tier each, or there is one tier alone; the error has the reason.
    pub fn guest_nodes(
        &mut self,
        memory: &GuestMemory,
        topology: &Topology,
    ) -> Result<Vec<GuestNode>, String> {
        let memdevs = self.monitor.memdevs().map_err(|e| e.to_string())?;
        let layout = memory.layout().ok_or("its memory map is not QEMU's")?;
        guest_nodes(layout, &memdevs, topology)
    }

    /// The map of the VM's RAM in host memory alone, also if only QEMU sees the RAM: it can be watched by DAMON and
    /// moved, not scanned.
    ///
    /// # Errors
    /// If it cannot be moved either.
    pub fn addresses(&mut self) -> Result<GuestMemory, MemoryMapError> {
        read_guest_addresses(&self.root, self.process.pid(), &mut self.monitor)
    }
}

/// A process that may be a VM's, held so that its number stays its own.
struct Held {
    process: Process,
    facts: ProcessFacts,
}

impl Held {
    fn take(root: &HostRoot, rules: &Rules, pid: u32) -> Result<Self, Refusal> {
        let process = Process::open(&root.proc(), pid)
            .map_err(|error| Refusal::new(error.to_string(), "nothing: it is inspected again"))?;
        let facts = ProcessFacts::read(root, pid)?;
        who::may_be_hypervisor(&facts, rules)?;
        Ok(Self { process, facts })
    }

    /// Whether it is still what it was: a process may become another program at any time.
    fn has_stayed(&self, root: &HostRoot) -> Result<(), Refusal> {
        let facts = ProcessFacts::read(root, self.process.pid())?;
        // A running VM's file may be replaced by an upgrade meanwhile, and it may change its cgroup.
        let is_same = facts.executable.file == self.facts.executable.file
            && facts.uids == self.facts.uids
            && self.process.is_alive();
        if is_same {
            return Ok(());
        }
        Err(Refusal::new(
            "its process ended or became another program while it was inspected",
            "nothing: it is inspected again",
        ))
    }
}

/// Before anything is read from it.
fn may_listen(peer: Option<Peer>, rules: &Rules) -> Result<(), Refusal> {
    let Some(peer) = peer else {
        return Err(Refusal::new(
            "the kernel does not report who listens there",
            "give QEMU a -qmp socket of its own",
        ));
    };
    if rules.has_user(peer.uid) {
        return Ok(());
    }
    let refusal = who::foreign_user(peer.uid);
    Err(Refusal::new(
        format!("the process that listens there is refused: {}", refusal.why),
        refusal.change,
    ))
}

/// The process that listens there, if it may be a VM's; else, if root opened the socket and handed it over (libvirt
/// does), the only one that may be a VM's and has this UUID on its command line.
fn process_behind(
    root: &HostRoot,
    rules: &Rules,
    monitor: &Monitor,
    uuid: Option<&str>,
) -> Result<Held, QemuError> {
    let unknown = |reason: String| QemuError::NoProcess {
        socket: monitor.socket().to_owned(),
        reason,
    };
    let Some((peer, pid)) = monitor.peer().and_then(|peer| Some((peer, peer.pid?))) else {
        let reason = "its listener is in another pid namespace: run on the host";
        return Err(unknown(reason.into()));
    };
    let is_of = |held: &Held| rules.is_own(peer.uid) || held.facts.uids[0] == peer.uid;
    let refusal = match Held::take(root, rules, pid) {
        // It is held by now: while who listened lives, it is that one.
        Ok(_) if monitor.listener_has_ended() => Refusal::new(
            "the process that listened there has ended, and another process has its pid now",
            "start the VM again",
        ),
        Ok(held) if is_of(&held) => return Ok(held),
        Ok(_) => Refusal::new("it listened as another user", "start the VM again"),
        Err(refusal) => refusal,
    };
    who::may_hand_over(peer, rules).map_err(|handed| {
        unknown(format!(
            "process {pid} listens there and is no VM ({refusal}); {handed}; {}",
            refusal.change
        ))
    })?;
    let mut by_uuid = match uuid {
        Some(_) => hypervisors(root, rules),
        None => Vec::new(),
    };
    by_uuid.retain(|pid| uuid.is_some_and(|uuid| has_uuid(root, *pid, uuid)));
    match by_uuid.as_slice() {
        [pid] => Held::take(root, rules, *pid).map_err(|r| unknown(r.to_string())),
        [] => Err(unknown(format!(
            "process {pid} listens there and is no VM ({refusal}), and none has this VM's UUID on its command \
             line; {}",
            refusal.change
        ))),
        _ => Err(unknown(format!(
            "process {pid} listens there and is no VM ({refusal}), and {} have this VM's UUID on their command lines",
            by_uuid.len()
        ))),
    }
}

/// `query-name`, else the UUID, else the socket's file name.
fn name(monitor: &mut Monitor, uuid: Option<&str>, socket: &Path) -> Result<String, QemuError> {
    let file_name = || {
        let name = socket.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let said = monitor.name()?.or_else(|| uuid.map(str::to_owned));
    let name = said.unwrap_or_else(file_name);
    if is_vm_name(&name) {
        return Ok(name);
    }
    Err(QemuError::NotAVm {
        socket: socket.to_owned(),
        refusal: bad_name(&name),
    })
}
