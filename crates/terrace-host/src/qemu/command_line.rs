//! Command lines of running QEMUs: monitors, name, UUID, and the RAM to be given to the guest.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use terrace_sys::opener::{self, How};

use super::machine::Machine;
use crate::HostRoot;

/// Most bytes of a command line that are read. libvirt's for a VM of some hundred devices has about 60 KiB.
const MAX_BYTES: usize = 128 << 10;
/// Most monitors of a VM that are inspected.
const MAX_MONITORS: usize = 16;
/// Options of which the value is read.
const VALUED: [&str; 14] = [
    "qmp",
    "qmp-pretty",
    "chardev",
    "mon",
    "name",
    "uuid",
    "object",
    "machine",
    "M",
    "accel",
    "cpu",
    "device",
    "mem-path",
    "numa",
];

/// A QEMU's command line, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct CommandLine {
    /// Paths of QMP monitors that QEMU listens on, in their order.
    pub monitors: Vec<PathBuf>,
    /// A QMP monitor came as a descriptor, so its path is not known.
    pub monitor_by_descriptor: bool,
    /// `-name`.
    pub name: Option<String>,
    /// `-uuid`.
    pub uuid: Option<String>,
    /// The object that encrypts guest memory, such as `sev-snp-guest`.
    pub encryption: Option<String>,
    /// The machine: how QEMU runs the guest, and on what memory.
    pub machine: Machine,
    /// The command line is longer than the part that was read.
    pub is_cut: bool,
}

/// The object that encrypts the memory of a running QEMU's guest; `None` if nothing does, as far as its command line
/// shows.
pub(crate) fn encryption(root: &HostRoot, pid: u32) -> Option<String> {
    of_process(root, pid)?.encryption
}

/// Whether a process has this UUID on its command line.
pub(crate) fn has_uuid(root: &HostRoot, pid: u32, uuid: &str) -> bool {
    of_process(root, pid).is_some_and(|line| line.uuid.as_deref() == Some(uuid))
}

/// The command line of a process; `None` if it cannot be read. A process can forge it: who the process is was decided
/// before ([`super::who`]).
pub(super) fn of_process(root: &HostRoot, pid: u32) -> Option<CommandLine> {
    let mut bytes = Vec::new();
    let most = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX);
    let file = opener::open(&root.process(pid, "cmdline"), How::Read).ok()?;
    file.take(most + 1).read_to_end(&mut bytes).ok()?;
    let is_cut = bytes.len() > MAX_BYTES;
    bytes.truncate(MAX_BYTES);
    let mut args: Vec<&[u8]> = bytes.split(|b| *b == 0).collect();
    if is_cut {
        // The last one may have lost its end.
        args.pop();
    }
    let folder = opener::read_link(&root.process(pid, "cwd")).unwrap_or_default();
    let line = parse(args.get(1..).unwrap_or_default(), &folder);
    Some(CommandLine { is_cut, ..line })
}

/// `folder`: what relative paths are relative to.
fn parse(args: &[&[u8]], folder: &Path) -> CommandLine {
    let mut line = CommandLine::default();
    let mut chardevs: BTreeMap<String, Chardev> = BTreeMap::new();
    let mut monitors = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let arg = String::from_utf8_lossy(arg);
        let Some(option) = arg.strip_prefix("--").or(arg.strip_prefix('-')) else {
            continue;
        };
        if option == "enable-kvm" {
            line.machine.kvm = Some(true);
        }
        if !VALUED.contains(&option) {
            continue;
        }
        let Some(value) = args.next() else { break };
        let value = Options::parse(&String::from_utf8_lossy(value));
        line.machine.take(option, &value);
        match option {
            "object" => line.encryption = encrypting_object(&value).or(line.encryption),
            "machine" | "M" => {
                let keys = ["confidential-guest-support", "memory-encryption"];
                let named = keys.iter().find(|key| value.get(key).is_some());
                line.encryption = line.encryption.or(named.map(|key| (*key).to_owned()));
            }
            "name" => line.name = value.first_or("guest").map(Into::into),
            "uuid" => line.uuid = value.first_or("uuid").map(Into::into),
            "chardev" => {
                if let Some(id) = value.get("id") {
                    chardevs.insert(id.into(), Chardev::of(&value));
                }
            }
            "mon" if value.get("mode") == Some("control") => {
                monitors.extend(value.first_or("chardev").map(str::to_owned));
            }
            "qmp" | "qmp-pretty" => line
                .monitors
                .extend(qmp_path(&value).map(|p| folder.join(p))),
            _ => {}
        }
    }
    for id in monitors {
        match chardevs.get(&id) {
            Some(Chardev::Listens(path)) => line.monitors.push(folder.join(path)),
            Some(Chardev::Descriptor) => line.monitor_by_descriptor = true,
            Some(Chardev::Other) | None => {}
        }
    }
    line.monitors.truncate(MAX_MONITORS);
    line
}

/// The type of an `-object` that encrypts guest memory.
fn encrypting_object(value: &Options) -> Option<String> {
    const KINDS: [&str; 3] = ["sev-guest", "sev-snp-guest", "tdx-guest"];
    let kind = value.first_or("qom-type")?;
    KINDS.contains(&kind).then(|| kind.to_owned())
}

/// `unix:PATH,server…` or `unix:path=PATH,…`.
fn qmp_path(value: &Options) -> Option<&str> {
    let first = value.0.first()?;
    let path = match (first.0.as_str(), first.1.as_deref()) {
        ("unix:path", Some(path)) => path,
        (name, None) => name.strip_prefix("unix:")?,
        _ => return None,
    };
    value.is_on("server").then_some(path)
}

enum Chardev {
    Listens(String),
    Descriptor,
    Other,
}

impl Chardev {
    fn of(value: &Options) -> Self {
        let socket = value.first_or("backend") == Some("socket") && value.is_on("server");
        match (socket, value.get("path")) {
            (true, Some(path)) => Self::Listens(path.into()),
            (true, None) if value.get("fd").is_some() => Self::Descriptor,
            _ => Self::Other,
        }
    }
}

/// QEMU's `first,key=value,flag`; `,,` stands for a comma. libvirt writes objects and devices as JSON.
pub(super) struct Options(Vec<(String, Option<String>)>);

impl Options {
    pub(super) fn parse(text: &str) -> Self {
        if text.starts_with('{') {
            return Self::of_json(text);
        }
        let escaped = text.replace(",,", "\0");
        let parts = escaped.split(',').map(|part| {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key, Some(value.replace('\0', ","))),
                None => (part, None),
            };
            (key.replace('\0', ","), value)
        });
        Self(parts.collect())
    }

    /// The same in JSON; a list is a key that stands there several times.
    fn of_json(text: &str) -> Self {
        use serde_json::Value;
        let word = |value: &Value| match value {
            Value::Bool(is_on) => Some(if *is_on { "on" } else { "off" }.to_owned()),
            Value::Number(number) => Some(number.to_string()),
            Value::String(text) => Some(text.clone()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        };
        let mut found = Vec::new();
        let fields: serde_json::Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
        for (key, value) in &fields {
            let values = value
                .as_array()
                .map_or(std::slice::from_ref(value), Vec::as_slice);
            let texts = values.iter().filter_map(word);
            found.extend(texts.map(|word| (key.clone(), Some(word))));
        }
        Self(found)
    }

    /// Every value of a key.
    pub(super) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let of_key = self.0.iter().filter(move |(k, _)| k == key);
        of_key.filter_map(|(_, value)| value.as_deref())
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().find(|(k, _)| k == key);
        found.and_then(|(_, value)| value.as_deref())
    }

    /// The first part if it has no key, else the value of `key`.
    pub(super) fn first_or(&self, key: &str) -> Option<&str> {
        match self.0.first() {
            Some((first, None)) => Some(first),
            _ => self.get(key),
        }
    }

    /// `flag`, `flag=on` or `flag=yes`.
    pub(super) fn is_on(&self, flag: &str) -> bool {
        self.0.iter().any(|(key, value)| {
            key == flag && matches!(value.as_deref(), None | Some("on" | "yes"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> CommandLine {
        let args: Vec<&[u8]> = args.iter().map(|a| a.as_bytes()).collect();
        parse(&args, Path::new("/cwd"))
    }

    #[test]
    fn every_way_to_name_a_listening_monitor_is_understood() {
        let line = parsed(&[
            "-qmp",
            "unix:/a,,b.sock,server=on,wait=off",
            "--qmp",
            "unix:rel,server,nowait",
            "-qmp-pretty",
            "unix:path=/p,server=on",
            "-chardev",
            "socket,id=m,path=/m.sock,server=on",
            "-mon",
            "chardev=m,mode=control",
            "-mon",
            "m2,mode=control",
            "-chardev",
            "socket,path=/m2,server=yes,id=m2",
        ]);
        let want = ["/a,b.sock", "/cwd/rel", "/p", "/m.sock", "/m2"].map(PathBuf::from);
        assert_eq!(line.monitors, want);
    }

    #[test]
    fn what_does_not_listen_or_is_no_control_monitor_is_left_out() {
        let line = parsed(&[
            "-qmp",
            "stdio",
            "-qmp",
            "unix:/client",
            "-qmp",
            "tcp:localhost:4444,server=on",
            "-chardev",
            "socket,id=h,path=/hmp,server=on",
            "-mon",
            "chardev=h,mode=readline",
            "-mon",
            "chardev=missing,mode=control",
            "-drive",
            "-qmp",
            "-qmp",
        ]);
        assert_eq!(line, CommandLine::default());
    }

    #[test]
    fn guests_whose_memory_is_encrypted_are_told() {
        let json = r#"{"qom-type":"sev-guest","id":"lsec0","cbitpos":47}"#;
        for (args, want) in [
            (["-object", json], Some("sev-guest")),
            (["-object", "tdx-guest,id=tdx0"], Some("tdx-guest")),
            (
                ["--object", "qom-type=sev-snp-guest,id=x"],
                Some("sev-snp-guest"),
            ),
            (
                ["-machine", "q35,confidential-guest-support=x"],
                Some("confidential-guest-support"),
            ),
            (
                ["-M", "q35,memory-encryption=sev0"],
                Some("memory-encryption"),
            ),
            (["-object", "memory-backend-ram,id=sev-guest,size=1G"], None),
            (["-machine", "q35,accel=kvm"], None),
        ] {
            assert_eq!(parsed(&args).encryption.as_deref(), want, "{args:?}");
        }
    }

    #[test]
    fn libvirts_command_line_is_understood() {
        let line = parsed(&[
            "-name",
            "guest=vm1,debug-threads=on",
            "-uuid",
            "c5a0b6f4-0000-4000-8000-000000000001",
            "-chardev",
            "socket,id=charmonitor,fd=33,server=on,wait=off",
            "-mon",
            "chardev=charmonitor,id=monitor,mode=control",
        ]);
        assert_eq!(line.name.as_deref(), Some("vm1"));
        assert!(line.uuid.is_some() && line.monitor_by_descriptor && line.monitors.is_empty());
    }

    proptest::proptest! {
        #[test]
        fn no_command_line_makes_it_panic(args in proptest::collection::vec("-?(qmp|mon|chardev|name)?[a-z:=,/]{0,20}", 0..8)) {
            parsed(&args.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}
