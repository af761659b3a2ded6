//! The daemon's log.

use std::path::Path;
use std::sync::mpsc::channel;

use terrace_core::provision::ProvisionConfig;
use terrace_core::session::replay::replay;
use terrace_host::qemu::who::HypervisorConfig;
use terrace_proto::{Gfn, PageSize, RamRange, TierLimit, VmId, VmSpec};

use super::super::*;
use crate::played::host;
use crate::provisioning;
use crate::served::Served as _;

/// A daemon with a log of at most `limit` bytes.
fn daemon(folder: &Path, limit: u64) -> Daemon {
    host(folder);
    let root = HostRoot::new(folder);
    let topology = Arc::new(Topology::read(&root, &[]).unwrap());
    let mut config = Config::parse("").unwrap();
    config.follow(&topology).unwrap();
    config.log = Some((folder.join("log"), limit));
    // The threads' messages have no receiver.
    let (inbox, _) = channel();
    let provisioning = Provisioning::new(
        provisioning::finder(HypervisorConfig::default()),
        ProvisionConfig::default(),
    );
    let config = Arc::new(config);
    Daemon::new(
        config,
        root,
        topology,
        inbox,
        Claims::default(),
        provisioning,
    )
    .unwrap()
}

fn arrive(daemon: &mut Daemon, number: u32) {
    let tiers = daemon.host.tiers().len();
    let any = TierLimit {
        floor_bytes: 0,
        ceiling_bytes: u64::MAX,
    };
    daemon.handle(Event::VmArrived(VmSpec {
        vm: VmId(number),
        name: format!("db{number}"),
        ram: vec![RamRange {
            start: Gfn(0),
            pages: 512,
        }],
        unit: PageSize::Base,
        limits: vec![any; tiers],
        weight: 1000,
        moves: true,
    }));
}

#[test]
fn what_went_through_the_engine_is_decided_again_from_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = daemon(folder.path(), 1 << 20);
    daemon.read_memory();
    (1..=3).for_each(|number| arrive(&mut daemon, number));
    daemon.command(Command::Pause(None));
    daemon.session.finish().unwrap();
    let log = std::fs::read(folder.path().join("log")).unwrap();
    let replayed = replay(&log[..]).unwrap();
    // The nodes of each VM's pages.
    assert_eq!((replayed.events, replayed.actions), (5, 3));
    assert_eq!(replayed.unrecorded_actions, 0);
}

#[test]
fn a_log_that_ends_is_told_once_and_the_daemon_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = daemon(folder.path(), 0);
    (1..=2).for_each(|number| arrive(&mut daemon, number));
    let events = daemon.events().after(0).unwrap();
    let events: Vec<&str> = events.iter().map(|event| event.text.as_str()).collect();
    assert_eq!(
        events,
        ["the log ended: it reached its size limit of 0 bytes"]
    );
    assert_eq!(daemon.log_ended().as_deref(), Some(events[0]));
    assert_eq!(daemon.engine().vms(), [VmId(1), VmId(2)]);
}
