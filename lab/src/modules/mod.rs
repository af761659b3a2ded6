//! `cargo xtask modules`: the guest's kernel modules, for the lab's kernel, and that they compile for the oldest and
//! the newest one.
//!
//! A module is a folder of `guest/modules` with a Kbuild file. It is built with the compiler's extra warnings (`W=1`)
//! and sparse, and any word of theirs is an error. A module that was built before is not built again.

mod headers;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::machine::kernel::Kernel;
use crate::progress::say;
use crate::{host, places};
use headers::Headers;

/// A change of a module that a test must find.
pub struct Mutation {
    /// The file that is changed.
    pub file: &'static str,
    /// The text that is replaced, which is in the file once.
    pub from: &'static str,
    /// What is there instead.
    pub to: &'static str,
}

/// Packages that a build takes besides the headers: name, and a file by which to see that it is there.
const TOOLS: [(&str, &str); 4] = [
    ("make", "usr/bin/make"),
    ("binutils", "usr/bin/strip"),
    ("libelf1", "usr/lib/x86_64-linux-gnu/libelf.so.1"),
    (headers::COMPILER, headers::COMPILER_PATH),
];

/// Builds every module for the lab's kernel; returns the files, `target/modules/NAME.ko`.
pub fn build() -> Result<Vec<PathBuf>> {
    let _lock = places::lock("modules")?;
    host::install(&TOOLS)?;
    let headers = Headers::of(&Kernel::get(false)?)?;
    let target = places::target()?.join("modules");
    let mut built = Vec::new();
    for source in sources()? {
        let object = compile(&headers, &source, &headers.version)?;
        built.push(stripped(&object, &target, &headers)?);
    }
    Ok(built)
}

/// Builds a module for a kernel; returns the file, `target/modules/VERSION/NAME.ko`.
pub fn build_for(kernel: &Kernel, module: &str) -> Result<PathBuf> {
    build_at(kernel, &source(module), &kernel.version)
}

/// Builds a module in which one text is another; returns the file, `target/modules/mutant/NAME.ko`.
///
/// # Errors
/// If the text is not in the file, or more than once.
pub fn build_mutant(kernel: &Kernel, module: &str, mutation: &Mutation) -> Result<PathBuf> {
    const PLACE: &str = "mutant";
    let copy = places::target()?.join("modules/sources").join(module);
    {
        let _lock = places::lock("modules")?;
        copy_changed(&source(module), &copy)?;
        let path = copy.join(mutation.file);
        let text = fs::read_to_string(&path)?;
        let times = text.matches(mutation.from).count();
        ensure!(
            times == 1,
            "what is to be replaced is {times} times in {}:\n{}",
            mutation.file,
            mutation.from
        );
        fs::write(path, text.replace(mutation.from, mutation.to))?;
    }
    build_at(kernel, &copy, PLACE)
}

/// Builds a module in the folder of a name; returns the file, `target/modules/PLACE/NAME.ko`.
fn build_at(kernel: &Kernel, source: &Path, place: &str) -> Result<PathBuf> {
    let _lock = places::lock("modules")?;
    host::install(&TOOLS)?;
    let headers = Headers::of(kernel)?;
    let object = compile(&headers, source, place)?;
    stripped(
        &object,
        &places::target()?.join("modules").join(place),
        &headers,
    )
}

/// Builds every module, and checks that it compiles for the other kernels.
pub fn check() -> Result<()> {
    build()?;
    let _lock = places::lock("modules")?;
    for headers in Headers::others()? {
        for source in sources()? {
            let object = compile(&headers, &source, &headers.version)?;
            let name = object.file_stem().unwrap_or_default().display();
            say(&format!("{name} compiles for {}", headers.version));
        }
    }
    Ok(())
}

/// Builds a program that tries a module, of the C files in the folder of its name beside the module's; it is static and
/// runs in any guest.
pub fn program(module: &str, name: &str) -> Result<PathBuf> {
    let _lock = places::lock("modules")?;
    host::install(&TOOLS)?;
    let folder = source(module).join(name);
    let built = places::target()?.join(format!("modules/{module}.{name}"));
    let mut compiler = Command::new(headers::COMPILER);
    compiler
        .args([
            "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread", "-o",
        ])
        .arg(&built)
        .args(files_of_c(&folder)?);
    host::output(&mut compiler)?;
    Ok(built)
}

fn files_of_c(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
    let paths: Vec<PathBuf> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    let is_c = |path: &PathBuf| path.extension().is_some_and(|end| end == "c");
    Ok(paths.into_iter().filter(is_c).collect())
}

/// The folder of a module.
fn source(module: &str) -> PathBuf {
    places::repository().join("guest/modules").join(module)
}

fn sources() -> Result<Vec<PathBuf>> {
    let folder = places::repository().join("guest/modules");
    let entries = fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.join("Kbuild").exists() {
            found.push(path);
        }
    }
    ensure!(!found.is_empty(), "no module in {}", folder.display());
    found.sort();
    Ok(found)
}

/// Copies new files and removes files that are gone: objects are written beside the sources, and those must stay as
/// they are. Files that have not changed keep their times, which make reads.
fn copy_changed(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        // A module's test of itself is none of its sources.
        if path.is_dir() {
            continue;
        }
        let copy = to.join(path.file_name().context("a source without a name")?);
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        if fs::read(&copy).ok().as_ref() != Some(&bytes) {
            fs::write(&copy, bytes)?;
        }
    }
    for entry in fs::read_dir(to)? {
        let path = entry?.path();
        let is_source = path.extension().is_some_and(|end| end == "c" || end == "h");
        let is_generated = path.to_string_lossy().ends_with(".mod.c");
        let name = path.file_name().context("a source without a name")?;
        if is_source && !is_generated && !from.join(name).exists() {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Builds one module in a folder of its own, below that of a place; returns the object, with debugging information.
fn compile(headers: &Headers, source: &Path, place: &str) -> Result<PathBuf> {
    let name = source.file_name().context("a module without a name")?;
    let build = places::target()?.join("modules/build");
    let folder = build.join(place).join(name);
    copy_changed(source, &folder)?;
    let mut make = Command::new("make");
    make.arg("--silent")
        .arg("-C")
        .arg(&headers.folder)
        .arg(format!("M={}", folder.display()))
        .args(["W=1", "KCFLAGS=-Werror", "C=1"])
        .arg(format!("CC={}", headers::COMPILER))
        .arg(format!("CHECK={} -Wsparse-error", headers.sparse.display()))
        .arg("modules");
    host::output(&mut make)?;
    Ok(folder.join(Path::new(name).with_added_extension("ko")))
}

/// Copies an object into a folder without its debugging information: it is nine tenths of a module, and an initrd
/// holds it all.
fn stripped(object: &Path, folder: &Path, headers: &Headers) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let module = folder.join(object.file_name().context("a module without a name")?);
    let mut strip = Command::new("strip");
    strip
        .arg("--strip-debug")
        .arg("-o")
        .args([module.as_path(), object]);
    host::output(&mut strip)?;
    say(&format!("{} for {}", module.display(), headers.version));
    Ok(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_has_what_a_guests_administrator_builds_it_with() {
        for source in sources().unwrap() {
            let text = |name: &str| fs::read_to_string(source.join(name)).unwrap();
            let name = source.file_name().unwrap().to_string_lossy().into_owned();
            assert!(text("Kbuild").contains(&format!("{name}.o")));
            let dkms = text("dkms.conf");
            assert!(dkms.contains(&format!("BUILT_MODULE_NAME[0]=\"{name}\"")));
            let version = dkms
                .lines()
                .find_map(|line| line.strip_prefix("PACKAGE_VERSION="))
                .unwrap();
            assert_eq!(version.trim_matches('"'), env!("CARGO_PKG_VERSION"));
            let files = fs::read_dir(&source).unwrap();
            let stated = files.filter_map(|file| fs::read_to_string(file.unwrap().path()).ok());
            assert!(
                stated
                    .into_iter()
                    .any(|text| text.contains(&format!("MODULE_VERSION({version})")))
            );
        }
    }

    #[test]
    fn a_removed_source_leaves_the_build_and_objects_stay() {
        let root = std::env::temp_dir().join(format!("terrace-modules-{}", std::process::id()));
        let (from, to) = (root.join("from"), root.join("to"));
        fs::create_dir_all(&from).unwrap();
        fs::write(from.join("old.c"), "1").unwrap();
        copy_changed(&from, &to).unwrap();
        fs::write(to.join("old.o"), "object").unwrap();
        fs::write(to.join("x.mod.c"), "generated").unwrap();
        fs::rename(from.join("old.c"), from.join("new.c")).unwrap();
        copy_changed(&from, &to).unwrap();
        let there = |name: &str| to.join(name).exists();
        assert!(there("new.c") && !there("old.c") && there("old.o") && there("x.mod.c"));
        fs::remove_dir_all(&root).unwrap();
    }
}
