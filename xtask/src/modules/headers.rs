//! The headers of the lab's kernel: of its very version, or the module does not load.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::lab::Kernel;
use crate::progress::say;
use crate::{host, places};

/// The compiler that Debian 12 builds kernels with, which its headers name.
pub const COMPILER: &str = "gcc-12";
pub const COMPILER_PATH: &str = "usr/bin/gcc-12";

const FLAVOUR: &str = "-cloud-amd64";

/// Headers that modules can be built against.
pub struct Headers {
    /// The kernel's version, such as `6.12.117+deb12-cloud-amd64`.
    pub version: String,
    /// What make is run in.
    pub folder: PathBuf,
    /// The static checker that the kernel's build calls.
    pub sparse: PathBuf,
}

impl Headers {
    /// Those of the kernel at hand, fetched if they are not there.
    pub fn get() -> Result<Self> {
        let version = Kernel::get(false)?.version;
        let base = version
            .strip_suffix(FLAVOUR)
            .with_context(|| format!("kernel {version} is not of the flavour {FLAVOUR}"))?;
        let tree = places::cache("headers")?.join(&version);
        if !tree.exists() {
            fetch(&version, base, &tree)?;
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

fn fetch(version: &str, base: &str, tree: &Path) -> Result<()> {
    say(&format!("fetching the headers of {version} …"));
    let packages = [
        format!("linux-headers-{version}"),
        format!("linux-headers-{base}-common"),
        format!("linux-kbuild-{base}"),
        "sparse".to_owned(),
    ];
    let partial = tree.with_added_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    if let Err(error) = download(&packages, &partial) {
        host::refresh_package_lists().context(error)?;
        if let Err(error) = download(&packages, &partial) {
            bail!(
                "the archive has no headers of {version} any more ({error:#}); \
                 get a newer kernel by `cargo xtask lab up --refresh`"
            );
        }
    }
    let files = fs::read_dir(&partial)?.collect::<Result<Vec<_>, _>>()?;
    ensure!(
        files.len() == packages.len(),
        "apt-get downloaded {} packages of {}",
        files.len(),
        packages.len()
    );
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

fn download(packages: &[String], folder: &Path) -> Result<()> {
    let mut apt = Command::new("apt-get");
    apt.args(["download", "-q"])
        .args(packages)
        .current_dir(folder);
    host::output(&mut apt).map(drop)
}
