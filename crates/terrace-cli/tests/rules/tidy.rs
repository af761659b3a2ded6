//! Files hold one idea and functions fit on a screen: limits with a list of exceptions that only
//! shrinks.

use std::path::Path;

use crate::sources::rust_files;

/// Folders of our sources.
const FOLDERS: [&str; 3] = ["crates", "lab", "xtask"];

const FILE_LINES: usize = 700;
const FUNCTION_LINES: usize = 70;

/// Files that may be long, as `path: reason`. Remove entries; do not add any without a better reason than haste.
const LONG_FILES: [&str; 0] = [];
/// Functions that may be long, as `path::function`.
const LONG_FUNCTIONS: [&str; 0] = [];

#[test]
fn files_and_functions_stay_small() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wrong = Vec::new();
    let mut files = 0;
    for folder in FOLDERS {
        for file in rust_files(&root.join(folder)) {
            files += 1;
            let text = std::fs::read_to_string(&file).expect("a source file");
            let name = file
                .strip_prefix(&root)
                .expect("below the root")
                .display()
                .to_string();
            let lines = text.lines().count();
            if lines > FILE_LINES && !LONG_FILES.contains(&name.as_str()) {
                wrong.push(format!("{name}: {lines} lines, at most {FILE_LINES}"));
            }
            for (function, lines) in functions(&text) {
                let id = format!("{name}::{function}");
                if lines > FUNCTION_LINES && !LONG_FUNCTIONS.contains(&id.as_str()) {
                    wrong.push(format!("{id}: {lines} lines, at most {FUNCTION_LINES}"));
                }
            }
        }
    }
    assert!(files > 20, "only {files} source files found");
    assert!(wrong.is_empty(), "too long:\n{}", wrong.join("\n"));
}

/// Tests are inline, in `x/tests.rs` beside `x.rs`, or in `tests/`; shared code is a crate's, not included by its path.
#[test]
fn tests_stand_where_the_compiler_looks_for_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let included = ["#[", "path = "].concat();
    let mut wrong = Vec::new();
    for folder in FOLDERS {
        for file in rust_files(&root.join(folder)) {
            let text = std::fs::read_to_string(&file).expect("a source file");
            let stem = file.file_stem().unwrap_or_default().to_string_lossy();
            if text.contains(&included) || stem.ends_with("_tests") {
                wrong.push(file.display().to_string());
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "by path, or by name:\n{}",
        wrong.join("\n")
    );
}

/// A module with files of its own is a folder with all of it: `x/mod.rs`, not `x.rs` beside `x/`.
#[test]
fn a_module_with_children_is_a_folder() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wrong = Vec::new();
    for folder in FOLDERS {
        for file in rust_files(&root.join(folder)) {
            // In `tests/`, a file is a program and the folder beside it may be its data.
            if file.components().any(|part| part.as_os_str() == "src")
                && file.with_extension("").is_dir()
            {
                wrong.push(file.display().to_string());
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "beside a folder of its name:\n{}",
        wrong.join("\n")
    );
}

/// Code that only tests and fuzzers run is the testkit's: no product binary has it.
#[test]
fn no_product_crate_has_fuzz_bodies_or_mocks() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(&crates).expect("the crates") {
        let folder = entry.expect("a crate").path();
        if folder.ends_with("terrace-testkit") {
            continue;
        }
        for file in rust_files(&folder.join("src")) {
            let text = std::fs::read_to_string(&file).expect("a source file");
            let is_declared = |line: &str| {
                let line = line.trim_start().trim_start_matches("pub ");
                ["mod fuzz", "mod mock", "mod testkit"]
                    .contains(&line.trim_end_matches([';', ' ', '{']))
            };
            if text.lines().any(is_declared) {
                wrong.push(file.display().to_string());
            }
        }
    }
    assert!(wrong.is_empty(), "not the testkit's:\n{}", wrong.join("\n"));
}

/// Longest name of a function: most are tests', which say what the code does, not all that they check.
const MAX_NAME: usize = 60;

#[test]
fn names_of_functions_and_lab_tests_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut long = Vec::new();
    for folder in ["crates", "lab", "xtask"] {
        for file in rust_files(&root.join(folder)) {
            let text = std::fs::read_to_string(&file).expect("a source file");
            let names = functions(&text).into_iter().map(|(name, _)| name);
            long.extend(names.filter(|name| name.len() > MAX_NAME));
        }
    }
    let lab =
        std::fs::read_to_string(root.join("lab/src/tests/names.txt")).expect("the lab's tests");
    let lab = lab.lines().filter_map(|line| line.split(' ').next());
    let lab = lab.filter(|name| name.len() > MAX_NAME);
    long.extend(lab.map(str::to_owned));
    assert!(
        long.is_empty(),
        "over {MAX_NAME} characters:\n{}",
        long.join("\n")
    );
}

/// Functions with their number of lines. Sources are formatted by rustfmt, so a function ends at the
/// first closing brace that stands at its own indentation.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let Some(name) = function_name(line.trim_start()) else {
            continue;
        };
        let close = format!("{}}}", " ".repeat(indent));
        let end = lines[start..].iter().position(|l| *l == close);
        found.push((name.to_owned(), end.map_or(1, |n| n + 1)));
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let mut rest = line;
    for word in [
        "pub(crate) ",
        "pub(super) ",
        "pub ",
        "const ",
        "async ",
        "unsafe ",
    ] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let name = rest.strip_prefix("fn ")?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()
}

#[test]
fn a_long_function_is_seen() {
    let body = "    let x = 1;\n".repeat(100);
    let found = functions(&format!("pub fn long() {{\n{body}}}\nfn short() {{\n}}\n"));
    assert_eq!(
        found,
        vec![("long".to_owned(), 102), ("short".to_owned(), 2)]
    );
}
