//! Leases: holes are punched only while a process that can see all others reports that no other process has the memory.
//!
//! Responsible for: the numbers of pin checks, and the consequences of their results. No clock is shared: a number
//! stands for the moment at which it was given, and a result with that number is of a pin check that began after that
//! moment. A number counts once, and only the one that was given last. It leaves to others: the pin checks, and the
//! choice of holes.
//!
//! A hole needs two pin checks: one before it, which finds no other process; and one that began after it and ends
//! before the guest's driver is answered that the pages were taken, as a process that appeared in between may have
//! pinned them before the hole.

use std::time::Duration;

/// The time for which holes may be punched after a number was given whose pin check found no other process, ns.
const LEASE_NS: u64 = 2_000_000_000;
/// The time that a chain waits for a pin check before it is refused, ns: well below the time that a driver waits for an
/// answer before it gives a queue up. The driver asks again by itself.
const PATIENCE_NS: u64 = 500_000_000;
/// The time for which chains are refused after a pin check that found other processes or could not tell, ns.
const REFUSAL_NS: u64 = 1_000_000_000;

/// The least pause between two pin checks while chains wait.
pub const WAITING: Duration = Duration::from_millis(5);

/// The result of a pin check.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Holders {
    /// No process has the memory but the hypervisor and the daemon's own.
    Nobody,
    /// Another process has it; its description.
    Somebody(String),
    /// That could not be seen; why.
    Unknown(String),
}

/// A number that was given.
#[derive(Clone, Copy, Debug)]
struct Given {
    number: u64,
    at_ns: u64,
    punched: u64,
}

/// The permission for a chain at this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum May {
    Punch,
    /// Wait for a pin check until this time, ns; then it is decided.
    Wait(u64),
    Refuse,
}

/// The leases of a device.
#[derive(Debug)]
pub(crate) struct Leases {
    /// Of the number that is given next.
    next: u64,
    given: Option<Given>,
    valid_until_ns: Option<u64>,
    refused_until_ns: Option<u64>,
    waits_since_ns: Option<u64>,
    /// Chains that were punched, with any outcome: a count that numbers them.
    punched: u64,
    /// The last of these after which a pin check began that found no other process.
    proven: u64,
    /// The result of the last pin check.
    last: Option<Holders>,
}

impl Leases {
    /// None was given yet. `first`: a number that no device before this one gave, as the time of day.
    pub fn new(first: u64) -> Self {
        Self {
            next: first,
            given: None,
            valid_until_ns: None,
            refused_until_ns: None,
            waits_since_ns: None,
            punched: 0,
            proven: 0,
            last: None,
        }
    }

    /// A number, in place of the one before.
    pub fn give(&mut self, now_ns: u64) -> u64 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.given = Some(Given {
            number,
            at_ns: now_ns,
            punched: self.punched,
        });
        number
    }

    /// Takes a result; false if its pin check does not count.
    pub fn answer(&mut self, number: u64, found: Holders, now_ns: u64) -> bool {
        let Some(given) = self.given.take_if(|given| given.number == number) else {
            return false;
        };
        if found == Holders::Nobody {
            self.proven = self.proven.max(given.punched);
            self.valid_until_ns = Some(given.at_ns.saturating_add(LEASE_NS));
            self.refused_until_ns = None;
        } else {
            self.valid_until_ns = None;
            self.refused_until_ns = Some(now_ns.saturating_add(REFUSAL_NS));
        }
        self.waits_since_ns = None;
        self.last = Some(found);
        true
    }

    /// The permission for a chain that is in the ring.
    pub fn may(&mut self, now_ns: u64) -> May {
        if self.stands(now_ns) {
            return May::Punch;
        }
        if self.refused_until_ns.is_some_and(|until| now_ns < until) {
            return May::Refuse;
        }
        let since = *self.waits_since_ns.get_or_insert(now_ns);
        let until = since.saturating_add(PATIENCE_NS);
        if now_ns >= until {
            self.waits_since_ns = None;
            return May::Refuse;
        }
        May::Wait(until)
    }

    /// Counts a chain as punched, before its first hole; returns its number.
    pub fn punch(&mut self) -> u64 {
        self.punched += 1;
        self.punched
    }

    /// The last chain for which a second pin check found no other process.
    pub fn proven(&self) -> u64 {
        self.proven
    }

    /// Whether a chain waits for a pin check, and is not refused yet.
    pub fn is_waited_for(&self) -> bool {
        self.waits_since_ns.is_some()
    }

    /// The result of the last pin check.
    pub fn last(&self) -> Option<&Holders> {
        self.last.as_ref()
    }

    /// Whether holes may be punched now.
    pub fn stands(&self, now_ns: u64) -> bool {
        self.valid_until_ns.is_some_and(|until| now_ns < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_counts_once_and_only_the_last_one() {
        let mut leases = Leases::new(7);
        assert!(!leases.answer(7, Holders::Nobody, 0), "nothing was asked");
        let old = leases.give(0);
        let new = leases.give(1);
        // This pin check began before the current number was given.
        assert!(!leases.answer(old, Holders::Nobody, 2));
        assert!(matches!(leases.may(2), May::Wait(_)));
        assert!(leases.answer(new, Holders::Nobody, 2));
        assert_eq!(leases.may(2), May::Punch);
        // The same one again renews nothing.
        assert!(!leases.answer(new, Holders::Nobody, LEASE_NS));
        assert_ne!(
            leases.may(LEASE_NS + 1),
            May::Punch,
            "from when it was given"
        );
        // One of a device before this one.
        assert!(!Leases::new(1 << 60).answer(new, Holders::Nobody, 0));
    }

    #[test]
    fn only_a_look_that_began_after_a_hole_says_anything_of_it() {
        let mut leases = Leases::new(0);
        let first = leases.give(0);
        assert!(leases.answer(first, Holders::Nobody, 1));
        let early = leases.give(2);
        let chain = leases.punch();
        assert!(leases.answer(early, Holders::Nobody, 3));
        assert!(leases.proven() < chain);
        let late = leases.give(4);
        assert!(leases.answer(late, Holders::Unknown("x".into()), 5));
        assert!(leases.proven() < chain);
        let later = leases.give(6);
        assert!(leases.answer(later, Holders::Nobody, 7));
        assert_eq!(leases.proven(), chain);
    }

    #[test]
    fn an_unanswered_chain_is_refused_and_the_next_waits_again() {
        let mut leases = Leases::new(0);
        let May::Wait(until) = leases.may(10) else {
            panic!("nobody has looked");
        };
        assert_eq!(until, 10 + PATIENCE_NS);
        assert_eq!(leases.may(until - 1), May::Wait(until));
        assert!(leases.is_waited_for());
        assert_eq!(leases.may(until), May::Refuse);
        assert!(matches!(leases.may(until + 1), May::Wait(_)));
        let number = leases.give(until + 2);
        leases.answer(number, Holders::Somebody("spdk".into()), until + 3);
        assert_eq!(leases.may(until + 4), May::Refuse);
        assert!(!leases.stands(until + 4));
        // The process may have gone: a new pin check is requested.
        let later = until + 3 + REFUSAL_NS;
        assert!(matches!(leases.may(later), May::Wait(_)));
    }
}
