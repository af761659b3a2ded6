//! Debian's newest 6.12 cloud kernel, which both L1 and L2 run.
//!
//! Versions vanish from the archive, so none is named here: the newest is found and stored.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::progress::say;
use crate::{host, places};

const PREFIX: &str = "linux-image-6.12.";
const SUFFIX: &str = "-cloud-amd64-unsigned";

/// Modules that L1 loads, in this order.
pub const MODULES: [&str; 3] = ["irqbypass", "kvm", "kvm-amd"];

const MODULE_FOLDERS: [&str; 4] = [
    "virt/lib",
    "arch/x86/kvm",
    "drivers/virtio",
    "drivers/block",
];

/// An unpacked kernel.
pub struct Kernel {
    /// The version, such as `6.12.117+deb12-cloud-amd64`.
    pub version: String,
    folder: PathBuf,
}

impl Kernel {
    /// The kernel at hand, or the newest of the archive if there is none or `refresh` is set.
    pub fn get(refresh: bool) -> Result<Self> {
        let kernels = places::cache("kernel")?;
        if !refresh && let Some(kernel) = newest_at_hand(&kernels)? {
            return Ok(kernel);
        }
        let package = newest_package()?;
        let version = version_of(&package).to_owned();
        let folder = kernels.join(&version);
        if !folder.exists() {
            fetch(&package, &folder)?;
        }
        Ok(Self { version, folder })
    }

    /// The kernel image.
    pub fn image(&self) -> PathBuf {
        self.folder.join(format!("boot/vmlinuz-{}", self.version))
    }

    /// A module, decompressed.
    pub fn module(&self, name: &str) -> Result<Vec<u8>> {
        let root = self.folder.join("lib/modules").join(&self.version);
        let candidates = MODULE_FOLDERS.iter().map(|folder| {
            root.join("kernel")
                .join(folder)
                .join(format!("{name}.ko.xz"))
        });
        let packed = candidates
            .clone()
            .find(|path| path.exists())
            .with_context(|| format!("no module {name} in {}", root.display()))?;
        let output = host::program("usr/bin/xz")?
            .arg("-dc")
            .arg(&packed)
            .output()?;
        if !output.status.success() {
            bail!("xz cannot decompress {}", packed.display());
        }
        Ok(output.stdout)
    }
}

fn newest_at_hand(kernels: &Path) -> Result<Option<Kernel>> {
    let mut versions = Vec::new();
    for entry in fs::read_dir(kernels)? {
        let version = entry?.file_name().to_string_lossy().into_owned();
        // A download in progress has another name.
        if version.ends_with("-amd64") {
            versions.push(version);
        }
    }
    versions.sort_by_key(|version| numbers(version));
    Ok(versions.pop().map(|version| Kernel {
        folder: kernels.join(&version),
        version,
    }))
}

/// The package's name of the newest kernel in the archive.
fn newest_package() -> Result<String> {
    if let Some(package) = newest_in_lists()? {
        return Ok(package);
    }
    host::refresh_package_lists()?;
    newest_in_lists()?.with_context(|| {
        format!(
            "no package {PREFIX}*{SUFFIX} in apt's lists; add Debian's bookworm, \
             bookworm-backports or trixie archive and run apt-get update"
        )
    })
}

fn newest_in_lists() -> Result<Option<String>> {
    let pattern = format!("^{}.*{SUFFIX}$", PREFIX.replace('.', "\\."));
    let found = host::output(Command::new("apt-cache").args(["search", "--names-only", &pattern]))?;
    Ok(newest(&found))
}

fn newest(listing: &str) -> Option<String> {
    let packages = listing
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    packages.max_by_key(|name| numbers(name)).map(str::to_owned)
}

/// All numbers in a name, to compare versions by.
pub fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

fn version_of(package: &str) -> &str {
    let version = package.strip_prefix("linux-image-").unwrap_or(package);
    version.strip_suffix("-unsigned").unwrap_or(version)
}

fn fetch(package: &str, folder: &Path) -> Result<()> {
    say(&format!("fetching kernel {} …", version_of(package)));
    let partial = folder.with_added_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    if let Err(error) = download(package, &partial) {
        // The lists may name a version that the archive no longer has.
        host::refresh_package_lists().context(error)?;
        bail!("the package lists were out of date and have been refreshed; try again");
    }
    let packages = fs::read_dir(&partial)?.collect::<Result<Vec<_>, _>>()?;
    for deb in packages {
        host::unpack(&deb.path(), &partial)?;
        fs::remove_file(deb.path())?;
    }
    fs::rename(&partial, folder).with_context(|| format!("cannot create {}", folder.display()))
}

fn download(package: &str, folder: &Path) -> Result<()> {
    let mut apt = Command::new("apt-get");
    apt.args(["download", "-q", package]).current_dir(folder);
    host::output(&mut apt).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_chosen_by_number() {
        let listing = "linux-image-6.12.9+deb12-cloud-amd64-unsigned - Linux 6.12\n\
                       linux-image-6.12.117+deb12-cloud-amd64-unsigned - Linux 6.12\n\
                       linux-image-6.12.30+bpo-cloud-amd64-unsigned - Linux 6.12\n";
        let package = newest(listing).unwrap();
        assert_eq!(version_of(&package), "6.12.117+deb12-cloud-amd64");
        assert_eq!(newest(""), None);
    }
}
