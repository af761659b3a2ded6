//! A VM whose hot fifth is scattered, and what its log shows.

use terrace_core::{EngineConfig, PolicyName};
use terrace_proto::log::Record;
use terrace_proto::snapshot::Round;
use terrace_proto::{Action, MovePlan, ScanRequest, Tick, VmId};

use terrace_testkit::engine::scattered::{FAST, PAGES, scattered};
use terrace_testkit::engine::{Host, SECOND, spec};

pub const VM: VmId = VmId(1);

pub fn config(policy: PolicyName) -> EngineConfig {
    EngineConfig {
        policy: policy.into(),
        ..EngineConfig::default()
    }
}

pub fn host_with(config: EngineConfig) -> Host {
    let mut host = Host::new(config, &[PAGES, 4 * PAGES]);
    host.arrive(spec(1, PAGES, FAST), Box::new(scattered));
    host
}

pub fn host(policy: PolicyName) -> Host {
    host_with(config(policy))
}

pub fn last(host: &Host) -> Round {
    let vm = host.engine().vm(VM).expect("a VM that arrived");
    vm.last_round.expect("a round that ended")
}

pub fn actions<'a, T: 'a>(
    host: &'a Host,
    kind: impl Fn(&'a Action) -> Option<&'a T> + 'a,
) -> impl Iterator<Item = (Tick, &'a T)> + 'a {
    host.log()
        .iter()
        .filter_map(move |(at, record)| match record {
            Record::Action(action) => kind(action).map(|a| (*at, a)),
            _ => None,
        })
}

pub fn scans(host: &Host) -> Vec<(Tick, &ScanRequest)> {
    actions(host, |a| match a {
        Action::Scan(scan) => Some(scan),
        _ => None,
    })
    .collect()
}

pub fn plans(host: &Host) -> Vec<(Tick, &MovePlan)> {
    actions(host, |a| match a {
        Action::Move(plan) => Some(plan),
        _ => None,
    })
    .collect()
}

pub fn round_starts(host: &Host) -> Vec<u64> {
    actions(host, |a| match a {
        Action::QueryPlacement(query) => Some(query),
        _ => None,
    })
    .map(|(at, _)| at.0 / SECOND)
    .collect()
}
