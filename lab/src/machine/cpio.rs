//! Initial RAM disks: the "newc" format of `Documentation/driver-api/early-userspace/buffer-format.rst`.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const FOLDER: u32 = 0o040_755;
const REGULAR: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// The content of a path of the image.
enum Content {
    Bytes(Vec<u8>),
    Copy(PathBuf),
    Device(u32, u32),
}

/// An image in the making: a list of paths, relative to the root, and their contents.
#[derive(Default)]
pub struct Image {
    entries: Vec<(String, Content)>,
}

impl Image {
    /// Adds a file with this content.
    pub fn bytes(&mut self, path: &str, bytes: &[u8]) -> &mut Self {
        self.put(path, Content::Bytes(bytes.to_vec()))
    }

    /// Adds a copy of a file of this machine.
    pub fn copy(&mut self, path: &str, from: &Path) -> &mut Self {
        self.put(path, Content::Copy(from.to_owned()))
    }

    /// Adds the console, without which init has no standard output.
    pub fn console(&mut self) -> &mut Self {
        self.put("dev/console", Content::Device(5, 1))
    }

    /// A key that changes with the content. It names files of a cache only: if another Rust hashes differently,
    /// things are built once more.
    pub fn key(&self) -> Result<String> {
        let mut hasher = DefaultHasher::new();
        for (path, content) in &self.entries {
            hasher.write(path.as_bytes());
            hasher.write_u32(mode(content));
            let data = data(content)?;
            hasher.write_usize(data.len());
            hasher.write(&data);
        }
        Ok(format!("{:016x}", hasher.finish()))
    }

    /// Writes the image.
    pub fn write(&self, to: &mut impl Write) -> Result<()> {
        let mut inode = 0;
        for folder in self.folders() {
            inode += 1;
            write_entry(to, inode, FOLDER, (0, 0), &folder, &[])?;
        }
        for (path, content) in &self.entries {
            inode += 1;
            let device = match content {
                Content::Device(major, minor) => (*major, *minor),
                _ => (0, 0),
            };
            write_entry(to, inode, mode(content), device, path, &data(content)?)?;
        }
        write_entry(to, 0, 0, (0, 0), "TRAILER!!!", &[])
    }

    /// All folders that the paths lie in, outer ones first.
    fn folders(&self) -> BTreeSet<String> {
        let paths = self.entries.iter().map(|(path, _)| Path::new(path));
        paths
            .flat_map(|path| path.ancestors().skip(1))
            .filter(|folder| !folder.as_os_str().is_empty())
            .map(|folder| folder.to_string_lossy().into_owned())
            .collect()
    }

    fn put(&mut self, path: &str, content: Content) -> &mut Self {
        self.entries.push((path.to_owned(), content));
        self
    }
}

fn mode(content: &Content) -> u32 {
    match content {
        Content::Bytes(_) | Content::Copy(_) => REGULAR,
        Content::Device(..) => CHARACTER_DEVICE,
    }
}

fn data(content: &Content) -> Result<Vec<u8>> {
    Ok(match content {
        Content::Bytes(bytes) => bytes.clone(),
        Content::Copy(path) => fs::read(path)
            .with_context(|| format!("cannot read {} for an image", path.display()))?,
        Content::Device(..) => Vec::new(),
    })
}

fn write_entry(
    to: &mut impl Write,
    inode: u32,
    mode: u32,
    (major, minor): (u32, u32),
    name: &str,
    data: &[u8],
) -> Result<()> {
    let size = u32::try_from(data.len()).context("files over 4 GiB do not fit in an initrd")?;
    let name_size = u32::try_from(name.len() + 1)?;
    let fields = [
        inode, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0,
    ];
    let mut header = String::from("070701");
    for field in fields {
        header.push_str(&format!("{field:08X}"));
    }
    to.write_all(header.as_bytes())?;
    to.write_all(name.as_bytes())?;
    to.write_all(&[0])?;
    pad(to, header.len() + name.len() + 1)?;
    to.write_all(data)?;
    pad(to, data.len())
}

fn pad(to: &mut impl Write, written: usize) -> Result<()> {
    let zeros = [0; 3];
    Ok(to.write_all(&zeros[..written.next_multiple_of(4) - written])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn sample() -> Image {
        let mut image = Image::default();
        image
            .bytes("init", b"#!/bin/sh\n")
            .bytes("lib/x/odd", b"12345")
            .console();
        image
    }

    #[test]
    fn other_programs_can_read_the_archive() {
        let mut bytes = Vec::new();
        sample().write(&mut bytes).unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let listing = Command::new("busybox")
            .args(["cpio", "-t"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        // The lab installs busybox, this test does not.
        let Ok(mut listing) = listing else { return };
        listing.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = listing.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let names: Vec<&str> = text.lines().collect();
        assert_eq!(
            names,
            ["dev", "lib", "lib/x", "init", "lib/x/odd", "dev/console"]
        );
    }

    #[test]
    fn the_key_follows_paths_and_content() {
        let key = sample().key().unwrap();
        assert_eq!(key, sample().key().unwrap());
        assert_ne!(key, sample().bytes("more", b"").key().unwrap());
    }
}
