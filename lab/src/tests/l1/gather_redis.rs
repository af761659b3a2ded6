//! A redis-server under a Gaussian load, whose hot values lie anywhere in its memory, is gathered. For people: how many blocks are
//! hot is printed and not judged.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use terrace_lab_programs::native::Load;

use crate::control::agent::PATIENCE;
use crate::control::lab::Lab;
use crate::machine::kernel::Kernel;
use crate::modules;
use crate::tests::test::{Boot, Needs, Test};

const MODULE: &str = "terrace_guest";
const FILE: &str = "/run/gather.toml";
/// The node with the processors.
const NODE: u32 = 0;
const ROUNDS: u32 = 3;

pub const TESTS: &[Test] = &[Test {
    name: "hot_values_of_redis_are_gathered",
    needs: Needs::Product,
    boot: Boot::L1(redis),
}];

/// A value for each page of 64 MiB; about one in forty is asked for often.
fn load() -> Load {
    Load {
        keys: 16_000,
        value_bytes: 4000,
        deviation: 200,
        ..Load::default()
    }
}

fn redis(lab: &mut Lab) -> Result<()> {
    let load = load();
    lab.become_a_guest()?;
    let object = modules::build_for(&Kernel::get(false)?, MODULE)?;
    lab.push(&object, &format!("/{MODULE}.ko"))?;
    lab.check(&format!("insmod /{MODULE}.ko"))?;
    let text = "[processes]\nnames = [\"redis-server\"]\nmin = \"32MiB\"\n[gather]\nwindow_s = 3\n";
    let output = lab.run_with_input(&format!("cat >{FILE}"), text, PATIENCE)?;
    ensure!(output.exit == 0, "writing {FILE}: {}", output.stderr);
    lab.start_redis(&load, NODE)?;
    print!(
        "{}",
        lab.check(&format!("terrace-agent skew --config {FILE}"))?
    );
    for number in 1..=ROUNDS {
        let said = lab.check(&format!(
            "terrace-agent gather --once --config {FILE} --json"
        ))?;
        let round: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
        println!("round {number}: {round}");
        ensure!(
            number > 1 || round["moved_pages"].as_u64() > Some(0),
            "nothing was gathered: {round}"
        );
    }
    print!(
        "{}",
        lab.check(&format!("terrace-agent skew --config {FILE}"))?
    );
    println!("redis: {}", lab.ask(&load.name, "stats")?);
    lab.expect_native_intact(&load.name)
}
