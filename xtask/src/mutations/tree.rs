//! A copy of the tree, so that a mutation never is in the one that people work on.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::table::Mutation;
use terrace_lab::{host, places};

/// The copy's folder.
pub struct Tree(PathBuf);

impl Tree {
    /// Makes the folder a copy of what git knows or would take of this tree. Files that are the same already keep
    /// their times, so that they are not built again.
    pub fn copied(folder: &Path) -> Result<Self> {
        let files = sources(places::repository())?;
        for file in &files {
            copy(&places::repository().join(file), &folder.join(file))?;
        }
        remove_others(folder, folder, &files)?;
        Ok(Self(folder.to_owned()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The tree with one fault, until the value is dropped.
    pub fn broken_by(&self, mutation: &Mutation) -> Result<Broken> {
        let path = self.0.join(mutation.file);
        let good = read(&path)?;
        write(&path, &mutated(mutation, &good)?)?;
        Ok(Broken { path, good })
    }
}

/// A file with a fault in it.
pub struct Broken {
    path: PathBuf,
    good: String,
}

impl Drop for Broken {
    fn drop(&mut self) {
        // If it cannot be written the next run copies it anew.
        let _ = fs::write(&self.path, &self.good);
    }
}

/// The file's text with the fault.
pub fn mutated(mutation: &Mutation, text: &str) -> Result<String> {
    let Mutation {
        name,
        file,
        find,
        replace,
        ..
    } = mutation;
    match text.matches(find).count() {
        1 => Ok(text.replacen(find, replace, 1)),
        n => bail!(
            "mutation {name}: its text is {n} times in {file}, not once; bring it up to date:\n{find}"
        ),
    }
}

/// Files in and under `root`, relative to it.
fn sources(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut git = Command::new("git");
    git.current_dir(root).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let listed = host::output(&mut git)?;
    let files = listed.split('\0').filter(|name| !name.is_empty());
    // One that was deleted and not committed is listed all the same.
    Ok(files
        .map(PathBuf::from)
        .filter(|file| root.join(file).is_file())
        .collect())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    if fs::read(to).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    // With its mode: some are programs.
    fs::copy(from, to).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(())
}

fn remove_others(root: &Path, folder: &Path, files: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(root, &path, files)?;
        } else if !files.contains(path.strip_prefix(root)?) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
