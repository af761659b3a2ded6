//! The machine by the command line: how the guest runs, and what its RAM is. This is QEMU's word before anybody asked
//! its monitor: good for advice, and nothing is done by it.

use std::collections::BTreeSet;

use super::command_line::Options;

/// Most memory backends and devices of a VM that are inspected.
const MAX: usize = 256;

/// The machine options that QEMU was started with.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Machine {
    /// Whether KVM runs it; `None` if no option sets it, which makes it emulated.
    pub kvm: Option<bool>,
    /// All memory backends, of RAM or of anything else.
    pub backends: Vec<Backend>,
    /// Ids of those that the guest's nodes and the machine are made of.
    pub used: BTreeSet<String>,
    /// `-mem-path`: all RAM is a file there, private.
    pub mem_path: Option<String>,
    /// The driver of a device that is passed through.
    pub passed_through: Option<String>,
}

/// A `memory-backend-…`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Backend {
    /// The backend's id.
    pub id: String,
    /// `ram`, `memfd`, `file`, `shm`.
    pub kind: String,
    /// Others may map it.
    pub is_shared: bool,
    /// The file's path.
    pub path: Option<String>,
    /// `align=`.
    pub align: Option<String>,
    /// The backend is made of pages of hugetlbfs, by its own option.
    pub is_hugetlb: bool,
    /// Nodes of the host that it is bound to.
    pub bound: Option<String>,
}

impl Machine {
    /// The backends of the guest's RAM.
    pub fn ram(&self) -> impl Iterator<Item = &Backend> {
        let is_used = |b: &&Backend| self.used.contains(&b.id);
        self.backends.iter().filter(is_used)
    }

    pub(super) fn take(&mut self, option: &str, value: &Options) {
        match option {
            "accel" => self.accelerate(value.first_or("accel")),
            "cpu" if value.first_or("model") == Some("host") => self.kvm = self.kvm.or(Some(true)),
            "machine" | "M" => {
                if value.get("accel").is_some() {
                    self.accelerate(value.get("accel"));
                }
                self.use_backend(value.get("memory-backend"));
            }
            "numa" => self.use_backend(value.get("memdev")),
            "mem-path" => self.mem_path = value.first_or("path").map(Into::into),
            "object" if self.backends.len() < MAX => self.backends.extend(Backend::of(value)),
            "device" => {
                let driver = value.first_or("driver");
                let passed = driver.filter(|driver| driver.starts_with("vfio-"));
                self.passed_through = passed.map(Into::into).or(self.passed_through.take());
            }
            _ => {}
        }
    }

    /// The first one of a list (`kvm:tcg`) that works is used; the first option of several is what is asked for.
    fn accelerate(&mut self, with: Option<&str>) {
        let first = with.and_then(|with| with.split(':').next());
        self.kvm = self.kvm.or(first.map(|first| first == "kvm"));
    }

    fn use_backend(&mut self, id: Option<&str>) {
        if self.used.len() < MAX {
            self.used.extend(id.map(str::to_owned));
        }
    }
}

impl Backend {
    fn of(value: &Options) -> Option<Self> {
        let kind = value
            .first_or("qom-type")?
            .strip_prefix("memory-backend-")?;
        let share = value.get("share");
        let nodes: Vec<&str> = value.all("host-nodes").collect();
        Some(Self {
            id: value.get("id")?.to_owned(),
            kind: kind.to_owned(),
            is_shared: match share {
                Some(_) => value.is_on("share"),
                // These are shared unless an option forbids it.
                None => matches!(kind, "memfd" | "shm"),
            },
            path: value.get("mem-path").map(Into::into),
            align: value.get("align").map(Into::into),
            is_hugetlb: value.is_on("hugetlb"),
            bound: (value.get("policy") == Some("bind")).then(|| nodes.join(",")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(args: &[(&str, &str)]) -> Machine {
        let mut machine = Machine::default();
        for (option, value) in args {
            machine.take(option, &Options::parse(value));
        }
        machine
    }

    #[test]
    fn backends_are_read_as_people_and_as_libvirt_write_them() {
        let json = r#"{"qom-type":"memory-backend-memfd","id":"ram-node0","share":true,"hugetlb":true,"size":1,"host-nodes":[0,1],"policy":"bind"}"#;
        let found = machine(&[
            ("object", json),
            ("numa", "node,nodeid=0,memdev=ram-node0"),
            (
                "object",
                "memory-backend-file,id=m1,size=1G,mem-path=/dev/shm/x,align=2M",
            ),
            ("machine", "q35,accel=kvm:tcg,memory-backend=m1"),
            ("object", "memory-backend-ram,id=nvdimm"),
            ("object", "memory-backend-memfd,id=m2,share=off"),
            ("device", r#"{"driver":"vfio-pci","host":"0000:01:00.0"}"#),
            ("device", "virtio-net-pci"),
        ]);
        let ram: Vec<&Backend> = found.ram().collect();
        let [memfd, file] = ram[..] else {
            panic!("{ram:?}")
        };
        assert!(memfd.is_shared && memfd.is_hugetlb && memfd.bound.as_deref() == Some("0,1"));
        assert!(!file.is_shared && file.align.as_deref() == Some("2M") && file.bound.is_none());
        assert_eq!(found.kvm, Some(true));
        assert_eq!(found.passed_through.as_deref(), Some("vfio-pci"));
        assert!(!found.backends[3].is_shared);
    }

    #[test]
    fn the_first_accelerator_is_the_one_that_was_asked_for() {
        assert_eq!(machine(&[("accel", "tcg,thread=multi")]).kvm, Some(false));
        assert_eq!(
            machine(&[("accel", "kvm"), ("accel", "tcg")]).kvm,
            Some(true)
        );
        assert_eq!(machine(&[("cpu", "host,-svm")]).kvm, Some(true));
        assert_eq!(machine(&[("cpu", "max")]).kvm, None);
    }

    proptest::proptest! {
        #[test]
        fn nothing_that_is_written_makes_it_panic(text in r#"[{]?(memory-backend-|id=|share|"[a-z]":|[0-9,=\[\]{}])*"#) {
            machine(&[("object", &text), ("device", &text), ("numa", &text), ("machine", &text)]);
        }
    }
}
