//! The seam through which everything that belongs to others is opened: files of other processes, monitors' sockets,
//! DAMON's files.
//!
//! Such opening takes capabilities. A thread that reads what a guest, a hypervisor or a client sent has none: it asks
//! an [`Opener`] and is given a descriptor. An opener reads nothing of the files.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The purpose for which a file is opened. None of them makes a file that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The file is read.
    Read,
    /// The file is written from its beginning; its old contents are gone.
    Write,
    /// The file is read and written; its contents stay.
    ReadWrite,
    /// The file is only inspected (`O_PATH`): it may be a device or a pipe.
    PathOnly,
    /// The same; if the path is a link, the link itself is inspected.
    PathOnlyNoFollow,
}

/// A request to an opener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A file.
    Open(PathBuf, How),
    /// The target of a link.
    Link(PathBuf),
    /// The path without links.
    RealPath(PathBuf),
    /// The names in a folder, so many at most.
    Names(PathBuf, usize),
    /// A connection to a Unix socket, at once: `EAGAIN` if the listener's queue is full.
    Connect(PathBuf),
}

/// An opener's answer.
#[derive(Debug)]
pub enum Given {
    /// A file or a connection.
    Descriptor(OwnedFd),
    /// The target of a link, or the path without links.
    Path(PathBuf),
    /// The names in a folder.
    Names(Vec<OsString>),
}

/// A party that opens what belongs to others.
pub trait Opener: Send + Sync {
    /// Does what the request asks for.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn ask(&self, ask: Ask) -> io::Result<Given>;
}

/// An opener with the rights of the thread that asks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Itself;

impl Opener for Itself {
    fn ask(&self, ask: Ask) -> io::Result<Given> {
        match ask {
            Ask::Open(path, how) => {
                let file = how.options().open(path)?;
                Ok(Given::Descriptor(file.into()))
            }
            Ask::Link(path) => fs::read_link(path).map(Given::Path),
            Ask::RealPath(path) => fs::canonicalize(path).map(Given::Path),
            Ask::Names(folder, most) => {
                let entries = fs::read_dir(folder)?.take(most);
                let names: io::Result<_> = entries.map(|e| Ok(e?.file_name())).collect();
                names.map(Given::Names)
            }
            Ask::Connect(path) => crate::socket::connect_at_once(&path).map(Given::Descriptor),
        }
    }
}

impl How {
    fn options(self) -> OpenOptions {
        let mut options = OpenOptions::new();
        // A pipe that another process put in the place of a file must not keep the opener waiting.
        let patient = libc::O_NONBLOCK | libc::O_NOCTTY;
        match self {
            Self::Read => options.read(true).custom_flags(patient),
            Self::Write => options.write(true).truncate(true).custom_flags(patient),
            Self::ReadWrite => options.read(true).write(true).custom_flags(patient),
            Self::PathOnly => options.read(true).custom_flags(libc::O_PATH),
            Self::PathOnlyNoFollow => options
                .read(true)
                .custom_flags(libc::O_PATH | libc::O_NOFOLLOW),
        };
        options
    }
}

thread_local! {
    static OPENER: RefCell<Option<Arc<dyn Opener>>> = const { RefCell::new(None) };
}

/// Has the calling thread open by this opener from now on, instead of by itself.
pub fn open_by(opener: Arc<dyn Opener>) {
    OPENER.with(|of_this_thread| of_this_thread.replace(Some(opener)));
}

fn ask(ask: Ask) -> io::Result<Given> {
    match OPENER.with(|of_this_thread| of_this_thread.borrow().clone()) {
        Some(opener) => opener.ask(ask),
        None => Itself.ask(ask),
    }
}

fn descriptor(given: Given) -> io::Result<OwnedFd> {
    match given {
        Given::Descriptor(descriptor) => Ok(descriptor),
        _ => Err(wrong()),
    }
}

fn path(given: Given) -> io::Result<PathBuf> {
    match given {
        Given::Path(path) => Ok(path),
        _ => Err(wrong()),
    }
}

fn wrong() -> io::Error {
    io::Error::other("the opener gave what was not asked for")
}

/// Opens a file.
///
/// # Errors
/// As open(2).
pub fn open(path: &Path, how: How) -> io::Result<File> {
    ask(Ask::Open(path.into(), how))
        .and_then(descriptor)
        .map(File::from)
}

/// Opens anew the file behind a descriptor, for more than the descriptor allows.
///
/// # Errors
/// As open(2).
pub fn reopen(held: &File, how: How) -> io::Result<File> {
    open(
        Path::new(&format!("/proc/self/fd/{}", held.as_raw_fd())),
        how,
    )
}

/// The contents of a file.
///
/// # Errors
/// If it cannot be opened or read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, How::Read)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The metadata of a file, behind all links.
///
/// # Errors
/// If it does not exist.
pub fn metadata(path: &Path) -> io::Result<Metadata> {
    open(path, How::PathOnly)?.metadata()
}

/// The metadata of a file; that of the link itself if it is one.
///
/// # Errors
/// If it does not exist.
pub fn link_metadata(path: &Path) -> io::Result<Metadata> {
    open(path, How::PathOnlyNoFollow)?.metadata()
}

/// The target of a link.
///
/// # Errors
/// If it is no link, or may not be read.
pub fn read_link(link: &Path) -> io::Result<PathBuf> {
    ask(Ask::Link(link.into())).and_then(path)
}

/// The path without links.
///
/// # Errors
/// If something on the way does not exist.
pub fn real_path(of: &Path) -> io::Result<PathBuf> {
    ask(Ask::RealPath(of.into())).and_then(path)
}

/// The paths in a folder, so many at most.
///
/// # Errors
/// If it cannot be listed.
pub fn entries(folder: &Path, most: usize) -> io::Result<Vec<PathBuf>> {
    match ask(Ask::Names(folder.into(), most))? {
        Given::Names(names) => Ok(names.into_iter().map(|name| folder.join(name)).collect()),
        _ => Err(wrong()),
    }
}

/// Connects to a Unix stream socket, at once.
///
/// # Errors
/// As connect(2); `EAGAIN` if the listener's queue is full.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    ask(Ask::Connect(path.into())).and_then(descriptor)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt as _, symlink};
    use std::os::unix::net::UnixListener;
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    /// An opener that notes each request, and does what it asks for.
    #[derive(Default)]
    struct Noting(Mutex<Vec<Ask>>);

    impl Opener for Noting {
        fn ask(&self, ask: Ask) -> io::Result<Given> {
            self.0.lock().unwrap().push(ask.clone());
            Itself.ask(ask)
        }
    }

    #[test]
    fn a_thread_with_an_opener_opens_nothing_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        fs::write(&file, "text").unwrap();
        symlink(&file, &link).unwrap();
        let noting = Arc::new(Noting::default());
        let opener = Arc::clone(&noting);
        let body = move || {
            open_by(opener);
            assert_eq!(read(&link).unwrap(), b"text");
            assert!(metadata(&link).unwrap().is_file());
            assert!(link_metadata(&link).unwrap().is_symlink());
            assert_eq!(read_link(&link).unwrap(), file);
            assert_eq!(real_path(&link).unwrap(), file.canonicalize().unwrap());
            assert_eq!(entries(file.parent().unwrap(), 9).unwrap().len(), 3);
            assert!(metadata(&socket).unwrap().file_type().is_socket());
            crate::connect_unix(&socket, Duration::from_secs(9)).unwrap();
        };
        std::thread::spawn(body).join().unwrap();
        assert_eq!(noting.0.lock().unwrap().len(), 8);
    }

    #[test]
    fn a_pipe_in_place_of_a_file_blocks_nobody_and_creates_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: a path that ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert_eq!(read(&pipe).unwrap(), b"");
        assert!(open(&pipe, How::Write).is_err());
        let none = folder.path().join("none");
        for how in [How::Read, How::Write, How::ReadWrite, How::PathOnly] {
            assert!(open(&none, how).is_err(), "{how:?}");
        }
        assert!(!none.exists());
    }
}
