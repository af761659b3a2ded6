//! The source files of the tree.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The Rust files below a folder, in no order; what was built is left out.
///
/// # Errors
/// If a folder cannot be listed.
pub fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The text of a file.
///
/// # Errors
/// If it cannot be read.
pub fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}
