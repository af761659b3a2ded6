//! Listening at a path: only a dead socket of our own user's is replaced, and only our own is removed again.

use std::ffi::CString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::SysError;
use crate::connect::connect_unix;
use crate::own_folder::{FolderError, made_in_own_folder, own_uid};
use crate::socket::address;

/// Connections that wait to be accepted.
const BACKLOG: libc::c_int = 128;
/// Time that a listener may take to be seen as one; one with a full queue listens too.
const PATIENCE: Duration = Duration::from_millis(100);
/// Longest wait for others that start in the same folder. Anybody who can open the folder can hold them up, so not
/// for ever.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Most names that are tried for a dead socket on its way out.
const MAX_NAMES: u32 = 100;

/// The reason why nothing listens at a path. Nothing that was there has been touched.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program listens there already.
    #[error("another program already listens on {}: end it first, or name another socket", .0.display())]
    InUse(PathBuf),
    /// The file there is not ours to replace.
    #[error("{} is {what}, which is not replaced: remove it, or name another socket", path.display())]
    Foreign {
        /// The path of the file.
        path: PathBuf,
        /// The kind of the file, in words.
        what: String,
    },
    /// Others could put something in the place of a socket in that folder.
    #[error("no socket is made there: {0}")]
    Folder(FolderError),
    /// Another process made or removed something there at the same time.
    #[error("another program changed {} at the same time: start again", .0.display())]
    Raced(PathBuf),
    /// The kernel refused.
    #[error(transparent)]
    Sys(#[from] SysError),
}

/// The file of a socket that this process listens on. Dropping it removes the file, if it still is that one.
#[derive(Debug)]
#[must_use = "the file is removed when this is dropped"]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: no other file has them while the socket is open.
    id: (u64, u64),
}

impl SocketFile {
    /// Leaves the file where it is, for a process that may not remove it at its end. The next program that listens
    /// there replaces it.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|meta| id(&meta) == self.id)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there() {
            // A file that cannot be removed is dead from now on, and replaced by the next one.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path`, whose file gets exactly `mode` before anybody can connect. Its folder is made if it does not
/// exist. A link at the end of the path is never followed.
///
/// Processes that start at once do this one after the other, by a lock on the folder, so that at most one of them
/// listens. A dead socket is moved aside and checked again there, in case the lock was not to be had.
///
/// # Errors
/// If another program listens there, if something else is there, or if others than root and this user may write the
/// folder.
pub fn listen_at(path: &Path, mode: u32) -> Result<(UnixListener, SocketFile), ListenError> {
    let path = made_in_own_folder(path).map_err(ListenError::Folder)?;
    let _lock = alone_in_folder(&path);
    remove_dead(&path)?;
    let bound = bind(&path)?;
    let file = SocketFile {
        id: id(&fs::symlink_metadata(&path).map_err(failed("stat", &path))?),
        path,
    };
    let path = &file.path;
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
        .map_err(failed("chmod", path))?;
    // SAFETY: takes no pointers.
    if unsafe { libc::listen(bound.as_raw_fd(), BACKLOG) } != 0 {
        return Err(SysError::last("listen", path.display().to_string()).into());
    }
    // Until it listens another one takes it for dead.
    if !file.is_there() {
        return Err(ListenError::Raced(path.clone()));
    }
    Ok((UnixListener::from(bound), file))
}

/// The folder's lock: others that do the same in this folder wait until it is closed. `None` if another process holds
/// the lock for long.
fn alone_in_folder(path: &Path) -> Option<File> {
    let folder = File::open(path.parent()?).ok()?;
    let until = Instant::now() + LOCK_PATIENCE;
    while folder.try_lock().is_err() {
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(folder)
}

/// Removes a socket that an ended process of this user left.
fn remove_dead(path: &Path) -> Result<(), ListenError> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("stat", path)(error).into()),
    };
    check_replaceable(&meta).map_err(|what| ListenError::Foreign {
        path: path.to_owned(),
        what,
    })?;
    if !is_dead(path)? {
        return Err(ListenError::InUse(path.to_owned()));
    }
    let aside = move_aside(path)?;
    // Another one may have replaced it, or begun to listen, before it was moved.
    let same = fs::symlink_metadata(&aside).is_ok_and(|now| id(&now) == id(&meta));
    if !(same && is_dead(&aside).unwrap_or(false)) {
        rename(&aside, path)?;
        return Err(ListenError::Raced(path.to_owned()));
    }
    fs::remove_file(&aside).map_err(failed("unlink", &aside))?;
    Ok(())
}

/// Checks that a file may be replaced once it is known to be dead; the error is the kind of a file that may not.
fn check_replaceable(meta: &Metadata) -> Result<(), String> {
    let kind = meta.file_type();
    if kind.is_symlink() {
        return Err("a symbolic link".into());
    }
    if kind.is_dir() {
        return Err("a folder".into());
    }
    if !kind.is_socket() {
        return Err("a file and no socket".into());
    }
    if meta.uid() != own_uid() {
        return Err(format!("a socket of user {}", meta.uid()));
    }
    Ok(())
}

/// Whether no process listens at a socket.
fn is_dead(path: &Path) -> Result<bool, ListenError> {
    match connect_unix(path, PATIENCE) {
        Ok(_) => Ok(false),
        Err(error) => match error.errno() {
            libc::ECONNREFUSED => Ok(true),
            // Its queue is full.
            libc::EAGAIN => Ok(false),
            libc::EPROTOTYPE => Err(ListenError::Foreign {
                path: path.to_owned(),
                what: "a socket of another kind".into(),
            }),
            _ => Err(error.into()),
        },
    }
}

/// Moves a file to a short name in the same folder that nothing has.
fn move_aside(path: &Path) -> Result<PathBuf, ListenError> {
    for number in 0..MAX_NAMES {
        let aside = path.with_file_name(format!(".t{number}"));
        match rename(path, &aside) {
            Err(error) if error.errno() == libc::EEXIST => {}
            Err(error) if error.errno() == libc::ENOENT => {
                return Err(ListenError::Raced(path.to_owned()));
            }
            done => return done.map(|()| aside).map_err(ListenError::from),
        }
    }
    Err(ListenError::Foreign {
        path: path.with_file_name(".t0"),
        what: "in the way, as are 99 more like it".into(),
    })
}

/// Renames a file; never over another one.
fn rename(from: &Path, to: &Path) -> Result<(), SysError> {
    let text = |path: &Path| {
        CString::new(path.as_os_str().as_bytes())
            .map_err(|_| failed("renameat2", path)(io::Error::from_raw_os_error(libc::EINVAL)))
    };
    let (old, new) = (text(from)?, text(to)?);
    // SAFETY: both are strings that end with zero and live until the call is over.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            old.as_ptr(),
            libc::AT_FDCWD,
            new.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if rc == 0 {
        return Ok(());
    }
    Err(SysError::last("renameat2", from.display().to_string()))
}

/// A socket that has its path and does not listen yet. If anything is there already, the kernel refuses.
fn bind(path: &Path) -> Result<OwnedFd, ListenError> {
    let (address, len) = address(path).map_err(failed("bind", path))?;
    let failed = |call| SysError::last(call, path.display().to_string());
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(failed("socket").into());
    }
    // SAFETY: the call above made this descriptor; nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `address` is a valid socket address of `len` bytes.
    let rc = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if rc == 0 {
        return Ok(socket);
    }
    match failed("bind") {
        error if error.errno() == libc::EADDRINUSE => Err(ListenError::Raced(path.to_owned())),
        error => Err(error.into()),
    }
}

fn id(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

fn failed(call: &'static str, path: &Path) -> impl Fn(io::Error) -> SysError {
    let what = path.display().to_string();
    move |source| SysError {
        call,
        what: what.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(folder.path()).unwrap().join("s.sock");
        (folder, path)
    }

    fn refused(path: &Path) -> String {
        listen_at(path, 0o660).unwrap_err().to_string()
    }

    #[test]
    fn a_dead_socket_is_replaced_with_mode_and_name() {
        let (folder, path) = place();
        drop(UnixListener::bind(&path).unwrap());
        let (listener, _file) = listen_at(&path, 0o660).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o660);
        let name = listener.local_addr().unwrap();
        assert_eq!(name.as_pathname(), Some(path.as_path()));
        let there = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(there, 1, "nothing is left beside it");
    }

    #[test]
    fn files_folders_links_and_other_sockets_stay_as_they_are() {
        let (folder, path) = place();
        let other = folder.path().join("other");
        fs::write(&path, "precious").unwrap();
        assert!(refused(&path).contains("a file and no socket"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::rename(&path, &other).unwrap();
        for dangling in [false, true] {
            symlink(if dangling { Path::new("none") } else { &other }, &path).unwrap();
            assert!(refused(&path).contains("a symbolic link"));
            fs::remove_file(&path).unwrap();
        }
        let _datagrams = UnixDatagram::bind(&path).unwrap();
        assert!(refused(&path).contains("another kind"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(refused(&path).contains("a folder"));
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    }

    #[test]
    fn one_on_which_somebody_listens_stays_even_with_a_full_queue() {
        let (_folder, path) = place();
        let (_listener, _file) = listen_at(&path, 0o600).unwrap();
        assert!(refused(&path).contains("already listens"));
        let mut waiting = Vec::new();
        while let Ok(one) = connect_unix(&path, Duration::from_millis(10)) {
            waiting.push(one);
            assert!(waiting.len() < 10_000);
        }
        assert!(refused(&path).contains("already listens"));
        assert!(path.exists());
    }

    #[test]
    fn foreign_sockets_and_world_writable_folders_are_refused() {
        let (folder, path) = place();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&path).contains("others may write"));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        if own_uid() == 0 {
            std::os::unix::fs::lchown(&path, Some(65534), None).unwrap();
            assert!(refused(&path).contains("a socket of user 65534"));
            assert!(path.exists());
        }
    }

    #[test]
    fn only_our_own_socket_is_removed() {
        let (_folder, path) = place();
        let (_listener, file) = listen_at(&path, 0o600).unwrap();
        // Another program moved it away and put another one there.
        fs::remove_file(&path).unwrap();
        let (_other, other_file) = listen_at(&path, 0o600).unwrap();
        drop(file);
        UnixStream::connect(&path).expect("the other one's stays");
        drop(other_file);
        assert!(!path.exists());
        let (_listener, file) = listen_at(&path, 0o600).unwrap();
        file.leave();
        assert!(path.exists());
    }

    #[test]
    fn one_of_many_racing_listeners_gets_a_dead_socket() {
        let (_folder, path) = place();
        for _ in 0..20 {
            drop(UnixListener::bind(&path).unwrap());
            let start = std::sync::Barrier::new(8);
            let listening: Vec<_> = std::thread::scope(|scope| {
                let one = || {
                    start.wait();
                    listen_at(&path, 0o600).ok()
                };
                let all: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
                all.into_iter().filter_map(|t| t.join().unwrap()).collect()
            });
            assert!(listening.len() <= 1, "{} listen", listening.len());
            match listening.first() {
                Some(_) => drop(UnixStream::connect(&path).unwrap()),
                None => drop(listen_at(&path, 0o600).unwrap()),
            }
            drop(listening);
            // Who lost a race may have left a dead one.
            let _ = fs::remove_file(&path);
        }
    }
}
