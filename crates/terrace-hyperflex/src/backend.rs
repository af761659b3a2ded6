//! The device behind the vhost-user protocol: kicks, timers and the clock come in here.

use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::{VhostUserBackend, VringEpollHandler};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::timerfd::TimerFd;

use crate::abi::queues;
use crate::device::Device;
use crate::ring::Memory;
use crate::ring::{Halt, Ring};

/// Descriptors of each queue at most.
const MAX_QUEUE_SIZE: usize = 1024;

const F_INDIRECT: u64 = 1 << 28;
const F_EVENT_IDX: u64 = 1 << 29;
const F_PROTOCOL_FEATURES: u64 = 1 << 30;
const F_VERSION_1: u64 = 1 << 32;

/// The state that the threads of a device share.
pub(crate) struct Shared {
    device: Mutex<Device>,
    halt: Halt,
    poke: EventFd,
    hypervisor_pid: OnceLock<u32>,
    started: Instant,
}

impl Shared {
    pub(crate) fn new(device: Device) -> io::Result<Self> {
        Ok(Self {
            halt: device.halt().clone(),
            device: Mutex::new(device),
            poke: EventFd::new(EFD_NONBLOCK)?,
            hypervisor_pid: OnceLock::new(),
            started: Instant::now(),
        })
    }

    /// The device's time, ns.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The process that connected, if that is known.
    pub(crate) fn hypervisor_pid(&self) -> Option<u32> {
        self.hypervisor_pid.get().copied()
    }

    /// Notes the process that connected; a process serves one hypervisor.
    pub(crate) fn set_hypervisor_pid(&self, pid: u32) {
        self.hypervisor_pid.get_or_init(|| pid);
    }

    /// The device, also after a thread of it panicked: its state is stored word by word.
    pub(crate) fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device, once the current chain has ended; it is requested to end, as the hypervisor waits.
    pub(crate) fn interrupt(&self) -> MutexGuard<'_, Device> {
        let _request = self.halt.request();
        self.device()
    }

    /// Wakes the queues' thread, so that it sees the change.
    pub(crate) fn poke(&self) {
        // A full counter has woken it already.
        let _ = self.poke.write(1);
    }
}

/// The backend that the hypervisor talks to.
pub(crate) struct Backend {
    shared: Arc<Shared>,
    timer: Mutex<TimerFd>,
    queues: usize,
}

impl Backend {
    pub(crate) fn new(shared: Arc<Shared>) -> io::Result<Self> {
        let queues = queues(shared.device().config().tiers().len());
        Ok(Self {
            shared,
            timer: Mutex::new(TimerFd::new()?),
            queues,
        })
    }

    /// Registers the timer and the control socket with the queues' thread.
    pub(crate) fn listen(&self, handler: &VringEpollHandler<Arc<Self>>) -> io::Result<()> {
        let timer = self.timer().as_raw_fd();
        handler.register_listener(timer, EventSet::IN, self.timer_event().into())?;
        let poke = self.shared.poke.as_raw_fd();
        handler.register_listener(poke, EventSet::IN, self.poke_event().into())
    }

    fn timer(&self) -> MutexGuard<'_, TimerFd> {
        self.timer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The numbers up to that of queues are taken by the library.
    fn timer_event(&self) -> u16 {
        u16::try_from(self.queues + 1).unwrap_or(u16::MAX)
    }

    fn poke_event(&self) -> u16 {
        self.timer_event().saturating_add(1)
    }
}

impl VhostUserBackend for Backend {
    type Bitmap = ();
    type Vring = Ring;

    fn num_queues(&self) -> usize {
        self.queues
    }

    fn max_queue_size(&self) -> usize {
        MAX_QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        F_VERSION_1 | F_EVENT_IDX | F_INDIRECT | F_PROTOCOL_FEATURES
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    fn reset_device(&self) {
        self.shared.interrupt().reset();
    }

    fn set_event_idx(&self, enabled: bool) {
        self.shared.interrupt().set_event_idx(enabled);
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        self.shared.interrupt().config_space(offset, size)
    }

    fn set_config(&self, _offset: u32, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        self.shared.interrupt().set_memory(memory);
        Ok(())
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC).ok()
    }

    fn handle_event(
        &self,
        event: u16,
        _set: EventSet,
        rings: &[Ring],
        _thread: usize,
    ) -> io::Result<()> {
        let mut device = self.shared.device();
        if event == self.timer_event() {
            // The timer was reported as readable; its count does not matter.
            let _ = self.timer().wait();
        } else if event == self.poke_event() {
            let _ = self.shared.poke.read();
        } else {
            device.kick(event.into());
        }
        let now = self.shared.now_ns();
        let next = device.turn(now, rings);
        drop(device);
        if let Some(at) = next {
            // A timer of zero would never come.
            let wait = Duration::from_nanos(at.saturating_sub(now).max(1));
            self.timer().reset(wait, None).map_err(io::Error::from)?;
        }
        Ok(())
    }
}
