//! The demand of VMs whose policy tracks it: the miss-ratio curve, and the demand of each second.

use terrace_sim::{Demand, DemandCurve, number::float};

use super::cast::{Cast, result};
use super::chart::{Axis, Chart};
use super::format::{at, escaped};

/// Height of a chart, pixels.
const HEIGHT: f64 = 230.0;

/// The smallest miss ratio that is drawn, as a power of ten: HPMBS's curves end at 10^-8.
const LEAST_POWER: i32 = -8;

/// Charts of all VMs that have a demand; empty if none has.
pub fn draw(cast: &Cast) -> String {
    let charts = cast
        .vms
        .iter()
        .map(|vm| curves(cast, vm) + &seconds(cast, vm));
    let charts: String = charts.collect();
    if cast.vms.iter().all(|vm| demands(cast, vm).is_empty()) {
        return String::new();
    }
    format!(
        "<p>Misses that each size of memory would have, by tracked accesses; left of the thin line the curve is a guess. \
         It ends at the VM's size: what more memory than that would save is not seen. \
         Then the demand of each second, with a thin line where a phase begins.</p>\n{}<div class=\"cards\">\n{charts}</div>\n",
        cautions(cast)
    )
}

/// A paragraph for each reason to believe less of a VM's demand.
fn cautions(cast: &Cast) -> String {
    let of_vm = |vm: &&str| {
        let all = demands(cast, vm);
        let of = |(policy, _, demand): &(&str, String, &Demand)| {
            let line = |caution: &str| {
                format!(
                    "<p>{}</p>\n",
                    escaped(&format!("{policy}, {vm}: {caution}."))
                )
            };
            demand.cautions().into_iter().map(line).collect::<String>()
        };
        all.iter().map(of).collect::<String>()
    };
    cast.vms.iter().map(of_vm).collect()
}

/// The demands of a VM with their policies and colours.
fn demands<'a>(cast: &Cast<'a>, vm: &str) -> Vec<(&'a str, String, &'a Demand)> {
    let of = |run: &&'a terrace_sim::Output| {
        let policy = run.result.policy.as_str();
        let demand = result(run, vm)?.demand.as_ref()?;
        Some((policy, cast.colour(policy), demand))
    };
    cast.runs.iter().filter_map(of).collect()
}

fn curves(cast: &Cast, vm: &str) -> String {
    let all = demands(cast, vm);
    let all: Vec<_> = all
        .iter()
        .filter_map(|(policy, colour, demand)| Some((policy, colour, demand.curve.as_ref()?)))
        .collect();
    let largest = |curve: &DemandCurve| curve.points.last().map_or(0, |point| point.bytes);
    let Some(most) = all.iter().map(|(.., curve)| largest(curve)).max() else {
        return String::new();
    };
    let power = |at: i32| (f64::from(at), format!("1e{at}"));
    let ticks = (LEAST_POWER..=0).map(power).collect();
    let y = Axis::new(f64::from(LEAST_POWER), 0.0, ticks, "miss ratio");
    let mut chart = Chart::new(HEIGHT, Axis::bytes(most, "memory"), y);
    for (policy, colour, curve) in all {
        mark(&mut chart, float(curve.guess_below_bytes));
        let place = |(number, point): (usize, &terrace_sim::DemandPoint)| {
            let (x, y) = (
                chart.x(float(point.bytes)),
                chart.y(power_of(point.miss_ratio)),
            );
            format!("{}{} {}", if number == 0 { 'M' } else { 'L' }, at(x), at(y))
        };
        let path: String = curve.points.iter().enumerate().map(place).collect();
        let title = format!("{policy}, {}", curve.source);
        chart.draw(&format!(
            "<path class=\"line {colour}\" d=\"{path}\"><title>{}</title></path>",
            escaped(&title)
        ));
    }
    chart.figure(&format!("{vm}: misses by memory"))
}

/// The power of ten of a miss ratio, as far down as is drawn.
fn power_of(ratio: f64) -> f64 {
    let least = f64::from(LEAST_POWER);
    if ratio > 0.0 {
        libm::log10(ratio).max(least)
    } else {
        least
    }
}

fn seconds(cast: &Cast, vm: &str) -> String {
    let all = demands(cast, vm);
    let sets = || all.iter().flat_map(|(.., demand)| &demand.working_sets);
    let most = sets()
        .map(|set| set.demand_bytes.max(set.footprint_bytes))
        .max();
    let (Some(most), Some(end)) = (most, sets().map(|set| set.at_s).reduce(f64::max)) else {
        return String::new();
    };
    let mut chart = Chart::new(HEIGHT, Axis::seconds(end), Axis::bytes(most, "demand"));
    for (policy, colour, demand) in &all {
        let began = demand.phases.iter().filter(|phase| phase.change == "began");
        began.for_each(|phase| mark(&mut chart, phase.at_s));
        let mut steps: Vec<(f64, f64, f64)> = Vec::new();
        for set in &demand.working_sets {
            // A gap where nothing was tracked: a step is a second, or as long as those of a long run.
            let from = steps.last().map_or(set.at_s - 1.0, |(_, to, _)| *to);
            let gap = set.at_s - from > 1.5;
            let from = if gap { set.at_s - 1.0 } else { from };
            if gap {
                steps.push((from, from, f64::NAN));
            }
            steps.push((from, set.at_s, float(set.demand_bytes)));
        }
        chart.steps(colour, policy, &steps);
    }
    chart.figure(&format!("{vm}: demand over time"))
}

/// Adds a thin line up the chart.
fn mark(chart: &mut Chart, x: f64) {
    let (low, high) = chart.ends();
    let line = format!(
        "M{} {}V{}",
        at(chart.x(x)),
        at(chart.y(low)),
        at(chart.y(high))
    );
    chart.draw(&format!("<path class=\"mark\" d=\"{line}\"/>"));
}
