//! Tests that each fault in a load is refused by a message that names the key, the value and the allowed values.

use std::path::Path;

use super::{Context, read};

/// Checks that a load is refused by a message with all the parts.
fn refused(keys: &str, parts: &[&str]) {
    let why = read(keys).expect_err(keys);
    for part in parts {
        assert!(why.contains(part), "{part:?} is not in: {why}");
    }
}

#[test]
fn an_unknown_key_is_named() {
    refused(
        r#"kind = "hotset", size = "1GiB", hot = 0.1, hut = 1, ops = 1"#,
        &["hotset", "unknown field `hut`", "`hot_access`"],
    );
}

#[test]
fn the_line_of_the_load_is_shown() {
    refused(
        r#"kind = "hotset", size = "1GiB", hot = 2, ops = 1"#,
        &["line 1"],
    );
}

#[test]
fn even_hot_pages_neither_drift_nor_change() {
    let keys = r#"kind = "hotset", size = "1GiB", hot = 0.1, layout = "even", ops = 1"#;
    refused(
        &format!("{keys}, drift_per_s = 0.1"),
        &["drift_per_s", "leave it out"],
    );
    let stages = r#"stages = 2, stage_every = "1s""#;
    refused(
        &format!("{keys}, {stages}"),
        &["stages", "leave stages out"],
    );
}

#[test]
fn too_many_fields_are_refused() {
    let keys = r#"kind = "multigrid", size = "1GiB", fields = 65, ops = 1"#;
    refused(keys, &["fields", "65", "at most 64"]);
}

#[test]
fn an_unknown_kind_is_named_with_all_kinds() {
    refused(
        r#"kind = "hutset", ops = 1"#,
        &["hutset", "hotset, sequential", "swapmix"],
    );
}

#[test]
fn a_kind_that_is_no_text_is_refused() {
    refused("kind = 3, ops = 1", &["kind = 3", "hotset"]);
}

#[test]
fn a_missing_kind_is_told() {
    refused("ops = 1", &["needs a kind"]);
}

#[test]
fn a_missing_key_is_named() {
    refused(
        r#"kind = "hotset", hot = 0.1, ops = 1"#,
        &["missing field `size`"],
    );
    refused(
        r#"kind = "hotset", size = "1GiB", ops = 1"#,
        &["missing field `hot`"],
    );
}

#[test]
fn a_load_that_never_ends_is_refused() {
    refused(
        r#"kind = "hotset", size = "1GiB", hot = 0.1"#,
        &["duration = ", "ops = "],
    );
}

#[test]
fn a_load_with_two_ends_is_refused() {
    refused(
        r#"kind = "hotset", size = "1GiB", hot = 0.1, ops = 1, duration = "1s""#,
        &["duration and ops"],
    );
}

#[test]
fn zero_ops_are_refused() {
    refused(
        r#"kind = "hotset", size = "1GiB", hot = 0.1, ops = 0"#,
        &["`ops`", "0 is out of bounds", "1 or more"],
    );
}

#[test]
fn negative_ops_are_refused() {
    refused(
        r#"kind = "hotset", size = "1GiB", hot = 0.1, ops = -5"#,
        &["`ops`", "-5"],
    );
}

#[test]
fn a_duration_of_zero_is_refused() {
    refused(
        r#"kind = "hotset", size = "1GiB", hot = 0.1, duration = "0s""#,
        &["`duration`", "\"0s\"", "more than 0"],
    );
}

#[test]
fn a_duration_that_overflows_is_refused() {
    refused(
        r#"kind = "hotset", size = "1GiB", hot = 0.1, duration = "9000y""#,
        &["`duration`", "9000y"],
    );
}

#[test]
fn a_duration_that_is_no_time_is_refused() {
    refused(
        r#"kind = "hotset", size = "1GiB", hot = 0.1, duration = "long""#,
        &["`duration`", "\"long\" is no time"],
    );
}

#[test]
fn a_share_above_1_is_refused() {
    refused(
        r#"kind = "hotset", size = "1GiB", hot = 1.5, ops = 1"#,
        &["`hot`", "1.5", "more than 0 and at most 1"],
    );
}

#[test]
fn a_hot_share_of_0_is_refused() {
    refused(
        r#"kind = "hotset", size = "1GiB", hot = 0, ops = 1"#,
        &["`hot`", "more than 0"],
    );
}

#[test]
fn a_negative_share_is_refused() {
    refused(
        r#"kind = "hotset", size = "1GiB", hot = 0.1, write = -0.1, ops = 1"#,
        &["`write`", "-0.1", "0 to 1"],
    );
}

#[test]
fn a_share_that_is_no_number_is_refused() {
    refused(
        r#"kind = "hotset", size = "1GiB", hot = nan, ops = 1"#,
        &["`hot`", "NaN"],
    );
    refused(
        r#"kind = "hotset", size = "1GiB", hot = inf, ops = 1"#,
        &["`hot`", "inf"],
    );
    refused(
        r#"kind = "hotset", size = "1GiB", hot = "x", ops = 1"#,
        &["`hot`", "\"x\""],
    );
}

#[test]
fn a_size_that_is_no_size_is_refused() {
    refused(
        r#"kind = "hotset", size = "big", hot = 0.1, ops = 1"#,
        &["`size`", "\"big\""],
    );
    refused(
        r#"kind = "hotset", size = "-1GiB", hot = 0.1, ops = 1"#,
        &["`size`", "\"-1GiB\""],
    );
    refused(
        r#"kind = "hotset", size = 5, hot = 0.1, ops = 1"#,
        &["`size`", "5"],
    );
}

#[test]
fn a_size_of_0_is_refused() {
    refused(
        r#"kind = "hotset", size = "0GiB", hot = 0.1, ops = 1"#,
        &["`size`", "\"0GiB\""],
    );
}

#[test]
fn a_size_that_overflows_is_refused() {
    refused(
        r#"kind = "hotset", size = "99999999999EiB", hot = 0.1, ops = 1"#,
        &["`size`", "at most 1PiB"],
    );
}

#[test]
fn a_size_of_broken_pages_is_refused() {
    refused(
        r#"kind = "hotset", size = "5000B", hot = 0.1, ops = 1"#,
        &["`size`", "5000", "4KiB pages"],
    );
}

#[test]
fn a_size_of_broken_pages_at_scale_is_refused() {
    let load = read(r#"kind = "hotset", size = "36KiB", hot = 0.1, ops = 1"#).expect("a load");
    let why = load
        .workload
        .pages(2, Path::new("."))
        .expect_err("4.5 pages");
    for part in ["size", "36864", "scale 2"] {
        assert!(why.0.contains(part), "{part:?} is not in: {why}");
    }
}

#[test]
fn a_scale_of_0_is_refused() {
    let load = read(r#"kind = "kv", keys = 10, value = "1KiB", ops = 1"#).expect("a load");
    assert!(load.workload.pages(0, Path::new(".")).is_err());
}

#[test]
fn stages_and_stage_every_need_each_other() {
    let keys = r#"kind = "hotset", size = "1GiB", hot = 0.1, ops = 1"#;
    refused(&format!("{keys}, stages = 3"), &["stage_every"]);
    refused(&format!(r#"{keys}, stage_every = "1s""#), &["needs stages"]);
}

#[test]
fn zero_stages_are_refused() {
    let keys = r#"kind = "hotset", size = "1GiB", hot = 0.1, stage_every = "1s", ops = 1"#;
    refused(&format!("{keys}, stages = 0"), &["`stages`", "from 1"]);
    refused(&format!("{keys}, stages = []"), &["`stages`", "[]"]);
}

#[test]
fn a_stage_of_an_impossible_share_is_refused() {
    refused(
        r#"kind = "hotset", size = "1GiB", stages = [0.1, 1.5], stage_every = "1s", ops = 1"#,
        &["`stages`", "1.5", "at most 1"],
    );
}

#[test]
fn hot_beside_a_list_of_stages_is_refused() {
    refused(
        r#"kind = "hotset", size = "1GiB", hot = 0.1, stages = [0.1], stage_every = "1s", ops = 1"#,
        &["leave hot out"],
    );
}

#[test]
fn keys_of_another_variant_of_gups_are_refused() {
    let keys = r#"kind = "gups", size = "1GiB", hot = 0.1, ops = 1"#;
    refused(
        &format!(r#"{keys}, variant = "hemem", weight = 3"#),
        &["weight", "hypertier"],
    );
    refused(
        &format!(r#"{keys}, variant = "colloid", move_at = "1s""#),
        &["move_at", "hemem"],
    );
    refused(
        &format!(r#"{keys}, variant = "other""#),
        &["other", "hemem"],
    );
}

#[test]
fn gups_without_a_cold_section_is_refused() {
    refused(
        r#"kind = "gups", variant = "hypertier", size = "1GiB", hot = 1, ops = 1"#,
        &["hot = 1", "less than 1"],
    );
}

#[test]
fn an_impossible_exponent_is_refused() {
    refused(
        r#"kind = "zipf", size = "1GiB", exponent = 0, ops = 1"#,
        &["`exponent`", "at most 10"],
    );
}

#[test]
fn a_value_that_is_too_large_is_refused() {
    refused(
        r#"kind = "kv", keys = 10, value = "2MiB", ops = 1"#,
        &["`value`", "2097152", "1MiB"],
    );
}

#[test]
fn zero_keys_are_refused() {
    refused(
        r#"kind = "kv", keys = 0, value = "1KiB", ops = 1"#,
        &["`keys`", "0 is"],
    );
}

#[test]
fn shares_of_requests_must_be_all() {
    refused(
        r#"kind = "ycsb", size = "1GiB", read = 0.5, update = 0.4, ops = 1"#,
        &["read + update + insert + scan = 0.9"],
    );
}

#[test]
fn too_many_vertices_are_refused() {
    refused(
        r#"kind = "graph", algorithm = "bfs", vertices = 5000000000, degree = 3, ops = 1"#,
        &["`vertices`", "4294967296"],
    );
}

#[test]
fn a_skew_that_turns_the_law_around_is_refused() {
    for skew in ["0.4", "1.0", "nan"] {
        let keys = format!(
            r#"kind = "graph", algorithm = "bfs", vertices = 5000, degree = 3, skew = {skew}, ops = 1"#
        );
        refused(&keys, &["`skew`", "0.5"]);
    }
}

#[test]
fn an_odd_number_of_arrays_is_refused() {
    refused(
        r#"kind = "stencil", size = "1GiB", arrays = 3, ops = 1"#,
        &["`arrays`", "even"],
    );
}

#[test]
fn a_node_of_one_child_is_refused() {
    refused(
        r#"kind = "btree", size = "1GiB", fanout = 1, ops = 1"#,
        &["`fanout`", "2 to 256"],
    );
}

#[test]
fn parallelism_below_1_is_refused() {
    refused(
        r#"kind = "zipf", size = "1GiB", exponent = 1, parallelism = 0.5, ops = 1"#,
        &["`parallelism`", "0.5"],
    );
}

#[test]
fn negative_compute_time_is_refused() {
    refused(
        r#"kind = "zipf", size = "1GiB", exponent = 1, compute_ns = -1, ops = 1"#,
        &["`compute_ns`", "-1"],
    );
}

#[test]
fn an_unknown_preset_is_named_with_all_of_the_kind() {
    refused(
        r#"kind = "ycsb", preset = "g", ops = 1"#,
        &["\"g\"", "a, b, c, d, e, f"],
    );
    refused(
        r#"kind = "linear", preset = "g", ops = 1"#,
        &["preset", "none"],
    );
}

#[test]
fn empty_phases_are_refused() {
    refused(
        r#"kind = "phases", of = [], ops = 1"#,
        &["of", "one load or more"],
    );
    refused(r#"kind = "phases", ops = 1"#, &["of = [ … ]"]);
}

#[test]
fn a_fault_in_a_phase_names_the_phase() {
    refused(
        r#"kind = "phases", of = [{ kind = "linear", size = "1GiB", ops = 1 }, { kind = "linear", ops = 1 }]"#,
        &["phase 2", "missing field `size`"],
    );
}

#[test]
fn phases_without_an_end_are_refused() {
    refused(
        r#"kind = "phases", of = [{ kind = "linear", size = "1GiB" }]"#,
        &["when phases end"],
    );
}

#[test]
fn phases_of_which_some_have_an_end_are_refused() {
    refused(
        r#"kind = "phases", of = [{ kind = "linear", size = "1GiB" }, { kind = "linear", size = "1GiB", ops = 1 }]"#,
        &["some phases"],
    );
}

#[test]
fn a_phase_with_a_course_of_its_own_is_refused() {
    refused(
        r#"kind = "phases", of = [{ kind = "masim", file = "a" }]"#,
        &["phase 1", "masim", "own course"],
    );
}

#[test]
fn keys_beside_phases_are_refused() {
    refused(
        r#"kind = "phases", of = [{ kind = "linear", size = "1GiB", ops = 1 }], parallelism = 2"#,
        &["parallelism", "belongs to a phase"],
    );
}

#[test]
fn masim_at_scale_is_refused() {
    let load = read(r#"kind = "masim", file = "a.cfg""#).expect("a load");
    let why = load.workload.pages(64, Path::new(".")).expect_err("scale");
    assert!(why.0.contains("scale = 1") && why.0.contains("64"), "{why}");
}

#[test]
fn a_graph_with_too_few_vertices_for_the_vcpus_is_refused() {
    let keys = r#"kind = "graph", algorithm = "bfs", vertices = 1000, degree = 3, ops = 1"#;
    let load = read(keys).expect("a load");
    let context = Context {
        scale: 8,
        seed: 1,
        vm: "vm1",
        vcpus: 2,
        is_cached: false,
        folder: Path::new("."),
    };
    let why = load.workload.sources(&context).err().expect("125 vertices");
    for part in ["vertices = 1000", "125 at scale 8", "128 or more"] {
        assert!(why.0.contains(part), "{part:?} is not in: {why}");
    }
}

#[test]
fn a_weight_of_0_is_refused() {
    refused(
        r#"kind = "gups", variant = "hypertier", size = "1GiB", hot = 0.1, weight = 0, ops = 1"#,
        &["weight = 0", "more than 0"],
    );
}
