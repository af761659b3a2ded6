//! HyperTier: guests that place their own pages.

mod many_vms;
mod parameters;
mod provision;

use super::Experiment;
use super::order::System;
use super::row::Input;

/// The policies by which guests place their pages: the name in the rows, and the policy as scenarios have it. The
/// first two are HyperTier's own, ours and the one by the letter of the paper.
const POLICIES: [(&str, &str); 5] = [
    ("hyperplace", "\"hyperplace\""),
    (LITERAL, "{ base = \"hyperplace\", literal = true }"),
    ("memtis", "\"memtis\""),
    ("tpp", "\"tpp\""),
    ("nomad", "\"nomad\""),
];

/// The name of HyperPlace by the letter in the rows.
const LITERAL: &str = "hyperplace by the letter";

/// The input that says which of the two HyperPlace is.
const BY_THE_LETTER: Input = Input {
    what: "hyperplace is our agent, which departs from the text in some places; \"by the letter\" is what the text says",
    from: "§4.2; docs/baselines/hyperplace.md",
};

/// The policies with which HyperTier is compared.
const OTHERS: [&str; 3] = ["memtis", "tpp", "nomad"];

/// The two that are HyperTier's own.
const OWN: [&str; 2] = ["hyperplace", LITERAL];

/// A policy as scenarios have it.
fn policy_text(name: &str) -> &'static str {
    let found = POLICIES.iter().find(|(known, _)| *known == name);
    found.map_or("", |(_, text)| text)
}

/// Systems of which more is better, the best place first.
fn places(systems: &[(f64, &str)], of: impl Fn(&str) -> Result<f64, String>) -> Vec<System> {
    let system = |(place, name): &(f64, &str)| System::new(-place, of(name));
    systems.iter().map(system).collect()
}

/// The experiments of HyperTier.
pub const EXPERIMENTS: &[&Experiment] = &[
    &many_vms::FIGURE_1,
    &provision::FIGURE_4,
    &many_vms::FIGURE_6,
    &many_vms::FIGURE_7,
    &parameters::FIGURE_8,
];
