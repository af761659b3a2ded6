//! The machines that guests run on.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Names a folder with `vmlinuz`, `initrd` and a program `emulator` that takes QEMU's options.
pub const IMAGES: &str = "TERRACE_GUEST_IMAGES";

/// The product's monitor.
pub const QMP: &str = "qmp";
/// The tests' own.
pub const CONTROL: &str = "control";
/// The channel on which the guest answers questions.
pub const TRUTH: &str = "truth";
pub const CONSOLE: &str = "console";

/// A machine, with the parameters of its kernel and of its one program.
pub struct Machine {
    pub cpu: &'static str,
    pub vcpus: u32,
    pub memory_mib: u64,
    /// Options of the kernel and of the guest's program.
    pub options: &'static str,
}

impl Machine {
    /// Starts QEMU with its sockets in `folder` and RAM in the file `ram`. It ends with this process.
    pub fn start(&self, images: &Path, folder: &Path, ram: &Path) -> Child {
        let log = File::create(folder.join("qemu.log")).unwrap();
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(images.join("emulator"))
            .args(self.hardware(ram))
            .args(channels(folder))
            .arg("-kernel")
            .arg(images.join("vmlinuz"))
            .arg("-initrd")
            .arg(images.join("initrd"))
            .args(["-append", &self.command_line()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        command.spawn().expect("setpriv starts the emulator")
    }

    fn hardware(&self, ram: &Path) -> Vec<String> {
        let Self {
            cpu,
            vcpus,
            memory_mib,
            ..
        } = self;
        let mut options = args(&format!(
            "-nodefaults -no-reboot -display none -accel tcg,thread=multi -bios qboot.rom -cpu {cpu},-svm \
             -smp {vcpus} -m {memory_mib}M -machine q35,memory-backend=mem,graphics=off"
        ));
        options.extend([
            "-object".to_owned(),
            format!(
                "memory-backend-file,id=mem,size={memory_mib}M,mem-path={},share=on,align=2M",
                ram.display()
            ),
        ]);
        options
    }

    fn command_line(&self) -> String {
        // No devices are searched for on buses that are not there.
        format!(
            "console=ttyS0 quiet panic=-1 pci=lastbus=0 {}",
            self.options
        )
    }
}

fn channels(folder: &Path) -> Vec<String> {
    let at = |name: &str| folder.join(name).display().to_string();
    let mut options = vec!["-serial".to_owned(), format!("file:{}", at(CONSOLE))];
    for name in [QMP, CONTROL] {
        options.extend([
            "-qmp".to_owned(),
            format!("unix:{},server=on,wait=off", at(name)),
        ]);
    }
    options.extend([
        "-chardev".to_owned(),
        format!("socket,id=truth,path={},server=on,wait=off", at(TRUTH)),
    ]);
    options.extend(args(
        "-device virtio-serial-pci -device virtserialport,chardev=truth,name=truth",
    ));
    options
}

fn args(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
