//! A row of `terrace bench`, tables of them, and what they were measured on.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use terrace_bench::Measured;

use crate::render;

/// Spread of the runs above which their figures say little.
const NOISY: f64 = 0.3;

/// One row of the output; `ratio = value / baseline`, in the same unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub value: f64,
    pub unit: String,
    pub baseline_name: Option<String>,
    pub baseline: Option<f64>,
    pub ratio: Option<f64>,
    /// Properties of the single runs; none of a figure without a baseline.
    #[serde(flatten)]
    pub runs: Runs,
    #[serde(flatten)]
    pub machine: Machine,
}

/// The runs of a figure and of its baseline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Runs {
    /// The figure of the run that took least time.
    pub least: Option<f64>,
    /// The same of the baseline.
    pub baseline_least: Option<f64>,
    /// `least / baseline_least`.
    pub ratio_least: Option<f64>,
    /// The distance of the farthest runs, as a part of the median.
    pub spread: Option<f64>,
    /// Instructions for each of the unit's things (an entry, a page, an access), least of the runs; none if the machine does
    /// not count them.
    pub instructions: Option<f64>,
    /// The same of the baseline.
    pub baseline_instructions: Option<f64>,
}

impl From<&Measured> for Runs {
    fn from(m: &Measured) -> Self {
        let instructions = m.instructions();
        Self {
            least: Some(m.least()),
            baseline_least: Some(m.baseline_least()),
            ratio_least: Some(m.ratio_least()),
            spread: Some(m.spread()),
            instructions: instructions.map(|(run, _)| run),
            baseline_instructions: instructions.map(|(_, base)| base),
        }
    }
}

/// The machine that a row was measured on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// The processor's name, and the vectors that it has.
    pub processor: String,
    /// Tasks that were ready to run in the last minute, without this one if the machine was quiet.
    pub load: Option<f64>,
}

impl Machine {
    /// This machine now.
    fn now() -> Self {
        Self {
            processor: processor(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            load: load(&fs::read_to_string("/proc/loadavg").unwrap_or_default()),
        }
    }
}

impl Row {
    /// A figure without a baseline, measured on this machine now.
    pub fn alone(name: &str, unit: &str, value: f64) -> Self {
        Self {
            name: name.into(),
            value,
            unit: unit.into(),
            baseline_name: None,
            baseline: None,
            ratio: None,
            runs: Runs::default(),
            machine: Machine::now(),
        }
    }

    /// A warning if the machine was too busy to judge.
    pub fn warning(&self) -> Option<String> {
        let spread = self.runs.spread.filter(|spread| *spread > NOISY)?;
        Some(format!(
            "warning: {} varied by {:.0} % from run to run (load {}): go by LEAST (ratio_least in JSON), or measure on a quieter machine",
            self.name,
            spread * 100.0,
            number(self.machine.load),
        ))
    }

    /// What a comparison goes by: the ratio of the least times, else the ratio of medians, else the figure.
    fn judged(&self) -> f64 {
        self.runs.ratio_least.or(self.ratio).unwrap_or(self.value)
    }
}

/// A figure with some digits: "0.081", "30,512".
fn number(n: Option<f64>) -> String {
    match n {
        None => "-".into(),
        Some(n) if n < 1000.0 => format!("{n:.3}"),
        Some(n) => thousands(&format!("{n:.0}")),
    }
}

/// A whole number with a comma before each three digits.
fn thousands(digits: &str) -> String {
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join(",")
}

fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".into(), |part| format!("{:.0} %", part * 100.0))
}

/// The rows, and the machine below them.
pub fn table(rows: &[Row]) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|r| {
            vec![
                r.name.clone(),
                number(Some(r.value)),
                r.unit.clone(),
                number(r.baseline),
                number(r.ratio),
                number(r.runs.ratio_least),
                percent(r.runs.spread),
                number(r.runs.instructions),
                r.baseline_name.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let header = [
        "NAME",
        "VALUE",
        "UNIT",
        "BASELINE",
        "RATIO",
        "LEAST",
        "SPREAD",
        "INSTRUCTIONS",
        "AGAINST",
    ];
    let text = render::table(&header, &[1, 3, 4, 5, 6, 7], &cells);
    format!("{text}{}", machine(rows))
}

fn machine(rows: &[Row]) -> String {
    rows.first().map_or_else(String::new, |row| {
        format!(
            "on {}, load {}\n",
            row.machine.processor,
            number(row.machine.load)
        )
    })
}

/// Reads the rows of an earlier run, which `--json` wrote.
///
/// # Errors
/// If the file cannot be read, is no such output, or has no row.
pub fn read(file: &Path) -> Result<Vec<Row>> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let what = || {
        format!(
            "{} is not what `terrace bench --json` writes",
            file.display()
        )
    };
    let before: Vec<Row> = serde_json::from_str(&text).with_context(what)?;
    ensure!(!before.is_empty(), "{}: it has no row", what());
    Ok(before)
}

/// Rows beside those of an earlier run.
pub fn compared(before: &[Row], rows: &[Row]) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let old = before.iter().find(|old| old.name == row.name);
            let change = old.map(|old| row.judged() / old.judged() - 1.0);
            let spread = old.and_then(|old| old.runs.spread).max_of(row.runs.spread);
            vec![
                row.name.clone(),
                number(old.map(Row::judged)),
                number(Some(row.judged())),
                change.map_or_else(
                    || "new".into(),
                    |change| format!("{:+.1} %", change * 100.0),
                ),
                percent(spread),
            ]
        })
        .collect();
    let header = ["NAME", "BEFORE", "NOW", "CHANGE", "SPREAD"];
    let text = render::table(&header, &[1, 2, 3, 4], &cells);
    let machines: Vec<&str> = before
        .iter()
        .map(|row| row.machine.processor.as_str())
        .collect();
    let other = rows.first().is_some_and(|row| {
        machines
            .iter()
            .any(|name| !name.is_empty() && *name != row.machine.processor)
    });
    let warning = match other {
        true => "warning: the file is from another processor: only ratios can be compared\n",
        false => "",
    };
    format!(
        "{text}ratios of least times where there are baselines, else figures; of rows per second more is better, of others \
         less\n{}{warning}",
        machine(rows)
    )
}

trait MaxOf {
    fn max_of(self, other: Self) -> Self;
}

impl MaxOf for Option<f64> {
    fn max_of(self, other: Self) -> Self {
        self.into_iter().chain(other).reduce(f64::max)
    }
}

/// The first processor of `/proc/cpuinfo`: its name, and the widest vectors that it has.
fn processor(cpuinfo: &str) -> String {
    let value = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim())
    };
    let flags = value("flags").unwrap_or_default();
    let has = |wanted: &str| flags.split(' ').any(|flag| flag == wanted);
    let vectors = match () {
        () if has("avx512bw") => "AVX-512",
        () if has("avx2") => "AVX2",
        () => "no AVX2",
    };
    format!(
        "{}, {vectors}",
        value("model name").unwrap_or("an unknown processor")
    )
}

fn load(loadavg: &str) -> Option<f64> {
    loadavg.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, ratio_least: f64, spread: f64) -> Row {
        Row {
            ratio: Some(9.0),
            runs: Runs {
                ratio_least: Some(ratio_least),
                spread: Some(spread),
                ..Runs::default()
            },
            machine: Machine {
                processor: "Some CPU, AVX2".into(),
                load: None,
            },
            ..Row::alone(name, "ns", 5.0)
        }
    }

    #[test]
    fn a_row_of_before_is_compared_by_its_least_times() {
        let before = [row("a", 4.0, 0.1)];
        let text = compared(&before, &[row("a", 3.0, 0.2), row("b", 1.0, 0.0)]);
        assert!(text.contains("-25.0 %") && text.contains("20 %"), "{text}");
        assert!(
            text.contains("new") && !text.contains("another processor"),
            "{text}"
        );
    }

    #[test]
    fn rows_of_before_are_read_also_without_least_times() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("before.json");
        fs::write(&file, serde_json::to_string(&[row("a", 4.0, 0.1)]).unwrap()).unwrap();
        assert_eq!(read(&file).unwrap(), [row("a", 4.0, 0.1)]);
        let old = r#"[{"name": "a", "value": 5, "unit": "ns", "baseline_name": "x", "baseline": 1, "ratio": 6}]"#;
        fs::write(&file, old).unwrap();
        let text = compared(&read(&file).unwrap(), &[row("a", 3.0, 0.2)]);
        assert!(text.contains("6.000") && text.contains("-50.0 %"), "{text}");
        for other in ["{}", "[]"] {
            fs::write(&file, other).unwrap();
            let why = format!("{:#}", read(&file).unwrap_err());
            assert!(
                why.contains("is not what `terrace bench --json` writes"),
                "{why}"
            );
        }
    }

    #[test]
    fn a_busy_machine_is_told_of() {
        assert_eq!(row("a", 3.0, 0.3).warning(), None);
        let warning = row("a", 3.0, 0.5).warning().unwrap();
        assert!(warning.contains("a varied by 50 %"), "{warning}");
    }

    #[test]
    fn large_figures_can_be_read() {
        let text = [0.0814, 999.0, 1000.4, 32_041_231.7].map(|n| number(Some(n)));
        assert_eq!(text, ["0.081", "999.000", "1,000", "32,041,232"]);
        assert_eq!(number(None), "-");
    }

    #[test]
    fn the_processor_and_its_vectors_are_named() {
        let info = "processor\t: 0\nmodel name\t: Fast 9000\nflags\t\t: fpu avx2 avx512bw\n";
        assert_eq!(processor(info), "Fast 9000, AVX-512");
        assert_eq!(processor(""), "an unknown processor, no AVX2");
        assert_eq!(load("0.52 0.58 0.59 1/289 4242\n"), Some(0.52));
    }
}
