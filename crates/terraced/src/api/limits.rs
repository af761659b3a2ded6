//! Limits of clients: connections, time and memory that they may take of the daemon.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const ROOT: u32 = 0;

/// Limits of number, size and time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections in all. As many of them as one user may have are reserved for root.
    pub connections: usize,
    /// Connections of one user.
    pub of_user: usize,
    /// Clients that are answered at the same time with the reason why they are not served.
    pub refused: usize,
    /// Most time for a request's head.
    pub head: Duration,
    /// Most time for a request's body.
    pub body: Duration,
    /// Most bytes of a request's body.
    pub body_bytes: usize,
    /// Most time for making the answer.
    pub answer: Duration,
    /// Most time in which a client reads nothing of its answer.
    pub unread: Duration,
    /// Longest life of a connection.
    pub whole: Duration,
    /// Bytes of answers that wait to be read, in all. One user may have a quarter of them, and a quarter is reserved
    /// for root.
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

/// The connections and the bytes of unread answers, counted for each user against the limits.
#[derive(Debug)]
pub struct Gate {
    limits: Limits,
    inside: Mutex<BTreeMap<u32, Taken>>,
    refused: Arc<Semaphore>,
}

/// The part of the limits that one user has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taken {
    connections: usize,
    answer_bytes: usize,
}

/// The place of one connection; it is free again when this is dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    gate: Arc<Gate>,
    uid: u32,
}

/// The memory of an answer until it was read; it is free again when this is dropped.
#[derive(Debug)]
pub struct Room {
    gate: Arc<Gate>,
    uid: u32,
    bytes: usize,
}

impl Gate {
    /// A gate without connections yet.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            inside: Mutex::default(),
            refused: Arc::new(Semaphore::new(limits.refused)),
        })
    }

    /// The limits that apply.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A place for a connection of a user.
    ///
    /// # Errors
    /// If there is none: the error has the reason and the remedy.
    pub fn enter(self: &Arc<Self>, uid: u32) -> Result<ConnectionPermit, String> {
        let mut inside = self.inside();
        let total = inside.values().map(|taken| taken.connections).sum();
        let own = of(&inside, uid).connections;
        admits(&self.limits, uid, total, own)?;
        inside.entry(uid).or_default().connections += 1;
        drop(inside);
        Ok(ConnectionPermit {
            gate: Arc::clone(self),
            uid,
        })
    }

    /// A permit to answer a client that it is not served; `None` if too many such answers are under way.
    pub fn refuse(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.refused).try_acquire_owned().ok()
    }

    /// Room for an answer to a user until the answer is read.
    ///
    /// # Errors
    /// If too many bytes of answers wait to be read already.
    pub fn hold(self: &Arc<Self>, uid: u32, bytes: usize) -> Result<Room, String> {
        let mut inside = self.inside();
        let of_others = inside.iter().filter(|(other, _)| **other != ROOT);
        let of_others = of_others.map(|(_, taken)| taken.answer_bytes).sum();
        let own = of(&inside, uid).answer_bytes;
        holds(&self.limits, uid, of_others, own, bytes)?;
        inside.entry(uid).or_default().answer_bytes += bytes;
        drop(inside);
        Ok(Room {
            gate: Arc::clone(self),
            uid,
            bytes,
        })
    }

    /// Gives back the places that a user had taken.
    fn free(&self, uid: u32, back: Taken) {
        let mut inside = self.inside();
        let Some(taken) = inside.get_mut(&uid) else {
            return;
        };
        taken.connections -= back.connections;
        taken.answer_bytes -= back.answer_bytes;
        if *taken == Taken::default() {
            inside.remove(&uid);
        }
    }

    fn inside(&self) -> MutexGuard<'_, BTreeMap<u32, Taken>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn of(inside: &BTreeMap<u32, Taken>, uid: u32) -> Taken {
    inside.get(&uid).copied().unwrap_or_default()
}

/// Whether `more` bytes may wait for a user: `own` of its own, and `of_others` of all users but root, wait already.
fn holds(
    limits: &Limits,
    uid: u32,
    of_others: usize,
    own: usize,
    more: usize,
) -> Result<(), String> {
    let quarter = limits.answer_bytes / 4;
    let too_many = |most: usize, whose: &str| {
        Err(format!(
            "answers of {} MiB, which is the most, wait for {whose} that do not read them: ask again in a few seconds",
            most >> 20
        ))
    };
    if own.saturating_add(more) > quarter {
        return too_many(quarter, "clients of this user");
    }
    if uid != ROOT && of_others.saturating_add(more) > limits.answer_bytes - quarter {
        return too_many(limits.answer_bytes - quarter, "clients");
    }
    Ok(())
}

/// Whether one more connection of a user is served: there are `total` in all and `own` of the user already.
fn admits(limits: &Limits, uid: u32, total: usize, own: usize) -> Result<(), String> {
    if own >= limits.of_user {
        return Err(format!(
            "user {uid} has {own} connections to terraced already, which is the most: end some, or wait"
        ));
    }
    let reserved_for_root = if uid == ROOT { 0 } else { limits.of_user };
    if total >= limits.connections.saturating_sub(reserved_for_root) {
        return Err(format!(
            "terraced has {total} connections already, which is the most: wait, and ask again"
        ));
    }
    Ok(())
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let back = Taken {
            connections: 1,
            answer_bytes: 0,
        };
        self.gate.free(self.uid, back);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let back = Taken {
            connections: 0,
            answer_bytes: self.bytes,
        };
        self.gate.free(self.uid, back);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_take_all_connections_nor_all_users_roots() {
        let limits = Limits {
            connections: 10,
            of_user: 4,
            ..Limits::default()
        };
        let gate = Gate::new(limits);
        let enter = |uid: u32| gate.enter(uid);
        let mut inside: Vec<ConnectionPermit> = (0..4).map(|_| enter(1000).unwrap()).collect();
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
    fn unread_answers_of_one_user_leave_room_for_others_and_root() {
        const MIB: usize = 1 << 20;
        let gate = Gate::new(Limits {
            answer_bytes: 8 * MIB,
            ..Limits::default()
        });
        let held = gate.hold(1000, 2 * MIB).unwrap();
        let why = gate.hold(1000, 1).unwrap_err();
        assert!(why.contains("2 MiB") && why.contains("this user"), "{why}");
        let _others = [1001, 1002].map(|uid| gate.hold(uid, 2 * MIB).unwrap());
        assert!(gate.hold(1003, 1).unwrap_err().contains("6 MiB"));
        let roots = gate.hold(0, 2 * MIB).unwrap();
        gate.hold(0, 1).unwrap_err();
        drop(held);
        let _more = gate.hold(1003, 2 * MIB).unwrap();
        gate.hold(1000, 1).unwrap_err();
        gate.hold(1004, usize::MAX).unwrap_err();
        drop(roots);
        gate.hold(0, 2 * MIB).unwrap();
    }
}
