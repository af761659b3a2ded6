//! The file of a log: nobody else reads it, and no link leads it elsewhere.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use terrace_sys::in_own_folder;

/// A new file of mode 0600. A log of ours that is there already is kept beside it, with `previous` as its ending.
///
/// # Errors
/// Where others can change what is in the folder, or what is there is no file of ours. It is left as it is then.
pub fn create(path: &Path) -> Result<File> {
    let shown = path.display().to_string();
    let path = in_own_folder(path).with_context(|| format!("creating the log {shown}"))?;
    match fs::symlink_metadata(&path) {
        Ok(meta) => {
            ensure!(
                meta.is_file() && is_ours(&meta),
                "creating the log {shown}: a file of another kind or owner is there, and stays as it is: remove it, or \
                 name another file"
            );
            let previous = path.with_extension("previous");
            ensure!(
                previous != path,
                "creating the log {shown}: so is the log before a log called: name another file"
            );
            fs::rename(&path, &previous)
                .with_context(|| format!("keeping the last log as {}", previous.display()))?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("creating the log {shown}")),
    }
    // Nothing is there; whatever comes there meanwhile, a link too, is an error.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let file = options.open(&path);
    file.with_context(|| format!("creating the log {shown}"))
}

/// What is there belongs to the user that new files of this process belong to.
fn is_ours(meta: &fs::Metadata) -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == meta.uid())
}
