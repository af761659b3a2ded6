//! The rule of ARCHITECTURE.md about which crate may see which, held by a test.

use std::collections::BTreeMap;

use crate::sources::rust_files;
use cargo_metadata::{DependencyKind, MetadataCommand};

/// The crates of ours that each crate of ours may depend on (tests aside). A crate that is not listed fails the test:
/// a new one is added here, at its place.
const ALLOWED: [(&str, &[&str]); 18] = [
    ("terrace-proto", &[]),
    ("terrace-core", &[PROTO]),
    ("terrace-pagetable", &[PROTO]),
    ("terrace-sys", &[PROTO]),
    ("terrace-api", &[PROTO]),
    ("terrace-host", &[PROTO, PAGETABLE, SYS]),
    ("terrace-config", &[PROTO, CORE, API, HOST]),
    ("terrace-sim", &[PROTO, CORE, PAGETABLE]),
    ("terrace-repro", &[PROTO, CORE, SIM]),
    ("terrace-agent", &[PROTO, CORE, SYS]),
    ("terrace-hyperflex", &[PROTO, SYS]),
    (
        "terrace-bench",
        &[PROTO, CORE, PAGETABLE, SYS, HYPERFLEX, SIM],
    ),
    (
        "terraced",
        &[PROTO, CORE, SYS, API, HOST, HYPERFLEX, SIM, CONFIG],
    ),
    (
        "terrace-cli",
        &[
            PROTO, CORE, PAGETABLE, SYS, API, HOST, HYPERFLEX, SIM, REPRO, BENCH, CONFIG,
        ],
    ),
    // Of tests alone: nothing may depend on it but for them.
    (
        "terrace-testkit",
        &[PROTO, CORE, PAGETABLE, SYS, HOST, AGENT, HYPERFLEX, BENCH],
    ),
    // They run where nothing else of ours does, or drive the product from outside.
    ("terrace-lab-programs", &[]),
    // It plays the host to a guest's agent.
    ("terrace-lab", &["terrace-lab-programs", PROTO]),
    ("xtask", &["terrace-lab"]),
];

const PROTO: &str = "terrace-proto";
const CORE: &str = "terrace-core";
const PAGETABLE: &str = "terrace-pagetable";
const SYS: &str = "terrace-sys";
const API: &str = "terrace-api";
const HOST: &str = "terrace-host";
const CONFIG: &str = "terrace-config";
const AGENT: &str = "terrace-agent";
const HYPERFLEX: &str = "terrace-hyperflex";
const SIM: &str = "terrace-sim";
const REPRO: &str = "terrace-repro";
const BENCH: &str = "terrace-bench";

#[test]
fn crates_depend_only_on_what_the_architecture_allows() {
    let allowed = BTreeMap::from(ALLOWED);
    let metadata = MetadataCommand::new()
        .no_deps()
        .exec()
        .expect("cargo metadata");
    let ours: Vec<_> = metadata.workspace_packages();
    let mut wrong = Vec::new();
    for package in &ours {
        let Some(may) = allowed.get(package.name.as_str()) else {
            wrong.push(format!("{} is not in the list of this test", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            let is_ours = ours.iter().any(|p| p.name.as_str() == dependency.name);
            let at_run_time = dependency.kind != DependencyKind::Development;
            if is_ours && at_run_time && !may.contains(&dependency.name.as_str()) {
                wrong.push(format!("{} -> {}", package.name, dependency.name));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "against the rule of ARCHITECTURE.md: {wrong:?}"
    );
}

/// Events go in and actions come out in one place, so that a log has all of them in their order.
#[test]
fn nothing_but_a_session_drives_an_engine() {
    const MAY: [&str; 2] = [
        // It measures what an engine holds while its actions wait.
        "terrace-bench/src/state_bytes.rs",
        "terrace-core/src/session/mod.rs",
    ];
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut drive = Vec::new();
    for file in rust_files(&crates) {
        let text = std::fs::read_to_string(&file).expect("a source file");
        let name = file.strip_prefix(&crates).expect("below the crates");
        // Tests of the engine itself are beside `src`.
        if name.iter().any(|part| part == "src") && text.contains(".poll_action()") {
            drive.push(name.display().to_string());
        }
    }
    drive.sort();
    assert_eq!(drive, MAY);
}

/// The engine and what it stands on are pure: no file, socket, thread or clock.
#[test]
fn pure_crates_name_no_clock_file_socket_or_thread() {
    const PURE: [&str; 2] = ["terrace-core", "terrace-proto"];
    const BANNED: [&str; 6] = [
        "std::fs",
        "std::net",
        "std::thread",
        "std::process",
        "Instant",
        "SystemTime",
    ];
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut wrong = Vec::new();
    for name in PURE {
        let files = rust_files(&crates.join(name).join("src"));
        assert!(!files.is_empty(), "no sources of {name}");
        for file in files {
            let text = std::fs::read_to_string(&file).expect("a source file");
            for word in BANNED {
                if text.contains(word) {
                    wrong.push(format!("{}: {word}", file.display()));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "pure crates reach for the world: {wrong:?}"
    );
}
