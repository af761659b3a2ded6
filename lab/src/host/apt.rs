//! An apt of our own: packages of a chosen suite, with everything that they need, while the system is
//! left as it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host;

/// An apt with the system's archive and no package installed, so that every library is fetched.
pub struct PrivateApt {
    pub folder: PathBuf,
    suite: String,
}

impl PrivateApt {
    /// Makes an apt in a folder. `suite` ends in `-backports`; packages that it does not hold come from the release.
    pub fn create(folder: &Path, suite: &str) -> Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        for part in [
            "etc/preferences.d",
            "state/lists/partial",
            "cache/archives/partial",
        ] {
            fs::create_dir_all(folder.join(part))?;
        }
        fs::write(folder.join("status"), "")?;
        let (site, keys) = (archive()?, "/usr/share/keyrings/debian-archive-keyring.gpg");
        let release = suite.trim_end_matches("-backports");
        let sources: String = [release, suite]
            .map(|suite| format!("deb [signed-by={keys}] {site} {suite} main\n"))
            .concat();
        fs::write(folder.join("etc/sources.list"), sources)?;
        let place = folder.display();
        let settings = format!(
            "Dir::Etc \"{place}/etc\";\nDir::Etc::sourceparts \"none\";\n\
             Dir::State \"{place}/state\";\nDir::State::status \"{place}/status\";\n\
             Dir::Cache \"{place}/cache\";\nAPT::Architecture \"amd64\";\n\
             APT::Sandbox::User \"root\";\nAPT::Install-Recommends \"false\";\n"
        );
        fs::write(folder.join("apt.conf"), settings)?;
        Ok(Self {
            folder: folder.to_owned(),
            suite: suite.to_owned(),
        })
    }

    fn apt(&self) -> Command {
        let mut command = Command::new("apt-get");
        command
            .arg("-c")
            .arg(self.folder.join("apt.conf"))
            .arg("-q");
        command
    }

    /// Downloads packages and all that they need.
    pub fn download(&self, packages: &[&str]) -> Result<Vec<PathBuf>> {
        host::output(self.apt().arg("update"))?;
        let mut install = self.apt();
        install
            .args(["install", "-y", "--download-only", "-t", &self.suite])
            .args(packages);
        host::output(&mut install)?;
        let files = fs::read_dir(self.folder.join("cache/archives"))?;
        let mut found = Vec::new();
        for file in files {
            let path = file?.path();
            if path.extension().is_some_and(|end| end == "deb") {
                found.push(path);
            }
        }
        ensure!(!found.is_empty(), "apt-get downloaded no package");
        Ok(found)
    }
}

/// The distribution's name for its release, such as `bookworm`.
pub fn codename() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name
        .context("/etc/os-release has no VERSION_CODENAME")?
        .trim_matches('"')
        .to_owned())
}

/// The Debian archive that the system's apt uses.
fn archive() -> Result<String> {
    let format = ["indextargets", "--format", "$(SITE) $(ORIGIN) $(RELEASE)"];
    let suite = codename()?;
    let site = || -> Result<Option<String>> {
        let targets = host::output(Command::new("apt-get").args(format))?;
        let ours = targets.lines().find_map(|line| {
            line.strip_suffix(&format!(" Debian {suite}"))
                .map(str::to_owned)
        });
        Ok(ours)
    };
    if let Some(site) = site()? {
        return Ok(site);
    }
    host::refresh_package_lists()?;
    site()?.with_context(|| format!("apt's sources name no Debian archive of {suite}"))
}
