//! A device in this process, and a hypervisor's end of its vhost-user socket over a mock VM.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::mock::{MockRing, MockVm, RING_SIZE, WRITE};
use clap::Parser as _;
use terrace_hyperflex::abi::{Entry, queues};
use terrace_hyperflex::{Args, Prepared};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures as Protocol,
    VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Address at which the hypervisor maps the guest's address 0.
const MAPPED: u64 = 0x7f00_0000_0000;

/// Waits for a condition; a test that waits in vain fails.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Options of a device for a mock VM of two tiers, with its files in a folder.
pub fn args(folder: &Path, more: &[&str]) -> Args {
    let path = |name: &str| folder.join(name).display().to_string();
    let fixed = [
        "terrace-hyperflex",
        "--socket",
        &path("hypervisor"),
        "--control",
        &path("control"),
        "--state",
        &path("state"),
        "--tier",
        "node=0,size=8MiB",
        "--tier",
        "node=1,size=8MiB",
        "--total",
        "8MiB",
        "--statistics",
        "1",
        "--nobody-pins",
    ];
    Args::try_parse_from(fixed.into_iter().chain(more.iter().copied())).unwrap()
}

/// Starts a device in this process.
pub fn start(args: &Args) -> std::thread::JoinHandle<()> {
    // One before it may still be ending.
    let mut device = None;
    wait_for("the state", || {
        device = Prepared::new(args).ok();
        device.is_some()
    });
    let device = device.unwrap();
    std::thread::spawn(move || device.run().unwrap())
}

/// A connected hypervisor with the driver's queues.
pub struct Hypervisor {
    frontend: Frontend,
    kicks: Vec<EventFd>,
    calls: Vec<EventFd>,
    /// The driver's side of each queue.
    pub drivers: Vec<MockRing>,
}

impl Hypervisor {
    /// Connects and starts all queues; `drivers` are those of a connection before, or `None` if the guest starts
    /// anew.
    pub fn connect(socket: &Path, vm: &MockVm, drivers: Option<Vec<MockRing>>) -> Self {
        let mut it = Self::greet(socket, vm, drivers);
        it.share(vm);
        it.start();
        it
    }

    /// Connects and agrees on features.
    pub fn greet(socket: &Path, vm: &MockVm, drivers: Option<Vec<MockRing>>) -> Self {
        let count = queues(vm.config().tiers().len());
        let mut frontend = None;
        wait_for("a socket that listens", || {
            frontend = Frontend::connect(socket, count as u64).ok();
            frontend.is_some()
        });
        let mut frontend = frontend.unwrap();
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        assert!(protocol.contains(Protocol::CONFIG | Protocol::RESET_DEVICE));
        frontend.set_protocol_features(protocol).unwrap();
        // Each message waits for its answer.
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        assert_eq!(frontend.get_queue_num().unwrap(), count as u64);
        assert_ne!(
            features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits(),
            0
        );
        frontend.set_features(features).unwrap();
        let eventfds = || {
            let new = |_| EventFd::new(EFD_NONBLOCK).unwrap();
            (0..count).map(new).collect()
        };
        let new = || (0..count).map(|i| MockRing::new(vm.memory(), i)).collect();
        Self {
            frontend,
            kicks: eventfds(),
            calls: eventfds(),
            drivers: drivers.unwrap_or_else(new),
        }
    }

    /// Sends the memory table.
    pub fn share(&self, vm: &MockVm) {
        let files: Vec<&File> = (0..vm.config().tiers().len()).map(|i| vm.file(i)).collect();
        self.share_files(vm, &files);
    }

    /// Sends a memory table with these files behind the tiers.
    pub fn share_files(&self, vm: &MockVm, files: &[&File]) {
        let regions: Vec<_> = (0..vm.config().tiers().len())
            .map(|tier| VhostUserMemoryRegionInfo {
                guest_phys_addr: vm.tier(tier).start,
                memory_size: vm.tier(tier).len,
                userspace_addr: MAPPED + vm.tier(tier).start,
                mmap_offset: 0,
                mmap_handle: files[tier].as_raw_fd(),
            })
            .collect();
        self.frontend.set_mem_table(&regions).unwrap();
    }

    fn start(&mut self) {
        for i in 0..self.drivers.len() {
            let ring = &self.drivers[i];
            // What a hypervisor does that lost its backend: it goes on where answers end.
            let used = u16::from_le_bytes(ring.read(ring.used() + 2));
            self.set_up(i, used);
        }
        for i in 0..self.drivers.len() {
            self.enable(i, true);
        }
    }

    /// Sets a ring up at a position in it.
    pub fn set_up(&mut self, queue: usize, base: u16) {
        let ring = &self.drivers[queue];
        self.frontend.set_vring_num(queue, RING_SIZE).unwrap();
        self.frontend.set_vring_base(queue, base).unwrap();
        let places = VringConfigData {
            queue_max_size: RING_SIZE,
            queue_size: RING_SIZE,
            flags: 0,
            desc_table_addr: MAPPED + ring.descriptors(),
            used_ring_addr: MAPPED + ring.used(),
            avail_ring_addr: MAPPED + ring.available(),
            log_addr: None,
        };
        self.frontend.set_vring_addr(queue, &places).unwrap();
        let (call, kick) = (&self.calls[queue], &self.kicks[queue]);
        self.frontend.set_vring_call(queue, call).unwrap();
        self.frontend.set_vring_kick(queue, kick).unwrap();
    }

    /// Enables a ring or disables it.
    pub fn enable(&mut self, queue: usize, on: bool) {
        self.frontend.set_vring_enable(queue, on).unwrap();
    }

    /// Stops a ring; returns the position at which it goes on.
    pub fn stop(&mut self, queue: usize) -> u16 {
        let base = self.frontend.get_vring_base(queue).unwrap();
        u16::try_from(base).unwrap()
    }

    /// Resets the device and leaves the rings.
    pub fn reset(&mut self) {
        self.frontend.reset_device().unwrap();
    }

    /// Reboots the guest: the device is reset and the driver starts anew.
    pub fn reboot(self, vm: &MockVm) -> Self {
        let mut it = self;
        it.reset();
        it.restart(vm)
    }

    /// Agrees on the same features again, which sets every ring.
    pub fn agree(&mut self) {
        let features = self.frontend.get_features().unwrap();
        self.frontend.set_features(features).unwrap();
    }

    /// Starts the driver anew: all rings are stopped and begin at 0.
    pub fn restart(self, vm: &MockVm) -> Self {
        let mut it = self;
        for i in 0..it.drivers.len() {
            it.stop(i);
        }
        it.agree();
        it.drivers = (0..it.drivers.len())
            .map(|i| MockRing::new(vm.memory(), i))
            .collect();
        it.start();
        it
    }

    /// Closes the connection; the guest's memory and its driver stay.
    pub fn disconnect(self) -> Vec<MockRing> {
        self.drivers
    }

    /// Kicks a queue.
    pub fn kick(&self, queue: usize) {
        self.kicks[queue].write(1).unwrap();
    }

    /// Posts entries and waits for the interrupt and the answer: entries taken and refused.
    pub fn entries(&mut self, queue: usize, entries: &[Entry]) -> (u32, u32) {
        let at = self.drivers[queue].post_entries(entries);
        self.kick(queue);
        let mut answered = Vec::new();
        // The interrupt comes after the answer; one that is never sent ends the wait.
        wait_for("an interrupt", || self.calls[queue].read().is_ok());
        wait_for("an answer", || {
            answered = self.drivers[queue].answered();
            !answered.is_empty()
        });
        assert_eq!(answered.len(), 1);
        self.drivers[queue].answer(at)
    }

    /// Posts a buffer for the next targets; returns the buffer's address.
    pub fn post_event_buffer(&mut self, slot: u16) -> u64 {
        let queue = self.drivers.len() - 2;
        let at = self.drivers[queue].buffer(slot);
        self.drivers[queue].post_chain(&[(at, 48, WRITE)]);
        self.kick(queue);
        at
    }

    /// Waits for targets in the buffer at `at`; returns their number and the targets.
    pub fn event(&mut self, at: u64) -> (u32, [u64; 2]) {
        let queue = self.drivers.len() - 2;
        let mut answered = Vec::new();
        wait_for("targets", || {
            answered = self.drivers[queue].answered();
            !answered.is_empty()
        });
        assert_eq!(answered[0].1, 32);
        let ring = &self.drivers[queue];
        let word = |i: u64| u64::from_le_bytes(ring.read(at + 16 + 8 * i));
        (u32::from_le_bytes(ring.read(at + 4)), [word(0), word(1)])
    }

    /// Reads the configuration space.
    pub fn config(&mut self, offset: u32, len: usize) -> Vec<u8> {
        let size = u32::try_from(len).unwrap();
        let flags = VhostUserConfigFlags::empty();
        let (_, bytes) = self
            .frontend
            .get_config(offset, size, flags, &vec![0; len])
            .unwrap();
        bytes
    }
}
