//! Tests of the keys about tiers under load.

use terrace_sim::{Scenario, presets};

use super::faults::refused;
use super::{MINIMAL, parse};

const FAR: &str = r#"{ name = "far", kind = "cxl", read_ns = 250, write_ns = 250, read_gb_s = 40, write_gb_s = 30 }"#;

/// A scenario whose second tier is `far` with more keys.
fn with(keys: &str) -> String {
    let tier = FAR.replace(" }", &format!(", {keys} }}"));
    MINIMAL.replace("\"pmem\"", &tier)
}

fn far(keys: &str) -> terrace_sim::Tier {
    let scenario: Scenario = parse(&with(keys)).unwrap_or_else(|error| panic!("{error}"));
    scenario.machine.tiers[1].clone()
}

#[test]
fn a_tier_has_the_measured_curve_of_its_kind() {
    let service = far("line = 64").service.expect("measured");
    assert_eq!((service.duplex, service.writers), (None, None));
    let pmem = presets()
        .into_iter()
        .find(|tier| tier.name == "pmem")
        .unwrap();
    assert_eq!(pmem.service.unwrap().writers, Some(4));
    assert!(presets().iter().all(|tier| tier.service.is_some()));
}

#[test]
fn a_user_writes_his_own_machines_curve() {
    let own = "loaded = { reads = [1, 1.1, 1.2, 1.3, 1.4, 1.5, 2], duplex = 1.5, writers = 2 }, effective = 0.5";
    let tier = far(own);
    let service = tier.service.expect("measured");
    assert_eq!(service.curve.reads[6], 2.0);
    // Whoever gives no curve of mixed traffic has that of reads.
    assert_eq!(service.curve.mixed, service.curve.reads);
    assert_eq!((service.duplex, service.writers), (Some(1.5), Some(2)));
    assert_eq!((tier.read_gb_s, tier.write_gb_s), (20.0, 15.0));
}

#[test]
fn rows_of_bandwidth_and_latency_become_a_curve() {
    let rows = "loaded = { measured = [[0, 100], [50, 110], [80, 150], [100, 300]], measured_mixed = [[0, 100], [40, 120], [60, 400]] }";
    let curve = far(rows).service.expect("measured").curve;
    let near = |found: &[f64], expected: &[f64]| {
        let pairs = found.iter().zip(expected);
        assert!(
            pairs.clone().all(|(a, b)| (a - b).abs() < 1e-3),
            "{found:?}"
        );
    };
    near(&curve.reads, &[1.04, 1.08, 1.2333, 1.5, 2.25, 2.625, 3.0]);
    near(&curve.mixed, &[1.06, 1.12, 1.18, 2.32, 3.16, 3.58, 4.0]);
}

#[test]
fn a_queue_is_for_all_tiers() {
    let text = with("line = 64").replace("[machine]", "[machine]\nloaded_latency = \"queue\"");
    let scenario: Scenario = parse(&text).unwrap_or_else(|error| panic!("{error}"));
    assert!(
        scenario
            .machine
            .tiers
            .iter()
            .all(|tier| tier.service.is_none())
    );
}

#[test]
fn curves_that_no_machine_can_have_are_refused() {
    for (keys, path, phrases) in [
        (
            "loaded = { reads = [1, 2] }",
            "loaded.reads",
            ["2 numbers: expected 7", "never fall"],
        ),
        (
            "loaded = { reads = [1, 1, 1, 1, 1, 2, 0.5] }",
            "loaded.reads",
            ["0.5, where at least 2 is", "7 ratios from 1 to 40"],
        ),
        (
            "loaded = { mixed = [1, 2, 1.5, 2, 2, 2, 2] }",
            "loaded.mixed",
            [
                "1.5, where at least 2 is",
                "0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1",
            ],
        ),
        (
            "loaded = { reads = [93, 97, 104, 120, 142, 190, 240] }",
            "loaded.reads",
            [
                "93, where at least 1 is",
                "rows of GB/s and ns go into measured",
            ],
        ),
        (
            "loaded = { measured = [[5, 89], [60, 80], [90, 100]] }",
            "loaded.measured",
            ["three or more rows", "latency never falls"],
        ),
        (
            "loaded = { measured = [[5, 89], [60, 100]] }",
            "loaded.measured",
            ["three or more rows", "in GB/s and ns"],
        ),
        (
            "loaded = { measured = [[5, 1], [6, 2], [7, 3]], reads = [1, 1, 1, 1, 1, 1, 1] }",
            "loaded.measured",
            ["measured and reads stand for each other", "not both"],
        ),
        (
            "loaded = { duplex = 2.5 }",
            "loaded.duplex",
            ["2.5 is out of range", "1 to 2"],
        ),
        (
            "loaded = { writers = 0 }",
            "loaded.writers",
            ["0 is out of range", "1 to 4294967295"],
        ),
        (
            "effective = 1.5",
            "effective",
            ["1.5 is out of range", "0.01 to 1 of the bandwidth"],
        ),
    ] {
        let at = format!("2: machine.tiers.{path}");
        refused(&with(keys), "", "", &at, &phrases);
    }
}
