//! Fast hits, moves and tier occupancy over time.

use terrace_sim::number::float;

use super::cast::{Cast, timeline};
use super::chart::{Axis, Chart, figure};
use super::format::{at, bytes, escaped, fixed, percent, short};
use super::stretch::{Stretch, stretches};

/// Tiers that have colours in the style sheet.
const TIERS: usize = 4;
/// Places of a chart that tell their numbers to whoever points at them.
const HINTS: usize = 40;

/// One run's line in a chart.
struct Series<'a> {
    policy: &'a str,
    colour: String,
    stretches: Vec<Stretch>,
}

/// Fast hits and moves: both charts of each VM on a card, a line per run.
pub fn hits_and_moves(cast: &Cast) -> String {
    let mut out = String::from("<div class=\"cards\">\n");
    for vm in &cast.vms {
        let series = cast.runs.iter().filter_map(|run| {
            Some(Series {
                policy: &run.result.policy,
                colour: cast.colour(&run.result.policy),
                stretches: stretches(timeline(run, vm)?),
            })
        });
        let series: Vec<Series> = series.collect();
        if !series.is_empty() {
            let charts = hits(&series, cast.end(), vm) + &moves(&series, cast.end(), vm);
            out += &figure(vm, &charts);
        }
    }
    out + "</div>\n"
}

fn hits(series: &[Series], end: f64, vm: &str) -> String {
    let ticks = [0.0, 0.25, 0.5, 0.75, 1.0].map(|t| (t, short(t * 100.0)));
    let y = Axis::new(
        0.0,
        1.0,
        ticks.to_vec(),
        "accesses served by the first tier, %",
    );
    let mut chart = Chart::new(190.0, Axis::seconds(end), y);
    for one in series {
        let line = |s: &Stretch| (s.from, s.to, s.fast_hit_ratio);
        let line: Vec<_> = one.stretches.iter().map(line).collect();
        chart.steps(&one.colour, one.policy, &line);
    }
    hints(&mut chart, series, |s| percent(s.fast_hit_ratio));
    chart.svg(&format!("{vm}: accesses served by the first tier"))
}

/// Promotions above the axis, demotions below.
fn moves(series: &[Series], end: f64, vm: &str) -> String {
    let all = || series.iter().flat_map(|one| &one.stretches);
    let up = all().map(|s| s.promoted_per_s).fold(0.0, f64::max);
    let down = all().map(|s| s.demoted_per_s).fold(0.0, f64::max);
    let y = Axis::numbers(
        -down * 1.05,
        up * 1.05,
        "4 KiB pages moved per s: promoted above 0, demoted below",
    );
    let mut chart = Chart::new(190.0, Axis::seconds(end), y);
    for one in series {
        let stretches = one.stretches.iter();
        let line = stretches.clone().map(|s| (s.from, s.to, s.promoted_per_s));
        chart.steps(&one.colour, one.policy, &line.collect::<Vec<_>>());
        let line = stretches.map(|s| (s.from, s.to, -s.demoted_per_s));
        chart.steps(&one.colour, one.policy, &line.collect::<Vec<_>>());
    }
    hints(&mut chart, series, |s| {
        format!("+{} −{}", short(s.promoted_per_s), short(s.demoted_per_s))
    });
    chart.svg(&format!("{vm}: pages moved"))
}

/// Every run's value beside the time, for the longest run's stretches.
fn hints(chart: &mut Chart, series: &[Series], value: fn(&Stretch) -> String) {
    let longest = series.iter().max_by(|a, b| end(a).total_cmp(&end(b)));
    let Some(longest) = longest else { return };
    let together = longest.stretches.len().div_ceil(HINTS).max(1);
    for part in longest.stretches.chunks(together) {
        let (Some(first), Some(last)) = (part.first(), part.last()) else {
            continue;
        };
        let middle = (first.from + last.to) / 2.0;
        let mut text = format!("{}–{} s", fixed(first.from, 1), fixed(last.to, 1));
        for one in series {
            let here = one
                .stretches
                .iter()
                .find(|s| s.from <= middle && middle < s.to);
            if let Some(here) = here {
                text += &format!("\n{}: {}", one.policy, value(here));
            }
        }
        let ends = chart.ends();
        chart.hint((first.from, last.to), ends, &text);
    }
}

fn end(series: &Series) -> f64 {
    series.stretches.last().map_or(0.0, |s| s.to)
}

/// Who holds what: a card per VM, a chart per run.
pub fn tiers(cast: &Cast) -> String {
    let names = cast.runs.iter().map(|run| &run.timeline.tiers);
    let names = names.max_by_key(|names| names.len());
    let names = names.map_or(&[][..], Vec::as_slice);
    let mut out = String::from("<p class=\"legend\">");
    for (i, name) in names.iter().enumerate() {
        out += &format!(
            "<span><i class=\"t{}\"></i>{}</span>",
            i.min(TIERS - 1),
            escaped(name)
        );
    }
    out += "</p>\n<div class=\"cards\">\n";
    for vm in &cast.vms {
        let of = |run| Some(stretches(timeline(run, vm)?));
        let all: Vec<_> = cast.runs.iter().map(|run| (of(run), run)).collect();
        let held = all
            .iter()
            .flat_map(|(s, _)| s)
            .flatten()
            .map(|s| held(&s.tier_bytes));
        let most = held.max().unwrap_or(0);
        let mut charts = String::new();
        for (stretches, run) in &all {
            if let Some(stretches) = stretches {
                let ends = (cast.end(), most);
                charts += &areas(stretches, ends, names, vm, &run.result.policy);
            }
        }
        if !charts.is_empty() {
            out += &figure(vm, &charts);
        }
    }
    out + "</div>\n"
}

fn held(tiers: &[u64]) -> u64 {
    tiers.iter().fold(0, |sum, n| sum.saturating_add(*n))
}

fn areas(
    stretches: &[Stretch],
    (end, most): (f64, u64),
    names: &[String],
    vm: &str,
    policy: &str,
) -> String {
    let mut chart = Chart::new(
        170.0,
        Axis::seconds(end),
        Axis::bytes(most, &format!("{policy}: held")),
    );
    let tiers = stretches
        .iter()
        .map(|s| s.tier_bytes.len())
        .max()
        .unwrap_or(0);
    let name = |tier: usize| names.get(tier).map_or("another tier", String::as_str);
    // From the whole to the first tier: each covers what is not its own.
    for tier in (0..tiers).rev() {
        let up_to = |s: &Stretch| {
            let own = s.tier_bytes.get(..=tier);
            float(held(own.unwrap_or(&s.tier_bytes)))
        };
        let mut path = String::new();
        for s in stretches {
            let (from, to, y) = (chart.x(s.from), chart.x(s.to), chart.y(up_to(s)));
            let start = if path.is_empty() {
                format!("M{} {}V{}", at(from), at(chart.y(0.0)), at(y))
            } else {
                format!("V{}", at(y))
            };
            path += &format!("{start}H{}", at(to));
        }
        path += &format!("V{}Z", at(chart.y(0.0)));
        let class = tier.min(TIERS - 1);
        chart.draw(&format!(
            "<path class=\"area t{class}\" d=\"{path}\"><title>{}</title></path>",
            escaped(name(tier))
        ));
    }
    let together = stretches.len().div_ceil(HINTS / 2).max(1);
    for part in stretches.chunks(together) {
        let (Some(first), Some(last)) = (part.first(), part.last()) else {
            continue;
        };
        let mut text = format!("at {} s", fixed(last.to, 1));
        for (tier, held) in last.tier_bytes.iter().enumerate() {
            text += &format!("\n{}: {}", name(tier), bytes(*held));
        }
        let ends = chart.ends();
        chart.hint((first.from, last.to), ends, &text);
    }
    chart.svg(&format!("{vm}: tiers under {policy}"))
}
