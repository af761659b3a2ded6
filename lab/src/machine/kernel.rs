//! Debian's newest cloud kernels: of 6.12, which both L1 and L2 run, and of 6.1, for the guest's modules.
//!
//! Versions vanish from the archive, so none is named here: the newest of a series is found and stored.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::progress::say;
use crate::{host, places};

/// The series of the lab's own kernel.
const OURS: &str = "6.12.";
/// The oldest series that the guest's modules are for, Debian 12's own.
pub const OLDEST: &str = "6.1.";

const PREFIX: &str = "linux-image-";
const SUFFIX: &str = "-cloud-amd64-unsigned";

/// Modules that L1 loads, in this order.
pub const MODULES: [&str; 3] = ["irqbypass", "kvm", "kvm-amd"];

/// An unpacked kernel.
pub struct Kernel {
    /// The version, such as `6.12.117+deb12-cloud-amd64`.
    pub version: String,
    folder: PathBuf,
}

impl Kernel {
    /// The lab's kernel: the one at hand, or the newest of the archive if there is none or `refresh` is set.
    pub fn get(refresh: bool) -> Result<Self> {
        Self::of(OURS, refresh)
    }

    /// A kernel of this series, as [`Kernel::get`] has it.
    pub fn of(series: &str, refresh: bool) -> Result<Self> {
        let kernels = places::cache("kernel")?;
        if !refresh && let Some(kernel) = newest_at_hand(&kernels, series)? {
            return Ok(kernel);
        }
        let _lock = places::lock("kernel")?;
        let package = newest_package(series)?;
        let version = version_of(&package).to_owned();
        let folder = kernels.join(&version);
        if !folder.exists() {
            fetch(&package, &folder)?;
        }
        Ok(Self { version, folder })
    }

    /// A kernel in a folder that is laid out as Debian's packages are.
    pub(super) fn in_folder(version: String, folder: PathBuf) -> Self {
        Self { version, folder }
    }

    /// The tree that modules are built against, if it came with the kernel.
    pub fn tree(&self) -> Option<PathBuf> {
        Some(self.folder.join("build")).filter(|tree| tree.exists())
    }

    /// The kernel image.
    pub fn image(&self) -> PathBuf {
        self.folder.join(format!("boot/vmlinuz-{}", self.version))
    }

    /// A module, decompressed.
    pub fn module(&self, name: &str) -> Result<Vec<u8>> {
        let file = self.file(name)?;
        decompressed(&file.with_context(|| format!("no module {name} of {}", self.version))?)
    }

    /// Modules and those that they need, by name, in the order in which they load. Those that the kernel does not have
    /// as modules are left out.
    pub fn modules(&self, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let mut found = Vec::new();
        for name in names {
            self.add(name, &mut found)?;
        }
        Ok(found)
    }

    fn add(&self, name: &str, found: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
        if found.iter().any(|(known, _)| known == name) {
            return Ok(());
        }
        let Some(file) = self.file(name)? else {
            return Ok(());
        };
        let module = decompressed(&file)?;
        for needed in needs(&module) {
            self.add(&needed, found)?;
        }
        found.push((name.to_owned(), module));
        Ok(())
    }

    /// The file of a module, if there is such a module.
    fn file(&self, name: &str) -> Result<Option<PathBuf>> {
        let root = self.folder.join("lib/modules").join(&self.version);
        let list = root.join("modules.order");
        let order =
            fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
        // A module's own name has no dash, its file's may.
        let plain = |name: &str| name.replace('-', "_");
        let ending = plain(&format!("/{name}.ko"));
        let mut paths = order.lines();
        let Some(path) = paths.find(|path| plain(path).ends_with(&ending)) else {
            return Ok(None);
        };
        // Debian compresses them since 6.12.
        let plain = root.join(path);
        let packed = plain.with_added_extension("xz");
        Ok(Some(if packed.exists() { packed } else { plain }))
    }
}

fn decompressed(file: &Path) -> Result<Vec<u8>> {
    if file.extension().is_some_and(|end| end == "ko") {
        return fs::read(file).with_context(|| format!("reading {}", file.display()));
    }
    let output = host::program("usr/bin/xz")?.arg("-dc").arg(file).output()?;
    if !output.status.success() {
        bail!("xz cannot decompress {}", file.display());
    }
    Ok(output.stdout)
}

/// The modules that a module needs, by its own word.
fn needs(module: &[u8]) -> Vec<String> {
    let mut texts = module.split(|byte| *byte == 0);
    let names = texts.find_map(|text| text.strip_prefix(b"depends="));
    let names = String::from_utf8_lossy(names.unwrap_or_default()).into_owned();
    let names = names.split(',').filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

fn newest_at_hand(kernels: &Path, series: &str) -> Result<Option<Kernel>> {
    let mut versions = Vec::new();
    for entry in fs::read_dir(kernels)? {
        let version = entry?.file_name().to_string_lossy().into_owned();
        // A download in progress has another name.
        if version.starts_with(series) && version.ends_with("-amd64") {
            versions.push(version);
        }
    }
    versions.sort_by_key(|version| numbers(version));
    Ok(versions.pop().map(|version| Kernel {
        folder: kernels.join(&version),
        version,
    }))
}

/// The package's name of the newest kernel of a series in the archive.
fn newest_package(series: &str) -> Result<String> {
    if let Some(package) = newest_in_lists(series)? {
        return Ok(package);
    }
    host::refresh_package_lists()?;
    newest_in_lists(series)?.with_context(|| {
        format!(
            "no package {PREFIX}{series}*{SUFFIX} in apt's lists; add Debian's bookworm, \
             bookworm-backports or trixie archive and run apt-get update"
        )
    })
}

fn newest_in_lists(series: &str) -> Result<Option<String>> {
    let pattern = format!("^{PREFIX}{}.*{SUFFIX}$", series.replace('.', "\\."));
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
    let version = package.strip_prefix(PREFIX).unwrap_or(package);
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

/// Downloads a package into a folder.
pub(super) fn download(package: &str, folder: &Path) -> Result<()> {
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

    #[test]
    fn each_series_has_its_own_newest_kernel() {
        let root = std::env::temp_dir().join(format!("terrace-kernels-{}", std::process::id()));
        let versions = [
            "6.1.0-9-cloud-amd64",
            "6.1.0-56-cloud-amd64",
            "6.12.117+deb12-cloud-amd64",
            "6.12.118+deb12-cloud-amd64.partial",
        ];
        for version in versions {
            fs::create_dir_all(root.join(version)).unwrap();
        }
        let newest = |series| newest_at_hand(&root, series).unwrap();
        assert_eq!(newest(OLDEST).unwrap().version, versions[1]);
        assert_eq!(newest(OURS).unwrap().version, versions[2]);
        assert!(newest("6.13.").is_none());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_module_names_those_that_it_needs() {
        let module = b"\x7fELF\0license=GPL\0depends=zsmalloc,lz4_compress\0name=zram\0";
        assert_eq!(needs(module), ["zsmalloc", "lz4_compress"]);
        assert!(needs(b"license=GPL\0depends=\0").is_empty());
    }
}
