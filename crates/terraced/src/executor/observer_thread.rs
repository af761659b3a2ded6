//! The thread that observes one VM. It reads the VM's monitor and worker and may inspect no other process; so another
//! thread queries the nodes of pages from the kernel for it.

use std::sync::mpsc::{Receiver, Sender, channel};

use terrace_proto::action::PlacementQuery;
use terrace_proto::{Event, Pass, Passed, ScanSpent, TablesAnswer};

use super::context::{Context, caught, failed};
use super::map_guard::MapGuard;
use super::observer::Observer;
use super::placement::{PlacementJob, not_placed};
use crate::messages::Input;

/// A request to the thread.
pub enum ObserveRequest {
    /// A pass over the VM's pages.
    Scan(Pass),
    /// The next pass is to name page tables.
    NameTables,
    /// A query for the places of the VM's pages.
    Placement(PlacementQuery),
}

/// The state of the observing thread.
pub struct ObserverThread {
    /// The state that the VM's threads share.
    pub context: Context,
    /// The guard of the map that the thread goes by.
    pub guard: MapGuard,
    /// The queue of the thread that queries the nodes of pages from the kernel.
    pub places: Sender<PlacementJob>,
    /// The observer of the VM's pages.
    pub observer: Observer,
}

impl ObserverThread {
    /// Carries out observe requests until no sender is left.
    pub fn run(mut self, queue: &Receiver<ObserveRequest>) {
        let mut tables = false;
        for request in queue {
            let events = match request {
                ObserveRequest::Scan(pass) => self.scan(pass, std::mem::take(&mut tables)),
                ObserveRequest::NameTables => {
                    tables = true;
                    continue;
                }
                ObserveRequest::Placement(query) => self.placement(query),
            };
            for event in events {
                if self.context.inbox.send(Input::Event(event)).is_err() {
                    return;
                }
            }
        }
    }

    /// Scans; returns events with its cost and its outcome.
    fn scan(&mut self, pass: Pass, tables: bool) -> Vec<Event> {
        let (id, space) = (pass.id(), pass.space());
        let vm = space.vm();
        let before = self.observer.cpu_time();
        self.observer.name_tables(tables);
        let answer = self.answer(pass);
        let after = self.observer.cpu_time();
        let spent = before.zip(after).map(|(before, after)| {
            let cpu = after.saturating_sub(before).as_nanos();
            Event::ScanSpent(ScanSpent {
                vm,
                cpu_ns: u64::try_from(cpu).unwrap_or(u64::MAX),
            })
        });
        let found = matches!(answer, Event::Scanned(_) | Event::ScannedPart(_));
        let named = (tables && found).then(|| {
            let frames = self.observer.take_tables();
            Event::Tables(Box::new(TablesAnswer { id, space, frames }))
        });
        spent.into_iter().chain(named).chain([answer]).collect()
    }

    fn answer(&mut self, pass: Pass) -> Event {
        let (id, vm) = (pass.id(), pass.space().vm());
        let Self {
            context,
            guard,
            observer,
            ..
        } = self;
        let scanned = caught(|| {
            observer.scan(guard, pass, |news| {
                // Nobody listens while the daemon ends.
                let _ = context.inbox.send(Input::Tracking(vm, news));
            })
        });
        match scanned {
            Some(Ok(Passed::All(answer))) => Event::Scanned(answer),
            Some(Ok(Passed::Part(answer))) => Event::ScannedPart(answer),
            Some(Err(failure)) => Event::ScanFailed(failure),
            None => failed(id, vm, "a defect of terraced: the scan panicked".into()),
        }
    }

    fn placement(&self, query: PlacementQuery) -> Vec<Event> {
        let ask = || {
            let (answer, answered) = channel();
            let asked = self.places.send((query, answer));
            asked.ok().and_then(|()| answered.recv().ok())
        };
        match self.guard.around(true, ask) {
            Ok(Some(events)) => events,
            Ok(None) => not_placed(query, "the thread for it is gone"),
            Err(reason) => not_placed(query, &reason),
        }
    }
}
