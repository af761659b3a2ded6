//! The thread that looks after one VM's elastic memory.
//!
//! Responsible for: looking often enough, taking orders one after the other, and telling the daemon's thread. A
//! provider that hangs blocks this thread and nothing else: whoever waits for it gives up by [`Ticket::withdraw`].
//! It leaves to others: what a look means ([`super::kept`]) and whether an order is admitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use terrace_host::process_memory::{self, Resident};
use tokio::sync::oneshot;

use super::{Find, Look, Mechanism, Pace, Place, Provider, Trouble, Verified};
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

/// A look, and what the host says of the hypervisor's process.
pub struct Looked {
    /// When.
    pub at: Instant,
    /// What resizes the VM, where that is known.
    pub mechanism: Option<Mechanism>,
    /// How it stands.
    pub look: Result<Look, Trouble>,
    /// When the host's memory behind it was looked at; what a look has of that may be older than the look.
    pub verified_at: Option<Instant>,
    /// It was at this look.
    pub is_verified_now: bool,
    /// Memory of the process.
    pub resident: Option<Resident>,
    /// What pins the VM's memory.
    pub pinned_by: Option<String>,
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
        let body = Body {
            id,
            place,
            find,
            provider: None,
            pace,
            inbox,
            verified: None,
            was_met: true,
            order: 0,
        };
        std::thread::Builder::new()
            .name("elastic".into())
            .spawn(move || body.run(&asked))?;
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

/// What the host said last.
struct Seen {
    at: Instant,
    tiers: Vec<Option<Verified>>,
}

struct Body {
    id: u64,
    place: Place,
    find: Find,
    provider: Option<Box<dyn Provider>>,
    pace: Pace,
    inbox: Sender<Input>,
    verified: Option<Seen>,
    was_met: bool,
    order: u64,
}

impl Body {
    fn run(mut self, asked: &Receiver<Ask>) {
        let mut next = Instant::now();
        loop {
            let wait = next.saturating_duration_since(Instant::now());
            let told = match asked.recv_timeout(wait) {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => self.look(true),
                Ok(Ask::Look(answer)) => {
                    // Somebody waits: the host's memory is looked at in its own time.
                    let told = self.look(self.verified.is_none());
                    // Whoever asked may have gone.
                    let _ = answer.send(());
                    told
                }
                Ok(Ask::Order(order)) => self.take(order) && self.look(false),
            };
            if !told {
                return;
            }
            let pause = if self.was_met {
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
        self.provider.as_mut().ok_or_else(|| {
            let name = &self.place.name;
            Trouble::Gone(format!(
                "{name} has neither a HyperFlex device nor virtio-mem nor a balloon that could be asked"
            ))
        })
    }

    /// Looks at the host's memory too, where that `may` be and is due or a target was met. `false` where nobody listens
    /// any more.
    fn look(&mut self, may: bool) -> bool {
        let seen = self.verified.as_ref();
        let due = may && seen.is_none_or(|seen| seen.at.elapsed() >= self.pace.verify);
        let was_met = self.was_met;
        let mut verify = due;
        let look = self.provider().and_then(|provider| {
            let look = provider.look(due)?;
            if look.is_met() && !was_met && !due {
                verify = true;
                return provider.look(true);
            }
            Ok(look)
        });
        let looked = self.looked(look, verify);
        self.tell(Told::Looked(Box::new(looked)))
    }

    fn looked(&mut self, mut look: Result<Look, Trouble>, verify: bool) -> Looked {
        let at = Instant::now();
        let mut is_verified_now = false;
        match &mut look {
            Ok(look) => {
                self.was_met = look.is_met();
                is_verified_now = verify && look.tiers.iter().any(|tier| tier.verified.is_some());
                if verify {
                    let tiers = look.tiers.iter().map(|tier| tier.verified).collect();
                    self.verified = Some(Seen { at, tiers });
                } else if let Some(seen) = &self.verified {
                    for (tier, seen) in look.tiers.iter_mut().zip(&seen.tiers) {
                        tier.verified = *seen;
                    }
                }
            }
            // What comes back may be another device.
            Err(_) => self.verified = None,
        }
        let (root, pid) = (&self.place.root, self.place.pid);
        Looked {
            at,
            mechanism: self.provider.as_ref().map(|p| p.mechanism()),
            look,
            verified_at: self.verified.as_ref().map(|seen| seen.at),
            is_verified_now,
            resident: pid.and_then(|pid| process_memory::resident(root, pid)),
            pinned_by: pid.and_then(|pid| process_memory::pinned_by(root, pid)),
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
