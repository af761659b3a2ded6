//! A file on its way into L1.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use terrace_lab_programs::frame::Store;

/// A file of which a part has arrived.
pub struct Storing {
    file: File,
    partial: PathBuf,
    path: PathBuf,
    missing: u64,
}

impl Storing {
    /// Creates the file under a temporary name: the old one may be a program that is running.
    pub fn start(request: &[u8]) -> Result<Self> {
        let request: Store = serde_json::from_slice(request).context("store request")?;
        let path = PathBuf::from(&request.path);
        let folder = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {} in L1", folder.display()))?;
        let partial = path.with_added_extension("partial");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(request.mode)
            .open(&partial)
            .with_context(|| format!("cannot create {} in L1", partial.display()))?;
        Ok(Self {
            file,
            partial,
            path,
            missing: request.size,
        })
    }

    pub fn take(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .with_context(|| format!("cannot write {} in L1", self.partial.display()))?;
        self.missing = self.missing.saturating_sub(bytes.len() as u64);
        Ok(())
    }

    pub fn is_complete(&self) -> bool {
        self.missing == 0
    }

    pub fn finish(self) -> Result<()> {
        drop(self.file);
        fs::rename(&self.partial, &self.path)
            .with_context(|| format!("cannot put {} in place in L1", self.path.display()))
    }
}
