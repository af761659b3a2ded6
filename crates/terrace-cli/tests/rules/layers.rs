//! Layers inside each crate: no folder of one imports, by whatever way round, from a folder that imports from it; and
//! if a list of layers stands here, nothing imports from a higher one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::sources::imports::{Imports, of_crate};

/// Known cycles: the crate, and the modules of one cycle. The list only shrinks.
const CYCLES: &[(&str, &[&str])] = &[];

/// Layers of the large crates, the lowest first. A module may import from its own layer's modules and lower ones, as
/// long as that makes no cycle.
const LAYERS: &[(&str, &[&[&str]])] = &[
    (
        "terrace-config",
        &[
            &["renamed", "wording"],
            &[
                "agent", "balance", "discover", "mover", "security", "sizes", "sources",
            ],
            &["raw"],
            &["gather", "hyperflex", "pins", "writes"],
            &["config"],
            &["beyond", "tiers"],
        ],
    ),
    (
        "terrace-sim",
        &[
            &["base"],
            &["trace", "workload"],
            &["machine"],
            &["guest"],
            &["host"],
            &["mechanisms"],
            &["scenario"],
            &["simulation"],
        ],
    ),
    (
        "terraced",
        &[
            &["confine", "events", "record"],
            &["registry"],
            &["served"],
            &["messages"],
            &["discovery", "executor", "agent_mode", "provisioning", "api"],
            &["daemon", "simulate"],
            &["host"],
            // Hosts that tests play.
            &["played"],
        ],
    ),
    (
        "lab",
        &[
            &["progress", "places", "children"],
            &["host", "alone"],
            &["programs"],
            &["machine"],
            &["modules"],
            &["control"],
            &["guests"],
            &["measure"],
            &["tests"],
            &["commands"],
        ],
    ),
];

fn crates() -> Vec<(String, Imports)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = std::fs::read_dir(root.join("crates")).expect("the crates");
    let folders = folders.map(|entry| entry.expect("a crate").path());
    let mut found: Vec<_> = folders
        .chain(["lab", "xtask"].map(|name| root.join(name)))
        .filter(|folder| folder.join("src").is_dir())
        .map(|folder| {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            (name.into_owned(), of_crate(&folder.join("src")))
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[test]
fn no_modules_of_a_crate_import_from_each_other() {
    let mut wrong = Vec::new();
    let crates = crates();
    assert!(crates.len() > 10, "only {} crates found", crates.len());
    for (name, imports) in &crates {
        for cycle in cycles(imports) {
            let known = CYCLES
                .iter()
                .any(|(at, modules)| at == name && cycle.iter().eq(*modules));
            if !known {
                wrong.push(format!("{name}: {}", cycle.join(", ")));
                wrong.extend(edges(imports, &cycle));
            }
        }
    }
    assert!(wrong.is_empty(), "cycles:\n{}", wrong.join("\n"));
}

#[test]
fn nothing_imports_from_a_floor_above() {
    let crates: BTreeMap<_, _> = crates().into_iter().collect();
    let mut wrong = Vec::new();
    for (name, layers) in LAYERS {
        let imports = &crates[*name];
        let floors: BTreeMap<&str, usize> = (0..)
            .zip(*layers)
            .flat_map(|(floor, modules)| modules.iter().map(move |module| (*module, floor)))
            .collect();
        for (from, targets) in imports {
            let Some(floor) = floors.get(from.as_str()) else {
                wrong.push(format!("{name}: {from} has no layer"));
                continue;
            };
            for (to, file) in targets {
                if floors.get(to.as_str()).is_some_and(|above| above > floor) {
                    wrong.push(format!("{name}: {from} imports from {to}, in {file}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The sets of modules that reach each other.
fn cycles(imports: &Imports) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> = imports
        .keys()
        .map(|from| (from, reachable(imports, from)))
        .collect();
    let mut found: BTreeSet<Vec<String>> = BTreeSet::new();
    for (from, to) in &reach {
        let together: Vec<String> = to
            .iter()
            .filter(|other| reach.get(**other).is_some_and(|back| back.contains(from)))
            .map(|other| (*other).clone())
            .collect();
        if together.len() > 1 {
            found.insert(together);
        }
    }
    found.into_iter().collect()
}

fn reachable<'a>(imports: &'a Imports, from: &'a String) -> BTreeSet<&'a String> {
    let mut seen = BTreeSet::new();
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        for to in imports.get(module).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(to) {
                next.push(to);
            }
        }
    }
    seen
}

fn edges(imports: &Imports, cycle: &[String]) -> Vec<String> {
    let mut all = Vec::new();
    for from in cycle {
        for (to, file) in &imports[from] {
            if cycle.contains(to) {
                all.push(format!("    {from} -> {to}: {file}"));
            }
        }
    }
    all
}

#[test]
fn cycles_are_found_and_a_leaf_module_is_in_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        std::fs::write(file, text).expect("written");
    };
    put(
        "lib.rs",
        "mod a;\nmod b;\nmod c;\nmod d;\npub use c::{Other, Thing};\n",
    );
    put("a/mod.rs", "mod deep;\nuse super::b::{self, X};\n");
    put(
        "a/deep.rs",
        "use super::super::d;\nuse super::near;\n// crate::c is only named here\n",
    );
    put(
        "b.rs",
        "use crate::{\n    d::{Y, Z},\n    Thing,\n};\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
    );
    put("c.rs", "fn f() -> u8 {\n    crate::a::g()\n}\n");
    put("d.rs", "use std::path::Path;\n");
    put("d/tests.rs", "use crate::a::A;\n");
    let imports = of_crate(folder.path());
    let to = |from: &str| imports[from].keys().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(to("a"), ["b", "d"]);
    assert_eq!(to("b"), ["c", "d"]);
    assert_eq!(to("c"), ["a"]);
    assert_eq!(to("d"), [""; 0]);
    assert_eq!(cycles(&imports), [["a", "b", "c"]]);
}
