//! HPMBS §5.4.2, figure 12: memory that comes and goes ten times, by a balloon of 4 KiB and one of 2 MiB pages.

use super::balloons::{BALLOONS, FIGURE_10, NONE, with_balloon, without_balloon};
use super::row::{Claim, Input, Row};
use super::runs::{Load, Results, Run};
use super::{Experiment, File, Why};

/// A program of the figure, the share of its accesses that write, and the misses of TLBs that the large balloon saves of the
/// small one's, %.
const PROGRAMS: [(&str, &str, f64); 2] =
    [("Random_read", "0.0", 89.6), ("Random_write", "1.0", 62.7)];

/// Needs of memory, GiB, one after the other.
const NEEDS: [u64; 10] = [5, 1, 5, 1, 5, 1, 5, 1, 5, 1];

/// Time lost with the balloon of 4 KiB pages, as the text has it, %.
const SLOWER: f64 = 150.0;

/// The experiment.
pub(super) const FIGURE_12: Experiment = Experiment {
    name: "hpmbs/figure-12",
    title: "A program whose memory comes and goes ten times, by a balloon of 4 KiB and one of 2 MiB pages",
    file: Some(File {
        name: "hpmbs-figure-12",
        text: include_str!("../../../../scenarios/hpmbs-figure-12.toml"),
    }),
    inputs: INPUTS,
    runs,
    rows,
    why: WHY,
    ..FIGURE_10
};

const INPUTS: &[Input] = &[
    Input {
        what: "random reads, and random writes, over 5 and 1 GB in turn, ten times; the guest has what the program needs; pages of 2 MiB in \
               guest and host; one core of an i7-6700",
        from: "§5.1, §5.4.2",
    },
    Input {
        what: "3 s for each need; a balloon takes 4 of 6 GiB 0.1 s after the program needs 1 GiB, and gives them back from 0.5 s before it needs 5 \
               again; the program's memory is fresh each time",
        from: "our choice",
    },
    Input {
        what: "slower: what an access takes longer on average in the whole run, the balloon's own work on the guest's processor with it",
        from: "our choice",
    },
];

const WHY: &[Why] = &[
    Why::new(
        "TLB misses that the 2 MiB balloon saves",
        "without a balloon a random program over 5 GiB misses with four of ten accesses here, as these are 2,560 blocks and the TLB has 1,536 \
         entries, and over 1 GiB with none. The text does not say how its counter sees the two halves.",
    ),
    Why::new(
        "4 KiB balloon: slower",
        "the host's pages are split once, at the first change; each later one costs the balloon's time and the faults again, and no more misses. \
         The text says over 150 % of random programs, and not how long its phases last.",
    ),
];

fn key(program: &str, way: &str) -> String {
    format!("{program}, {way}")
}

fn runs(load: &Load) -> Vec<Run> {
    let mut runs = Vec::new();
    for (program, write, _) in PROGRAMS {
        let needs = NEEDS.map(|gib| {
            format!(
                "{{ kind = \"hotset\", size = \"{gib}GiB\", hot = 1.0, hot_access = 1.0, write = {write}, duration = \"3s\" }}"
            )
        });
        let text = format!(
            "{{ kind = \"phases\", fresh = true, of = [{}] }}",
            needs.join(", ")
        );
        let given = load.workload(&text);
        runs.push(Run::new(
            key(program, NONE),
            given.clone().map(without_balloon),
        ));
        runs.extend(BALLOONS.map(|(balloon, page)| {
            let scenario = given.clone().map(|scenario| with_balloon(scenario, page));
            Run::new(key(program, balloon), scenario)
        }));
    }
    runs
}

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    let of =
        |program: &str, way: &str| Ok::<_, String>(results.get(&key(program, way))?.last_third);
    for (program, _, paper) in PROGRAMS {
        for (balloon, _) in BALLOONS {
            let both = || Ok::<_, String>((of(program, balloon)?, of(program, NONE)?));
            let more = both().map(|(with, none)| (with.walks / none.walks - 1.0) * 100.0);
            let what = format!("{program}, {balloon} balloon: more TLB misses");
            rows.push(Row::new(what, "%", Claim::Nothing, more));
            let slower = both().map(|(with, none)| (with.ns / none.ns - 1.0) * 100.0);
            let claim = match balloon == BALLOONS[0].0 {
                true => Claim::AtLeast(SLOWER),
                false => Claim::Nothing,
            };
            let what = format!("{program}, {balloon} balloon: slower");
            rows.push(Row::new(what, "%", claim, slower));
        }
        let walks = BALLOONS.map(|(balloon, _)| of(program, balloon).map(|of| of.walks));
        let [small, large] = walks;
        let saved = small.and_then(|small| Ok((1.0 - large? / small) * 100.0));
        let what = format!("{program}: TLB misses that the 2 MiB balloon saves");
        rows.push(Row::new(what, "%", Claim::Is(paper), saved));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_changes_ten_times_and_is_there_at_last() {
        let load = Load::new(&FIGURE_12.file.unwrap(), 1, None).unwrap();
        let runs = runs(&load);
        assert_eq!(runs.len(), 6);
        for run in runs {
            let scenario = run.scenario.unwrap();
            scenario.check().unwrap();
            let vm = &scenario.vms[0];
            let resizes = vm.provision.as_ref().map_or(&[][..], |d| &d.resizes);
            assert!(matches!(resizes.len(), 0 | 10), "{}", run.key);
            let last = resizes.last().map_or(vm.sizes[0], |last| last.sizes[0]);
            assert_eq!(last, 6 << 30, "{}", run.key);
        }
    }
}
