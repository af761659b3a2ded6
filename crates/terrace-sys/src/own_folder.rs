//! Folders in which only root and this user can put something in the place of a file.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

const ROOT: u32 = 0;
/// Most links that are followed in one path, as by the kernel.
const MAX_LINKS: u32 = 40;

/// The reason why a file of ours is not put somewhere.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The path does not end with a name.
    #[error("{} is no path of a file", .0.display())]
    NoName(PathBuf),
    /// Others can change the folder's contents.
    #[error("{}: {why}", path.display())]
    Shared {
        /// The folder.
        path: PathBuf,
        /// The reason, and what to do.
        why: String,
    },
    /// The path leads through a link that another user may point elsewhere.
    #[error("{} is a link of another user: name a path without it", .0.display())]
    OthersLink(PathBuf),
    /// The folder cannot be inspected, or cannot be made.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
}

/// The path of a file without a link above its last part. The file's folder and every one that the path leads
/// through, by links too, must belong to root or to this user, and no other user may be able to replace anything in
/// them. The last part itself is not inspected.
///
/// # Errors
/// If a folder is not fit: the error names it, and what to do.
pub(crate) fn in_own_folder(path: &Path) -> Result<PathBuf, FolderError> {
    walk(path, |_| Ok(()))
}

/// Does the same as [`in_own_folder`]; folders that do not exist are made, with mode 0755 at most, in those that are
/// fit.
///
/// # Errors
/// As [`in_own_folder`], or if a folder cannot be made.
pub(crate) fn made_in_own_folder(path: &Path) -> Result<PathBuf, FolderError> {
    walk(path, |folder| {
        let made = DirBuilder::new().mode(0o755).create(folder);
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done,
        }
    })
}

/// Follows the path as the kernel would, and inspects each folder before anything in it counts.
fn walk(path: &Path, make: impl Fn(&Path) -> io::Result<()>) -> Result<PathBuf, FolderError> {
    let name = path.file_name();
    let name = name.ok_or_else(|| FolderError::NoName(path.to_owned()))?;
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| FolderError::Unreadable { path, source }
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let here = match folder.is_absolute() {
        true => PathBuf::new(),
        false => std::env::current_dir().map_err(unreadable(folder))?,
    };
    let mut ahead = parts(&here.join(folder));
    let (mut real, mut links) = (PathBuf::from("/"), 0);
    fit(&real)?;
    while let Some(part) = ahead.pop_front() {
        if part == ".." {
            real.pop();
            continue;
        }
        let next = real.join(part);
        let mut meta = fs::symlink_metadata(&next);
        if matches!(&meta, Err(error) if error.kind() == io::ErrorKind::NotFound) {
            make(&next).map_err(unreadable(&next))?;
            meta = fs::symlink_metadata(&next);
        }
        let meta = meta.map_err(unreadable(&next))?;
        if meta.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(unreadable(path)(io::Error::from_raw_os_error(libc::ELOOP)));
            }
            // In a sticky folder it may be anybody's.
            let its_owner = check_permissions(meta.uid(), 0, own_uid());
            its_owner.map_err(|_| FolderError::OthersLink(next.clone()))?;
            let target = fs::read_link(&next).map_err(unreadable(&next))?;
            if target.is_absolute() {
                real = PathBuf::from("/");
            }
            for part in parts(&target).into_iter().rev() {
                ahead.push_front(part);
            }
        } else {
            fit(&next)?;
            real = next;
        }
    }
    Ok(real.join(name))
}

/// The parts of a path between the slashes.
fn parts(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

fn fit(folder: &Path) -> Result<(), FolderError> {
    let meta = fs::symlink_metadata(folder).map_err(|source| FolderError::Unreadable {
        path: folder.to_owned(),
        source,
    })?;
    check_permissions(meta.uid(), meta.mode(), own_uid()).map_err(|why| FolderError::Shared {
        path: folder.to_owned(),
        why,
    })
}

/// Checks that only root and this user can replace anything in a folder; the error has why others can, and what
/// to do.
fn check_permissions(owner: u32, mode: u32, own: u32) -> Result<(), String> {
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
    fn a_trusted_folder_is_roots_or_ours_and_not_replaceable() {
        assert_eq!(check_permissions(0, 0o40755, 1000), Ok(()));
        assert_eq!(check_permissions(1000, 0o40700, 1000), Ok(()));
        assert_eq!(check_permissions(0, 0o41777, 1000), Ok(()));
        assert!(
            check_permissions(33, 0o40755, 1000)
                .unwrap_err()
                .contains("user 33")
        );
        assert!(check_permissions(33, 0o41777, 0).is_err());
        assert!(
            check_permissions(0, 0o40775, 0)
                .unwrap_err()
                .contains("775")
        );
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

    #[test]
    fn a_link_that_others_can_point_elsewhere_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(folder.path()).unwrap();
        let (open, fit, first) = (real.join("open"), real.join("fit"), real.join("first"));
        fs::create_dir(&open).unwrap();
        fs::create_dir(&fit).unwrap();
        symlink(&fit, open.join("link")).unwrap();
        symlink("open/link", &first).unwrap();
        let paths = [open.join("link/file"), first.join("file")];
        for path in &paths {
            assert_eq!(in_own_folder(path).unwrap(), fit.join("file"));
        }
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        for path in &paths {
            let error = in_own_folder(path).unwrap_err().to_string();
            assert!(error.contains("open: others may write"), "{error}");
        }
        fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
        in_own_folder(&paths[0]).unwrap();
        if own_uid() == ROOT {
            std::os::unix::fs::lchown(open.join("link"), Some(65534), None).unwrap();
            let error = in_own_folder(&paths[0]).unwrap_err().to_string();
            assert!(error.contains("a link of another user"), "{error}");
        }
        symlink("circle", real.join("circle")).unwrap();
        assert!(in_own_folder(&real.join("circle/file")).is_err());
    }

    #[test]
    fn no_folder_is_made_where_others_can_change_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(folder.path()).unwrap();
        let made = made_in_own_folder(&real.join("a/b/file")).unwrap();
        assert!(made == real.join("a/b/file") && real.join("a/b").is_dir());
        let open = real.join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        made_in_own_folder(&open.join("new/file")).unwrap_err();
        assert!(!open.join("new").exists());
        assert!(in_own_folder(&real.join("none/file")).is_err());
        assert!(!real.join("none").exists());
    }
}
