//! The QEMU that emulates L1 and the plain guests.
//!
//! Versions before 8.2 translate code without a lock on its page: a kernel that patches its own text while another
//! CPU runs it (static keys) can leave that CPU an old translation, and dies with "Oops: int3". 7.2 died within 250
//! switches of one static key, 10.0 lived through 19,250; the versions between were not tried. If the distribution's
//! QEMU is older, its backport is unpacked with all its libraries into a folder of our own, and the system is left as
//! it is. The QEMU inside L1 is the distribution's: it only uses KVM.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::host::apt::{self, PrivateApt};
use crate::host::{self};
use crate::places;
use crate::progress::say;

/// Environment variable that names another emulator.
pub const OVERRIDE: &str = "TERRACE_LAB_QEMU";

/// Environment variable that names another emulator for HyperFlex.
pub const OVERRIDE_VHOST_USER: &str = "TERRACE_LAB_QEMU_VHOST_USER";

/// Oldest version that locks pages which it translates.
const OLDEST: (u32, u32) = (8, 2);

/// Oldest version that was tried and lets a user create a vhost-user device of any kind. 10.0 has the
/// device and refuses to create it.
const OLDEST_VHOST_USER: (u32, u32) = (11, 1);
const SUITE_VHOST_USER: &str = "trixie-backports";

const QEMU: &str = "usr/bin/qemu-system-x86_64";
/// Name of the loader of an emulator that was fetched.
const CALLED: &str = "qemu-system-x86_64";
const EMULATOR: &str = "emulator";
const EMULATOR_VHOST_USER: &str = "emulator-vhost-user";
const FIRMWARE: [&str; 2] = ["usr/share/qemu", "usr/share/seabios"];
const LOADER: &str = "lib64/ld-linux-x86-64.so.2";
const PACKAGES: [&str; 2] = ["qemu-system-x86", "qemu-system-data"];

/// A command that runs the emulator, with its firmware's folders as first options.
///
/// # Errors
/// If there is none that is new enough and none can be fetched.
pub fn command() -> Result<Command> {
    command_of_at_least(OLDEST, OVERRIDE, || {
        backport(EMULATOR, &format!("{}-backports", apt::codename()?))
    })
}

/// A command that runs a QEMU with a generic vhost-user device, with its firmware's folders as first options.
///
/// # Errors
/// If there is none that is new enough and none can be fetched.
pub fn command_with_vhost_user() -> Result<Command> {
    command_of_at_least(OLDEST_VHOST_USER, OVERRIDE_VHOST_USER, || {
        backport(EMULATOR_VHOST_USER, SUITE_VHOST_USER)
    })
}

/// Programs that QEMUs of ours may run on this machine, as far as they are there: a daemon that must know them is
/// given them, because it goes by the program's file and not by its name.
pub fn programs() -> Vec<PathBuf> {
    let named = [OVERRIDE, OVERRIDE_VHOST_USER].map(std::env::var_os);
    let named = named.into_iter().flatten().map(PathBuf::from);
    let system = host::find(QEMU).ok().into_iter();
    let trees = [EMULATOR, EMULATOR_VHOST_USER].map(|name| places::cache(name).ok());
    let fetched = trees.into_iter().flatten();
    let fetched = fetched.map(|folder| folder.join("root").join(CALLED));
    let all = named.chain(system).chain(fetched);
    all.filter_map(|path| path.canonicalize().ok()).collect()
}

/// The emulator that the environment names, else the system's if it is new enough, else one that is fetched.
fn command_of_at_least(
    oldest: (u32, u32),
    variable: &str,
    fetched: impl FnOnce() -> Result<PathBuf>,
) -> Result<Command> {
    if let Some(own) = std::env::var_os(variable) {
        return Ok(Command::new(own));
    }
    let system = host::program(QEMU)?;
    if version(&system)? >= oldest {
        return with_firmware(system, |folder| {
            host::find(folder).ok().filter(|found| found.is_dir())
        });
    }
    let tree = fetched().with_context(|| {
        format!(
            "QEMU {}.{} or newer is needed and cannot be had; name one by \
             {variable}=/path/to/qemu-system-x86_64",
            oldest.0, oldest.1
        )
    })?;
    command_of(&tree)
}

/// A command that runs an emulator that was unpacked into a folder, with its own libraries.
fn command_of(tree: &Path) -> Result<Command> {
    // Later releases have merged /lib64 into /usr.
    let loader = [LOADER, &format!("usr/{LOADER}")]
        .map(|path| tree.join(path))
        .into_iter()
        .find(|path| path.exists())
        .with_context(|| format!("no {LOADER} in {}", tree.display()))?;
    let mut command = Command::new(called_qemu(&loader, tree)?);
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

/// Gives the loader another name: people who search for QEMUs among the processes go by the program's name.
fn called_qemu(loader: &Path, tree: &Path) -> Result<PathBuf> {
    let name = tree.join(CALLED);
    // Relative, so that the folder may be moved.
    match symlink(loader.strip_prefix(tree)?, &name) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot make {}", name.display()))
        }
        _ => Ok(name),
    }
}

fn with_firmware(mut command: Command, place: impl Fn(&str) -> Option<PathBuf>) -> Result<Command> {
    for folder in FIRMWARE {
        let folder = place(folder).with_context(|| format!("/{folder} is missing"))?;
        command.arg("-L").arg(folder);
    }
    Ok(command)
}

/// The emulator's name and version, in its own words; a snapshot can only be read by the version that wrote it.
///
/// # Errors
/// If the emulator does not run.
pub fn name() -> Result<String> {
    host::output(command()?.arg("--version"))
}

/// The version of the plugin API that the emulator takes.
///
/// # Errors
/// If the emulator does not run, or plugins were never tried with one of its version.
pub fn plugin_api() -> Result<u32> {
    let name = name()?;
    let version = parse_version(&name);
    match version {
        Some((10, _)) => Ok(4),
        Some(version) if version >= (11, 1) => Ok(7),
        _ => bail!(
            "the lab's plugin was tried with QEMU 10 and 11.1 alone, and this is `{}`; name one of these by {OVERRIDE}",
            name.lines().next().unwrap_or_default()
        ),
    }
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

/// The folder that holds the QEMU of a suite, fetched if it is not there.
fn backport(name: &str, suite: &str) -> Result<PathBuf> {
    let _lock = places::lock(name)?;
    let folder = places::cache(name)?;
    let tree = folder.join("root");
    if !tree.exists() {
        fetch(&folder, &tree, suite)?;
    }
    Ok(tree)
}

fn fetch(folder: &Path, tree: &Path, suite: &str) -> Result<()> {
    say(&format!(
        "the distribution's QEMU is too old; fetching that of {suite} …"
    ));
    let apt = PrivateApt::create(&folder.join("apt"), suite)?;
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
