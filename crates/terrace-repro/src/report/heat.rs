//! The map of a load's accesses: address × time.

use terrace_sim::{Output, VmTimeline, number::float};

use super::cast::{Cast, timeline};
use super::chart::{Axis, Chart};
use super::format::{at, fixed, length, percent, unit};
use super::stretch::{Stretch, fewer_cells, stretches};

/// Cells of memory that a picture shows at most.
const CELLS: usize = 64;
/// Shares of the hottest cell at which a colour ends: three decades in equal factors. What is colder
/// but not idle has the first colour, what is hotter than all of them the last.
const STEPS: [f64; 8] = [
    0.002_15, 0.004_64, 0.01, 0.021_5, 0.046_4, 0.1, 0.215, 0.464,
];
/// Fields of a picture that tell their numbers: over time, over memory.
const HINTS: (usize, usize) = (12, 8);

/// The maps of all VMs; a load's accesses are the same under every policy, so one run is enough.
pub fn draw(cast: &Cast) -> String {
    let maps = cast.vms.iter().filter_map(|vm| {
        let mut runs = cast.runs.iter();
        let found = runs.find_map(|run| with_heat(run, vm).map(|heat| (*run, heat)));
        found.map(|(run, heat)| map(vm, run, heat))
    });
    let maps: String = maps.collect();
    if maps.is_empty() {
        return "<p>No heat was recorded.</p>\n".into();
    }
    format!("{}<div class=\"cards\">\n{maps}</div>\n", legend())
}

fn with_heat<'a>(run: &'a Output, vm: &str) -> Option<&'a VmTimeline> {
    let found = timeline(run, vm)?;
    let mut samples = found.samples.iter();
    samples.any(|s| !s.heat.is_empty()).then_some(found)
}

fn legend() -> String {
    let mut out = String::from(
        "<p class=\"legend\"><span>accesses, log scale: idle</span><span class=\"ramp\">",
    );
    for colour in 0..=STEPS.len() + 1 {
        out += &format!("<i class=\"h{colour}\"></i>");
    }
    out + "</span><span>hottest; one colour is a factor of 2.15</span></p>\n"
}

fn map(vm: &str, run: &Output, heat: &VmTimeline) -> String {
    let mut stretches = stretches(heat);
    let rows = fewer_cells(&mut stretches, CELLS);
    let end = stretches.last().map_or(0.0, |s| s.to);
    let y = if heat.memory_bytes > 0 {
        Axis::bytes(heat.memory_bytes, "address")
    } else {
        Axis::new(0.0, 1.0, Vec::new(), "address")
    };
    let mut chart = Chart::new(230.0, Axis::seconds(end), y);
    let (_, top) = chart.ends();
    let row = |r: usize| length(r) / rows * top;
    cells(&mut chart, &stretches, &row);
    hints(&mut chart, &stretches, heat.memory_bytes, rows);
    chart.figure(&format!("{vm} (under {})", run.result.policy))
}

/// All cells of one colour are one path: as many short lines as thick as a row.
fn cells(chart: &mut Chart, stretches: &[Stretch], row: &dyn Fn(usize) -> f64) {
    let rate = |s: &Stretch, n: u64| float(n) / (s.to - s.from);
    let rates = stretches
        .iter()
        .flat_map(|s| s.heat.iter().map(move |n| rate(s, *n)));
    let most = rates.fold(0.0, f64::max);
    let rows = stretches.first().map_or(0, |s| s.heat.len());
    let mut paths = vec![String::new(); STEPS.len() + 2];
    for r in 0..rows {
        let middle = at((chart.y(row(r)) + chart.y(row(r + 1))) / 2.0);
        let colours = stretches.iter().map(|s| colour(rate(s, s.heat[r]) / most));
        let colours: Vec<usize> = colours.collect();
        let mut first = 0;
        for run in colours.chunk_by(|a, b| a == b) {
            let last = first + run.len() - 1;
            let (from, to) = (chart.x(stretches[first].from), chart.x(stretches[last].to));
            paths[run[0]] += &format!("M{} {middle}H{}", at(from), at(to));
            first = last + 1;
        }
    }
    // A little more than a row, so that no gap shows between rows.
    let thick = fixed(chart.y(row(0)) - chart.y(row(1)) + 0.3, 2);
    for (colour, path) in paths.iter().enumerate().filter(|(_, p)| !p.is_empty()) {
        chart.draw(&format!(
            "<path class=\"heat h{colour}\" stroke-width=\"{thick}\" d=\"{path}\"/>"
        ));
    }
}

/// The colour of a share of the hottest cell: 0 is idle.
fn colour(share: f64) -> usize {
    if share > 0.0 {
        1 + STEPS.iter().filter(|step| share >= **step).count()
    } else {
        0
    }
}

fn hints(chart: &mut Chart, stretches: &[Stretch], memory: u64, rows: f64) {
    let (_, top) = chart.ends();
    let scale = |r: usize| (length(r) / rows).min(1.0);
    for part in stretches.chunks(stretches.len().div_ceil(HINTS.0).max(1)) {
        let (Some(first), Some(last)) = (part.first(), part.last()) else {
            continue;
        };
        let sum = |from: usize, to: usize| -> f64 {
            let cells = part.iter().flat_map(|s| &s.heat[from..to]);
            cells.map(|n| float(*n)).sum()
        };
        let cells = first.heat.len();
        let all = sum(0, cells);
        let together = cells.div_ceil(HINTS.1).max(1);
        for from in (0..cells).step_by(together) {
            let to = (from + together).min(cells);
            let share = if all > 0.0 { sum(from, to) / all } else { 0.0 };
            let address = |r| bytes_at(memory, scale(r));
            let text = format!(
                "{}–{} s, {} to {}: {} of the accesses",
                fixed(first.from, 1),
                fixed(last.to, 1),
                address(from),
                address(to),
                percent(share),
            );
            let rows = (scale(from) * top, scale(to) * top);
            chart.hint((first.from, last.to), rows, &text);
        }
    }
}

/// A share of memory as an address.
fn bytes_at(memory: u64, share: f64) -> String {
    let (name, size) = unit(memory.max(1));
    format!("{} {name}", fixed(float(memory) * share / size, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_follow_the_logarithm() {
        let shares = [0.0, 1e-9, 0.003, 0.05, 0.1, 0.3, 1.0];
        assert_eq!(shares.map(colour), [0, 1, 2, 6, 7, 8, 9]);
        assert_eq!(colour(f64::NAN), 0, "no access at all");
    }
}
