//! The headers that modules are built against: of the lab's kernel's very version, or they do not load there, and of
//! the oldest and the newest kernel that Debian has for this compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::machine::kernel::{Kernel, OLDEST, numbers};
use crate::progress::say;
use crate::{host, places};

/// The compiler that Debian 12 builds kernels with, which its headers name.
pub const COMPILER: &str = "gcc-12";
pub const COMPILER_PATH: &str = "usr/bin/gcc-12";

const FLAVOUR: &str = "-cloud-amd64";
const PACKAGE: &str = "linux-headers-";

/// Headers that modules can be built against.
pub struct Headers {
    /// The kernel's version, such as `6.12.117+deb12-cloud-amd64`.
    pub version: String,
    /// The folder in which make is run.
    pub folder: PathBuf,
    /// The static checker that the kernel's build calls.
    pub sparse: PathBuf,
}

impl Headers {
    /// The headers of a kernel's very version, fetched if they are not there.
    pub fn of(kernel: &Kernel) -> Result<Self> {
        if let Some(folder) = kernel.tree() {
            return Ok(Self {
                version: kernel.version.clone(),
                folder,
                sparse: Self::of(&Kernel::get(false)?)?.sparse,
            });
        }
        Self::of_version(kernel.version.clone())
    }

    /// The headers of the oldest kernel that the modules are for and of the newest one that apt has, if it is not the
    /// lab's.
    pub fn others() -> Result<Vec<Self>> {
        let labs = Kernel::get(false)?.version;
        let mut versions = vec![Kernel::of(OLDEST, false)?.version];
        let offered = offered()?;
        let later = |version: &&String| numbers(version) > numbers(&labs);
        let mut newer: Vec<&String> = offered.iter().filter(later).collect();
        newer.sort_by_key(|version| std::cmp::Reverse(numbers(version)));
        for version in newer {
            // Kernels of later releases are built by compilers that are not here; so are metapackages by none.
            if needs(version)?.1 {
                versions.push(version.clone());
                break;
            }
        }
        versions.into_iter().map(Self::of_version).collect()
    }

    fn of_version(version: String) -> Result<Self> {
        let base = version
            .strip_suffix(FLAVOUR)
            .with_context(|| format!("kernel {version} is not of the flavour {FLAVOUR}"))?;
        let tree = places::cache("headers")?.join(&version);
        if !tree.exists() {
            fetch(&version, &tree)?;
        }
        let sources = tree.join("usr/src");
        let folder = sources.join(format!("linux-headers-{version}"));
        let common = sources.join(format!("linux-headers-{base}-common"));
        // The package's own names /usr/src. The cache may have been moved since it was written.
        let makefile = format!("include {}/Makefile\n", common.display());
        let path = folder.join("Makefile");
        if fs::read_to_string(&path).ok().as_deref() != Some(&makefile) {
            fs::write(&path, makefile)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(Self {
            version,
            folder,
            sparse: tree.join("usr/bin/sparse"),
        })
    }
}

/// Versions of the flavour that apt's lists name.
fn offered() -> Result<Vec<String>> {
    let pattern = format!("^{PACKAGE}[0-9].*{FLAVOUR}$");
    let found = host::output(Command::new("apt-cache").args(["search", "--names-only", &pattern]))?;
    let names = found
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let versions = names.filter_map(|name| name.strip_prefix(PACKAGE));
    Ok(versions.map(str::to_owned).collect())
}

/// The packages of a version's headers, and whether the compiler at hand is theirs.
fn needs(version: &str) -> Result<(Vec<String>, bool)> {
    let package = format!("{PACKAGE}{version}");
    let said = host::output(Command::new("apt-cache").args(["depends", &package]))?;
    let (mut packages, ours) = parts(&said);
    packages.insert(0, package);
    Ok((packages, ours))
}

/// The packages of which headers consist, and whether the compiler at hand is theirs, by the output of `apt-cache
/// depends`.
fn parts(said: &str) -> (Vec<String>, bool) {
    let names = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "));
    let (mut packages, mut ours) = (Vec::new(), false);
    for name in names {
        let is_common = name.starts_with(PACKAGE) && name.ends_with("-common");
        if is_common || name.starts_with("linux-kbuild-") {
            packages.push(name.to_owned());
        }
        // Of 6.1 it is `linux-compiler-gcc-12-x86`.
        ours |= name == COMPILER || name.starts_with(&format!("linux-compiler-{COMPILER}-"));
    }
    (packages, ours)
}

fn fetch(version: &str, tree: &Path) -> Result<()> {
    say(&format!("fetching the headers of {version} …"));
    let partial = tree.with_added_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    if let Err(error) = download(version, &partial) {
        host::refresh_package_lists().context(error)?;
        if let Err(error) = download(version, &partial) {
            bail!(
                "the archive has no headers of {version} any more ({error:#}); \
                 remove {} to get a newer kernel",
                places::cache("kernel")?.join(version).display()
            );
        }
    }
    let files = fs::read_dir(&partial)?.collect::<Result<Vec<_>, _>>()?;
    for deb in files {
        host::unpack(&deb.path(), &partial)?;
        fs::remove_file(deb.path())?;
    }
    // A build that finds it wants type information made from it, by tools that are not there.
    let vmlinux = partial.join(format!("usr/src/linux-headers-{version}/vmlinux"));
    if vmlinux.exists() {
        fs::rename(&vmlinux, partial.join("vmlinux"))?;
    }
    fs::rename(&partial, tree).with_context(|| format!("cannot create {}", tree.display()))
}

fn download(version: &str, folder: &Path) -> Result<()> {
    let (mut packages, _) = needs(version)?;
    ensure!(
        packages.len() == 3,
        "{version} needs {packages:?}, not headers, common ones and kbuild"
    );
    packages.push("sparse".to_owned());
    let mut apt = Command::new("apt-get");
    apt.args(["download", "-q"])
        .args(&packages)
        .current_dir(folder);
    host::output(&mut apt)?;
    let files = fs::read_dir(folder)?.count();
    ensure!(
        files == packages.len(),
        "apt-get downloaded {files} packages of {}",
        packages.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_made_of_three_packages_and_name_their_compiler() {
        let old = "linux-headers-6.1.0-56-cloud-amd64\n  Depends: linux-headers-6.1.0-56-common\n  \
                   Depends: linux-kbuild-6.1\n  Depends: linux-compiler-gcc-12-x86\n";
        let (packages, ours) = parts(old);
        assert_eq!(
            packages,
            ["linux-headers-6.1.0-56-common", "linux-kbuild-6.1"]
        );
        assert!(ours);
        let lab = " |Depends: linux-image-6.12.117+deb12-cloud-amd64\n  Depends: linux-base\n  Depends: gcc-12\n";
        assert_eq!(parts(lab), (vec![], true));
        assert!(!parts("  Depends: gcc-14-for-host\n").1);
    }
}
