//! A kernel that checks itself: built from Debian's source of the lab's series, small, with checks of memory, locks and
//! page tables.

use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::kernel::{Kernel, download};
use crate::progress::say;
use crate::{host, places};

/// The package of the source.
const PACKAGE: &str = "linux-source-6.12";

/// The options that are set; all others are off, unless these need them.
const CONFIG: &str = include_str!("checked.config");

/// The compiler, which builds the modules, too.
const COMPILER: &str = "gcc-12";

/// Packages that the build takes: name, and a file by which to see that it is there.
const TOOLS: [(&str, &str); 8] = [
    ("make", "usr/bin/make"),
    (COMPILER, "usr/bin/gcc-12"),
    ("binutils", "usr/bin/ld"),
    ("flex", "usr/bin/flex"),
    ("bison", "usr/bin/bison"),
    ("bc", "usr/bin/bc"),
    ("libelf-dev", "usr/include/libelf.h"),
    ("xz-utils", "usr/bin/xz"),
];

/// What modules are built against; the rest of the source is removed.
const USED: [&str; 8] = [
    "Makefile",
    ".config",
    "Module.symvers",
    "include",
    "scripts",
    "arch/x86/include",
    "arch/x86/Makefile",
    "tools/objtool/objtool",
];

/// The kernel, built if there is none of this configuration.
pub fn get() -> Result<Kernel> {
    let _lock = places::lock("kernel-checked")?;
    let folder = places::cache("kernel-checked")?.join(key());
    if !folder.exists() {
        host::install(&TOOLS)?;
        let partial = folder.with_added_extension("partial");
        build(&partial)?;
        fs::rename(&partial, &folder)?;
    }
    let version = fs::read_to_string(folder.join("version"))?;
    Ok(Kernel::in_folder(version.trim().to_owned(), folder))
}

/// Name of the folder of a kernel of this configuration. Only a cache has it: if another Rust hashes differently, the
/// kernel is built once more.
fn key() -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(CONFIG.as_bytes());
    format!("{:016x}", hasher.finish())
}

/// Builds the kernel and stores it in a folder as the package of a kernel would.
fn build(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let source = folder.join("source");
    unpack(folder, &source)?;
    configure(&source)?;
    say("building a kernel that checks itself; this takes some minutes …");
    let jobs = std::thread::available_parallelism()?;
    make(&source, [&format!("-j{jobs}"), "bzImage", "modules"])?;
    let version = fs::read_to_string(source.join("include/config/kernel.release"))?;
    let version = version.trim();
    for (from, to) in [
        ("arch/x86/boot/bzImage", format!("boot/vmlinuz-{version}")),
        (
            "modules.order",
            format!("lib/modules/{version}/modules.order"),
        ),
    ] {
        take(&source, from, &folder.join(to))?;
    }
    for path in USED {
        take(&source, path, &folder.join("build").join(path))?;
    }
    fs::write(folder.join("version"), version)?;
    Ok(fs::remove_dir_all(&source)?)
}

/// Moves a path out of the source.
fn take(source: &Path, path: &str, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a path without a folder")?)?;
    fs::rename(source.join(path), to).with_context(|| format!("no {path} was built"))
}

/// Fetches the source.
fn unpack(folder: &Path, source: &Path) -> Result<()> {
    say(&format!("fetching {PACKAGE} …"));
    let packages = folder.join("packages");
    fs::create_dir_all(&packages)?;
    fs::create_dir_all(source)?;
    host::or_with_new_lists(|| download(PACKAGE, &packages))?;
    let found = fs::read_dir(&packages)?.collect::<Result<Vec<_>, _>>()?;
    for package in found {
        host::unpack(&package.path(), &packages)?;
    }
    let archive = packages.join(format!("usr/src/{PACKAGE}.tar.xz"));
    let mut tar = Command::new("tar");
    tar.args(["--strip-components=1", "-xf"])
        .arg(archive)
        .arg("-C")
        .arg(source);
    host::output(&mut tar)?;
    Ok(fs::remove_dir_all(&packages)?)
}

/// Writes the configuration.
///
/// # Errors
/// If this source does not have an option, or it depends on one that is off.
fn configure(source: &Path) -> Result<()> {
    let wanted = source.join("wanted.config");
    fs::write(&wanted, CONFIG)?;
    let all = format!("KCONFIG_ALLCONFIG={}", wanted.display());
    make(source, [all.as_str(), "allnoconfig"])?;
    let set = fs::read_to_string(source.join(".config"))?;
    let is_missing = |line: &&str| line.starts_with("CONFIG_") && !set.lines().any(|l| l == *line);
    let missing: Vec<&str> = CONFIG.lines().filter(is_missing).collect();
    ensure!(
        missing.is_empty(),
        "options that cannot be set: {missing:?}"
    );
    Ok(())
}

fn make<I: AsRef<OsStr>>(source: &Path, arguments: impl IntoIterator<Item = I>) -> Result<()> {
    let mut make = Command::new("nice");
    make.args(["make", "--silent", "-C"])
        .arg(source)
        .args([format!("CC={COMPILER}"), format!("HOSTCC={COMPILER}")])
        .args(arguments);
    host::output(&mut make).map(drop)
}
