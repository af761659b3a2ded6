//! The options of L1: a two-tier host that can run KVM guests.

use std::path::{Path, PathBuf};

use terrace_lab_programs::port;
use terrace_lab_programs::vm::{TRUTH_PORTS, truth_port};

/// Socket of L1's shell for people.
pub const CONSOLE: &str = "console";
/// Socket of QEMU's own monitor.
pub const QMP: &str = "qmp";
/// Log of registers at each reset of a processor: the last word of a machine that ended in silence.
pub const RESETS_LOG: &str = "resets.log";
/// Log of the output of L1's kernel and init.
pub const CONSOLE_LOG: &str = "console.log";

/// QEMU's options for a guest: those of a text, then its kernel, the initial file system and the kernel's command line.
pub fn of_guest(text: &str, kernel: &Path, initrd: &Path, line: &str) -> Vec<String> {
    let mut options = args(text);
    for (name, value) in [("-kernel", kernel), ("-initrd", initrd)] {
        options.extend([name.to_owned(), value.display().to_string()]);
    }
    options.extend(["-append".to_owned(), line.to_owned()]);
    options
}

/// Whether `TERRACE_LAB_ACCEL=kvm` promises that nested KVM works on this machine.
pub fn wants_kvm() -> bool {
    std::env::var("TERRACE_LAB_ACCEL").is_ok_and(|value| value == "kvm")
}

/// The parts of L1 and the processor on which it runs.
#[derive(Clone)]
pub struct Machine {
    /// Value of QEMU's `-accel`.
    pub accelerator: String,
    /// Value of QEMU's `-cpu`.
    pub cpu: String,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
}

impl Machine {
    /// An emulated machine, unless `TERRACE_LAB_ACCEL=kvm` promises that nested KVM works on this machine.
    pub fn new(kernel: PathBuf, initrd: &Path) -> Self {
        let (accelerator, cpu) = if wants_kvm() {
            ("kvm", "host")
        } else {
            ("tcg,thread=multi,tb-size=512", "EPYC-Rome,+svm,+npt")
        };
        Self {
            accelerator: accelerator.to_owned(),
            cpu: cpu.to_owned(),
            kernel,
            initrd: initrd.to_owned(),
        }
    }

    /// QEMU's options. Sockets and logs are relative to the machine's folder.
    pub fn options(&self) -> Vec<String> {
        let mut options = args("-nodefaults -no-reboot -display none -smp 2 -m 4G");
        options.extend(args(&format!("-d cpu_reset -D {RESETS_LOG}")));
        options.extend(args("-machine q35,hmat=on -name terrace-lab"));
        options.extend(two_tiers());
        options.extend(channels());
        let kernel = self.kernel.display().to_string();
        let initrd = self.initrd.display().to_string();
        for (name, value) in [
            ("-accel", self.accelerator.as_str()),
            ("-cpu", &self.cpu),
            ("-kernel", &kernel),
            ("-initrd", &initrd),
            ("-append", "console=ttyS0 panic=-1 loglevel=5 nokaslr"),
        ] {
            options.extend([name.to_owned(), value.to_owned()]);
        }
        options
    }
}

/// Options for two nodes of 2 GiB. All CPUs are on the first; the second is slower by its HMAT, so that the kernel
/// builds two memory tiers. (The emulator makes both equally fast.)
fn two_tiers() -> Vec<String> {
    let mut options = Vec::new();
    for (node, cpus) in [(0, ",cpus=0-1"), (1, "")] {
        options.extend(args(&format!(
            "-object memory-backend-ram,id=m{node},size=2G \
             -numa node,nodeid={node},memdev=m{node},initiator=0{cpus}"
        )));
    }
    options.extend(args("-numa dist,src=0,dst=1,val=30"));
    for (node, latency_ns, bandwidth) in [(0, 80, "100G"), (1, 300, "20G")] {
        for property in [
            format!("data-type=access-latency,latency={latency_ns}"),
            format!("data-type=access-bandwidth,bandwidth={bandwidth}"),
        ] {
            options.extend(args(&format!(
                "-numa hmat-lb,initiator=0,target={node},hierarchy=memory,{property}"
            )));
        }
    }
    options
}

/// Options for channels: the serial console to a file; a shell, the control channel and the truth channels to
/// sockets.
fn channels() -> Vec<String> {
    let mut options = args(&format!(
        "-serial file:{CONSOLE_LOG} -qmp unix:{QMP},server=on,wait=off -device virtio-serial-pci \
         -chardev socket,id={CONSOLE},path={CONSOLE},server=on,wait=off \
         -device virtconsole,chardev={CONSOLE}"
    ));
    let truths = (1..=TRUTH_PORTS).map(truth_port);
    for name in truths.chain([port::CONTROL.to_owned()]) {
        options.extend(args(&format!(
            "-chardev socket,id={name},path={name},server=on,wait=off \
             -device virtserialport,chardev={name},name={name}"
        )));
    }
    options
}

fn args(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
