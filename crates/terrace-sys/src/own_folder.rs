//! Folders in which nobody but root and this user can put something in the place of a file.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const ROOT: u32 = 0;

/// Why a file of ours is not put somewhere.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The path does not end with a name.
    #[error("{} is no path of a file", .0.display())]
    NoName(PathBuf),
    /// Others can change what is in the folder.
    #[error("{}: {why}", path.display())]
    Shared {
        /// Which folder.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
    /// It cannot be looked at.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// Which folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The path of a file without a link above its last part, where its folder and every one above belong to root or to
/// this user, and others can replace nothing in them. The last part itself is not looked at.
///
/// # Errors
/// Which folder is not fit, and what to do.
pub fn in_own_folder(path: &Path) -> Result<PathBuf, FolderError> {
    let name = path.file_name();
    let name = name.ok_or_else(|| FolderError::NoName(path.to_owned()))?;
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| FolderError::Unreadable { path, source }
    };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = fs::canonicalize(folder).map_err(unreadable(folder))?;
    for above in folder.ancestors() {
        let meta = fs::symlink_metadata(above).map_err(unreadable(above))?;
        is_safe(meta.uid(), meta.mode(), own_uid()).map_err(|why| FolderError::Shared {
            path: above.to_owned(),
            why,
        })?;
    }
    Ok(folder.join(name))
}

/// Whether nobody but root and this user can put something in the place of what is in a folder.
fn is_safe(owner: u32, mode: u32, own: u32) -> Result<(), String> {
    if owner != ROOT && owner != own {
        return Err(format!(
            "the folder belongs to user {owner}: choose one of root's, or of this user's"
        ));
    }
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Err(format!(
            "others may write the folder (mode {:o}): chmod go-w it, or chmod +t it",
            mode & 0o7777
        ));
    }
    Ok(())
}

/// The effective user of this process.
pub(crate) fn own_uid() -> u32 {
    // SAFETY: takes no pointers, and cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_folder_is_roots_or_ours_and_nobody_else_replaces_what_is_in_it() {
        assert_eq!(is_safe(0, 0o40755, 1000), Ok(()));
        assert_eq!(is_safe(1000, 0o40700, 1000), Ok(()));
        assert_eq!(is_safe(0, 0o41777, 1000), Ok(()));
        assert!(is_safe(33, 0o40755, 1000).unwrap_err().contains("user 33"));
        assert!(is_safe(33, 0o41777, 0).is_err());
        assert!(is_safe(0, 0o40775, 0).unwrap_err().contains("775"));
    }

    #[test]
    fn what_is_above_counts_too_and_a_link_above_is_followed_once() {
        let folder = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(folder.path()).unwrap();
        let (open, inner) = (real.join("open"), real.join("open/inner"));
        fs::create_dir_all(&inner).unwrap();
        symlink(&inner, real.join("link")).unwrap();
        let file = real.join("link/file");
        assert_eq!(in_own_folder(&file).unwrap(), inner.join("file"));
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let error = in_own_folder(&file).unwrap_err().to_string();
        assert!(error.contains("open: others may write"), "{error}");
        assert!(in_own_folder(Path::new("/..")).is_err());
    }
}
