//! Code that pages name is there: source files, functions, tests of the lab.

use std::path::{Path, PathBuf};

use crate::links::pages;
use crate::sources::rust_files;

#[test]
fn files_and_functions_that_pages_name_exist() {
    let root = root();
    let sources: Vec<(String, String)> = ["crates", "lab", "xtask"]
        .iter()
        .flat_map(|folder| rust_files(&root.join(folder)))
        .map(|file| {
            let text = std::fs::read_to_string(&file).expect("a source file");
            (file.display().to_string(), text)
        })
        .collect();
    let mut named = 0;
    let gone = in_pages(|line| {
        let code = line.split('`').skip(1).step_by(2);
        let code: Vec<&str> = code
            .filter(|code| is_file(code) || method(code).is_some())
            .collect();
        named += code.len();
        let is_gone = |code: &&str| !sources.iter().any(|source| has(source, code));
        code.into_iter()
            .filter(is_gone)
            .map(str::to_owned)
            .collect()
    });
    assert!(named > 80, "only {named} files and functions named");
    assert!(gone.is_empty(), "not in the sources:\n{}", gone.join("\n"));
}

#[test]
fn lab_tests_that_pages_run_exist() {
    // Those of the lab, and those of plain guests, which the same command runs.
    let mut files = rust_files(&root().join("crates/terrace-host/tests/guests"));
    files.push(root().join("lab/src/tests/names.txt"));
    let texts = files.into_iter().map(std::fs::read_to_string);
    let names: String = texts.collect::<Result<_, _>>().expect("lists of tests");
    let mut named = 0;
    let gone = in_pages(|line| {
        let run = line.split("lab test --only ").skip(1);
        let parts = run.map(|rest| rest.split([' ', '`', ')']).next().unwrap_or_default());
        let parts: Vec<&str> = parts.filter(|part| *part != "NAME").collect();
        named += parts.len();
        let is_gone = |part: &&str| !names.contains(*part);
        parts
            .into_iter()
            .filter(is_gone)
            .map(str::to_owned)
            .collect()
    });
    assert!(named > 2, "only {named} tests named");
    assert!(
        gone.is_empty(),
        "no such tests of the lab:\n{}",
        gone.join("\n")
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names that are wrong in each line of the pages that speak of the present.
fn in_pages(mut wrong: impl FnMut(&str) -> Vec<String>) -> Vec<String> {
    let mut found = Vec::new();
    for page in pages(&root()) {
        let text = std::fs::read_to_string(&page).expect("a page");
        let name = page.display().to_string();
        // Changes and decisions name what was there then; the list of messages names no code.
        if !["CHANGELOG.md", "decisions", "messages.md"]
            .iter()
            .any(|past| name.contains(past))
        {
            let here = text.lines().flat_map(&mut wrong);
            found.extend(here.map(|code| format!("{name}: {code}")));
        }
    }
    found
}

fn is_file(code: &str) -> bool {
    code.ends_with(".rs") && code.contains('/') && !code.contains([' ', '*', '{'])
}

/// The type and the function of `Type::function`.
fn method(code: &str) -> Option<(&str, &str)> {
    let (of, name) = code.trim_end_matches("()").split_once("::")?;
    let is_name = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let is_method = of.starts_with(char::is_uppercase)
        && name.starts_with(char::is_lowercase)
        && is_name(of)
        && is_name(name);
    is_method.then_some((of, name))
}

/// Whether a source is the file, or has the function or field in a block of the type.
fn has((file, text): &(String, String), code: &str) -> bool {
    let Some((of, name)) = method(code) else {
        return file.ends_with(&format!("/{code}"));
    };
    let is_block = |line: &str| {
        let parts: Vec<&str> = line
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .collect();
        let begins = ["impl", "trait", "struct"].iter();
        begins.into_iter().any(|word| parts.contains(word)) && parts.contains(&of)
    };
    text.lines().any(is_block)
        && [format!("fn {name}"), format!(" {name}: ")]
            .iter()
            .any(|member| text.contains(member))
}
