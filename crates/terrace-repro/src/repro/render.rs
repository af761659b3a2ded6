//! Outcomes as text: for a terminal, and as docs/repro.md.

use std::fmt::Write;

use super::row::{Claim, Outcome, ReproReport, Row, Standing};

/// The head of the generated page.
const HEAD: &str = "\
# The papers' figures beside the simulator's

Written by `terrace sim repro --markdown docs/repro.md --json docs/repro.json`; a test holds the two
together. Change the experiments, not this page.

    terrace sim repro                  # all of them
    terrace sim repro vtmm             # one paper's
    terrace sim repro vtmm/table-4     # one
    terrace sim repro --list           # which there are
    terrace sim repro --seeds 1        # one seed instead of three
    terrace sim repro --check          # measure the figures in the reasons again

Three seeds by default. One seed of all of it, 277 runs, takes some 22 minutes of processor time, of which HPMBS takes five and
GPAC less than one.

`--check` compares each measured figure in a reason below with what its runs give now (within 1 %, or the last
digit printed), and exits with 1 if one differs; `cargo xtask test --long` runs it. Arithmetic and rows of the tables
are not measured again. [predictions.md](predictions.md) was made when page tables lay in DRAM for free
(`tables = \"first\"`); the predictions on this page are those of today's machine.

";

/// The head of the page of the predictions.
const PREDICTED: &str = "\
# Predictions

Written by `terrace sim repro predictions --seeds 3 --markdown docs/predictions.md --json
docs/predictions.json`, and committed before anything was compared: the results of these experiments are
not in the papers' texts at hand. Its figures are not to be changed afterwards, whatever a
comparison says.

- A figure is the mean over the seeds, with the least and the most in brackets.
- *slower than all-fast*: how much longer the same work takes than with all of the memory in DRAM.
- *faster than autonuma*: how much more work is done in the same time than with NUMA balancing in the guest
  and nothing else, which is what the paper compares with.
- Inputs are what the paper says of its set-up, and what was chosen where it says nothing.
- The scale was chosen for time: at it, all of the predictions take some minutes on two processors.

";

/// The text that tells how to read the tables.
const HOW: &str = "\
- **ratio** is the simulator's figure over the paper's. `≤` and `≥` are bounds that the paper's text gives.
- **Inputs** are what the paper says of its set-up, and what was chosen where it says nothing. The only
  results that a run may be given are those of one column, all memory slow: the program's compute time
  per access is solved from it. Such rows are marked *input* and not counted.
- A figure is near within 25 % (a ratio of 0.75 to 1.25), a bound only within the bound itself. **(!)** marks what is not near.
- Counted are rows with a paper's figure that were made; inputs and rows by construction are not.
- Rows marked *by construction* could not have come out otherwise, given how the simulator is built: they are
  shown and not counted.
- *Order of systems*: of how many pairs the better one is the one that is better in the paper. All of them are
  asked for, however close two systems are.
- Nothing was fitted to any other result. Where a figure is more than 25 % off, or beyond its bound, **why** says
  what was found about it: by changing one thing and running again, by arithmetic, or from the model's code.
- Figures that the text at hand does not have are no rows to compare: `–` stands in their place. A
  **prediction** has been made before anything was there to compare it with.
- What waits for something is a place left free: it has not passed.
";

/// The page docs/repro.md.
#[must_use]
pub fn markdown(report: &ReproReport) -> String {
    let mut out = if report.experiments.iter().all(|e| e.prediction) {
        format!("{PREDICTED}{}\n", seeds(report))
    } else {
        format!("{HEAD}{}\n{}\n\n{HOW}", seeds(report), summary(report))
    };
    for outcome in &report.experiments {
        let _ = write!(
            out,
            "\n## {} {}\n\n{}.",
            outcome.paper.title(),
            title(&outcome.name),
            outcome.title
        );
        out += &provenance(outcome);
        out.push('\n');
        if let Some(what) = &outcome.waits_for {
            let _ = write!(out, "\n**Not run yet**: it waits for {what}.\n");
            continue;
        }
        if !outcome.inputs.is_empty() {
            out += "\nInputs:\n\n";
        }
        for input in &outcome.inputs {
            let _ = writeln!(out, "- {} ({})", input.what, input.from);
        }
        out += &rows(&outcome.rows);
        for (text, whats) in reasons(&outcome.rows) {
            let _ = write!(out, "\n**Why**, for {}: {text}\n", whats.join("; "));
        }
    }
    out
}

/// The sentence about seeds.
pub(super) fn seeds(report: &ReproReport) -> String {
    if report.seeds == 1 {
        return format!("Seed {}.", report.seed);
    }
    let last = report.seed + report.seeds - 1;
    format!(
        "Seeds {} to {last}: the mean, and least to most in brackets.",
        report.seed
    )
}

fn summary(report: &ReproReport) -> String {
    let (near, all) = report.near();
    let waiting = report.experiments.iter().filter(|e| e.waits_for.is_some());
    let missing = report.experiments.iter().flat_map(|e| &e.rows);
    let missing = missing.filter(|row| row.missing.is_some());
    format!(
        "{near} of {all} figures are within 25 % of the paper's, or within its bound; {} more hold by \
         construction and are not counted; {} were not made (a run failed, or they wait for a policy); {} \
         experiments wait as a whole.",
        report.by_construction(),
        missing.count(),
        waiting.count()
    )
}

/// `table-4` as `Table 4`.
pub(super) fn title(name: &str) -> String {
    let text = name.replace('-', " ");
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// The scenario and the scale of an experiment, and whether it is a prediction.
fn provenance(outcome: &Outcome) -> String {
    let Some(scenario) = &outcome.scenario else {
        return String::new();
    };
    let kind = if outcome.prediction {
        " **A prediction.**"
    } else {
        ""
    };
    let scale = outcome
        .scale
        .map_or(String::new(), |scale| format!(", scale {scale}"));
    format!("{kind} [{scenario}.toml](../scenarios/{scenario}.toml){scale}.")
}

fn rows(rows: &[Row]) -> String {
    let mut out =
        "\n| what | unit | paper | simulator | ratio |\n|---|---|--:|--:|--:|\n".to_owned();
    for row in rows {
        let [what, unit, paper, simulated, ratio] = cells(row);
        let _ = writeln!(out, "| {what} | {unit} | {paper} | {simulated} | {ratio} |");
    }
    out
}

/// Reasons, each once, with the rows that each is about.
fn reasons(rows: &[Row]) -> Vec<(String, Vec<String>)> {
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for row in rows {
        let Some(text) = row.why.as_ref().or(row.missing.as_ref()) else {
            continue;
        };
        match all.iter_mut().find(|(known, _)| known == text) {
            Some((_, whats)) => whats.push(row.what.clone()),
            None => all.push((text.clone(), vec![row.what.clone()])),
        }
    }
    all
}

/// The cells of a row: what, unit, paper, simulator, ratio.
#[must_use]
pub fn cells(row: &Row) -> [String; 5] {
    let mut paper: String = match row.paper {
        Claim::Nothing => "–".into(),
        Claim::Is(x) => figure(x),
        Claim::AtMost(x) => format!("≤ {}", figure(x)),
        Claim::AtLeast(x) => format!("≥ {}", figure(x)),
        Claim::Input(x) => format!("{} (input)", figure(x)),
    };
    if row.by_construction {
        paper += " (by construction)";
    }
    let mut simulated = row.simulated.map_or("–".into(), figure);
    if let Some((least, most)) = row.spread {
        let _ = write!(simulated, " [{}, {}]", figure(least), figure(most));
    }
    let mut ratio = row.ratio.map_or("–".into(), |ratio| format!("{ratio:.2}"));
    if row.standing() == Standing::Far {
        ratio += " (!)";
    }
    [row.what.clone(), row.unit.clone(), paper, simulated, ratio]
}

/// Three digits or a little more.
fn figure(x: f64) -> String {
    let digits = match x.abs() {
        x if x >= 100.0 => 0,
        x if x >= 10.0 => 1,
        _ => 2,
    };
    format!("{x:.digits$}")
}

/// The line under everything: how many figures are near.
#[must_use]
pub fn last_line(report: &ReproReport) -> String {
    summary(report)
}

/// The inputs of an experiment's rows, and why some rows are far off: lines for a terminal.
#[must_use]
pub fn notes(outcome: &Outcome) -> String {
    let mut out = String::new();
    for input in &outcome.inputs {
        let _ = writeln!(out, "  input: {} ({})", input.what, input.from);
    }
    for (text, whats) in reasons(&outcome.rows) {
        let _ = writeln!(out, "  why, for {}: {text}", whats.join("; "));
    }
    out
}
