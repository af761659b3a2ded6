//! What clients may take of the daemon: connections, time and memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const ROOT: u32 = 0;

/// How much, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections in all. So many as one user may have are root's alone.
    pub connections: usize,
    /// Connections of one user.
    pub of_user: usize,
    /// Clients that are still told why they are not served.
    pub refused: usize,
    /// How long a request's head may take.
    pub head: Duration,
    /// How long its body may take.
    pub body: Duration,
    /// Most bytes of its body.
    pub body_bytes: usize,
    /// How long making the answer may take.
    pub answer: Duration,
    /// How long a client may read nothing of its answer.
    pub unread: Duration,
    /// How long a connection may be there.
    pub whole: Duration,
    /// Bytes of answers that wait to be read, in all.
    pub answer_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            of_user: 32,
            refused: 32,
            head: Duration::from_secs(10),
            body: Duration::from_secs(10),
            body_bytes: 64 << 10,
            answer: Duration::from_secs(29),
            unread: Duration::from_secs(10),
            whole: Duration::from_secs(60),
            answer_bytes: 64 << 20,
        }
    }
}

/// Who is connected, and how much waits to be read.
#[derive(Debug)]
pub struct Gate {
    limits: Limits,
    inside: Mutex<BTreeMap<u32, usize>>,
    refused: Arc<Semaphore>,
    /// KiB.
    answers: Arc<Semaphore>,
}

/// The place of one connection; it is free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    gate: Arc<Gate>,
    uid: u32,
}

impl Gate {
    /// Nobody is inside.
    pub fn new(limits: Limits) -> Arc<Self> {
        let kib = limits.answer_bytes / 1024;
        Arc::new(Self {
            limits,
            inside: Mutex::default(),
            refused: Arc::new(Semaphore::new(limits.refused)),
            answers: Arc::new(Semaphore::new(kib.min(Semaphore::MAX_PERMITS))),
        })
    }

    /// What holds.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A place for a connection of a user.
    ///
    /// # Errors
    /// Why there is none, and what to do.
    pub fn enter(self: &Arc<Self>, uid: u32) -> Result<Place, String> {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let total = inside.values().sum();
        let own = inside.entry(uid).or_default();
        let admitted = admits(&self.limits, uid, total, *own);
        if admitted.is_ok() {
            *own += 1;
        } else if *own == 0 {
            inside.remove(&uid);
        }
        drop(inside);
        admitted.map(|()| Place {
            gate: Arc::clone(self),
            uid,
        })
    }

    /// Time to tell a client why it is not served; none where many are being told.
    pub fn refuse(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.refused).try_acquire_owned().ok()
    }

    /// Room for an answer until it was read.
    ///
    /// # Errors
    /// Where others do not read theirs.
    pub fn hold(&self, bytes: usize) -> Result<OwnedSemaphorePermit, String> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.answers).try_acquire_many_owned(kib);
        room.map_err(|_| {
            format!(
                "answers of {} MiB in all wait for clients that do not read them: ask again in a few seconds",
                self.limits.answer_bytes >> 20
            )
        })
    }
}

/// Whether one more connection is served, with so many in all and so many of its user.
fn admits(limits: &Limits, uid: u32, total: usize, own: usize) -> Result<(), String> {
    if own >= limits.of_user {
        return Err(format!(
            "user {uid} has {own} connections to terraced already, which is the most: end some, or wait"
        ));
    }
    let kept_for_root = if uid == ROOT { 0 } else { limits.of_user };
    if total >= limits.connections.saturating_sub(kept_for_root) {
        return Err(format!(
            "terraced has {total} connections already, which is the most: wait, and ask again"
        ));
    }
    Ok(())
}

impl Drop for Place {
    fn drop(&mut self) {
        let inside = &self.gate.inside;
        let mut inside = inside.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = inside.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                inside.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_take_all_connections_and_all_users_leave_roots() {
        let limits = Limits {
            connections: 10,
            of_user: 4,
            ..Limits::default()
        };
        let gate = Gate::new(limits);
        let enter = |uid: u32| gate.enter(uid);
        let mut inside: Vec<Place> = (0..4).map(|_| enter(1000).unwrap()).collect();
        let why = enter(1000).unwrap_err();
        assert!(why.contains("user 1000 has 4 connections"), "{why}");
        inside.extend((0..2).map(|_| enter(1001).unwrap()));
        let why = enter(1002).unwrap_err();
        assert!(why.contains("terraced has 6 connections"), "{why}");
        inside.extend((0..4).map(|_| enter(0).unwrap()));
        enter(0).unwrap_err();
        inside.remove(0);
        enter(0).unwrap_err();
        inside.clear();
        assert!(gate.inside.lock().unwrap().is_empty());
        enter(1002).unwrap();
    }

    #[test]
    fn answers_that_nobody_reads_are_bounded_in_all() {
        let gate = Gate::new(Limits {
            answer_bytes: 3 << 20,
            ..Limits::default()
        });
        let held = gate.hold(2 << 20).unwrap();
        assert!(gate.hold(2 << 20).unwrap_err().contains("3 MiB"));
        let _small = gate.hold(1).unwrap();
        drop(held);
        let _more = gate.hold(2 << 20).unwrap();
    }
}
