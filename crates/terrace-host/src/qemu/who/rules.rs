//! The operator's rules for who may be a VM, and their meaning on this host.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use terrace_proto::printable::excerpt;
use terrace_sys::opener::{self, How};

use super::{FileId, ROOT};
use crate::{Finding, HostRoot};

/// Most bytes of the host's list of users that are read.
const MAX_PASSWD: u64 = 4 << 20;
/// Instead of a cgroup: all of them.
const EVERYWHERE: &str = "/*";

/// The section `[hypervisors]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HypervisorConfig {
    /// Users, by name or number, whose processes may be VMs. Names that this host does not have are passed over.
    pub users: Vec<String>,
    /// Programs that may be hypervisors, by their path on this host.
    pub executables: Vec<PathBuf>,
    /// Cgroups below which VMs may be.
    pub cgroups: Vec<String>,
    /// Further cgroups, below which VMs of root and of the daemon's own user may be.
    pub own_cgroups: Vec<String>,
    /// RAM of a VM in per cent of the host's memory and swap, beyond which it is not believed.
    pub most_ram_percent: u32,
}

impl Default for HypervisorConfig {
    fn default() -> Self {
        let strings = |all: &[&str]| all.iter().map(|s| (*s).to_owned()).collect();
        let paths = [
            "/usr/bin/qemu-system-x86_64",
            "/usr/bin/qemu-kvm",
            "/usr/bin/kvm",
            "/usr/libexec/qemu-kvm",
        ];
        Self {
            users: strings(&["root", "libvirt-qemu", "qemu"]),
            executables: paths.map(PathBuf::from).into(),
            cgroups: strings(&["/machine.slice", "/machine", "/qemu.slice", "/system.slice"]),
            own_cgroups: strings(&["/", "/init.scope", "/user.slice"]),
            most_ram_percent: 200,
        }
    }
}

impl HypervisorConfig {
    /// Checks the file's contents.
    ///
    /// # Errors
    /// If a key is wrong; the text begins with it.
    pub fn check(&self) -> Result<(), String> {
        if let Some(path) = self.executables.iter().find(|path| !path.is_absolute()) {
            return Err(format!(
                "executables: {} is not an absolute path",
                path.display()
            ));
        }
        for (key, cgroups) in [
            ("cgroups", &self.cgroups),
            ("own_cgroups", &self.own_cgroups),
        ] {
            if let Some(path) = cgroups.iter().find(|path| !path.starts_with('/')) {
                return Err(format!(
                    "{key}: \"{path}\" does not begin with /: write a cgroup as /proc/PID/cgroup does"
                ));
            }
        }
        if !(1..=10_000).contains(&self.most_ram_percent) {
            return Err(format!(
                "most_ram_percent = {} is out of range: allowed is 1 to 10000",
                self.most_ram_percent
            ));
        }
        Ok(())
    }
}

/// The operator's rules as this host has them now.
#[derive(Clone, Debug)]
pub struct Rules {
    users: BTreeSet<u32>,
    /// The user that this runs as: it could do all that the daemon can.
    own: u32,
    paths: BTreeSet<PathBuf>,
    files: BTreeSet<FileId>,
    cgroups: Vec<String>,
    own_cgroups: Vec<String>,
    most_ram_percent: u32,
}

impl Rules {
    /// Resolves the rules on the host: an upgrade replaces executables, so that this is done before each scan.
    #[must_use]
    pub fn read(root: &HostRoot, config: &HypervisorConfig) -> (Self, Vec<Finding>) {
        let mut findings = Vec::new();
        let passwd = passwd(root);
        let mut users = BTreeSet::new();
        let usual = HypervisorConfig::default().users;
        for user in &config.users {
            match uid(user, &passwd) {
                Some(uid) => drop(users.insert(uid)),
                None if usual.contains(user) => {}
                None => findings.push(Finding::missing(
                    "hypervisors",
                    format!(
                        "users under [hypervisors]: /etc/passwd has no {}",
                        excerpt(user, 64)
                    ),
                    "correct the name, or write the user's number (users of a directory service)",
                )),
            }
        }
        let own = own_uid();
        users.insert(own);
        let mut paths: BTreeSet<PathBuf> = config.executables.iter().cloned().collect();
        let mut files = BTreeSet::new();
        for path in &config.executables {
            let inside = root.join(path.strip_prefix("/").unwrap_or(path));
            if let Ok(meta) = opener::metadata(&inside) {
                files.insert(FileId::of(&meta));
            }
            // A file that an upgrade replaces is known by its real path.
            if let Ok(real) = opener::real_path(&inside) {
                paths.insert(real);
            }
        }
        let rules = Self {
            users,
            own,
            paths,
            files,
            cgroups: config.cgroups.clone(),
            own_cgroups: config.own_cgroups.clone(),
            most_ram_percent: config.most_ram_percent,
        };
        (rules, findings)
    }

    /// Whether this user's processes may be VMs.
    #[must_use]
    pub fn has_user(&self, uid: u32) -> bool {
        self.users.contains(&uid)
    }

    /// Whether this is root, or the user that this runs as.
    #[must_use]
    pub fn is_own(&self, uid: u32) -> bool {
        uid == ROOT || uid == self.own
    }

    /// Whether this is the file behind an allowed path.
    #[must_use]
    pub fn has_file(&self, file: FileId) -> bool {
        self.files.contains(&file)
    }

    /// Whether this is an allowed path.
    #[must_use]
    pub fn has_path(&self, path: &Path) -> bool {
        self.paths.contains(path)
    }

    /// Whether a VM of this user may be in this cgroup; `/` stands for the root cgroup alone, `/*` for all, any other
    /// for itself and all below.
    #[must_use]
    pub fn has_cgroup(&self, cgroup: Option<&str>, uid: u32) -> bool {
        let own = self.own_cgroups.iter().filter(|_| self.is_own(uid));
        let mut allowed = self.cgroups.iter().chain(own);
        allowed.any(|allowed| match cgroup {
            _ if allowed == EVERYWHERE => true,
            // A kernel without cgroups has all processes in one.
            None => allowed == "/",
            Some(path) => is_below(path, allowed),
        })
    }

    /// The most RAM that a VM of a host with so much memory and swap is believed to have, bytes.
    #[must_use]
    pub fn most_ram(&self, host_bytes: u64) -> u64 {
        let most = u128::from(host_bytes) * u128::from(self.most_ram_percent) / 100;
        u64::try_from(most).unwrap_or(u64::MAX)
    }

    #[cfg(test)]
    pub(crate) fn of_test(users: &[u32], own: u32, path: &str, file: FileId) -> Self {
        let config = HypervisorConfig::default();
        Self {
            users: users.iter().copied().collect(),
            own,
            paths: [PathBuf::from(path)].into(),
            files: [file].into(),
            cgroups: config.cgroups,
            own_cgroups: config.own_cgroups,
            most_ram_percent: config.most_ram_percent,
        }
    }
}

/// Whole parts only: `/machine.slice.x` is not below `/machine.slice`. Nothing that climbs is below anything: the
/// kernel shows what is outside of a cgroup namespace with `..`.
fn is_below(path: &str, above: &str) -> bool {
    if path.split('/').any(|part| part == "..") {
        return false;
    }
    let above = above.trim_end_matches('/');
    match path.strip_prefix(above) {
        Some("" | "/") => true,
        Some(rest) => !above.is_empty() && rest.starts_with('/'),
        None => false,
    }
}

/// The effective user of this process; root, who is allowed anyway, if it cannot be determined.
pub(super) fn own_uid() -> u32 {
    let status = opener::read(Path::new("/proc/self/status")).unwrap_or_default();
    super::facts::uids(&String::from_utf8_lossy(&status)).map_or(ROOT, |uids| uids[1])
}

/// Names and numbers of the host's own users.
fn passwd(root: &HostRoot) -> Vec<(String, u32)> {
    use std::io::Read as _;
    let mut text = Vec::new();
    let read = opener::open(&root.join("etc/passwd"), How::Read)
        .and_then(|file| file.take(MAX_PASSWD).read_to_end(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&text);
    let user = |line: &str| {
        let mut parts = line.split(':');
        let name = parts.next()?.to_owned();
        Some((name, parts.nth(1)?.parse().ok()?))
    };
    text.lines().filter_map(user).collect()
}

fn uid(user: &str, passwd: &[(String, u32)]) -> Option<u32> {
    let number = user.parse().ok();
    let root = || (user == "root").then_some(ROOT);
    let named = || passwd.iter().find(|(name, _)| name == user);
    number
        .or_else(root)
        .or_else(|| named().map(|(_, uid)| *uid))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_cgroup_is_below_by_whole_parts() {
        for (path, above, want) in [
            ("/machine.slice", "/machine.slice", true),
            ("/machine.slice/a.scope/x", "/machine.slice", true),
            ("/machine.slice/a", "/machine.slice/", true),
            ("/machine.slice.evil/a", "/machine.slice", false),
            ("/user.slice/machine.slice", "/machine.slice", false),
            ("/", "/", true),
            ("/user.slice", "/", false),
            ("/machine.slice/../user.slice", "/machine.slice", false),
            ("/../machine.slice", "/", false),
        ] {
            assert_eq!(is_below(path, above), want, "{path} below {above}");
        }
    }

    #[test]
    fn users_are_known_by_name_and_number_and_unknown_ones_reported() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::new(dir.path());
        fs::create_dir_all(dir.path().join("etc")).unwrap();
        let text = "root:x:0:0::/:/bin/sh\nlibvirt-qemu:x:64055:994::/:/bin/false\nbroken\n";
        fs::write(dir.path().join("etc/passwd"), text).unwrap();
        let config = HypervisorConfig {
            users: ["libvirt-qemu", "qemu", "4711", "alcie"]
                .map(String::from)
                .into(),
            ..HypervisorConfig::default()
        };
        let (rules, findings) = Rules::read(&root, &config);
        assert!(rules.has_user(64055) && rules.has_user(4711) && rules.has_user(own_uid()));
        assert!(!rules.has_user(65534));
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].found.contains("alcie"));
    }

    #[test]
    fn rules_that_cannot_hold_are_refused_by_their_key() {
        let wrong = |text: &str| {
            let config: HypervisorConfig = serde_json::from_str(text).unwrap();
            config.check().unwrap_err()
        };
        assert!(wrong(r#"{"executables": ["qemu"]}"#).starts_with("executables: qemu"));
        assert!(wrong(r#"{"cgroups": ["machine.slice"]}"#).starts_with("cgroups: "));
        assert!(wrong(r#"{"most_ram_percent": 0}"#).starts_with("most_ram_percent = 0"));
        assert_eq!(HypervisorConfig::default().check(), Ok(()));
    }
}
