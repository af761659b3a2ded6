//! One owner of the accessed bits: while a round's windows run, sources of `terrace-agent run` that clear them rest.

use std::fs::{File, TryLockError};

use anyhow::{Context as _, Result};
use terrace_sys::HostRoot;

use super::pool::{FOLDER, make_folder};

const FILE: &str = "accessed-bits.lock";

/// Holds the accessed bits until it is dropped, or the program ends in whatever way.
///
/// # Errors
/// If the file cannot be made or locked.
pub fn hold(root: &HostRoot) -> Result<File> {
    let file = root.join(FOLDER).join(FILE);
    let lock = || {
        make_folder(root)?;
        let file = File::create(&file)?;
        file.lock()?;
        Ok::<_, std::io::Error>(file)
    };
    lock().with_context(|| format!("locking {}", file.display()))
}

/// Whether somebody holds them.
#[must_use]
pub fn are_held(root: &HostRoot) -> bool {
    let Ok(file) = File::open(root.join(FOLDER).join(FILE)) else {
        return false;
    };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_held_until_the_windows_end() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::new(dir.path());
        assert!(!are_held(&root));
        let held = hold(&root).unwrap();
        assert!(are_held(&root));
        drop(held);
        assert!(!are_held(&root));
    }
}
