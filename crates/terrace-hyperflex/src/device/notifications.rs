//! Notifications: the driver's kicks, and the interrupts that it wants.

use vhost_user_backend::VringT as _;

use crate::ring::Ring;

/// The notifications in both directions.
pub(super) struct Notifications {
    /// Queues that have something, as far as is known.
    kicked: Vec<bool>,
    /// Whether the driver negotiated event indices.
    pub event_idx: bool,
}

impl Notifications {
    /// No kick yet, of so many queues.
    pub fn new(queues: usize) -> Self {
        Self {
            kicked: vec![false; queues],
            event_idx: false,
        }
    }

    /// Notes that a queue has something, or may have.
    pub fn kick(&mut self, queue: usize) {
        if let Some(kicked) = self.kicked.get_mut(queue) {
            *kicked = true;
        }
    }

    /// Whether a queue has something, as far as is known.
    pub fn is_kicked(&self, queue: usize) -> bool {
        self.kicked.get(queue).copied().unwrap_or(false)
    }

    /// Notes that a queue has nothing until the next kick; whether it had something.
    pub fn rest(&mut self, queue: usize) -> bool {
        let kicked = self.kicked.get_mut(queue);
        kicked.is_some_and(std::mem::take)
    }

    /// Interrupts the guest if it wants interrupts.
    pub fn signal(&self, ring: &Ring) {
        // A ring that cannot be read gets one interrupt too many: one too few would have its driver wait for ever.
        let wanted = !self.event_idx || ring.needs_notification().unwrap_or(true);
        if wanted {
            // A full eventfd is a signal that was not verified yet.
            let _ = ring.signal_used_queue();
        }
    }
}
