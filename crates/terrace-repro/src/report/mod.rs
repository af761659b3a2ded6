//! A run, or several, as one page for a browser.
//!
//! Responsible for: one file that needs nothing else: no script, no font, no network; light and dark;
//! the same bytes for the same runs. It leaves to others: writing it, and the figures.

mod bars;
mod cast;
mod chart;
mod demand;
mod format;
mod heat;
mod over_time;
mod sizes;
mod stretch;
mod sweep;
mod table;
#[cfg(test)]
mod tests;

use cast::Cast;
use format::{bytes, escaped, fixed};
use terrace_sim::Output;

const STYLE: &str = include_str!("style.css");

/// The page of these runs, in their order. Runs of a sweep carry its value.
#[must_use]
pub fn html(title: &str, runs: &[Output]) -> String {
    let cast = Cast::new(runs);
    let title = escaped(title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header><h1>{title}</h1>\n{}</header>\n<main>\n",
        facts(runs)
    );
    if runs.is_empty() {
        page += "<p>There are no runs.</p>\n";
    } else {
        page += &section("Summary", &table::draw(&cast));
        page += &parts(&cast);
    }
    page + "</main>\n</body>\n</html>\n"
}

/// The facts that all runs have in common.
fn facts(runs: &[Output]) -> String {
    let Some(first) = runs.first().map(|run| &run.result) else {
        return String::new();
    };
    let longest = runs.iter().map(|run| run.result.simulated_s);
    let longest = longest.filter(|s| s.is_finite()).fold(0.0, f64::max);
    format!(
        "<p>Scenario <b>{}</b>, seed {}, scale {}; {} {}, up to {} s of the full-size machine. All \
         times, sizes and counts are of the full-size machine.</p>\n",
        escaped(&first.scenario),
        first.seed,
        first.scale,
        runs.len(),
        if runs.len() == 1 { "run" } else { "runs" },
        fixed(longest, 1),
    )
}

fn parts(cast: &Cast) -> String {
    let legend = legend(cast);
    let mut out = String::new();
    for share in cast.shares() {
        let cast = cast.sharing(share);
        let share = share.map(|share| format!("share {}", escaped(share)));
        let lines = sweep::draw(&cast);
        if !lines.is_empty() {
            let of = share.as_ref().map_or(String::new(), |of| format!(", {of}"));
            let title = format!("Slowdown by fast memory{of}");
            out += &section(&title, &(legend.clone() + &lines));
        }
        for value in cast.sweep() {
            let body = of_one_place(&cast.swept(value), &legend);
            let names: Vec<String> = share.iter().cloned().chain(value.map(bytes)).collect();
            out += &match names.is_empty() {
                false => {
                    let name = names.join(", ");
                    format!("<details><summary>Runs with {name}</summary>\n{body}</details>\n")
                }
                true => body,
            };
        }
    }
    if cast.end() > 0.0 {
        out += &section("Heat: address and time", &heat::draw(cast));
    } else {
        out += "<p>No timeline was recorded: there is nothing to show over time.</p>\n";
    }
    out
}

/// The pictures of the runs of one place: of one value of a sweep, or of one rule of sharing.
fn of_one_place(here: &Cast, legend: &str) -> String {
    let mut body = section("Run time and slowdown", &bars::draw(here));
    let sizes = sizes::draw(here);
    if !sizes.is_empty() {
        body += &section("Sizes over time", &(legend.to_owned() + &sizes));
    }
    let demand = demand::draw(here);
    if !demand.is_empty() {
        body += &section("Memory demand", &demand);
    }
    if here.end() > 0.0 {
        let lines = legend.to_owned() + &over_time::hits_and_moves(here);
        body += &section("Fast hits and moves over time", &lines);
        body += &section("Tier occupancy over time", &over_time::tiers(here));
    }
    body
}

fn section(title: &str, body: &str) -> String {
    format!("<section><h2>{title}</h2>\n{body}</section>\n")
}

/// The policies' colours; one policy needs no legend.
fn legend(cast: &Cast) -> String {
    let spans = cast.policies();
    let spans = spans.map(|(policy, colour)| {
        format!("<span><i class=\"{colour}\"></i>{}</span>", escaped(policy))
    });
    let spans: Vec<String> = spans.collect();
    if spans.len() < 2 {
        return String::new();
    }
    format!("<p class=\"legend\">{}</p>\n", spans.concat())
}
