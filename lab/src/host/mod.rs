//! The programs and files of the host's distribution of which the lab is made.
//!
//! With root they are installed. Without, the packages are downloaded and unpacked into a folder of
//! our own, and everything is searched there as well.

pub(crate) mod apt;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use crate::places;
use crate::progress::say;

/// A package, and a file by which to see that it is there.
const NEEDED: [(&str, &str); 5] = [
    ("qemu-system-x86", "usr/bin/qemu-system-x86_64"),
    ("qemu-system-data", "usr/share/qemu/qboot.rom"),
    ("seabios", "usr/share/seabios/bios-256k.bin"),
    ("busybox-static", "bin/busybox"),
    ("xz-utils", "usr/bin/xz"),
];

/// Installs the missing packages of which the lab is made.
///
/// # Errors
/// If the packages cannot be had; the message names them.
pub fn install_missing() -> Result<()> {
    install(&NEEDED)
}

/// Installs those packages whose file is missing.
///
/// # Errors
/// As [`install_missing`].
pub fn install(needed: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&str> = needed
        .iter()
        .filter(|(_, path)| find(path).is_err())
        .map(|(package, _)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    install_now(&missing).with_context(|| {
        format!(
            "{} (Debian's package names) must be installed; install them and try again",
            missing.join(", ")
        )
    })
}

/// Path of a file of the distribution, given relative to the root.
pub fn find(path: &str) -> Result<PathBuf> {
    let own = own_root()?.join(path);
    let system = Path::new("/").join(path);
    let is_usable = |file: &Path| !path.ends_with("busybox") || is_static(file);
    [system, own]
        .into_iter()
        .find(|file| file.exists() && is_usable(file))
        .with_context(|| format!("/{path} is missing; run `cargo xtask lab up`, which installs it"))
}

/// A command that runs a program of the distribution, also from our own folder.
pub fn program(path: &str) -> Result<Command> {
    let file = find(path)?;
    let mut command = Command::new(&file);
    if file.starts_with(own_root()?) {
        command.env("LD_LIBRARY_PATH", own_libraries()?);
    }
    Ok(command)
}

/// Library folders of the packages that were unpacked without root.
pub fn own_libraries() -> Result<OsString> {
    let root = own_root()?;
    let folders = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|part| root.join(part));
    Ok(std::env::join_paths(folders)?)
}

/// Runs a command for its output.
///
/// # Errors
/// If it cannot be started or fails; the message carries what it said.
pub fn output(command: &mut Command) -> Result<String> {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!(
            "{command:?} failed ({status}):\n{}",
            String::from_utf8_lossy(&stderr).trim_end()
        );
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// Refreshes the package lists; needs root.
pub fn refresh_package_lists() -> Result<()> {
    if !is_root()? {
        bail!("the package lists are old or missing: run `sudo apt-get update` and try again");
    }
    say("apt-get update …");
    output(Command::new("apt-get").args(["update", "-q"])).map(drop)
}

/// A file of a package that must not be installed, such as one that would start a service; it is unpacked
/// into our own folder if it is not there.
pub fn find_unpacked(package: &str, path: &str) -> Result<PathBuf> {
    let _lock = places::lock("packages")?;
    if find(path).is_err() {
        say(&format!("fetching {package} …"));
        or_with_new_lists(|| unpack_without_root(&[package]))
            .with_context(|| format!("the lab needs Debian's package {package}"))?;
    }
    find(path)
}

fn install_now(packages: &[&str]) -> Result<()> {
    say(&format!("installing {} …", packages.join(", ")));
    or_with_new_lists(|| {
        if is_root()? {
            install_as_root(packages)
        } else {
            unpack_without_root(packages)
        }
    })
}

/// Tries something, and again with new package lists: they may be missing, or older than the archive.
pub fn or_with_new_lists(attempt: impl Fn() -> Result<()>) -> Result<()> {
    attempt().or_else(|_| {
        refresh_package_lists()?;
        attempt()
    })
}

fn install_as_root(packages: &[&str]) -> Result<()> {
    let mut apt = Command::new("apt-get");
    apt.args(["install", "-y", "-q", "--no-install-recommends"])
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive");
    output(&mut apt).map(drop)
}

fn unpack_without_root(packages: &[&str]) -> Result<()> {
    let mut plan = Command::new("apt-get");
    plan.args(["install", "--simulate", "--no-install-recommends"])
        .args(packages);
    let plan = output(&mut plan)?;
    let lines = plan.lines().filter_map(|line| line.strip_prefix("Inst "));
    let all: Vec<&str> = lines
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let downloads = places::cache("debs")?;
    output(
        Command::new("apt-get")
            .arg("download")
            .args(&all)
            .current_dir(&downloads),
    )?;
    for entry in fs::read_dir(&downloads)? {
        unpack(&entry?.path(), &own_root()?)?;
    }
    fs::remove_dir_all(&downloads)?;
    Ok(())
}

/// Unpacks a package without installing it.
pub fn unpack(package: &Path, into: &Path) -> Result<()> {
    output(Command::new("dpkg").arg("-x").arg(package).arg(into)).map(drop)
}

fn own_root() -> Result<PathBuf> {
    places::cache("root")
}

fn is_root() -> Result<bool> {
    Ok(output(Command::new("id").arg("-u"))?.trim() == "0")
}

/// Whether a program needs no shared library. (busybox and busybox-static put different programs at one
/// path; only the second is of use.)
pub fn is_static(program: &Path) -> bool {
    let ldd = Command::new("ldd").arg(program).output();
    ldd.is_ok_and(|output| {
        !output.status.success() || String::from_utf8_lossy(&output.stdout).contains("statically")
    })
}
