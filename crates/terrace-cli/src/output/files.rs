//! Files that a command writes: whole ones, each in its place only when all of them are, and none over an input.
//!
//! A file is `OUT.partial` until it is whole. Devices and pipes are written as they are.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::is_standard;

/// Folders of the kernel: their files stand for what a process has open, and cannot be replaced.
const OF_THE_KERNEL: [&str; 2] = ["/dev", "/proc"];

/// Writes one file.
pub fn put(out: &Path, text: &str) -> Result<()> {
    let mut files = Files::default();
    files.write(out, |to| to.write_all(text.as_bytes()))?;
    files.keep()
}

/// Files that come to their places together; none of them is left if one cannot be written.
#[derive(Default)]
pub struct Files(Vec<Partial>);

impl Files {
    /// Writes a file beside its place.
    pub fn write(
        &mut self,
        out: &Path,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<()> {
        let partial = Partial::beside(out)?;
        let mut to = BufWriter::new(&partial.file);
        let written = write(&mut to).and_then(|()| to.flush());
        drop(to);
        written.with_context(|| format!("cannot write {}", partial.path.display()))?;
        self.0.push(partial);
        Ok(())
    }

    /// Gives all files their names.
    pub fn keep(self) -> Result<()> {
        self.0.into_iter().try_for_each(Partial::keep)
    }
}

/// A file that is not whole yet; removed unless it is kept.
pub struct Partial {
    /// The open file.
    pub file: File,
    /// The file's name until it is whole.
    pub path: PathBuf,
    /// The name of the whole file, unless the file is written in its place.
    place: Option<PathBuf>,
}

impl Partial {
    /// Opens a file beside the one that it becomes.
    pub fn beside(out: &Path) -> Result<Self> {
        let creating = |path: &Path| format!("cannot create {}", path.display());
        if is_written_in_place(out) {
            let file = OpenOptions::new().write(true).open(out);
            return Ok(Self {
                file: file.with_context(|| creating(out))?,
                path: out.to_owned(),
                place: None,
            });
        }
        // A link stays one: the file that it names is replaced.
        let place = fs::canonicalize(out).unwrap_or_else(|_| out.to_owned());
        if place.exists() {
            let may_be_written = OpenOptions::new().write(true).open(&place);
            may_be_written.with_context(|| creating(out))?;
        }
        let path = partial_name(&place);
        let file = File::create(&path).with_context(|| creating(&path))?;
        Ok(Self {
            file,
            path,
            place: Some(place),
        })
    }

    /// Gives the file its final name.
    pub fn keep(mut self) -> Result<()> {
        let Some(place) = &self.place else {
            return Ok(());
        };
        fs::rename(&self.path, place).with_context(|| {
            let (from, to) = (self.path.display(), place.display());
            format!("cannot rename {from} to {to}")
        })?;
        self.place = None;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.place.is_some() {
            // An error was told already; there is nothing more to do about this one.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The name of a file until it is whole.
fn partial_name(place: &Path) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Whether the name is one of a device, a pipe, or an open file: they take what is written, and are not replaced.
fn is_written_in_place(out: &Path) -> bool {
    let is_there = fs::metadata(out);
    is_there.is_ok_and(|found| {
        OF_THE_KERNEL.iter().any(|folder| out.starts_with(folder)) || is_stream(&found)
    })
}

fn is_stream(found: &Metadata) -> bool {
    let kind = found.file_type();
    kind.is_char_device() || kind.is_fifo() || kind.is_socket()
}

/// Checks that no output is an input or another output: it would be destroyed.
pub fn check_apart<'a>(
    inputs: impl IntoIterator<Item = &'a Path>,
    outputs: impl IntoIterator<Item = &'a Path>,
) -> Result<()> {
    let mut taken: Vec<(Identity, String)> = Vec::new();
    for input in inputs {
        let identity = Identity::of(input);
        taken.extend(identity.map(|found| (found, format!("the input {}", input.display()))));
    }
    let mut standard = 0;
    for out in outputs {
        standard += usize::from(is_standard(out));
        if is_standard(out) {
            if standard > 1 {
                bail!("two outputs are -, standard output: name a file for one of them");
            }
            continue;
        }
        let place = fs::canonicalize(out).unwrap_or_else(|_| out.to_owned());
        let partial = partial_name(&place);
        let partial = (!is_written_in_place(out)).then_some((&*partial, ", until it is whole,"));
        let found: Vec<_> = std::iter::once((out, ""))
            .chain(partial)
            .filter_map(|(name, when)| Some((Identity::of(name)?, name, when)))
            .collect();
        for (identity, name, when) in &found {
            if let Some((_, what)) = taken.iter().find(|(other, _)| other == identity) {
                bail!(
                    "the output {}{when} is the same file as {what}, which would be lost: name another file",
                    name.display()
                );
            }
        }
        let what = format!("the output {}", out.display());
        taken.extend(
            found
                .into_iter()
                .map(|(identity, ..)| (identity, what.clone())),
        );
    }
    Ok(())
}

/// A file, whatever its name; `None` stands for a stream, which loses nothing.
#[derive(PartialEq, Eq)]
enum Identity {
    /// Device and number of a file that is there.
    There(u64, u64),
    /// Folder and name of a file that is not.
    New(PathBuf),
}

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        if let Ok(found) = fs::metadata(path) {
            return (!is_stream(&found)).then(|| Self::There(found.dev(), found.ino()));
        }
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty());
        let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
        Some(Self::New(folder.join(path.file_name()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let files = fs::read_dir(folder).expect("a folder");
        let name = |file: io::Result<fs::DirEntry>| file.expect("a file").file_name();
        let mut names: Vec<String> = files
            .map(|file| name(file).to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn nothing_is_left_if_one_of_two_files_cannot_be_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let (first, second) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&first, "before").expect("a file");
        let mut files = Files::default();
        files
            .write(&first, |to| to.write_all(b"after"))
            .expect("written");
        let full = |_: &mut dyn Write| Err(io::Error::from(io::ErrorKind::StorageFull));
        let error = files.write(&second, full).expect_err("full").to_string();
        assert!(
            error.starts_with("cannot write") && error.ends_with("b.partial"),
            "{error}"
        );
        drop(files);
        assert_eq!(names(folder.path()), ["a"]);
        assert_eq!(fs::read_to_string(&first).expect("it stays"), "before");
    }

    #[test]
    fn a_link_stays_and_the_file_behind_it_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "before").expect("a file");
        std::os::unix::fs::symlink("file", &link).expect("a link");
        put(&link, "after").expect("written");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "after");
        assert!(link.is_symlink());
        assert_eq!(names(folder.path()), ["file", "link"]);
    }

    #[test]
    fn a_device_takes_what_is_written_and_stays_one() {
        put(Path::new("/dev/null"), "text").expect("written");
        let found = fs::metadata("/dev/null").expect("a device");
        assert!(found.file_type().is_char_device());
        let error = put(Path::new("/dev/full"), "text").expect_err("full");
        assert_eq!(error.to_string(), "cannot write /dev/full");
    }

    #[test]
    fn an_output_that_is_an_input_or_another_output_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let input = at("in");
        fs::write(&input, "trace").expect("a file");
        fs::hard_link(&input, at("hard")).expect("a link");
        std::os::unix::fs::symlink("in", at("soft")).expect("a link");
        fs::create_dir(at("inner")).expect("a folder");
        fs::hard_link(&input, at("x.partial")).expect("a link");
        let check = |outputs: &[PathBuf]| {
            check_apart([input.as_path()], outputs.iter().map(PathBuf::as_path))
        };
        for same in ["in", "hard", "soft", "inner/../in", "x"] {
            let error = check(&[at(same)]).expect_err(same).to_string();
            assert!(
                error.contains("is the same file as the input"),
                "{same}: {error}"
            );
        }
        for two in [["a", "a"], ["a", "inner/../a"], ["a", "a.partial"]] {
            let error = check(&two.map(at)).expect_err("one file").to_string();
            assert!(
                error.contains("is the same file as the output"),
                "{two:?}: {error}"
            );
        }
        let standard = || PathBuf::from("-");
        assert!(check(&[standard(), standard()]).is_err());
        assert!(check(&[standard(), at("a"), at("b")]).is_ok());
        let nowhere = || PathBuf::from("/dev/null");
        assert!(check(&[nowhere(), nowhere()]).is_ok());
    }
}
