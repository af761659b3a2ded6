//! The mappings and descriptors of one process, which it may make as many and as odd as it likes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, ErrorKind};
use std::path::Path;

use terrace_sys::FileId;

use super::How;
use crate::{HostRoot, ReadError};

/// Most bytes of a line of `maps`; the kernel's longest has a path of 4,096 bytes, each escaped.
const MAX_LINE: u64 = 32 << 10;
/// Most bytes of `maps`: beyond what the kernel's default limit of mappings comes to.
const MAX_MAPS: u64 = 64 << 20;
/// Most descriptors, which is what the kernel allows a process by default.
const MAX_DESCRIPTORS: usize = 1 << 20;

/// A line of `/proc/PID/maps`.
pub(super) struct Mapping<'a> {
    pub start: u64,
    pub end: u64,
    pub is_shared: bool,
    pub file: FileId,
    pub path: &'a str,
}

/// The observations of a process.
#[derive(Debug, Default)]
pub(super) struct Had {
    /// The files that the process maps or holds open, and how.
    pub files: BTreeMap<FileId, How>,
    /// The process ended before all of it was seen: a child of it may have what it had.
    pub has_ended: bool,
}

/// The files, of these, that a process maps or holds open.
pub(super) fn of_process(
    root: &HostRoot,
    pid: u32,
    files: &BTreeSet<FileId>,
) -> Result<Had, ReadError> {
    let mut had = Had::default();
    let folder = root.join(format!("proc/{pid}"));
    let lines = of_folder(&folder, files, &mut had)?;
    if lines > 0 {
        return Ok(had);
    }
    // A thread of the kernel, or a process whose first thread has ended and shows nothing of the others.
    had.has_ended |= has_ended(&folder);
    let tasks = root.process(pid, "task");
    let entries = match gone(fs::read_dir(&tasks)) {
        Ok(None) => return Ok(had),
        Ok(Some(entries)) => entries,
        Err(source) => {
            return Err(ReadError::Io {
                path: tasks,
                source,
            });
        }
    };
    for entry in entries.flatten() {
        if entry.file_name().to_str() != Some(pid.to_string().as_str()) {
            of_folder(&entry.path(), files, &mut had)?;
        }
    }
    Ok(had)
}

/// Whether a process is gone, or a zombie, which has nothing any more.
fn has_ended(folder: &Path) -> bool {
    let Ok(stat) = fs::read(folder.join("stat")) else {
        return true;
    };
    // The name before it may hold anything.
    let after_name = stat.rsplit(|byte| *byte == b')').next();
    let state = after_name.and_then(|rest| rest.iter().find(|byte| **byte != b' '));
    matches!(state, None | Some(b'Z' | b'X'))
}

/// Returns how many mappings there are.
fn of_folder(folder: &Path, files: &BTreeSet<FileId>, had: &mut Had) -> Result<usize, ReadError> {
    let mut lines = 0;
    let maps = folder.join("maps");
    let read = each_mapping(&maps, |mapping| {
        lines += 1;
        if files.contains(&mapping.file) {
            had.files.insert(mapping.file, How::Maps);
        }
    });
    match gone(read) {
        Ok(Some(())) => {}
        Ok(None) => {
            had.has_ended = true;
            return Ok(0);
        }
        Err(source) => return Err(ReadError::Io { path: maps, source }),
    }
    let fds = folder.join("fd");
    let failed = |source| ReadError::Io {
        path: fds.clone(),
        source,
    };
    let Some(entries) = gone(fs::read_dir(&fds)).map_err(failed)? else {
        had.has_ended = true;
        return Ok(lines);
    };
    let (mut any, mut closed) = (false, false);
    for (number, entry) in entries.enumerate() {
        if number >= MAX_DESCRIPTORS {
            let what = format!("more than {MAX_DESCRIPTORS} descriptors");
            return Err(failed(io::Error::other(what)));
        }
        let Some(entry) = gone(entry).map_err(failed)? else {
            closed = true;
            break;
        };
        any = true;
        let behind = gone(FileId::behind(&entry.path())).map_err(failed)?;
        closed |= behind.is_none();
        if let Some(file) = behind.filter(|file| files.contains(file)) {
            had.files.entry(file).or_insert(How::Holds);
        }
    }
    // One that ends closes all; so does one that only closes some.
    if closed || !any {
        had.has_ended |= has_ended(folder);
    }
    Ok(lines)
}

/// That something is gone is no error.
fn gone<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Calls `each` for all mappings of a `maps` that are of files.
///
/// # Errors
/// If it cannot be read to its end, or holds what no kernel writes: nothing is known then.
pub(super) fn each_mapping(path: &Path, mut each: impl FnMut(&Mapping<'_>)) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(64 << 10, File::open(path)?);
    let mut line = Vec::new();
    let mut left = MAX_MAPS;
    loop {
        line.clear();
        let read = io::Read::take(&mut reader, MAX_LINE.min(left)).read_until(b'\n', &mut line)?;
        if read == 0 {
            return if left == 0 {
                Err(io::Error::other(format!("more than {MAX_MAPS} bytes")))
            } else {
                Ok(())
            };
        }
        left = left.saturating_sub(read as u64);
        if line.pop() != Some(b'\n') {
            return Err(io::Error::other("a line that does not end"));
        }
        // Of a path only its begin matters, which is the kernel's.
        let text = String::from_utf8_lossy(&line);
        let mapping = mapping(&text);
        each(&mapping.ok_or_else(|| io::Error::other("a line that is no mapping"))?);
    }
}

/// One line such as `7fc58ffff000-7fc6cffff000 rw-s 00000000 00:1b 2    /dev/shm/x`.
fn mapping(line: &str) -> Option<Mapping<'_>> {
    let mut fields = line.splitn(6, ' ');
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let (start, end) = fields.next()?.split_once('-')?;
    let mode = fields.next()?;
    let _offset = fields.next()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |digits| u32::from_str_radix(digits, 16).ok();
    let inode = fields.next()?.parse().ok()?;
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        is_shared: mode.ends_with('s'),
        file: FileId::new(number(major)?, number(minor)?, inode),
        path: fields.next().unwrap_or_default().trim_start(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> io::Result<Vec<(u64, bool, FileId, String)>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let mut all = Vec::new();
        each_mapping(file.path(), |m| {
            all.push((m.end - m.start, m.is_shared, m.file, m.path.to_owned()));
        })?;
        Ok(all)
    }

    #[test]
    fn lines_of_maps_are_read_and_what_is_none_hides_nothing() {
        let good =
            b"7f0000000000-7f0000200000 rw-s 00000000 00:01 1027    /memfd:a\\012b (deleted)\n";
        let all = read(good).unwrap();
        let name = "/memfd:a\\012b (deleted)".to_owned();
        assert_eq!(all, [(2 << 20, true, FileId::new(0, 1, 1027), name)]);
        assert!(read(b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n").is_ok());
        // A path that is no UTF-8, and one as long as they get.
        let mut odd = b"1000-2000 rw-s 00000000 fd:01 7    /\xff\xfe".to_vec();
        odd.extend([b'x'; 20_000]);
        odd.push(b'\n');
        assert_eq!(read(&odd).unwrap().len(), 1);
        for bad in [
            &b"garbage\n"[..],
            b"1000-2000 rw-s 0 00:01 1 /a",
            &[b'x'; 40_000],
        ] {
            assert!(read(bad).is_err());
        }
    }

    proptest::proptest! {
        #[test]
        fn no_line_makes_it_panic(line in ".{0,80}") {
            let _ = mapping(&line);
        }
    }
}
