//! HPMBS §5.4: a balloon of 4 KiB pages beside one of 2 MiB pages (figures 10 and 11, table 3).

use terrace_proto::PageSize;
use terrace_sim::{Resize, Scenario};

use super::changes::FIGURE_12;
use super::row::{Claim, Input, Row};
use super::runs::{Load, Measured, Results, Run};
use super::{Experiment, ExperimentKind, File, Paper, Why};

/// The paper's balloons: of regular and of huge pages.
pub(super) const BALLOONS: [(&str, PageSize); 2] =
    [("4 KiB", PageSize::Base), ("2 MiB", PageSize::Huge)];

/// Memory that a balloon takes, MiB, and the time that each balloon takes for it, ms.
const TAKEN: [(u64, [f64; 2]); 2] = [(256, [92.0, 0.42]), (10 * 1024, [3336.0, 46.0])];

/// How many times fewer misses of TLBs the large balloon causes (figure 11): the text has three to four times.
const FEWER_MISSES: f64 = 3.5;

/// Times of the two resizes: a balloon of 4 KiB pages needs almost 6 s for 10 GiB.
const INFLATES_AT_NS: u64 = 1_000_000_000;
const DEFLATES_AT_NS: u64 = 8_000_000_000;

const TIME_INPUTS: &[Input] = &[
    Input {
        what: "random writes over 5 GB; the balloon inflates by 256 MB or 10 GB, and then deflates by as much; pages of 2 MiB in guest and \
               host",
        from: "§5.4.1, table 1",
    },
    Input {
        what: "a VM of 16 GiB; the paper's GB are taken as GiB; the time is that of guest and device together",
        from: "our choice",
    },
    Input {
        what: "figure 11: misses of the program by access in the whole run, with one balloon over those with the other; the text has three to \
               four times fewer of the huge balloon, and does not say whose",
        from: "§5.4.1; else our choice",
    },
];

const TIME_WHY: &[Why] = &[
    Why::new(
        "2 MiB balloon, 256",
        "a page into a balloon takes 2.24 µs here, whatever its size (docs/machine.md, of another machine); the paper's 0.42 ms are 3.3 µs a block.",
    ),
    Why::new(
        "2 MiB balloon, 10240",
        "a page into a balloon takes 2.24 µs here, whatever its size; the paper's 46 ms are 9.0 µs a block, almost three times what its own blocks take when 256 MB \
         go. The simulator's device takes as long for a block however many there are.",
    ),
    Why::new(
        "4 KiB balloon",
        "a page into a balloon takes 2.24 µs here, measured by others on another machine (docs/machine.md); the paper's 92 ms and 3,336 ms are 1.4 and 1.3 µs a page.",
    ),
    Why::new(
        "longer with",
        "the paper's own figures are 219 and 73 times; here a block costs what a page costs, so that it is 512 for any size.",
    ),
    Why::new(
        "more TLB misses with",
        "the program's own misses are simulated, and it misses with four of ten accesses as it is, balloon or not. What guest and QEMU miss \
         while they work for the balloon, page by page or block by block, is not.",
    ),
];

/// Figure 10.
pub(super) const FIGURE_10: Experiment = Experiment {
    paper: Paper::Hpmbs,
    name: "hpmbs/figure-10",
    title: "Time of a balloon of 4 KiB and of one of 2 MiB pages",
    kind: ExperimentKind::Figures,
    file: Some(File {
        name: "hpmbs-figure-10",
        text: include_str!("../../../../scenarios/hpmbs-figure-10.toml"),
    }),
    inputs: TIME_INPUTS,
    runs: time_runs,
    rows: time_rows,
    why: TIME_WHY,
};

/// A program of table 3.
struct Program {
    name: &'static str,
    load: &'static str,
    /// Run time by table 1, s.
    base_s: f64,
    /// More misses of TLBs and more time, %, with each balloon.
    paper: [(f64, f64); 2],
}

/// Programs of table 3: one goes through its memory, two go anywhere in it.
const PROGRAMS: [Program; 3] = [
    Program {
        name: "Sequential_read",
        load: "kind = \"sequential\", preset = \"hpmbs-read\", ops = 125829120",
        base_s: 300.0,
        paper: [(17.80, 1.51), (0.30, 1.21)],
    },
    Program {
        name: "Random_write",
        load: "kind = \"hotset\", preset = \"hpmbs-random-write\", ops = 45000000",
        base_s: 300.0,
        paper: [(528.07, 1.21), (15.44, 1.08)],
    },
    Program {
        name: "Random_read",
        load: "kind = \"hotset\", preset = \"hpmbs-random-read\", ops = 45000000",
        base_s: 300.0,
        paper: [(530.80, 2.07), (26.40, 0.08)],
    },
];

/// The run without a balloon.
pub(super) const NONE: &str = "no balloon";

const COST_INPUTS: &[Input] = &[
    Input {
        what: "the VM is cut to its least memory, and gets what the program needs before that runs; pages of 2 MiB in guest and host; one core \
               of an i7-6700",
        from: "§5.1, §5.4.2",
    },
    Input {
        what: "three programs of table 3, for time; slower: what all accesses take longer in the last third of a run, and \
               the first faults besides, as part of the time of table 1",
        from: "table 1; else our choice",
    },
    Input {
        what: "2 GiB of 6 are left, where the paper leaves 512 MB: a simulated VM needs 1,024 blocks. No other program runs before",
        from: "our choice",
    },
];

/// Table 3.
const TABLE_3: Experiment = Experiment {
    name: "hpmbs/table-3",
    title: "What a balloon of 4 KiB and one of 2 MiB pages leave to the program that runs afterwards",
    file: Some(File {
        name: "hpmbs-table-3",
        text: include_str!("../../../../scenarios/hpmbs-table-3.toml"),
    }),
    inputs: COST_INPUTS,
    runs: cost_runs,
    rows: cost_rows,
    why: COST_WHY,
    ..FIGURE_10
};

const COST_WHY: &[Why] = &[
    Why::new(
        "Sequential_read, 4 KiB balloon: more TLB misses",
        "a sweep walks once a block, or once a page of 4 KiB where the host has split the block. The paper's counter shows a sixth more; its \
         processor prefetches translations (§5.4.2 says so), which is not simulated, and its guest and host miss for other memory too.",
    ),
    Why::new(
        "Random_write, 4 KiB balloon: more TLB misses",
        "without a balloon four of ten accesses miss here already, as 5 GiB are 2,560 blocks and the TLB has 1,536 entries: 150 % more is all of \
         them.",
    ),
    Why::new(
        "Random_read, 4 KiB balloon: more TLB misses",
        "as of random writes.",
    ),
    Why::new(
        "2 MiB balloon: more TLB misses",
        "the balloon of 2 MiB pages leaves the host's pages and the guest's as they were here; what other memory of the paper's guest became small, \
         the text does not say.",
    ),
    Why::new(
        "4 KiB balloon: slower",
        "three of five GiB are mapped by 4 KiB after the balloon, each page by a fault of its own, and a walk then reads one level more. The \
         paper's table has 1 to 2 % for it, and its figure 12 over 150 % for random programs whose memory changes ten times: ours lie between.",
    ),
    Why::new(
        "2 MiB balloon: slower",
        "what is left is time at the start alone: the guest's balloon, and a fault for each block. The paper's figures of like programs (0.08 to \
         1.21 %) differ by more than that.",
    ),
];

/// The experiments of §5.4.
pub const EXPERIMENTS: &[&Experiment] = &[&FIGURE_10, &TABLE_3, &FIGURE_12];

fn time_key(balloon: &str, mib: u64, way: &str) -> String {
    format!("{balloon} balloon, {mib} MiB, {way}")
}

/// The scenario with another balloon, which takes so much and gives it back.
fn taking(base: &Scenario, page: PageSize, mib: u64, gives_back: bool) -> Scenario {
    let mut scenario = base.clone();
    for vm in &mut scenario.vms {
        let size = vm.sizes.clone();
        let mut less = size.clone();
        less[0] -= mib << 20;
        let Some(device) = &mut vm.provision else {
            continue;
        };
        device.page = page;
        device.resizes = vec![Resize {
            at_ns: INFLATES_AT_NS,
            sizes: less,
        }];
        if gives_back {
            device.resizes.push(Resize {
                at_ns: DEFLATES_AT_NS,
                sizes: size,
            });
        }
    }
    scenario
}

fn time_runs(load: &Load) -> Vec<Run> {
    let mut runs = Vec::new();
    for (balloon, page) in BALLOONS {
        for (mib, _) in TAKEN {
            for (way, gives_back) in [("inflate", false), ("both", true)] {
                let scenario = taking(load.base(), page, mib, gives_back);
                runs.push(Run::new(time_key(balloon, mib, way), Ok(scenario)));
            }
        }
    }
    runs
}

/// Time of the device's work in a run, ms.
fn resize_ms(results: &Results, key: &str) -> Result<f64, String> {
    let device = results.get(key)?.vm()?.provision.as_ref();
    let device = device.ok_or("the VM has no device")?;
    Ok(device.resize_s * 1000.0)
}

fn time_rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (mib, paper) in TAKEN {
        let ms = BALLOONS.map(|(name, _)| resize_ms(results, &time_key(name, mib, "inflate")));
        for ((balloon, _), (paper, ms)) in BALLOONS.iter().zip(paper.iter().zip(&ms)) {
            let what = format!("{balloon} balloon, {mib} MiB: inflates");
            rows.push(Row::new(what, "ms", Claim::Is(*paper), ms.clone()));
            let both = resize_ms(results, &time_key(balloon, mib, "both"));
            let deflates = both.and_then(|both| Ok(both - ms.clone()?));
            let what = format!("{balloon} balloon, {mib} MiB: deflates");
            rows.push(Row::new(what, "ms", Claim::Nothing, deflates));
        }
        let [small, large] = ms;
        let times = small.and_then(|small| Ok(small / large?));
        let what = format!("{mib} MiB, longer with the balloon of 4 KiB pages");
        rows.push(Row::new(
            what,
            "times",
            Claim::Is(paper[0] / paper[1]),
            times,
        ));
    }
    rows.extend(TAKEN.map(|(mib, _)| {
        let misses = |(balloon, _)| {
            let run = results.get(&time_key(balloon, mib, "both"))?;
            Ok::<f64, String>(run.last_third.walks)
        };
        let [small, large] = BALLOONS.map(misses);
        let times = small.and_then(|small| Ok(small / large?));
        let what = format!("figure 11, {mib} MiB, more TLB misses with the balloon of 4 KiB pages");
        Row::new(what, "times", Claim::Is(FEWER_MISSES), times)
    }));
    rows
}

fn cost_key(program: &str, way: &str) -> String {
    format!("{program}, {way}")
}

fn cost_runs(load: &Load) -> Vec<Run> {
    PROGRAMS
        .iter()
        .flat_map(|program| {
            let given = load.workload(&format!("{{ {} }}", program.load));
            let mut runs = vec![Run::new(
                cost_key(program.name, NONE),
                given.clone().map(without_balloon),
            )];
            runs.extend(BALLOONS.map(|(balloon, page)| {
                let scenario = given.clone().map(|scenario| with_balloon(scenario, page));
                Run::new(cost_key(program.name, balloon), scenario)
            }));
            runs
        })
        .collect()
}

/// The VM with a balloon of such pages.
pub(super) fn with_balloon(mut scenario: Scenario, page: PageSize) -> Scenario {
    for device in scenario.vms.iter_mut().flat_map(|vm| &mut vm.provision) {
        device.page = page;
    }
    scenario
}

/// The VM with the memory of its last resize, which is just there.
pub(super) fn without_balloon(mut scenario: Scenario) -> Scenario {
    for vm in &mut scenario.vms {
        let last = vm.provision.take().and_then(|mut d| d.resizes.pop());
        if let Some(last) = last {
            vm.sizes = last.sizes;
        }
    }
    scenario
}

fn cost_rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for program in &PROGRAMS {
        for ((balloon, _), (walks, percent)) in BALLOONS.iter().zip(program.paper) {
            let key = cost_key(program.name, balloon);
            let both = || {
                let none = results.get(&cost_key(program.name, NONE))?;
                Ok((results.get(&key)?, none))
            };
            let more = both().map(|(run, none): (&Measured, _)| {
                (run.last_third.walks / none.last_third.walks - 1.0) * 100.0
            });
            let what = format!("{key} balloon: more TLB misses");
            rows.push(Row::new(what, "%", Claim::Is(walks), more));
            let slower = both().and_then(|(run, none)| slower(run, none, program.base_s));
            let what = format!("{key} balloon: slower");
            rows.push(Row::new(what, "%", Claim::Is(percent), slower));
        }
    }
    rows
}

/// How much longer a program of that run time takes: each of its accesses by the last third of a run, and once what is
/// beyond that in a run, %.
fn slower(run: &Measured, none: &Measured, base_s: f64) -> Result<f64, String> {
    let once = |run: &Measured| {
        let vm = run.vm()?;
        let accesses = vm.ops_per_s * vm.runtime_s;
        Ok::<f64, String>(vm.runtime_s - accesses * run.last_third.ns / 1e9)
    };
    let steady = run.last_third.ns / none.last_third.ns - 1.0;
    Ok((steady + (once(run)? - once(none)?) / base_s) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_balloons_take_the_same_memory_and_give_it_back() {
        let load = Load::new(&FIGURE_10.file.unwrap(), 1, None).unwrap();
        for run in time_runs(&load) {
            let scenario = run.scenario.unwrap();
            scenario.check().unwrap();
            let vm = &scenario.vms[0];
            let resizes = &vm.provision.as_ref().unwrap().resizes;
            let taken = (vm.sizes[0] - resizes[0].sizes[0]) >> 20;
            assert!(run.key.contains(&format!(" {taken} MiB")), "{}", run.key);
            assert!(resizes[1..].iter().all(|last| last.sizes == vm.sizes));
        }
    }

    #[test]
    fn each_program_has_as_much_memory_with_a_balloon_and_without() {
        let load = Load::new(&TABLE_3.file.unwrap(), 1, None).unwrap();
        for run in cost_runs(&load) {
            let scenario = run.scenario.unwrap();
            scenario.check().unwrap();
            let vm = &scenario.vms[0];
            let last = vm.provision.as_ref().and_then(|d| d.resizes.last());
            let has = last.map_or(vm.sizes[0], |last| last.sizes[0]);
            assert_eq!(has, 6 << 30, "{}", run.key);
        }
    }
}
