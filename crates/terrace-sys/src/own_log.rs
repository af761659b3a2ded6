//! The file of a log: no other user reads it, and no link leads it elsewhere.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use terrace_proto::log::MAGIC;

use crate::own_folder::{FolderError, in_own_folder};

/// The reason why there is no file for a log.
#[derive(Debug, thiserror::Error)]
pub enum LogFileError {
    /// Others can change the contents of its folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The file there is not one that a log of ours was written to.
    #[error(
        "a file of another kind or owner exists there and is not replaced: remove it, or name another file"
    )]
    Foreign,
    /// A file of ours that is no log would be renamed or replaced.
    #[error("{} is no Terrace log, and stays as it is: remove it, or name another file", .0.display())]
    NoLog(PathBuf),
    /// The last log would be stored under the same name.
    #[error("so is the log before a log called: name another file")]
    Previous,
    /// The last log cannot be preserved.
    #[error("keeping the last log as {}: {source}", path.display())]
    Keep {
        /// The name under which it would be stored.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The file cannot be made.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Makes a new file of mode 0600. A log of ours that is there already is moved beside it, with `previous` as its
/// ending.
///
/// # Errors
/// If others can change the folder's contents, or if the name is taken by something that is no file of ours, which
/// then stays as it is.
pub fn new_log_file(path: &Path) -> Result<File, LogFileError> {
    let path = in_own_folder(path)?;
    match fs::symlink_metadata(&path) {
        Ok(meta) if !meta.is_file() || !is_ours(&meta) => return Err(LogFileError::Foreign),
        Ok(_) => {
            let previous = path.with_extension("previous");
            if previous == path {
                return Err(LogFileError::Previous);
            }
            for there in [&path, &previous] {
                if !may_be_replaced(there)? {
                    return Err(LogFileError::NoLog(there.clone()));
                }
            }
            fs::rename(&path, &previous).map_err(|source| LogFileError::Keep {
                path: previous,
                source,
            })?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    // Nothing is there; whatever comes there meanwhile, a link too, is an error.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    Ok(options.open(&path)?)
}

/// Whether a log may take this place: nothing is there, or a log, or an empty file.
fn may_be_replaced(path: &Path) -> io::Result<bool> {
    let mut options = OpenOptions::new();
    options.read(true);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        // A link leads to what is no log of ours.
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Ok(false),
        Err(error) => return Err(error),
    };
    let meta = file.metadata()?;
    if !meta.is_file() || !is_ours(&meta) {
        return Ok(false);
    }
    let mut begins = Vec::new();
    file.take(MAGIC.len() as u64).read_to_end(&mut begins)?;
    Ok(begins.is_empty() || begins == MAGIC)
}

/// Whether a file belongs to the user that new files of this process belong to.
fn is_ours(meta: &fs::Metadata) -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == meta.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_log_is_neither_renamed_nor_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (notes, log) = (folder.path().join("notes"), folder.path().join("one.trlog"));
        fs::write(&notes, "precious").unwrap();
        let why = new_log_file(&notes).unwrap_err().to_string();
        assert!(why.contains("notes is no Terrace log"), "{why}");
        fs::write(folder.path().join("one.previous"), "precious").unwrap();
        new_log_file(&log).unwrap();
        let why = new_log_file(&log).unwrap_err().to_string();
        assert!(why.contains("one.previous is no Terrace log"), "{why}");
        for name in ["notes", "one.previous"] {
            let there = fs::read_to_string(folder.path().join(name)).unwrap();
            assert_eq!(there, "precious");
        }
    }

    #[test]
    fn the_last_log_is_kept_and_the_one_before_it_makes_room() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("one.trlog");
        for _ in 0..3 {
            new_log_file(&log).unwrap();
            fs::write(&log, MAGIC).unwrap();
        }
        let previous = fs::read(folder.path().join("one.previous")).unwrap();
        assert_eq!(previous, MAGIC);
    }
}
