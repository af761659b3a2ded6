//! The thread that queries the nodes of one VM's pages from the kernel.

use std::sync::mpsc::{Receiver, Sender};

use terrace_host::placement;
use terrace_proto::Event;
use terrace_proto::action::PlacementQuery;

use super::context::{Context, caught, failed};

/// A query for the places of a VM's pages, with the channel of its answer.
pub type PlacementJob = (PlacementQuery, Sender<Vec<Event>>);

/// Answers requests until no sender is left.
pub fn run(context: &Context, queue: &Receiver<PlacementJob>) {
    for (query, answer) in queue {
        // Nobody waits for it while the daemon ends.
        let _ = answer.send(placement(context, query));
    }
}

fn placement(context: &Context, query: PlacementQuery) -> Vec<Event> {
    let Context {
        root,
        topology,
        target,
        ..
    } = context;
    match caught(|| placement::query(root, topology, target, query)) {
        Some(Ok(reports)) => reports.into_iter().map(Event::Placement).collect(),
        Some(Err(error)) => not_placed(query, &error.to_string()),
        None => not_placed(query, "a defect of terraced: the query panicked"),
    }
}

/// The event of a query that failed, with its cause.
pub fn not_placed(query: PlacementQuery, what: &str) -> Vec<Event> {
    let reason = format!("the placement of its pages could not be queried: {what}");
    vec![failed(query.id, query.vm, reason)]
}
