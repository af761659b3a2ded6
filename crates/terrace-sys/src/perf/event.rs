//! Open events.

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::attr::{EventAttr, RawAttr};
use crate::SysError;

/// `PERF_FLAG_FD_CLOEXEC`.
const CLOEXEC: libc::c_ulong = 8;

/// The ioctls of `linux/perf_event.h`.
mod ioctl {
    pub const ENABLE: libc::c_ulong = 0x2400;
    pub const DISABLE: libc::c_ulong = 0x2401;
    pub const SET_OUTPUT: libc::c_ulong = 0x2405;
    pub const ID: libc::c_ulong = 0x8008_2407;
}

/// The processes and CPUs whose events are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everybody's events on a CPU. Needs `CAP_PERFMON`, or `kernel.perf_event_paranoid` of 0 or less.
    Cpu(u32),
    /// One process's events, on one CPU or on all. The kernel takes a thread's number and means that thread, and
    /// those that it makes later if the event is inherited.
    Process {
        /// The process's number.
        pid: u32,
        /// The CPU; `None` for all. An inherited event has a ring only on one CPU.
        cpu: Option<u32>,
    },
}

/// The count of an event, with the time for which it was wanted and the time for which the PMU had room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Times {
    /// Events counted.
    pub count: u64,
    /// Time for which the event was wanted, ns.
    pub enabled_ns: u64,
    /// Time for which it was counted, ns: less than wanted if others take turns on the PMU.
    pub running_ns: u64,
}

/// An open event; closing it ends it.
#[derive(Debug)]
pub struct Event {
    fd: OwnedFd,
    id: u64,
}

impl Event {
    /// Opens an event, disabled. With a `leader` it is in that one's group and runs only when all of them fit on the
    /// PMU.
    ///
    /// # Errors
    /// As perf_event_open(2): `EACCES`, `EPERM` (not permitted), `ENOENT`, `EOPNOTSUPP` (no such event or not
    /// so exact), `EBUSY` (the PMU is taken), `ENODEV` (no such CPU now), `ESRCH` (no such process), `EINVAL`.
    pub fn open(attr: &EventAttr, scope: Scope, leader: Option<&Self>) -> Result<Self, SysError> {
        let call = "perf_event_open";
        let what = || match scope {
            Scope::Cpu(cpu) => format!("CPU {cpu}"),
            Scope::Process { pid, .. } => format!("process {pid}"),
        };
        let number = |n: u32| {
            i32::try_from(n).map_err(|_| SysError {
                call,
                what: what(),
                source: io::Error::from_raw_os_error(libc::EINVAL),
            })
        };
        let (pid, cpu) = match scope {
            Scope::Cpu(cpu) => (-1, number(cpu)?),
            Scope::Process { pid, cpu } => (number(pid)?, cpu.map_or(Ok(-1), number)?),
        };
        let group = leader.map_or(-1, |leader| leader.fd.as_raw_fd());
        let raw = RawAttr::from(attr);
        // SAFETY: `raw` is as long as its `size` field has it, and the kernel only reads it.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const raw,
                pid,
                cpu,
                group,
                CLOEXEC,
            )
        };
        let fd = i32::try_from(fd).unwrap_or(-1);
        if fd < 0 {
            return Err(SysError::last(call, what()));
        }
        // SAFETY: the call above made this descriptor; nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut id = 0_u64;
        // SAFETY: the ioctl writes eight bytes to `id`.
        let rc = unsafe { libc::ioctl(fd.as_raw_fd(), ioctl::ID as _, &raw mut id) };
        if rc != 0 {
            return Err(SysError::last("ioctl(PERF_EVENT_IOC_ID)", what()));
        }
        Ok(Self { fd, id })
    }

    /// The id that samples of this event carry as [`super::Fields::IDENTIFIER`].
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Starts the event.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn enable(&self) -> Result<(), SysError> {
        self.ioctl(ioctl::ENABLE, 0, "ioctl(PERF_EVENT_IOC_ENABLE)")
    }

    /// Stops the event; the records in the ring stay.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn disable(&self) -> Result<(), SysError> {
        self.ioctl(ioctl::DISABLE, 0, "ioctl(PERF_EVENT_IOC_DISABLE)")
    }

    /// Directs this event's samples into the ring of another event of the same scope.
    ///
    /// # Errors
    /// If the scopes differ or the event has a ring itself (`EINVAL`).
    pub fn output_to(&self, other: &Self) -> Result<(), SysError> {
        let fd = libc::c_long::from(other.fd.as_raw_fd());
        self.ioctl(ioctl::SET_OUTPUT, fd, "ioctl(PERF_EVENT_IOC_SET_OUTPUT)")
    }

    /// The event's count and times. (For an event with PEBS this has the CPU's buffer drained.)
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn times(&self) -> Result<Times, SysError> {
        let mut values = [0_u64; 3];
        let len = size_of_val(&values);
        // SAFETY: `values` is writable for `len` bytes.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), values.as_mut_ptr().cast(), len) };
        if usize::try_from(got) != Ok(len) {
            return Err(SysError::last("read", format!("event {}", self.id)));
        }
        let [count, enabled_ns, running_ns] = values;
        Ok(Times {
            count,
            enabled_ns,
            running_ns,
        })
    }

    fn ioctl(
        &self,
        request: libc::c_ulong,
        argument: libc::c_long,
        call: &'static str,
    ) -> Result<(), SysError> {
        // SAFETY: none of the requests that come here takes a pointer.
        let rc = unsafe { libc::ioctl(self.fd.as_raw_fd(), request as _, argument) };
        if rc == 0 {
            Ok(())
        } else {
            Err(SysError::last(call, format!("event {}", self.id)))
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
