//! The engine's parameters in a scenario.

use super::MINIMAL;
use super::faults::refused;

#[test]
fn engine_parameters_out_of_range_or_said_elsewhere_are_refused() {
    let with = |line: &str| format!("[engine]\n{line}\n[[vm]]");
    let range = ["windows = 99", "1 to 30"];
    refused(
        MINIMAL,
        "[[vm]]",
        &with("windows = 99"),
        "3: engine",
        &range,
    );
    let key = ["unknown field `windos`"];
    refused(
        MINIMAL,
        "[[vm]]",
        &with("windos = 9"),
        "4: engine.windos",
        &key,
    );
    let elsewhere = ["by `seed`"];
    let seed = with("random_seed = 9");
    refused(
        MINIMAL,
        "[[vm]]",
        &seed,
        "4: engine.random_seed",
        &elsewhere,
    );
}
