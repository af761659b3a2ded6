//! Words of a dialect of our own, which names use no more: `docs/glossary.md` has the field's words for them.

use std::collections::BTreeMap;
use std::path::Path;

use crate::sources::rust_files;

/// Banned words, with the number of times that names use each. Lower the numbers; do not raise any.
const BANNED: &[(&str, usize)] = &[
    ("elastic", 0),
    ("ground", 0),
    ("hands", 0),
    ("home", 0),
    ("honesty", 0),
    ("journey", 0),
    ("journeys", 0),
    ("keeper", 0),
    ("kept", 0),
    ("looked", 0),
    ("roster", 0),
    ("scout", 0),
    ("told", 0),
    ("travel", 0),
    ("travelled", 0),
    ("wish", 0),
    ("wished", 0),
    ("wishes", 0),
    // Machine words, and the words of a line.
    ("words", 234),
];

#[test]
fn names_use_fewer_and_fewer_banned_words() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut counts: BTreeMap<&str, usize> = BANNED.iter().map(|(word, _)| (*word, 0)).collect();
    for folder in ["crates", "lab", "xtask"] {
        for file in rust_files(&root.join(folder)) {
            let text = std::fs::read_to_string(&file).expect("a source file");
            for word in words(&text) {
                if let Some(count) = counts.get_mut(word.as_str()) {
                    *count += 1;
                }
            }
        }
    }
    let wrong: Vec<String> = BANNED
        .iter()
        .filter(|(word, listed)| counts[word] != *listed)
        .map(|(word, listed)| format!("(\"{word}\", {}): {listed} listed", counts[word]))
        .collect();
    assert!(
        wrong.is_empty(),
        "banned words in names:\n{}",
        wrong.join("\n")
    );
}

/// The words of all names in a source, in lower case. Comments and texts do not count, nor do names of tests.
fn words(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in text
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("//"))
    {
        let is_name_of_test = std::mem::take(&mut is_test) && line.contains("fn ");
        is_test = line == "#[test]" || (is_test && line.starts_with('#'));
        if is_name_of_test {
            continue;
        }
        let code = line.split('"').step_by(2);
        for name in code.flat_map(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_')) {
            found.extend(words_of(name));
        }
    }
    found
}

/// The words of a name: those of `take_hint` and `TakeHint` are `take` and `hint`.
fn words_of(name: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for part in name.split('_').filter(|part| !part.is_empty()) {
        let mut was_lower = false;
        for (i, c) in part.chars().enumerate() {
            if i == 0 || (c.is_uppercase() && was_lower) {
                found.push(String::new());
            }
            was_lower = c.is_lowercase() || c.is_numeric();
            if let Some(word) = found.last_mut() {
                word.extend(c.to_lowercase());
            }
        }
    }
    found
}

#[test]
fn names_are_split_into_their_words() {
    let text = "// a hint\nlet own_hints = TakeHint::new(\"a hint\");\n#[test]\nfn a_hint_in_a_name() {}\n";
    let found = words(text);
    assert_eq!(
        found,
        ["let", "own", "hints", "take", "hint", "new", "test"]
    );
}
