//! `terrace sim`: exit codes, messages, and output files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A scenario that runs for a moment: 32 MiB, a few accesses.
const SMALL: &str = r#"[machine]
tiers = ["dram", "pmem"]
scale = 1
vcpus_per_vm = 2
[[vm]]
name = "vm1"
fast = "8MiB"
slow = "24MiB"
workload = { kind = "hotset", size = "16MiB", hot = 0.2, hot_access = 0.9, write = 0.5, ops = 100000 }
"#;

fn terrace(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
        .current_dir(folder)
        .args(args)
        .output()
        .expect("the program starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A folder with `small.toml`.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("small.toml"), SMALL).expect("a file");
    dir
}

fn json(path: PathBuf) -> Value {
    let text = std::fs::read_to_string(path).expect("a file");
    serde_json::from_str(&text).expect("JSON")
}

/// The same run without the time that it took here.
fn without_wall(mut run: Value) -> Value {
    for key in ["wall_s", "accesses_per_wall_s"] {
        let removed = run.as_object_mut().and_then(|run| run.remove(key));
        assert!(removed.is_some_and(|v| v.is_f64()), "{key} is there");
    }
    run
}

#[test]
fn policies_are_judged_over_scenarios_sizes_and_seeds() {
    let dir = folder();
    let args =
        "sim judge small.toml --policies vtmm --times 1,2 --seeds 2 --seed 7 --json out.json";
    let args: Vec<&str> = args.split(' ').collect();
    let output = terrace(dir.path(), &args);
    assert!(output.status.success(), "{}", said(&output));
    assert!(printed(&output).contains("WAY"), "{}", printed(&output));
    let judged = json(dir.path().join("out.json"));
    let verdicts = judged["verdicts"].as_array().expect("verdicts");
    assert_eq!(verdicts.len(), 2 * 2 * 3, "{judged}");
    assert!(
        verdicts
            .iter()
            .all(|verdict| verdict["seed"].as_u64() >= Some(7))
    );
    assert!(printed(&output).contains("Under 3 rounds"));
    let sums = judged["sums"].as_array().expect("sums");
    let ways = |policy: &str| -> Vec<Option<f64>> {
        let of = sums.iter().filter(|sum| sum["policy"] == policy);
        of.map(|sum| sum["way"].as_f64()).collect()
    };
    assert_eq!(ways("first-touch"), [Some(0.0); 2]);
    assert_eq!(ways("static-best"), [Some(1.0); 2]);
    assert_eq!(ways("vtmm").len(), 2);
}

#[test]
fn judging_says_what_does_not_suit_a_scenario() {
    let dir = folder();
    for (more, says) in [
        (["--times", "9"], "small.toml, --times 9: vm.fast: VM"),
        (["--json", "small.toml"], "small.toml"),
        (["--policies", "lru"], "lru"),
        (["--seed", "18446744073709551615"], ""),
        (["--seeds", "0"], "--seeds"),
    ] {
        let args = [&["sim", "judge", "small.toml"][..], &more];
        let mut args = args.concat();
        if more[0] != "--policies" {
            args.extend(["--policies", "vtmm"]);
        }
        let output = terrace(dir.path(), &args);
        assert_eq!(
            output.status.success(),
            says.is_empty(),
            "{}",
            said(&output)
        );
        assert!(said(&output).contains(says), "{}", said(&output));
    }
    let last = "sim judge small.toml --policies vtmm --seeds 2 --seed 18446744073709551615";
    let output = terrace(dir.path(), &last.split(' ').collect::<Vec<_>>());
    assert!(said(&output).contains("the seed is too large"));
    let small = std::fs::read_to_string(dir.path().join("small.toml"));
    assert_eq!(small.expect("a file"), SMALL, "inputs stay as they are");
    let traces = "[[vm]]\nname = \"a\"\nfast = \"8MiB\"\nslow = \"24MiB\"\nworkload = { kind = \"trace\", file = \"a.trace\", ops = 9 }\n";
    let text = format!("[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 1\n{traces}");
    std::fs::write(dir.path().join("traced.toml"), text).expect("a file");
    let args = "sim judge traced.toml --policies vtmm --traces elsewhere";
    let args: Vec<&str> = args.split(' ').collect();
    let output = terrace(dir.path(), &args);
    assert!(
        said(&output).contains("/elsewhere/a.trace"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_run_prints_a_table_and_writes_what_is_asked_for() {
    let dir = folder();
    let args = [
        "sim",
        "run",
        "small.toml",
        "--json",
        "out.json",
        "--html",
        "out.html",
    ];
    let output = terrace(dir.path(), &args);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(said(&output), "", "no progress where nobody looks");
    let table = printed(&output);
    assert!(
        table.contains("SLOWDOWN") && table.contains("vm1"),
        "{table}"
    );
    assert!(table.contains("too few to judge"), "{table}");
    let run = json(dir.path().join("out.json"));
    assert_eq!(run["scenario"], "small");
    assert_eq!(run["policy"], "vtmm");
    assert_eq!(run["accesses"], 100_000);
    let slowdown = run["vms"][0]["slowdown_vs_all_fast"].as_f64();
    assert!(
        slowdown.is_some_and(|s| s > 1.0),
        "{slowdown:?}: half of it lies in PMem"
    );
    let html = std::fs::read_to_string(dir.path().join("out.html")).expect("a report");
    assert!(html.contains("small"), "{html}");
}

/// Checks an object's keys and the type of each: `s` text, `n` number, `i` whole number, `a` array of whole numbers,
/// `?` null or text.
fn check_keys(object: &Value, keys: &str) {
    let found: Vec<&String> = object.as_object().expect("an object").keys().collect();
    let expected: Vec<(&str, &str)> = keys
        .split_whitespace()
        .filter_map(|key| key.split_once(':'))
        .collect();
    let names: Vec<&str> = expected.iter().map(|(name, _)| *name).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    let mut there: Vec<&str> = found.into_iter().map(String::as_str).collect();
    there.sort_unstable();
    assert_eq!(there, sorted);
    for (name, kind) in expected {
        let value = &object[name];
        let right = match kind {
            "s" => value.is_string(),
            "n" => value.is_number(),
            "i" => value.is_u64(),
            "a" => value
                .as_array()
                .is_some_and(|all| all.len() == 2 && all.iter().all(Value::is_u64)),
            "?" => value.is_null() || value.is_string(),
            _ => value.is_array() || value.is_object(),
        };
        assert!(right, "{name}: {value}");
    }
}

#[test]
fn a_result_has_the_keys_that_checks_rely_on_and_no_others() {
    let dir = folder();
    for policy in ["vtmm", "first-touch", "oracle"] {
        let args = [
            "sim",
            "run",
            "small.toml",
            "--json",
            "-",
            "--policy",
            policy,
        ];
        let output = terrace(dir.path(), &args);
        let run: Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
        check_keys(
            &run,
            "scenario:s policy:s seed:i scale:i simulated_s:n wall_s:n accesses:i \
             accesses_per_wall_s:n state_bytes_per_page:n sim_state_bytes_per_page:n vms:o",
        );
        let state = run["sim_state_bytes_per_page"].as_f64();
        assert!(
            state.is_some_and(|bytes| bytes > 8.0),
            "{policy}: an entry of the guest's tables and a byte of the second stage: {state:?}"
        );
        let vm = &run["vms"][0];
        check_keys(
            vm,
            "name:s policy:s guest_policy:? rounds:i runtime_s:n ops_per_s:n p50_ns:n p99_ns:n \
             slowdown_vs_all_fast:n cost:n performance_per_cost:n cache_hit_ratio:n fast_hit_ratio:n fast_write_ratio:n dram_utility:n \
             tier_bytes_mean:a tier_bytes_end:a tier_written_bytes:a swapped_in_bytes:i swapped_out_bytes:i fast_bytes_mean:i fast_bytes_end:i \
             promoted_pages:i demoted_pages:i vm_exits:i major_faults:i overhead_s:o",
        );
        check_keys(&vm["overhead_s"], "track:n classify:n migrate:n");
    }
}

#[test]
fn results_have_bytes_and_times_of_the_full_size_machine() {
    let dir = folder();
    let text = SMALL
        .replace("scale = 1", "scale = 4")
        .replace("\"8MiB\"", "\"32MiB\"")
        .replace("\"24MiB\"", "\"96MiB\"")
        .replace("\"16MiB\"", "\"64MiB\"")
        .replace("workload =", "tables = \"first\"\nworkload =")
        .replace("ops = 100000", "duration = \"40ms\"");
    std::fs::write(dir.path().join("scaled.toml"), text).expect("a file");
    let args = ["sim", "run", "scaled.toml", "--json", "-"];
    let output = terrace(dir.path(), &args);
    let run: Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
    let vm = &run["vms"][0];
    let number = |value: &Value| value.as_f64().expect("a number");
    assert_eq!(number(&vm["runtime_s"]), 0.04);
    assert_eq!(
        vm["tier_bytes_end"],
        serde_json::json!([32 << 20, 32 << 20])
    );
    // Accesses are those really simulated: a fourth of the full-size machine's.
    let full = number(&vm["ops_per_s"]) * 0.04;
    assert!((full / number(&run["accesses"]) - 4.0).abs() < 1e-9);
}

#[test]
fn a_run_is_the_same_again_and_another_with_another_seed() {
    let dir = folder();
    let run = |more: &[&str]| {
        let args = [&["sim", "run", "small.toml", "--json", "-"], more].concat();
        let output = terrace(dir.path(), &args);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        without_wall(serde_json::from_slice(&output.stdout).expect("JSON alone"))
    };
    let first = run(&[]);
    assert_eq!(first, run(&[]));
    assert_eq!(first, run(&["--seed", "1"]));
    let other = run(&["--seed", "2"]);
    assert_eq!(other["seed"], 2);
    assert_ne!(first["vms"], other["vms"]);
    let slow = run(&["--policy", "all-slow"]);
    assert_eq!(slow["policy"], "all-slow");
    assert_eq!(slow["vms"][0]["fast_hit_ratio"], 0.0);
}

#[test]
fn a_comparison_is_the_same_however_many_run_at_a_time() {
    let dir = folder();
    let compare = |jobs: &str| {
        let args = [
            "sim",
            "compare",
            "small.toml",
            "--policies",
            "all-slow,first-touch,all-fast",
        ];
        let more = [
            "--sweep",
            "fast=4MiB..8MiB",
            "--json",
            "out.json",
            "--jobs",
            jobs,
            "-q",
        ];
        let output = terrace(dir.path(), &[&args[..], &more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert_eq!(printed(&output), "", "quiet");
        let runs = json(dir.path().join("out.json"))["runs"].take();
        let runs = runs.as_array().cloned().expect("a list");
        runs.into_iter().map(without_wall).collect::<Vec<_>>()
    };
    let runs = compare("1");
    assert_eq!(runs, compare("4"));
    let actual: Vec<_> = runs
        .iter()
        .map(|run| {
            (
                run["policy"].as_str().expect("a name"),
                run["sweep"]["bytes"].as_u64(),
            )
        })
        .collect();
    let policies = ["all-slow", "first-touch", "all-fast", "static-best"];
    let expected: Vec<_> = [4 << 20, 8 << 20]
        .into_iter()
        .flat_map(|bytes| policies.map(|policy| (policy, Some(bytes))))
        .collect();
    assert_eq!(actual, expected);
    assert_eq!(runs[2]["vms"][0]["slowdown_vs_all_fast"], 1.0);
    assert_eq!(
        (&runs[1]["way"], &runs[3]["way"]),
        (&0.0.into(), &1.0.into())
    );
}

#[test]
fn a_comparison_says_which_orders_hold_on_every_model() {
    let dir = folder();
    let args = [
        "sim",
        "compare",
        "small.toml",
        "--policies",
        "all-fast,interleave,first-touch",
        "--sensitivity",
    ];
    let output = terrace(dir.path(), &args);
    assert!(output.status.success(), "{}", said(&output));
    let text = printed(&output);
    for line in ["as written", "seed 2", "loaded latency of a queue"] {
        assert!(text.contains(&format!("\n{line} ")), "{text}");
    }
    assert!(
        text.contains("first-touch is faster than interleave on all "),
        "{text}"
    );
    let to_file = [&args[..], &["--json", "runs.json"]].concat();
    assert!(terrace(dir.path(), &to_file).status.success());
    let runs = json(dir.path().join("runs.json"));
    let models = runs["sensitivity"]["models"].as_array().expect("a list");
    let all = runs["runs"].as_array().expect("a list");
    // static-best is run beside first-touch.
    assert_eq!(all.len(), 4 * (models.len() + 1));
    assert!(all[0].get("model").is_none() && all[4]["model"] == models[0]);
    let orders = runs["sensitivity"]["orders"].as_array().expect("a list");
    assert!(!orders.is_empty() && orders.iter().all(|o| o["faster"] != o["slower"]));
    let sweep = [&args[..], &["--sweep", "fast=4MiB..8MiB"]].concat();
    assert_eq!(terrace(dir.path(), &sweep).status.code(), Some(2));
}

#[test]
fn a_bad_scenario_is_1_with_one_message() {
    let dir = folder();
    let bad = SMALL.replace("\"8MiB\"", "\"8MiB\"\nflor = \"1MiB\"");
    std::fs::write(dir.path().join("bad.toml"), bad).expect("a file");
    for (file, start) in [
        (
            "bad.toml",
            "terrace: bad.toml:8: vm.flor: unknown field `flor`",
        ),
        (
            "none.toml",
            "terrace: none.toml: cannot be read: No such file",
        ),
    ] {
        for command in [&["run", file][..], &["compare", file, "--policies", "vtmm"]] {
            let output = terrace(dir.path(), &[&["sim"], command].concat());
            assert_eq!(output.status.code(), Some(1));
            assert!(said(&output).starts_with(start), "{}", said(&output));
            assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
        }
    }
}

#[test]
fn a_sweep_that_does_not_suit_the_scenario_is_1() {
    let dir = folder();
    let args = [
        "sim",
        "compare",
        "small.toml",
        "--policies",
        "vtmm",
        "--sweep",
        "fast=8MiB..64MiB",
    ];
    let output = terrace(dir.path(), &args);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("fast=64MiB"), "{}", said(&output));
}

#[test]
fn a_place_that_cannot_be_written_is_told_before_the_run() {
    let dir = folder();
    let output = terrace(
        dir.path(),
        &["sim", "run", "small.toml", "--json", "no/out.json"],
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("no/out.json"), "{}", said(&output));
    assert_eq!(printed(&output), "");
}

#[test]
fn wrong_usage_is_2() {
    let dir = folder();
    for args in [
        &["sim"][..],
        &["sim", "run"],
        &["sim", "run", "small.toml", "--policy", "lru"],
        &["sim", "run", "small.toml", "--seed", "-1"],
        &["sim", "run", "small.toml", "--html", "-"],
        &["sim", "compare", "small.toml"],
        &["sim", "compare", "small.toml", "--policies", "vtmm,,oracle"],
        &["sim", "compare", "small.toml", "--policies", "vtmm@guest"],
        &[
            "sim",
            "compare",
            "small.toml",
            "--policies",
            "vtmm",
            "--sweep",
            "fast=2GiB..1GiB",
        ],
        &[
            "sim",
            "compare",
            "small.toml",
            "--policies",
            "vtmm",
            "--jobs",
            "0",
        ],
    ] {
        let output = terrace(dir.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
    }
}

#[test]
fn the_list_names_policies_tiers_loads_and_scenarios() {
    let dir = folder();
    std::fs::create_dir(dir.path().join("scenarios")).expect("a folder");
    std::fs::write(dir.path().join("scenarios/a.toml"), "# What it asks\n").expect("a file");
    let text = printed(&terrace(dir.path(), &["sim", "list"]));
    for word in [
        "vtmm",
        "oracle",
        "guest-scan",
        "pmem-177",
        "hotset",
        "What it asks",
    ] {
        assert!(text.contains(word), "{word} is not in\n{text}");
    }
    let output = terrace(dir.path(), &["sim", "list", "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(list["tiers"][2]["read_ns"], 310.0);
    assert_eq!(list["scenarios"][0]["name"], "scenarios/a.toml");
    let loads = list["workloads"].as_array().expect("a list");
    assert!(loads.iter().any(|kind| kind == "trace"), "{loads:?}");
}

#[cfg(unix)]
#[test]
fn an_experiment_of_a_paper_runs_from_anywhere() {
    let dir = folder();
    let args = [
        "sim",
        "repro",
        "vtmm/buffer-full",
        "--scale",
        "1024",
        "--seeds",
        "2",
        "--json",
        "out.json",
        "--markdown",
        "out.md",
    ];
    let output = terrace(dir.path(), &args);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        printed(&output).contains("4 GB, of all exits"),
        "{}",
        printed(&output)
    );
    let report = json(dir.path().join("out.json"));
    let experiment = &report["experiments"][0];
    assert_eq!(experiment["name"], "buffer-full");
    assert_eq!(experiment["scale"], 1024);
    assert!(experiment["rows"][0]["simulated"].is_f64(), "{experiment}");
    assert!(experiment["rows"][0]["spread"].is_array(), "{experiment}");
    let page = std::fs::read_to_string(dir.path().join("out.md")).expect("a page");
    assert!(page.contains("## vTMM Buffer full"), "{page}");
}

#[test]
fn figures_are_checked_by_themselves_and_with_their_own_seed() {
    let dir = folder();
    let check = ["sim", "repro", "vtmm/buffer-full", "--check"];
    let output = terrace(dir.path(), &check);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        printed(&output).contains("no figures"),
        "{}",
        printed(&output)
    );
    let seeds = terrace(dir.path(), &[&check[..], &["--seeds", "2"]].concat());
    assert_eq!(seeds.status.code(), Some(2), "{}", said(&seeds));
}

#[test]
fn a_set_of_predictions_becomes_a_page_and_its_figures() {
    let dir = folder();
    let args = ["sim", "repro", "--predict", "antagonists", "--out", "pages"];
    let small = ["--scale", "1024", "--seeds", "1"];
    let output = terrace(dir.path(), &[&args[..], &small[..]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let report = json(dir.path().join("pages/predictions-antagonists.json"));
    assert_eq!(
        (&report["set"], &report["seeds"]),
        (&"antagonists".into(), &1.into())
    );
    let rows = report["experiments"][0]["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["simulated"].is_f64()), "{rows:?}");
    let page = dir.path().join("pages/predictions-antagonists.md");
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("gain of the best split"), "{page}");
    for wrong in [&["vtmm"][..], &["--check"], &["--json", "a.json"]] {
        let output = terrace(dir.path(), &[&args[..], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn an_unknown_experiment_exits_with_2_and_a_bad_scale_with_1() {
    let dir = folder();
    for args in [
        ["vtmm/table-99", "--scale", "64"],
        ["vtmm/table-4", "--scale", "4096"],
    ] {
        let output = terrace(dir.path(), &[&["sim", "repro"], &args[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!said(&output).is_empty());
    }
    let unknown = terrace(dir.path(), &["sim", "repro", "vtmm/table-99"]);
    assert!(
        said(&unknown).contains("vtmm/table-4"),
        "{}",
        said(&unknown)
    );
    let thirds = ["sim", "repro", "vtmm/table-4", "--scale", "3"];
    let output = terrace(dir.path(), &thirds);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("vtmm-migration.toml"),
        "{}",
        said(&output)
    );
    let list = printed(&terrace(dir.path(), &["sim", "repro", "--list"]));
    assert!(list.contains("hypertier/figure-8"), "{list}");
    assert!(list.contains("huge-pages"), "{list}");
}

#[test]
fn an_interruption_keeps_the_finished_runs_and_is_130() {
    let dir = folder();
    // This one would take too long.
    let long = SMALL.replace("ops = 100000", "duration = \"30days\"");
    std::fs::write(dir.path().join("long.toml"), long).expect("a file");
    let child = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .current_dir(dir.path())
        .args(["sim", "run", "long.toml"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    // Long enough for the handler to be there; the run itself has no end.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let id = i32::try_from(child.id()).expect("a process id");
    // SAFETY: sends a signal to our own child, which was not waited for yet.
    assert_eq!(unsafe { libc::kill(id, libc::SIGINT) }, 0);
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(
        said(&output),
        "terrace: interrupted: 0 of 1 runs were finished\n"
    );
}
