//! Imports between the modules of a crate, read from its sources.
//!
//! Formatted sources are read as text: paths that begin with `crate::` or `super::`, in `use` and elsewhere, comments
//! and tests aside. A name that the crate's root exports counts as its module's.

use std::collections::BTreeMap;
use std::path::Path;

use super::rust_files;

/// The modules at the root of a crate, each with those that it imports from, and a file that does.
pub type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// Reads the imports from a crate's `src`.
pub fn of_crate(src: &Path) -> Imports {
    let mut imports = Imports::new();
    let mut files: Vec<(Vec<String>, String)> = Vec::new();
    let mut exports = BTreeMap::new();
    for file in rust_files(src) {
        let text = code(&std::fs::read_to_string(&file).expect("a source file"));
        let path = module(file.strip_prefix(src).expect("below src"));
        match path.as_slice() {
            [] => exports.extend(exported(&text)),
            // The lab's tests are what it is for; they stand at its root.
            [_, below @ ..] if below.iter().any(|part| part == "tests") => {}
            [only]
                if only == "tests"
                    && src.join("lib.rs").is_file()
                    && !src.join("tests").is_dir() => {}
            _ => files.push((path, text)),
        }
    }
    for (path, _) in &files {
        imports.entry(path[0].clone()).or_default();
    }
    let known: Vec<String> = imports.keys().cloned().collect();
    for (path, text) in &files {
        for name in at_the_root(text, path.len()) {
            let target = match exports.get(&name) {
                Some(module) if !known.contains(&name) => module,
                _ => &name,
            };
            if known.contains(target) && *target != path[0] {
                let of = imports.entry(path[0].clone()).or_default();
                of.entry(target.clone()).or_insert_with(|| path.join("/"));
            }
        }
    }
    imports
}

/// The path of a file's module; empty for a crate's root.
fn module(file: &Path) -> Vec<String> {
    let parts = file.with_extension("");
    let parts = parts.iter().map(|part| part.to_string_lossy().into_owned());
    let mut parts: Vec<String> = parts.collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    if matches!(&parts[..], [root] if root == "lib" || root == "main") {
        parts.clear();
    }
    parts
}

/// A source without comments, and without the module of tests that ends it.
fn code(text: &str) -> String {
    let mut lines = Vec::new();
    let mut rest = text.lines().peekable();
    while let Some(line) = rest.next() {
        let next = rest.peek().copied().unwrap_or_default().trim_start();
        if line.trim() == "#[cfg(test)]" && next.starts_with("mod ") && next.ends_with('{') {
            break;
        }
        if !line.trim_start().starts_with("//") {
            lines.push(line);
        }
    }
    lines.join("\n")
}

/// Names that are resolved at the crate's root, in a module so deep below it.
fn at_the_root(text: &str, depth: usize) -> Vec<String> {
    let above = "super::".repeat(depth);
    let mut found = Vec::new();
    for root in ["crate::", above.as_str()] {
        for (at, _) in text.match_indices(root) {
            let before = &text[..at];
            // `pub(crate)` has no `::`; a longer chain of `super` would leave the crate.
            if before.ends_with("::") || before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
            {
                continue;
            }
            found.extend(heads(&text[at + root.len()..]));
        }
    }
    found
}

/// The first names of a path, or of each path of a list in braces.
fn heads(rest: &str) -> Vec<String> {
    let Some(list) = rest.strip_prefix('{') else {
        return Vec::from_iter(head(rest));
    };
    let mut found = Vec::from_iter(head(list));
    let mut depth = 1;
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => found.extend(head(&list[at + 1..])),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

fn head(path: &str) -> Option<String> {
    let path = path.trim_start();
    let name = path
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()?;
    (!name.is_empty() && name != "super" && name != "self").then(|| name.to_owned())
}

/// Names that a crate's root exports, and the modules that have them.
fn exported(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for statement in text.split("use ").skip(1) {
        let statement = statement.split(';').next().unwrap_or_default();
        let Some((module, names)) = statement.split_once("::") else {
            continue;
        };
        let names = names.split(|c: char| !c.is_alphanumeric() && c != '_');
        for name in names.filter(|name| !name.is_empty()) {
            found.insert(name.to_owned(), module.trim().to_owned());
        }
    }
    found
}
