//! The parts of Terrace whose messages people read.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::collector::Source;
use super::page::Section;
use crate::sources::{read, rust_files};

/// The titles of the parts, in the page's order, with the crates of each.
const PRODUCTS: [(&str, &str); 13] = [
    ("Command line", "terrace-cli"),
    ("Daemon", "terraced"),
    ("Agent", "terrace-agent"),
    ("Device", "terrace-hyperflex"),
    ("Simulator", "terrace-sim"),
    ("Reproduction of the papers' figures", "terrace-repro"),
    ("Library: terrace-api", "terrace-api"),
    ("Library: terrace-config", "terrace-config"),
    ("Library: terrace-core", "terrace-core"),
    ("Library: terrace-host", "terrace-host"),
    ("Library: terrace-pagetable", "terrace-pagetable"),
    ("Library: terrace-proto", "terrace-proto"),
    ("Library: terrace-sys", "terrace-sys"),
];

/// The messages of each part, with its title.
///
/// # Errors
/// If a source cannot be read, or is not Rust.
pub fn sections(root: &Path) -> Result<Vec<(&'static str, Section)>> {
    let section = |(title, name)| Ok((title, section(&root.join("crates").join(name))?));
    PRODUCTS.into_iter().map(section).collect()
}

/// The messages of a crate. Modules that only tests have are left out.
fn section(folder: &Path) -> Result<Section> {
    let mut sources = Vec::new();
    let mut of_tests = Vec::new();
    for file in rust_files(&folder.join("src"))? {
        let source = Source::parse(&read(&file)?, file.ends_with("metrics.rs"))
            .with_context(|| format!("cannot parse {}", file.display()))?;
        let modules = source.test_modules.iter();
        of_tests.extend(modules.map(|name| folder_of(&file).join(name)));
        sources.push((file, source));
    }
    let mut section = Section::default();
    for (file, source) in sources {
        let is_of_tests =
            |module: &PathBuf| file.starts_with(module) || file == module.with_extension("rs");
        if !of_tests.iter().any(is_of_tests) {
            section.add(&name(&file), source.messages);
        }
    }
    Ok(section)
}

/// The folder of a file's modules.
fn folder_of(file: &Path) -> PathBuf {
    let has_own = ["lib.rs", "main.rs", "mod.rs"]
        .iter()
        .any(|name| file.ends_with(name));
    if has_own {
        file.parent().unwrap_or(file).to_owned()
    } else {
        file.with_extension("")
    }
}

/// A file's name; with its folder's if it is a `mod.rs`.
fn name(file: &Path) -> String {
    let last = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
    let name = last(file).unwrap_or_default();
    match file.parent().and_then(last) {
        Some(folder) if name == "mod.rs" => format!("{folder}/{name}"),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_stand_beside_files_that_are_folders() {
        assert_eq!(folder_of(Path::new("src/lib.rs")), Path::new("src"));
        assert_eq!(folder_of(Path::new("a/mod.rs")), Path::new("a"));
        assert_eq!(folder_of(Path::new("a/b.rs")), Path::new("a/b"));
        assert_eq!(name(Path::new("src/a/mod.rs")), "a/mod.rs");
        assert_eq!(name(Path::new("src/a/b.rs")), "b.rs");
    }
}
