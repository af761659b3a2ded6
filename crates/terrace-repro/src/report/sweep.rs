//! Slowdown against what is swept: a line per policy, a chart per VM.

use terrace_sim::number::float;

use super::cast::{Cast, result, swept};
use super::chart::{Axis, Chart};
use super::format::{at, bytes, escaped, fixed};

/// Charts of all VMs; empty if nothing is swept.
pub fn draw(cast: &Cast) -> String {
    let mut values: Vec<u64> = cast.sweep().into_iter().flatten().collect();
    values.sort_unstable();
    let (Some(least), Some(most)) = (values.first(), values.last()) else {
        return String::new();
    };
    // Sweeps double unless told otherwise: equal factors are equal steps.
    let (low, high) = (log2_bytes(*least), log2_bytes(*most));
    let room = if high > low { 0.0 } else { 0.5 };
    let ticks = values.iter().map(|v| (log2_bytes(*v), bytes(*v))).collect();
    let key = cast.runs.iter().find_map(|r| r.result.sweep.as_ref());
    let key = key.map_or_else(String::new, |s| format!("{} memory", s.key));
    let x = Axis::new(low - room, high + room, ticks, &key);
    let charts = cast.vms.iter().map(|vm| chart(cast, vm, &values, &x));
    format!(
        "<div class=\"cards\">\n{}</div>\n",
        charts.collect::<String>()
    )
}

fn log2_bytes(bytes: u64) -> f64 {
    libm::log2(float(bytes.max(1)))
}

fn chart(cast: &Cast, vm: &str, values: &[u64], x: &Axis) -> String {
    let slowdown = |policy: &str, value: u64| {
        let mut runs = cast.runs.iter();
        let run = runs.find(|r| r.result.policy == policy && swept(r) == Some(value))?;
        let slowdown = result(run, vm)?.slowdown_vs_all_fast;
        slowdown.filter(|s| s.is_finite())
    };
    let all = cast.policies().map(|(policy, _)| policy);
    let all = all.flat_map(|p| values.iter().filter_map(move |v| slowdown(p, *v)));
    let most = all.fold(1.0, f64::max);
    let mut chart = Chart::new(
        230.0,
        x.clone(),
        Axis::numbers(0.0, most * 1.05, "slowdown against all-fast"),
    );
    let (left, right) = x.ends();
    let line = format!(
        "M{} {}H{}",
        at(chart.x(left)),
        at(chart.y(1.0)),
        at(chart.x(right))
    );
    chart.draw(&format!("<path class=\"mark\" d=\"{line}\"/>"));
    for (policy, colour) in cast.policies() {
        let mut path = String::new();
        let mut dots = String::new();
        for value in values {
            let Some(slowdown) = slowdown(policy, *value) else {
                continue;
            };
            let (x, y) = (at(chart.x(log2_bytes(*value))), at(chart.y(slowdown)));
            path += &format!("{}{x} {y}", if path.is_empty() { 'M' } else { 'L' });
            dots += &format!(
                "<circle class=\"dot {colour}\" cx=\"{x}\" cy=\"{y}\" r=\"3.5\">\
                 <title>{} at {}: {}</title></circle>",
                escaped(policy),
                bytes(*value),
                fixed(slowdown, 3)
            );
        }
        if !path.is_empty() {
            chart.draw(&format!(
                "<path class=\"line {colour}\" d=\"{path}\"/>{dots}"
            ));
        }
    }
    chart.figure(vm)
}
