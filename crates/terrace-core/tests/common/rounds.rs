//! A VM of 4,096 pages whose hot fifth is scattered, and what its log shows.

use terrace_core::{EngineConfig, PolicyName, RoundSummary};
use terrace_proto::log::Record;
use terrace_proto::{Action, MovePlan, ScanRequest, Tick, VmId};

use super::{Host, SECOND, draw, spec};

pub const VM: VmId = VmId(1);
pub const PAGES: u64 = 4096;
pub const FAST: u64 = 900;
/// Golden: pages that the first round promotes, and as many that it demotes.
pub const EXCHANGED: u64 = 699;

pub fn hot(page: u64) -> bool {
    page % 5 == 3
}

/// A fifth of the pages, scattered, takes nearly all accesses.
pub fn scattered(page: u64, scan: u64) -> (bool, bool) {
    let d = draw(page, scan);
    if hot(page) {
        (d < 230, d < 80)
    } else {
        (d < 10, d < 2)
    }
}

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

pub fn last(host: &Host) -> RoundSummary {
    host.engine.vm(VM).unwrap().last_round.unwrap()
}

pub fn actions<'a, T: 'a>(
    host: &'a Host,
    kind: impl Fn(&'a Action) -> Option<&'a T> + 'a,
) -> impl Iterator<Item = (Tick, &'a T)> + 'a {
    host.log
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
