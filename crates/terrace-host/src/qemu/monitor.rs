//! One VM's monitor: commands with a time limit, over a connection that is made anew after it broke.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use qapi::{Command, ErrorClass, ExecuteError, Qmp, qmp};
use serde::Serialize;
use terrace_proto::printable::{MAX_TEXT_CHARS, excerpt};
use terrace_proto::{Gpa, Hva, PagingRegisters};
use terrace_sys::{Peer, SysError, connect_unix, peer, peer_has_ended};

use super::link::{self, Link};
use super::stream::{LONG_LINE, LineStream, SHORT_LINE};
use super::who::Refusal;
use super::{FlatRange, NodeMemory, ParseError, Uncounted, VirtioMem, parse};

/// Errors of a hypervisor's monitor.
#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    /// The socket does not take connections.
    #[error("{source}: is QEMU running, and may this user connect?")]
    Connect {
        /// The error of the system call, with the path.
        #[source]
        source: SysError,
    },
    /// The monitor connects but does not greet.
    #[error(
        "{}: no greeting within {} ms: another program (libvirt?) holds the monitor; give QEMU a \
         second -qmp socket",
        socket.display(),
        timeout.as_millis()
    )]
    Held {
        /// The monitor's socket.
        socket: PathBuf,
        /// The time that was waited.
        timeout: Duration,
    },
    /// The monitor does not answer.
    #[error(
        "{}: no answer to '{command}' within {} ms: QEMU hangs, or a debugger stopped it",
        socket.display(),
        timeout.as_millis()
    )]
    TimedOut {
        /// The monitor's socket.
        socket: PathBuf,
        /// The command.
        command: String,
        /// The time that was waited.
        timeout: Duration,
    },
    /// The connection broke.
    #[error("{}: '{command}': {source}; the VM ended, or this is no QMP socket", socket.display())]
    Broken {
        /// The monitor's socket.
        socket: PathBuf,
        /// The command.
        command: String,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// QEMU refused a command.
    #[error("{}: QEMU refused '{command}': {reason}", socket.display())]
    Refused {
        /// The monitor's socket.
        socket: PathBuf,
        /// The command.
        command: String,
        /// QEMU's words.
        reason: String,
    },
    /// QEMU's answer makes no sense.
    #[error("{}: {source}", socket.display())]
    Parse {
        /// The monitor's socket.
        socket: PathBuf,
        /// The error in the answer.
        #[source]
        source: ParseError,
    },
    /// The registers do not count, so nothing is scanned from them.
    #[error("{}: {source}", socket.display())]
    Uncounted {
        /// The monitor's socket.
        socket: PathBuf,
        /// The reason.
        #[source]
        source: Uncounted,
    },
    /// The socket is not there.
    #[error("{}: {source}: is QEMU running, and may this user read it?", socket.display())]
    NoSocket {
        /// The monitor's socket.
        socket: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// The process that listens there may not be a VM.
    #[error("{}: {refusal}", socket.display())]
    NotAVm {
        /// The monitor's socket.
        socket: PathBuf,
        /// The refusal, with its reason.
        refusal: Refusal,
    },
    /// The process cannot be determined.
    #[error("{}: the QEMU process behind it is not known: {reason}", socket.display())]
    NoProcess {
        /// The monitor's socket.
        socket: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// A memory backend, from `query-memdev`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memdev {
    /// The backend's name; the region in the memory tree has the same.
    pub id: String,
    /// The backend's size, bytes.
    pub size: u64,
    /// Whether it is mapped shared.
    pub share: bool,
    /// The host's nodes that it takes memory from; empty if none were named.
    pub host_nodes: Vec<u32>,
}

/// A check whether the process that listens at a socket may be talked to; its argument is `None` if the kernel does
/// not report which process that is.
pub type Allow<'a> = dyn Fn(Option<Peer>) -> Result<(), Refusal> + 'a;

/// The run state of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmStatus {
    /// The virtual CPUs run.
    pub running: bool,
    /// QEMU's word for it, such as `running`, `paused`, `prelaunch`.
    pub state: String,
}

/// A monitor. Its connection is made anew by the next command after one that failed, so that an answer
/// that came too late is never taken for that of a later command.
///
/// QEMU serves one client of a monitor at a time and lets others wait until it is gone. All monitors of one
/// socket in this process therefore share one connection, command by command: who watches a VM keeps it for
/// as long as the VM is managed, and who resizes the VM meanwhile would otherwise never be greeted.
pub struct Monitor {
    socket: PathBuf,
    timeout: Duration,
    link: Arc<Mutex<Link>>,
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

impl Monitor {
    /// Connects and negotiates, or joins those that are connected. `timeout` holds for this and for each later
    /// command.
    ///
    /// # Errors
    /// If no process listens, or another program holds the monitor.
    pub fn connect(socket: &Path, timeout: Duration) -> Result<Self, QemuError> {
        Self::connect_to(socket, timeout, &|_| Ok(()))
    }

    /// The same, with nothing said and nothing read before it is known that who listens there `may` be talked to.
    ///
    /// # Errors
    /// As [`Monitor::connect`], and if it may not.
    pub fn connect_to(
        socket: &Path,
        timeout: Duration,
        may: &Allow<'_>,
    ) -> Result<Self, QemuError> {
        let mut monitor = Self {
            socket: socket.into(),
            timeout,
            link: link::of(socket),
        };
        let mut joined = monitor.join(may);
        if let Err(QemuError::NoProcess { .. }) = joined {
            // Who shares the old link has a VM that ended; this one is new.
            monitor.link = link::anew(socket);
            joined = monitor.join(may);
        }
        joined.map(|()| monitor)
    }

    /// Sees that there is a connection that works.
    fn join(&self, may: &Allow<'_>) -> Result<(), QemuError> {
        let mut link = self.link();
        if let Some(peer) = link.peer {
            self.allowed(may, peer)?;
        }
        if let Some(connection) = link.connection.take() {
            let asked = self.execute_on(connection, &mut link, &qmp::query_status {});
            match asked {
                Ok(_) => return Ok(()),
                Err(ExecuteError::Io(error)) if !is_timeout(&error) => {}
                Err(error) => return Err(self.failed("query-status", error)),
            }
        }
        link.connection = Some(self.reopen(&mut link, may)?);
        Ok(())
    }

    fn allowed(&self, may: &Allow<'_>, peer: Option<Peer>) -> Result<(), QemuError> {
        may(peer).map_err(|refusal| QemuError::NotAVm {
            socket: self.socket.clone(),
            refusal,
        })
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The monitor's socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The process that listens there: QEMU, or who opened the socket for it (libvirt does).
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        self.link().peer.flatten()
    }

    /// Whether that process has ended and only left the socket to others: its number means nothing any more.
    #[must_use]
    pub fn listener_has_ended(&self) -> bool {
        let link = self.link();
        let connection = link.connection.as_ref();
        connection.is_none_or(|connection| peer_has_ended(connection.inner().socket()))
    }

    /// A new connection, to the same process as before: a path may have changed hands meanwhile.
    fn reopen(&self, link: &mut Link, may: &Allow<'_>) -> Result<Qmp<LineStream>, QemuError> {
        let before = link.peer;
        let connection = self.open(&|now| {
            if before.is_some_and(|before| before != now) {
                return Err(QemuError::NoProcess {
                    socket: self.socket.clone(),
                    reason: "another process listens there now; the VM that was here has ended"
                        .into(),
                });
            }
            self.allowed(may, now)
        })?;
        // QEMU's events between the connections are lost.
        link.resets += u64::from(before.is_some());
        link.memory_events += u64::from(before.is_some());
        link.run_events += u64::from(before.is_some());
        link.peer
            .get_or_insert_with(|| peer(connection.inner().socket()).ok());
        Ok(connection)
    }

    fn open(
        &self,
        check: &dyn Fn(Option<Peer>) -> Result<(), QemuError>,
    ) -> Result<Qmp<LineStream>, QemuError> {
        let deadline = Instant::now() + self.timeout;
        let held = || QemuError::Held {
            socket: self.socket.clone(),
            timeout: self.timeout,
        };
        let socket = connect_unix(&self.socket, self.timeout).map_err(|source| {
            if source.errno() == libc::EAGAIN {
                held()
            } else {
                QemuError::Connect { source }
            }
        })?;
        check(peer(&socket).ok())?;
        let mut connection = Qmp::new(LineStream::new(socket, deadline));
        match connection.read_capabilities() {
            Ok(_) => {}
            Err(error) if is_timeout(&error) => return Err(held()),
            Err(source) => return Err(self.failed("greeting", ExecuteError::Io(source))),
        }
        connection
            .execute(&qmp::qmp_capabilities { enable: None })
            .map_err(|error| self.failed("qmp_capabilities", error))?;
        Ok(connection)
    }

    pub(super) fn execute<C: Command>(
        &mut self,
        name: &str,
        command: &C,
    ) -> Result<C::Ok, QemuError> {
        let result = self.try_execute(command)?;
        result.map_err(|error| self.failed(name, error))
    }

    /// The outer error is that there is no connection.
    pub(super) fn try_execute<C: Command>(
        &mut self,
        command: &C,
    ) -> Result<Result<C::Ok, ExecuteError>, QemuError> {
        Ok(self.try_execute_counted(SHORT_LINE, command)?.0)
    }

    /// The same, and how often the VM had been reset before QEMU answered.
    fn try_execute_counted<C: Command>(
        &mut self,
        most_bytes: usize,
        command: &C,
    ) -> Result<(Result<C::Ok, ExecuteError>, u64), QemuError> {
        let mut link = self.link();
        let mut connection = match link.connection.take() {
            Some(connection) => connection,
            None => self.reopen(&mut link, &|_| Ok(()))?,
        };
        connection.inner_mut().set_most(most_bytes);
        let result = self.execute_on(connection, &mut link, command);
        Ok((result, link.resets))
    }

    /// Number of the VM's resets since its monitor was first connected to, as far as was read. The monitors of one
    /// socket share the count.
    pub(super) fn resets(&self) -> u64 {
        self.link().resets
    }

    /// Another one of the same VM, which shares the connection.
    #[must_use]
    pub fn shared(&self) -> Self {
        Self {
            socket: self.socket.clone(),
            timeout: self.timeout,
            link: Arc::clone(&self.link),
        }
    }

    /// Number of QEMU's events after which the guest's RAM may be another one, as far as can be read without asking
    /// it anything. The monitors of one socket share the count.
    #[must_use]
    pub fn memory_events(&self) -> u64 {
        let mut link = self.link();
        take_in_events(&mut link);
        link.memory_events
    }

    /// Number of QEMU's events until now after which the guest's memory may have other contents (resets, stops), as far as can be read
    /// without asking it anything; `None` if not all that it reported was read, or there is no connection.
    #[must_use]
    pub(crate) fn run_events(&self) -> Option<u64> {
        let mut link = self.link();
        let all = take_in_events(&mut link);
        all.then_some(link.run_events)
    }

    fn execute_on<C: Command>(
        &self,
        mut connection: Qmp<LineStream>,
        link: &mut Link,
        command: &C,
    ) -> Result<C::Ok, ExecuteError> {
        let deadline = Instant::now() + self.timeout;
        connection.inner_mut().set_deadline(deadline);
        let result = connection.execute(command);
        note(link, connection.inner_mut());
        if !matches!(result, Err(ExecuteError::Io(_))) {
            link.connection = Some(connection);
        }
        result
    }

    pub(super) fn failed(&self, command: &str, error: ExecuteError) -> QemuError {
        let (socket, command) = (self.socket.clone(), command.to_owned());
        match error {
            ExecuteError::Qapi(error) => QemuError::Refused {
                socket,
                command,
                reason: excerpt(&error.desc, MAX_TEXT_CHARS),
            },
            ExecuteError::Io(error) if is_timeout(&error) => QemuError::TimedOut {
                socket,
                command,
                timeout: self.timeout,
            },
            ExecuteError::Io(source) => QemuError::Broken {
                socket,
                command,
                source,
            },
        }
    }

    /// Sends a command to the human monitor. Its answers may be long: registers of all virtual CPUs, the memory tree.
    fn human(&mut self, line: &str) -> Result<String, QemuError> {
        Ok(self.human_counted(line)?.0)
    }

    /// The same, and how often the VM had been reset before QEMU answered.
    pub(super) fn human_counted(&mut self, line: &str) -> Result<(String, u64), QemuError> {
        let command = qmp::human_monitor_command {
            cpu_index: None,
            command_line: line.into(),
        };
        let (result, resets) = self.try_execute_counted(LONG_LINE, &command)?;
        let text = result.map_err(|error| self.failed(line, error))?;
        Ok((text, resets))
    }

    pub(super) fn parsed<T>(&self, result: Result<T, ParseError>) -> Result<T, QemuError> {
        result.map_err(|source| QemuError::Parse {
            socket: self.socket.clone(),
            source,
        })
    }

    /// The VM's name, if it was given one.
    ///
    /// # Errors
    /// If QEMU does not answer; so for all that follow.
    pub fn name(&mut self) -> Result<Option<String>, QemuError> {
        let info = self.execute("query-name", &qmp::query_name {})?;
        Ok(info.name)
    }

    /// The VM's UUID; `None` if it is all zeros, that is, never given.
    pub fn uuid(&mut self) -> Result<Option<String>, QemuError> {
        let info = self.execute("query-uuid", &qmp::query_uuid {})?;
        let uuid = self.parsed(parse::uuid(info.UUID))?;
        let given = uuid.bytes().any(|b| !matches!(b, b'0' | b'-'));
        Ok(given.then_some(uuid))
    }

    /// Whether it runs.
    pub fn status(&mut self) -> Result<VmStatus, QemuError> {
        let info = self.execute("query-status", &qmp::query_status {})?;
        Ok(VmStatus {
            running: info.running,
            state: qapi::Enum::name(&info.status).into(),
        })
    }

    /// QEMU's word for a migration in progress, such as `postcopy-active`; `None` if there is none.
    pub fn migration(&mut self) -> Result<Option<String>, QemuError> {
        use qmp::MigrationStatus::{cancelled, completed, failed, none};
        let info = self.execute("query-migrate", &qmp::query_migrate {})?;
        let over =
            |status: &qmp::MigrationStatus| matches!(status, none | completed | failed | cancelled);
        let status = info.status.filter(|status| !over(status));
        Ok(status.map(|status| qapi::Enum::name(&status).into()))
    }

    /// Whether KVM runs it.
    pub fn kvm(&mut self) -> Result<bool, QemuError> {
        Ok(self.execute("query-kvm", &qmp::query_kvm {})?.enabled)
    }

    /// The VM's memory backends; those without a name are left out.
    pub fn memdevs(&mut self) -> Result<Vec<Memdev>, QemuError> {
        let list = self.execute("query-memdev", &qmp::query_memdev {})?;
        let named = list.into_iter().filter_map(|memdev| {
            Some(Memdev {
                id: memdev.id?,
                size: memdev.size,
                share: memdev.share,
                host_nodes: match memdev.policy {
                    qmp::HostMemPolicy::default => Vec::new(),
                    _ => memdev.host_nodes.into_iter().map(u32::from).collect(),
                },
            })
        });
        Ok(named.collect())
    }

    /// The VM's RAM with what was plugged in, bytes.
    pub fn ram_bytes(&mut self) -> Result<u64, QemuError> {
        let command = qmp::query_memory_size_summary {};
        let info = self.execute("query-memory-size-summary", &command)?;
        let plugged = info.plugged_memory.unwrap_or(0);
        Ok(info.base_memory.saturating_add(plugged))
    }

    /// The VM's RAM without what was plugged in later, bytes.
    pub fn boot_bytes(&mut self) -> Result<u64, QemuError> {
        let command = qmp::query_memory_size_summary {};
        let info = self.execute("query-memory-size-summary", &command)?;
        Ok(info.base_memory)
    }

    /// Memory of each of the guest's NUMA nodes; empty if it has none.
    pub fn nodes(&mut self) -> Result<Vec<NodeMemory>, QemuError> {
        let text = self.human("info numa")?;
        self.parsed(parse::numa(&text))
    }

    /// The VM's virtio-mem devices; other memory devices are left out.
    pub fn virtio_mems(&mut self) -> Result<Vec<VirtioMem>, QemuError> {
        let list = self.execute("query-memory-devices", &qmp::query_memory_devices {})?;
        self.parsed(parse::virtio_mems(list))
    }

    /// Sends a virtio-mem device how much memory the guest is to have plugged. That QEMU takes it does not mean that
    /// the guest does it.
    pub fn request_size(&mut self, device: &str, bytes: u64) -> Result<(), QemuError> {
        let command = qmp::qom_set {
            path: format!("/machine/peripheral/{device}"),
            property: "requested-size".into(),
            value: bytes.into(),
        };
        let name = format!("qom-set {}.requested-size={bytes}", command.path);
        self.execute(&name, &command).map(drop)
    }

    /// The memory that the balloon leaves to the guest, bytes; `None` if there is no balloon.
    pub fn balloon(&mut self) -> Result<Option<u64>, QemuError> {
        match self.try_execute(&qmp::query_balloon {})? {
            Ok(info) => {
                let bytes = u64::try_from(info.actual);
                let bytes = bytes.map_err(|_| parse::wrong_balloon(info.actual));
                self.parsed(bytes).map(Some)
            }
            Err(ExecuteError::Qapi(error)) if error.class == ErrorClass::DeviceNotActive => {
                Ok(None)
            }
            Err(error) => Err(self.failed("query-balloon", error)),
        }
    }

    /// Sends the balloon how much memory to leave to the guest. That QEMU takes it does not mean that the guest does
    /// it.
    pub fn set_balloon(&mut self, bytes: u64) -> Result<(), QemuError> {
        let value = i64::try_from(bytes).unwrap_or(i64::MAX);
        let name = format!("balloon {bytes}");
        self.execute(&name, &qmp::balloon { value }).map(drop)
    }

    /// Control registers of each virtual CPU.
    pub fn registers(&mut self) -> Result<Vec<PagingRegisters>, QemuError> {
        let text = self.human("info registers -a")?;
        self.parsed(parse::registers(&text))
    }

    /// The guest physical addresses that are RAM, with their regions.
    pub fn ram(&mut self) -> Result<Vec<FlatRange>, QemuError> {
        let text = self.human("info mtree -f")?;
        self.parsed(parse::mtree_ram(&text))
    }

    /// Region and host address of a guest physical address; `None` if there is no RAM.
    pub fn host_address(&mut self, gpa: Gpa) -> Result<Option<(String, Hva)>, QemuError> {
        let text = self.human(&format!("gpa2hva {:#x}", gpa.0))?;
        self.parsed(parse::gpa2hva(&text))
    }
}

/// Counts the events that came while nothing was asked, and says whether these are all. Never waits.
fn take_in_events(link: &mut Link) -> bool {
    let Some(mut connection) = link.connection.take() else {
        return false;
    };
    let taken_in = connection.inner_mut().take_in_events();
    note(link, connection.inner_mut());
    match taken_in {
        Ok(all) => {
            link.connection = Some(connection);
            all
        }
        Err(_) => {
            // Events between the connections are lost, so anything may have happened.
            link.memory_events += 1;
            false
        }
    }
}

/// Takes over what a stream counted.
fn note(link: &mut Link, stream: &mut LineStream) {
    let resets = stream.take_resets();
    link.resets += resets;
    link.run_events += stream.take_run_events();
    link.memory_events += stream.take_memory_events() + resets;
}

/// A socket's own time-out shows as `WouldBlock`.
fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
    )
}
