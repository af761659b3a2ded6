//! The thread that looks after one VM's elastic memory.
//!
//! Responsible for: looking often enough, taking orders one after the other, and telling the daemon's thread. A
//! provider that hangs blocks this thread and nothing else: whoever waits for it gives up by [`Ticket::withdraw`].
//! It leaves to others: what a look means ([`super::kept`]) and whether an order is admitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use terrace_host::process_memory::{self, Resident};
use terrace_host::sharers::Found;
use terrace_hyperflex::lease;
use tokio::sync::oneshot;

use super::lookout::Sharers;
use super::{Find, Look, Mechanism, Pace, Place, Provider, Trouble, Verified, Wanted, three_ways};
use crate::confine::{self, Role};
use crate::daemon::Input;

/// What a keeper tells the daemon's thread.
pub struct News {
    /// Which keeper's: a VM of the same name may have had another one.
    pub keeper: u64,
    /// What.
    pub told: Told,
}

/// What there is to tell.
pub enum Told {
    /// How the VM stands.
    Looked(Box<Looked>),
    /// What came of the order of this number.
    Answered(u64, Result<(), Trouble>),
}

impl Told {
    /// Nothing is there that could resize the VM.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Looked(looked) if matches!(looked.look, Err(Trouble::Nothing(_))))
    }
}

/// A look, and what the host says of the hypervisor's process.
pub struct Looked {
    /// When.
    pub at: Instant,
    /// What resizes the VM, where that is known.
    pub mechanism: Option<Mechanism>,
    /// How it stands.
    pub look: Result<Look, Trouble>,
    /// The host's memory behind it was asked for, at this look or before.
    pub is_tried: bool,
    /// Of each tier: what the host says of it was not told before.
    pub is_fresh: Vec<bool>,
    /// Memory of the process.
    pub resident: Option<Resident>,
    /// What pins the VM's memory; why that is not known, where it is not.
    pub pinned_by: Result<Option<String>, String>,
    /// Who else has the VM's RAM.
    pub held_by: Found,
    /// The last order that the provider was given before.
    pub order: u64,
}

/// What a keeper is asked.
enum Ask {
    Look(oneshot::Sender<()>),
    Order(Order),
}

/// An order on its way.
struct Order {
    number: u64,
    size_bytes: Vec<Option<u64>>,
    ticket: Ticket,
    answer: oneshot::Sender<Result<(), Trouble>>,
}

/// Who gets there first: the keeper that gives the order to the provider, or whoever does not wait any longer.
#[derive(Clone, Debug, Default)]
pub struct Ticket(Arc<AtomicBool>);

impl Ticket {
    /// Whether the order will never be given.
    pub fn withdraw(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Whether it may be given.
    fn begin(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// An order that was sent to its keeper.
pub struct Sent {
    /// Its number.
    pub number: u64,
    /// To take it back.
    pub ticket: Ticket,
    /// What comes of it.
    pub answered: oneshot::Receiver<Result<(), Trouble>>,
}

/// The thread; it ends after this, as soon as its provider lets it.
pub struct Keeper {
    /// Tells its news from those of another one.
    pub id: u64,
    asks: Sender<Ask>,
}

impl Keeper {
    /// Starts the thread.
    pub fn start(
        id: u64,
        place: Place,
        find: Find,
        pace: Pace,
        inbox: Sender<Input>,
    ) -> std::io::Result<Self> {
        let (asks, asked) = channel();
        let sharers = Sharers::new(id, &place);
        let body = Body {
            id,
            is_quiet: place.is_quiet(),
            unfound: 0,
            place,
            find,
            provider: None,
            pace,
            inbox,
            verdicts: Verdicts::default(),
            was_met: true,
            order: 0,
            sharers,
            has_answered: false,
            is_held: false,
            lease_at: None,
        };
        confine::spawn(Role::Elastic, move || body.run(&asked))?;
        Ok(Self { id, asks })
    }

    /// Asks for a look now; what comes is told when the daemon's thread has the news before it.
    pub fn look(&self) -> oneshot::Receiver<()> {
        let (looked, answer) = oneshot::channel();
        // Where the thread is gone, so is the sender, and whoever waits sees that.
        let _ = self.asks.send(Ask::Look(looked));
        answer
    }

    /// Sends an order.
    pub fn order(&self, number: u64, size_bytes: Vec<Option<u64>>) -> Sent {
        let (answer, answered) = oneshot::channel();
        let ticket = Ticket::default();
        let order = Order {
            number,
            size_bytes,
            ticket: ticket.clone(),
            answer,
        };
        // As for a look.
        let _ = self.asks.send(Ask::Order(order));
        Sent {
            number,
            ticket,
            answered,
        }
    }
}

/// What the host said last of a tier.
#[derive(Clone, Copy)]
struct Seen {
    at: Instant,
    verified: Verified,
}

/// How much earlier than another one a verdict may seem to be that is the same: what it takes to be told.
const SAME: Duration = Duration::from_secs(1);

/// What the host said last of each tier: a look that could not look at it in time takes nothing of that back.
#[derive(Default)]
struct Verdicts {
    tiers: Vec<Option<Seen>>,
    /// When it was asked for last.
    tried: Option<Instant>,
    /// Of the last look.
    resets: Option<u64>,
    /// What is older is of the guest before.
    from: Option<Instant>,
}

impl Verdicts {
    /// Keeps what is new in a look that was asked for at `asked`, and puts what is known into it. Says which is new.
    fn take(&mut self, look: &mut Look, asked: Instant) -> Vec<bool> {
        let now = Instant::now();
        let before = self.resets.replace(look.resets);
        if before.is_some_and(|before| before != look.resets) {
            *self = Self {
                resets: self.resets,
                from: Some(now),
                ..Self::default()
            };
        }
        self.tiers.resize(look.tiers.len(), None);
        let from = self.from;
        let tiers = look.tiers.iter_mut().zip(&mut self.tiers);
        let each = tiers.map(|(tier, known)| {
            let at = tier.verified_at.take().unwrap_or(now);
            let verified = tier.verified.take();
            let seen = verified.map(|verified| Seen { at, verified });
            let seen = seen.filter(|seen| from.is_none_or(|from| seen.at >= from));
            let is_fresh = seen.is_some_and(|seen| {
                seen.at >= asked || known.is_none_or(|known| seen.at > known.at + SAME)
            });
            *known = seen.or(*known);
            tier.verified = known.map(|seen| seen.verified);
            tier.verified_at = known.map(|seen| seen.at);
            is_fresh
        });
        each.collect()
    }
}

/// How often at least a device is asked whether memory waits, which its guest may give back by itself: sooner than it
/// is refused.
const SELDOM: Duration = Duration::from_millis(250);
/// The same while a target is not met.
const OFTEN: Duration = Duration::from_millis(50);

struct Body {
    id: u64,
    place: Place,
    find: Find,
    provider: Option<Box<dyn Provider>>,
    /// That nothing is found is told to nobody, as long as nobody asks.
    is_quiet: bool,
    /// How often nothing was found because the monitor did not answer.
    unfound: u32,
    pace: Pace,
    inbox: Sender<Input>,
    verdicts: Verdicts,
    was_met: bool,
    order: u64,
    sharers: Sharers,
    /// At the last look.
    has_answered: bool,
    /// Somebody else may have had the RAM then: a lease of before is taken back.
    is_held: bool,
    /// When the device is asked next whether memory waits for a look; `None`: it needs none.
    lease_at: Option<Instant>,
}

impl Body {
    fn run(mut self, asked: &Receiver<Ask>) {
        let mut next = Instant::now();
        loop {
            let until = self.lease_at.map_or(next, |at| at.min(next));
            let wait = until.saturating_duration_since(Instant::now());
            let told = match asked.recv_timeout(wait) {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) if until < next => {
                    self.lease();
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let old = self.sharers.may_be_old(self.pace.idle);
                    self.look(true, Instant::now().checked_sub(old))
                }
                Ok(Ask::Look(answer)) => {
                    self.is_quiet = false;
                    // Somebody waits: the host's memory is looked at in its own time.
                    let told = self.look(self.verdicts.tried.is_none(), None);
                    // Whoever asked may have gone.
                    let _ = answer.send(());
                    told
                }
                Ok(Ask::Order(order)) => self.take(order) && self.look(false, None),
            };
            if !told {
                return;
            }
            // One that has just not answered is not asked again.
            if self.has_answered {
                self.lease();
            }
            let pause = if self.unfound > 0 {
                // 5 s to 80 s.
                self.pace.idle.saturating_mul(1 << self.unfound.min(5)) / 2
            } else if self.was_met {
                self.pace.idle
            } else {
                self.pace.under_way
            };
            next = Instant::now() + pause;
        }
    }

    /// `false` where nobody listens any more.
    fn take(&mut self, order: Order) -> bool {
        if !order.ticket.begin() {
            return true;
        }
        let result = match self.provider() {
            Ok(provider) => provider.order(&order.size_bytes),
            Err(trouble) => Err(trouble),
        };
        self.order = order.number;
        // A target may be met before it is seen not to be.
        self.was_met = false;
        let told = self.tell(Told::Answered(order.number, result.clone()));
        let _ = order.answer.send(result);
        told
    }

    fn provider(&mut self) -> Result<&mut Box<dyn Provider>, Trouble> {
        if self.provider.is_none() {
            self.provider = (self.find)()?;
        }
        let name = &self.place.name;
        let provider = self.provider.as_mut();
        provider.ok_or_else(|| Trouble::Nothing(three_ways(name)))
    }

    /// Looks who has the VM's RAM, where the device waits for that.
    fn lease(&mut self) {
        self.lease_at = None;
        let Some(wanted) = self.ask(None) else {
            return;
        };
        let Some(number) = wanted.number else {
            return;
        };
        if !wanted.waits && !self.is_held {
            let pause = if self.was_met { SELDOM } else { OFTEN };
            self.lease_at = Some(Instant::now() + pause.min(self.pace.idle));
            return;
        }
        let found = self.sharers.look(self.place.pid, Instant::now());
        let pause = match found {
            Found::Nobody => self.sharers.pause(lease::WAITING),
            // It takes the guest a while to try again.
            Found::Somebody(_) | Found::Unknown(_) => {
                self.sharers.may_be_old(SELDOM.min(self.pace.idle))
            }
        };
        // The next look is asked for after the holes that this one allows.
        if self.ask(Some((number, found))).is_some() {
            self.lease_at = Some(Instant::now() + pause);
        }
    }

    /// One that does not answer is told by the next look.
    fn ask(&mut self, looked: Option<(u64, Found)>) -> Option<Wanted> {
        let wanted = self.provider.as_mut()?.lease(looked).ok()??;
        let files = wanted.files.clone();
        self.sharers.hear(wanted.process, files);
        Some(wanted)
    }

    /// Looks at the host's memory too, where that `may` be and is due or a target was met; who has it is known since
    /// `since` at the earliest, or looked at now. `false` where nobody listens any more.
    fn look(&mut self, may: bool, since: Option<Instant>) -> bool {
        let tried = self.verdicts.tried;
        let due = may && tried.is_none_or(|at| at.elapsed() >= self.pace.verify);
        let was_met = self.was_met;
        let mut verify = due;
        let asked = Instant::now();
        let look = self.provider().and_then(|provider| {
            let look = provider.look(due)?;
            if look.is_met() && !was_met && !due {
                verify = true;
                return provider.look(true);
            }
            Ok(look)
        });
        if self.is_quiet && self.provider.is_none() && matches!(look, Err(Trouble::Gone(_))) {
            // Another program may hold the monitor for now.
            self.unfound = self.unfound.saturating_add(1);
            return true;
        }
        self.unfound = 0;
        let looked = self.looked(look, verify, asked, since.unwrap_or(asked));
        self.tell(Told::Looked(Box::new(looked)))
    }

    fn looked(
        &mut self,
        mut look: Result<Look, Trouble>,
        verify: bool,
        asked: Instant,
        since: Instant,
    ) -> Looked {
        let at = Instant::now();
        let mut is_fresh = Vec::new();
        self.has_answered = look.is_ok();
        match &mut look {
            Ok(look) => {
                self.was_met = look.is_met();
                is_fresh = self.verdicts.take(look, asked);
                if verify {
                    self.verdicts.tried = Some(at);
                }
            }
            // What comes back may be another device.
            Err(_) => self.verdicts = Verdicts::default(),
        }
        // Which process it is the device knows better than the VM's name.
        let told = look.as_ref().ok().and_then(|look| look.hypervisor_pid);
        self.place.pid = told.or(self.place.pid);
        if self.has_answered {
            // Which process the device is: it has the RAM too, and is nobody else.
            self.ask(None);
        }
        let (root, pid) = (&self.place.root, self.place.pid);
        let held_by = self.sharers.look(pid, since);
        self.is_held = held_by != Found::Nobody;
        Looked {
            at,
            mechanism: self.provider.as_ref().map(|p| p.mechanism()),
            look,
            is_tried: self.verdicts.tried.is_some(),
            is_fresh,
            resident: pid.and_then(|pid| process_memory::resident(root, pid)),
            pinned_by: pid.map_or_else(
                || Err("the hypervisor's process is not known".into()),
                |pid| process_memory::pinned_by(root, pid).map_err(|error| error.to_string()),
            ),
            held_by,
            order: self.order,
        }
    }

    fn tell(&self, told: Told) -> bool {
        let news = News {
            keeper: self.id,
            told,
        };
        let news = Input::Elastic(self.place.name.clone(), Box::new(news));
        self.inbox.send(news).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::TierLook;
    use super::*;

    /// What a look says whose verdict began at `at`, in a guest that was started `resets` times.
    fn look(verified: Option<Verified>, at: Option<Instant>, resets: u64) -> Look {
        let tier = TierLook {
            verified,
            verified_at: at,
            ..TierLook::default()
        };
        Look {
            tiers: vec![tier],
            resets,
            ..Look::default()
        }
    }

    #[test]
    fn a_verdict_that_is_told_again_is_no_second_one_and_none_takes_nothing_back() {
        let (mut verdicts, begun) = (Verdicts::default(), Instant::now());
        let verified = Some(Verified::default());
        let mut seen = look(verified, Some(begun), 0);
        assert_eq!(verdicts.take(&mut seen, begun), [true]);
        let asked = begun + Duration::from_secs(10);
        // It takes a while to be told.
        let late = begun + SAME / 2;
        let mut again = look(verified, Some(late), 0);
        assert_eq!(verdicts.take(&mut again, asked), [false]);
        let mut none = look(None, None, 0);
        assert_eq!(verdicts.take(&mut none, asked), [false]);
        assert_eq!(
            (none.tiers[0].verified, none.tiers[0].verified_at),
            (verified, Some(late))
        );
        let mut new = look(verified, Some(late + 2 * SAME), 0);
        assert_eq!(verdicts.take(&mut new, asked), [true]);
    }

    #[test]
    fn a_verdict_about_the_guest_before_is_none_about_the_one_that_was_started_since() {
        let (mut verdicts, begun) = (Verdicts::default(), Instant::now());
        let verified = Some(Verified::default());
        verdicts.take(&mut look(verified, Some(begun), 0), begun);
        let mut after = look(verified, Some(begun), 1);
        assert_eq!(verdicts.take(&mut after, begun), [false]);
        assert_eq!(after.tiers[0].verified, None);
    }
}
