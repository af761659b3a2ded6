//! The figures as a Markdown table: of each way the median of its runs.

use super::row::Row;
use super::way::Way;
use crate::measure::median::median;

const HEAD: &str = "\
| who places | slow misses a pass | fast misses a pass | their time by the nodes' latencies | hot pages on fast | pages moved | of them in vain | s to 90 % | CPU: terraced | CPU: kernel threads | memory of terraced | passes a second |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
";

/// One line for each way that has a run.
pub fn markdown(rows: &[Row]) -> String {
    let lines = Way::ALL.into_iter().filter_map(|way| line(way, rows));
    HEAD.to_owned() + &lines.collect::<String>()
}

/// The line of a way; none if it has no run.
pub fn line(way: Way, rows: &[Row]) -> Option<String> {
    let runs: Vec<&Row> = rows.iter().filter(|row| row.name == way.name()).collect();
    let first = runs.first()?;
    let of =
        |figure: &dyn Fn(&Row) -> f64| runs.iter().map(|row| figure(row)).collect::<Vec<f64>>();
    let slow = of(&|row| row.misses()[1]);
    let rate = of(&|row| row.rate());
    let settled: Vec<f64> = runs.iter().filter_map(|row| row.settled_s).collect();
    let placed_by_us = way.has_daemon();
    let seconds = |hundredths: u64| hundredths as f64 / 100.0;
    let cells = [
        way.name().to_owned(),
        spread(&slow, 0),
        format!("{:.0}", median(of(&|row| row.misses()[0]))),
        format!("{:.0} µs", median(of(&|row| row.modelled_us()))),
        format!(
            "{:.0} of {}",
            median(of(&|row| row.hot_on_fast as f64)),
            first.hot
        ),
        format!("{:.0}", median(of(&|row| row.moved as f64))),
        format!("{:.0}", median(of(&|row| row.moved_in_vain() as f64))),
        if_any(
            way.places() && !settled.is_empty(),
            format!("{:.0}", median(settled)),
        ),
        if_any(
            placed_by_us,
            format!("{:.1} s", median(of(&|row| seconds(row.cpu.daemon_cs)))),
        ),
        format!(
            "{:.1} s",
            median(of(&|row| seconds(row.cpu.kernel_threads_cs)))
        ),
        if_any(
            placed_by_us,
            format!(
                "{:.0} MiB",
                median(of(&|row| row.daemon_kib as f64)) / 1024.0
            ),
        ),
        spread(&rate, 1),
    ];
    Some(format!("| {} |\n", cells.join(" | ")))
}

/// A figure that a way may not have.
fn if_any(has: bool, figure: String) -> String {
    if has { figure } else { "–".into() }
}

/// The median, and the least and the most if there are several.
fn spread(figures: &[f64], digits: usize) -> String {
    let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let most = figures.iter().copied().fold(0.0, f64::max);
    let middle = median(figures.to_vec());
    match figures.len() {
        1 => format!("{middle:.digits$}"),
        _ => format!("{middle:.digits$} ({least:.digits$}–{most:.digits$})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::slow_node::Counts;

    fn row(way: Way, run: u32, misses: u64) -> Row {
        Row {
            name: way.name().into(),
            run,
            hot: 10,
            hot_on_fast: 9,
            passes: 10,
            seconds: 5.0,
            slow: Counts {
                load_misses: misses,
                ..Counts::default()
            },
            moved: 12,
            ..Row::default()
        }
    }

    #[test]
    fn a_line_has_the_median_of_its_runs_and_how_far_they_lie_apart() {
        let rows = [300, 100, 200].map(|misses| row(Way::Terrace, 1, misses));
        let table = markdown(&rows);
        assert!(
            table.contains("| terrace, policy terrace | 20 (10–30) |"),
            "{table}"
        );
        assert!(table.contains("| 9 of 10 | 12 | 3 |"), "{table}");
        assert_eq!(table.lines().count(), 3, "ways without a run have no line");
    }

    #[test]
    fn who_has_no_daemon_has_no_figures_of_one() {
        let table = markdown(&[row(Way::AllSlow, 1, 100)]);
        assert!(table.contains("| – | – | 0.0 s | – | 2.0 |"), "{table}");
    }
}
