//! Hot pages that are named to a guest that gathers, by hand-made scans.

use std::time::Duration;

use terrace_api::types::NamedHot;
use terrace_proto::agent::Mode;
use terrace_proto::{
    Gfn, PageBitmap, PageCode, PlacementReport, RequestId, ScanAnswer, ScanStats, Space, TierId,
    VmId,
};

use super::super::*;
use super::in_force::{count_events, daemon, db1, find, lying, manage, orders, trusted};
use crate::api::snapshot::{About, Snapshot};
use crate::served::Served as _;

const GATHERS: &str = "scan = true\ngather = true\nagent_socket = \"/nowhere/a\"\n[engine]\npolicy = \"vtmm\"\nwindows = 1\nwindow_ms = 1\nfixed_threshold = 1";
const PAGES: u64 = 256;

fn scanned(daemon: &mut Daemon, vm: VmId, request: u64, accessed: &[u64]) {
    let mut bits = PageBitmap::new(PAGES);
    accessed.iter().for_each(|page| bits.put(*page, true));
    daemon.handle(Event::Scanned(Box::new(ScanAnswer {
        id: RequestId(request),
        space: Space::Guest(vm),
        known: PageBitmap::full(PAGES),
        accessed: bits,
        written: None,
        huge_leaf: PageBitmap::new(1),
        stats: ScanStats::default(),
    })));
}

/// The first round of a VM, whose one window touches these pages.
fn round(daemon: &mut Daemon, vm: VmId, accessed: &[u64]) {
    daemon.handle(Event::Timer);
    daemon.handle(Event::Placement(PlacementReport {
        id: RequestId(1),
        vm,
        start: Gfn(0),
        codes: vec![PageCode::new(TierId(1), false); 256],
        last: true,
    }));
    scanned(daemon, vm, 2, &[]);
    std::thread::sleep(Duration::from_millis(5));
    daemon.handle(Event::Timer);
    scanned(daemon, vm, 3, accessed);
    let round = daemon.engine().last_round(vm);
    assert!(round.is_some_and(|round| round.ended_at.is_some()));
}

fn named(daemon: &Daemon) -> Option<NamedHot> {
    let agent = daemon.vms.agent(db1(daemon)).unwrap();
    agent.gathers.unwrap().last()
}

#[test]
fn hot_pages_are_named_once_a_round_ranked_them() {
    let (_folder, mut daemon) = daemon(GATHERS);
    find(&mut daemon, 1 << 30);
    let id = manage(&mut daemon);
    assert_eq!(orders(&daemon).mode, Mode::Off, "one owner per A bit");
    let finding = |daemon: &Daemon| {
        let copy = Snapshot::of(daemon, &About::Doctor).ok().unwrap();
        let findings = copy.doctor().vms["db1"].clone();
        findings.into_iter().find(|f| f.name == "gather").unwrap()
    };
    assert!(finding(&daemon).found.starts_with("no hot page was named"));
    trusted(&mut daemon);
    assert_eq!(count_events(&daemon, "hot pages are named to it"), 1);
    round(&mut daemon, id, &[7, 9]);
    let said = NamedHot {
        round: 1,
        named_pages: 2,
        hot_pages: 2,
        hot_blocks: 1,
    };
    assert_eq!(named(&daemon), Some(said));
    assert_eq!(daemon.hot_sets, 1);
    assert!(finding(&daemon).found.starts_with("round 1 named 2 of 2"));
    let copy = Snapshot::of(&daemon, &About::Vm("db1".into()));
    let agent = copy.ok().unwrap().detail("db1").ok().unwrap().vm.agent;
    let agent = agent.unwrap();
    assert!(agent.in_force.starts_with("the host; it names hot pages"));
    assert_eq!(agent.gather, Some(said));
}

#[test]
fn a_liar_is_named_nothing() {
    let (_folder, mut daemon) = daemon(GATHERS);
    find(&mut daemon, 1 << 30);
    let id = manage(&mut daemon);
    trusted(&mut daemon);
    lying(&mut daemon);
    assert_eq!(count_events(&daemon, "no hot pages are named to it"), 1);
    round(&mut daemon, id, &[7, 9]);
    assert_eq!(named(&daemon), None);
}
