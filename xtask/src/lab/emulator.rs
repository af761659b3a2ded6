//! The QEMU that emulates L1 and the plain guests.
//!
//! Versions before 8.2 translate code without a lock on its page: a kernel that patches its own text
//! while another CPU runs it (static keys) can leave that CPU an old translation, and dies with
//! "Oops: int3". 7.2 died within 250 switches of one static key, 10.0 lived through 19,250; what lies between was not
//! tried. Where the
//! distribution's QEMU is older, its backport is unpacked with all its libraries into a folder of our
//! own, and the system is left as it is. What runs inside L1 is the distribution's QEMU: it only uses
//! KVM.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::apt::{self, PrivateApt};
use crate::progress::say;
use crate::{host, places};

/// Names another emulator.
pub const OVERRIDE: &str = "TERRACE_LAB_QEMU";

/// Oldest version that locks pages which it translates.
const OLDEST: (u32, u32) = (8, 2);

const QEMU: &str = "usr/bin/qemu-system-x86_64";
const FIRMWARE: [&str; 2] = ["usr/share/qemu", "usr/share/seabios"];
const PACKAGES: [&str; 2] = ["qemu-system-x86", "qemu-system-data"];

/// A command that runs the emulator, with its firmware's folders as first options.
///
/// # Errors
/// When there is none that is new enough and none can be fetched.
pub fn command() -> Result<Command> {
    if let Some(own) = std::env::var_os(OVERRIDE) {
        return Ok(Command::new(own));
    }
    let system = host::program(QEMU)?;
    if version(&system)? >= OLDEST {
        return with_firmware(system, |folder| {
            host::find(folder).ok().filter(|found| found.is_dir())
        });
    }
    let tree = backport()?;
    let mut command = Command::new(tree.join("lib64/ld-linux-x86-64.so.2"));
    let libraries = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|l| tree.join(l));
    command
        .arg("--library-path")
        .arg(std::env::join_paths(libraries)?)
        .arg(tree.join(QEMU))
        // Or it would load the older QEMU's modules.
        .env(
            "QEMU_MODULE_DIR",
            tree.join("usr/lib/x86_64-linux-gnu/qemu"),
        );
    with_firmware(command, |folder| Some(tree.join(folder)))
}

fn with_firmware(mut command: Command, place: impl Fn(&str) -> Option<PathBuf>) -> Result<Command> {
    for folder in FIRMWARE {
        let folder = place(folder).with_context(|| format!("/{folder} is missing"))?;
        command.arg("-L").arg(folder);
    }
    Ok(command)
}

/// What the emulator calls itself; a snapshot can only be read by the version that wrote it.
///
/// # Errors
/// When it does not run.
pub fn name() -> Result<String> {
    host::output(command()?.arg("--version"))
}

fn version(qemu: &Command) -> Result<(u32, u32)> {
    let mut ask = Command::new(qemu.get_program());
    for (key, value) in qemu.get_envs() {
        ask.env(key, value.unwrap_or_default());
    }
    let text = host::output(ask.arg("--version"))?;
    parse_version(&text).with_context(|| format!("no version in what QEMU printed: {text}"))
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let after = text.split("version ").nth(1)?;
    let mut numbers = after.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The folder that holds the backport, fetched if it is not there.
fn backport() -> Result<PathBuf> {
    let folder = places::cache("emulator")?;
    let tree = folder.join("root");
    if !tree.exists() {
        fetch(&folder, &tree).with_context(|| {
            format!(
                "the lab's emulator must be QEMU {}.{} or newer, and the distribution's backport \
                 cannot be had; name another by {OVERRIDE}=/path/to/qemu-system-x86_64",
                OLDEST.0, OLDEST.1
            )
        })?;
    }
    Ok(tree)
}

fn fetch(folder: &Path, tree: &Path) -> Result<()> {
    let suite = format!("{}-backports", apt::codename()?);
    say(&format!(
        "the distribution's QEMU is too old to emulate L1; fetching that of {suite} …"
    ));
    let apt = PrivateApt::create(&folder.join("apt"), &suite)?;
    let packages = apt.download(&PACKAGES)?;
    let partial = tree.with_added_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    for package in packages {
        host::unpack(&package, &partial)?;
    }
    fs::rename(&partial, tree)?;
    Ok(fs::remove_dir_all(&apt.folder)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared_by_number() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright";
        assert_eq!(parse_version(debian), Some((7, 2)));
        assert!(parse_version("QEMU emulator version 10.0.2").unwrap() >= OLDEST);
        assert_eq!(parse_version("qemu"), None);
    }
}
