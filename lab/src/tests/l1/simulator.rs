//! The simulator gives the same bytes however it is built and wherever it runs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};
use crate::{host, places, programs};

pub const TESTS: &[Test] = &[Test {
    name: "a_static_build_simulates_the_same_bytes_on_another_cpu",
    needs: Needs::Product,
    boot: Boot::L1(a_static_build_simulates_the_same_bytes_on_another_cpu),
}];

/// A scenario small enough for an emulated processor; its loads use every function of floating point that there is.
const SCENARIO: &str = r#"
[machine]
tiers = ["dram", "pmem"]
scale = 1024
vcpus_per_vm = 2
[[vm]]
name = "zipf"
fast = "4GiB"
slow = "8GiB"
policy = "vtmm"
workload = { kind = "zipf", size = "8GiB", exponent = 0.99, write = 0.3, duration = "8s", compute_ns = 2000.0 }
[[vm]]
name = "gauss"
fast = "4GiB"
slow = "8GiB"
policy = "vtmm"
workload = { kind = "gauss", size = "8GiB", sigma = 0.1, write = 0.3, duration = "8s", compute_ns = 2000.0 }
"#;

fn a_static_build_simulates_the_same_bytes_on_another_cpu(lab: &mut Lab) -> Result<()> {
    let built = programs::build_product()?;
    let fixed = built.iter().find(|path| path.ends_with("terrace"));
    let fixed = fixed.context("no static `terrace` was built")?;
    let status = places::cargo()
        .args(["build", "--quiet", "--package", "terrace-cli"])
        .status()?;
    ensure!(status.success(), "cargo could not build terrace-cli");
    let dynamic = places::target()?.join("debug").join("terrace");

    let file = tempfile(SCENARIO)?;
    let shared = simulated(&dynamic, &file)?;
    ensure!(
        shared["vms"][0]["promoted_pages"].as_u64() >= Some(1),
        "no page was moved: {shared}"
    );
    ensure!(
        simulated(fixed, &file)? == shared,
        "the static build differs"
    );
    let output = lab.run(
        &format!("cat >/tmp/same.toml <<'EOF'\n{SCENARIO}\nEOF\nterrace sim run /tmp/same.toml --quiet --json -"),
        Duration::from_secs(300),
    )?;
    if output.exit != 0 {
        bail!("in L1: {}", output.stderr);
    }
    let there = without_wall_time(&output.stdout)?;
    ensure!(there == shared, "L1 differs: {there}\nfrom {shared}");
    println!("the same bytes from a shared build, a static build, and a static build in L1");
    Ok(())
}

fn tempfile(text: &str) -> Result<std::path::PathBuf> {
    let path = places::target()?.join("lab").join("same.toml");
    std::fs::write(&path, text)?;
    Ok(path)
}

fn simulated(program: &Path, scenario: &Path) -> Result<Value> {
    let mut command = Command::new(program);
    command.args(["sim", "run"]).arg(scenario);
    without_wall_time(&host::output(command.args(["--quiet", "--json", "-"]))?)
}

fn without_wall_time(json: &str) -> Result<Value> {
    let mut value: Value = serde_json::from_str(json).context("the result is no JSON")?;
    // By contract, only `wall_s` and `accesses_per_wall_s` may differ.
    for key in ["wall_s", "accesses_per_wall_s"] {
        let at = value.get_mut(key).with_context(|| format!("no {key}"))?;
        *at = Value::Null;
    }
    Ok(value)
}
