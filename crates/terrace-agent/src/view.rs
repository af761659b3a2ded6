//! The agent as it is now, from its parts, for `status`.

use terrace_core::ranges::Ranges;
use terrace_proto::PAGE_SIZE;
use terrace_proto::agent::{Cost, Mode};
use terrace_sys::process_cpu_time;
use terrace_sys::topology::NodeId;

use crate::account::Account;
use crate::frames::IndexSize;
use crate::gather::{Background, GatherStatus};
use crate::host::Host;
use crate::managed::Managed;
use crate::programs::Programs;
use crate::room::Room;
use crate::sampler::Samplers;
use crate::status::{EventStatus, ProcessStatus, RangeStatus, Status, TierStatus};

/// Most ranges that are reported, hottest first.
const RANGES: usize = 64;

/// The agent's parts, to read.
#[derive(Clone, Copy, Debug)]
pub struct AgentParts<'a> {
    /// Whether the agent's own configuration lets pages move.
    pub moves: bool,
    /// The guest's tiers.
    pub room: &'a Room,
    /// The source of samples.
    pub samplers: &'a Samplers,
    /// The controller's state.
    pub ranges: &'a Ranges,
    /// The programs under management.
    pub programs: &'a Programs,
    /// The outcome of the epochs.
    pub account: &'a Account,
    /// The host's instructions.
    pub host: &'a Host,
    /// Rounds of gathering, if they go on beside it.
    pub gathering: Option<&'a Background>,
    /// The index of frames that the host may name.
    pub frames: IndexSize,
}

impl AgentParts<'_> {
    /// The agent as its owner sees it.
    #[must_use]
    pub fn status(&self) -> Status {
        let totals = self.account.totals;
        let cost = cost();
        Status {
            sampler: self.samplers.name().unwrap_or("none").into(),
            sampler_reason: self.samplers.reason().into(),
            mode: self.mode().into(),
            epochs: self.ranges.epoch(),
            quiet_epochs: totals.quiet_epochs,
            promoted_pages: totals.promoted_pages,
            demoted_pages: totals.demoted_pages,
            busy_pages: totals.busy_pages,
            failed_pages: totals.failed_pages,
            swapped_pages: totals.swapped_pages,
            no_swaps: self.account.no_swaps.clone().unwrap_or_default(),
            frames_taken: totals.frames_taken,
            frames_refused: totals.frames_refused,
            frames_last: totals.frames_last.0,
            frames_last_ns: totals.frames_last.1,
            no_migrate: self.account.no_migrate.clone().unwrap_or_default(),
            frames_index: self.frames,
            lost_samples: totals.lost_samples,
            malformed_samples: totals.malformed_samples,
            cpu_ns: cost.cpu_ns,
            resident_bytes: cost.resident_bytes,
            state_bytes: self.ranges.heap_bytes() as u64,
            tiers: self.tier_status(),
            processes: self.process_status(),
            ranges: self.range_status(),
            events: self.account.journal.lines().map(event).collect(),
            channel: self.host.channel().clone(),
            gather: self
                .gathering
                .map_or_else(GatherStatus::off, Background::status),
        }
    }

    fn mode(&self) -> &'static str {
        let instructions = self.host.instructions();
        if instructions.paused {
            "paused"
        } else if instructions.mode == Mode::Off {
            "off"
        } else if instructions.mode == Mode::Coordinated {
            "coordinated"
        } else if self.moves && self.room.topology().tiers.len() > 1 {
            "placing"
        } else {
            "observing"
        }
    }

    fn tier_status(&self) -> Vec<TierStatus> {
        let free = self.room.free();
        let tiers = self.room.topology().tiers.iter();
        tiers
            .map(|tier| TierStatus {
                name: tier.name.clone(),
                nodes: tier.nodes.iter().map(|node| node.0).collect(),
                total_bytes: tier.total_bytes,
                free_bytes: free
                    .iter()
                    .filter(|free| tier.nodes.contains(&NodeId(free.node)))
                    .map(|free| free.pages * PAGE_SIZE)
                    .sum(),
            })
            .collect()
    }

    fn process_status(&self) -> Vec<ProcessStatus> {
        let status = |managed: &Managed| {
            let pid = managed.pid();
            let program = self.ranges.programs().get(&pid)?;
            let (tree, held) = (program.tree(), program.total());
            Some(ProcessStatus {
                pid,
                name: managed.name.clone(),
                leaves: tree.len(),
                root_pages: tree.leaves().map(|leaf| leaf.range.pages()).sum(),
                fast_bytes: held.fast * PAGE_SIZE,
                slow_bytes: held.slow * PAGE_SIZE,
            })
        };
        self.programs.iter().filter_map(status).collect()
    }

    fn range_status(&self) -> Vec<RangeStatus> {
        let (ranked, fits) = self.ranges.ranked();
        let hottest = ranked.iter().take(RANGES).enumerate();
        hottest
            .map(|(rank, ranked)| RangeStatus {
                pid: ranked.process,
                start: ranked.leaf.range.start * PAGE_SIZE,
                end: ranked.leaf.range.end * PAGE_SIZE,
                count: ranked.leaf.count,
                fast_bytes: ranked.held.fast * PAGE_SIZE,
                slow_bytes: ranked.held.slow * PAGE_SIZE,
                fits: rank < fits,
            })
            .collect()
    }
}

fn event((epoch, text): (u32, &str)) -> EventStatus {
    EventStatus {
        epoch,
        text: text.to_owned(),
    }
}

/// The cost of this process so far.
pub(crate) fn cost() -> Cost {
    let cpu = process_cpu_time().as_nanos();
    Cost {
        cpu_ns: u64::try_from(cpu).unwrap_or(u64::MAX),
        resident_bytes: resident_bytes(),
    }
}

/// Resident memory of this process, bytes; 0 if `/proc` does not say.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    pages.unwrap_or(0_u64).saturating_mul(PAGE_SIZE)
}
