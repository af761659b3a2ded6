//! GPAC §5.2: one guest that gathers its scattered hot pages (tables 2 and 3, figure 7). Many guests are predictions
//! (`super::predicted`), because the text at hand breaks off before them.

mod consolidation;
mod near_memory;

use terrace_core::gather::Cl;
use terrace_sim::{GuestPolicy, Scenario};

use super::row::Input;
use super::runs::Load;
use super::{Experiment, File};

/// A program of table 2.
struct Program {
    name: &'static str,
    /// The program's keys in a scenario, without its end.
    load: &'static str,
    /// The limit of hot pages in a block, and the pages that it selects and the time that they take, ms (table 3).
    limit: u16,
    selected: f64,
    ms: f64,
    /// Accesses of a run to its steady state, and the scale that leaves it enough pages.
    ops: u64,
    scale: u64,
}

const PROGRAMS: [Program; 5] = [
    Program {
        name: "masim",
        load: "kind = \"hotset\", preset = \"gpac-masim\"",
        limit: 10,
        selected: 4_142.0,
        ms: 36.0,
        ops: 410_000_000,
        scale: 4,
    },
    Program {
        name: "redis",
        load: "kind = \"kv\", preset = \"gpac-redis\", order = \"keys\"",
        limit: 50,
        selected: 93_896.0,
        ms: 840.0,
        ops: 400_000_000,
        scale: 16,
    },
    Program {
        name: "memcached",
        load: "kind = \"kv\", preset = \"gpac-memcached\", order = \"keys\"",
        limit: 100,
        selected: 174_068.0,
        ms: 1_220.0,
        ops: 800_000_000,
        scale: 16,
    },
    Program {
        name: "hash",
        load: "kind = \"kv\", preset = \"gpac-hash\"",
        limit: 250,
        selected: 307_484.0,
        ms: 3_363.0,
        ops: 1_200_000_000,
        scale: 16,
    },
    Program {
        name: "ocean",
        load: "kind = \"multigrid\", preset = \"gpac-ocean\"",
        limit: 290,
        selected: 950_758.0,
        ms: 7_329.0,
        ops: 3_600_000_000,
        scale: 16,
    },
];

/// The scenario of all experiments with one guest.
const FILE: File = File {
    name: "gpac-one",
    text: include_str!("../../../../../scenarios/gpac-one.toml"),
};

const GUEST: Input = Input {
    what: "one guest of 4 KiB pages on a host of 2 MiB pages, started in far memory without pressure on near memory; programs and their sizes",
    from: "§5.1, §5.2, table 2",
};

const LOADS: Input = Input {
    what: "16 GiB of near memory and 20 GiB of far memory, one vCPU, the program alone; how each program goes about its memory \
           (docs/workloads.md); values of redis and memcached lie in the order of their keys (§5.2.1 tells of one hot region that fades)",
    from: "our choice",
};

/// The experiments of §5.2.
pub const EXPERIMENTS: &[&Experiment] = &[
    &consolidation::TABLE_3,
    &near_memory::FIGURE_7,
    &near_memory::PROGRAMS_OF_TABLE_2,
];

/// The scenario with a program and its end, as `ops = 1000`, at the program's scale.
fn with(load: &Load, program: &Program, end: &str) -> Result<Scenario, String> {
    let mut scenario = load.workload(&format!("{{ {}, {end} }}", program.load))?;
    scenario.machine.scale = program.scale;
    Ok(scenario)
}

/// The scenario under a policy as a comparison names it; a guest that gathers does so below a limit, if one is given.
fn under(scenario: &Scenario, policy: &str, limit: Option<u16>) -> Result<Scenario, String> {
    let with = scenario.with_policy(policy);
    let mut with = with.map_err(|fault| fault.to_string())?;
    for vm in &mut with.vms {
        if let (Some(GuestPolicy::Gathers(cl)), Some(limit)) = (&mut vm.guest_policy, limit) {
            *cl = Cl::Below(limit);
        }
    }
    Ok(with)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::repro::runs::Run;

    #[test]
    fn programs_have_the_footprints_of_table_2() {
        let load = Load::new(&FILE, 1, None).unwrap();
        let gb = [9.8, 12.5, 11.0, 8.8, 5.5];
        for (program, gb) in PROGRAMS.iter().zip(gb) {
            let scenario = with(&load, program, "ops = 1000").unwrap();
            let pages = scenario.vms[0].workload.pages(1, Path::new(".")).unwrap();
            let gib = terrace_sim::number::float(pages) / 262_144.0;
            assert!((gib / gb - 1.0).abs() < 0.02, "{}: {gib}", program.name);
        }
    }

    #[test]
    fn a_limit_is_the_guests_and_no_other_run_has_one() {
        let load = Load::new(&FILE, 1, None).unwrap();
        let guest = |policy, limit| under(load.base(), policy, limit).unwrap().vms[0].guest_policy;
        let limited = Some(GuestPolicy::Gathers(Cl::Below(50)));
        assert_eq!(guest("memtierd+gpac", Some(50)), limited);
        assert_eq!(guest("memtierd", Some(50)), None);
    }

    #[test]
    fn hot_pages_of_masim_come_together_in_a_512th_of_the_blocks() {
        let load = Load::new(&FILE, 1, None).unwrap();
        let mut scenario = with(&load, &PROGRAMS[0], "duration = \"45s\"").unwrap();
        scenario.machine.scale = 16;
        let run = Run::new("masim", under(&scenario, "first-touch+gpac", Some(10)));
        let measured = run.measure(&|_| true).unwrap().unwrap();
        let vm = measured.vm().unwrap();
        let blocks = vm.hot_blocks.unwrap();
        assert_eq!((blocks.first, vm.gathered_pages), (4992, Some(4992)));
        // 9.75 blocks, of which a scale of 16 makes whole ones.
        assert_eq!(blocks.last, 16);
    }
}
