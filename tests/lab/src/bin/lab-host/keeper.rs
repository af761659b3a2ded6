//! Starts the QEMU of an L2 guest and stays as its parent, to keep the guest's truth channel.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use terrace_lab::vm::{self, RamPolicy, VmSpec};
use terrace_lab::{numa, port};

use crate::{balanced, bridge};

/// Runs the guest until its QEMU ends.
pub fn keep(spec: &VmSpec) -> Result<()> {
    let port = port::open(&spec.truth_port, false)?;
    if spec.policy == RamPolicy::Balanced {
        balanced::create(&vm::ram_path(spec), spec.memory_mib << 20)?;
    }
    numa::pin(processor(spec)).context("sched_setaffinity")?;
    let (ours, theirs) = UnixStream::pair().context("socketpair")?;
    let mut qemu = start(spec, theirs.into())?;
    let pid = vm::pid_path(&spec.name);
    // On a line of its own, as all guests' files are read at once.
    fs::write(&pid, format!("{}\n", qemu.id())).with_context(|| format!("cannot write {pid}"))?;
    bridge::bridge(port, ours)?;
    let status = qemu.wait()?;
    // QEMU leaves the file that was its RAM behind when it is killed.
    for path in [pid, vm::ram_path(spec)] {
        fs::remove_file(path).ok();
    }
    bail!("QEMU of {} ended: {status}", spec.name);
}

/// The one processor of this program, and so of its QEMU: the first guest's is the first, all others' the
/// second. An emulated processor that runs two guests in turn, while their pages move, may keep a
/// translation of the other one: without this, one of two guests ended within half a minute of
/// `move_pages` calls; with it, none in 2.5 minutes.
fn processor(spec: &VmSpec) -> usize {
    usize::from(spec.truth_port != vm::truth_port(1))
}

fn start(spec: &VmSpec, truth: OwnedFd) -> Result<Child> {
    let descriptor = truth.as_raw_fd();
    // The child must inherit it; QEMU takes the number.
    clear_close_on_exec(descriptor)?;
    Command::new("qemu-system-x86_64")
        .args(options(spec, descriptor))
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start qemu-system-x86_64 in L1")
}

fn options(spec: &VmSpec, truth: i32) -> Vec<String> {
    let VmSpec {
        name,
        memory_mib,
        node,
        policy,
        ..
    } = spec;
    let backend = if spec.private {
        "memory-backend-ram".to_owned()
    } else {
        let path = vm::ram_path(spec);
        format!("memory-backend-file,mem-path={path},share=on,align=2M")
    };
    // Preferred, never bound: pages of a bound process cannot be moved to the other node.
    let policy = match policy {
        RamPolicy::Preferred => format!(",host-nodes={node},policy=preferred"),
        RamPolicy::None | RamPolicy::Balanced => String::new(),
    };
    let memory = format!("{backend},id=mem,size={memory_mib}M,prealloc=on{policy}");
    let pairs = [
        ("-name", name.clone()),
        ("-accel", "kvm".to_owned()),
        ("-cpu", "host".to_owned()),
        ("-smp", "1".to_owned()),
        ("-machine", "q35,memory-backend=mem,graphics=off".to_owned()),
        ("-bios", "qboot.rom".to_owned()),
        ("-m", format!("{memory_mib}M")),
        ("-object", memory),
        ("-kernel", "/lab/vmlinuz".to_owned()),
        ("-initrd", "/lab/l2.cpio".to_owned()),
        ("-append", kernel_command_line(spec)),
        ("-display", "none".to_owned()),
        ("-serial", format!("file:{}", vm::console_path(name))),
        (
            "-qmp",
            format!("unix:{},server=on,wait=off", vm::qmp_path(name)),
        ),
        ("-device", "virtio-serial-pci".to_owned()),
        ("-chardev", format!("socket,id=truth,fd={truth}")),
        (
            "-device",
            format!("virtserialport,chardev=truth,name={}", port::TRUTH),
        ),
    ];
    ["-nodefaults", "-no-reboot"]
        .into_iter()
        .map(str::to_owned)
        .chain(
            pairs
                .into_iter()
                .flat_map(|(option, value)| [option.to_owned(), value]),
        )
        .collect()
}

fn kernel_command_line(spec: &VmSpec) -> String {
    // pti=on makes every entry into the guest's kernel flush its translations, without which an
    // emulated CPU keeps the hottest pages in its TLB and never sets their accessed bits again.
    // pci=lastbus=0 keeps Linux from looking for devices on 255 empty buses, at two exits a look.
    format!(
        "console=ttyS0 quiet panic=-1 pti=on pci=lastbus=0 region={} hot={} seed={} clustered={} thp={} pause_ms={}",
        spec.region_mib,
        spec.hot_percent,
        spec.seed,
        u8::from(spec.clustered),
        u8::from(spec.thp),
        spec.pause_ms
    )
}

fn clear_close_on_exec(descriptor: i32) -> Result<()> {
    // SAFETY: the descriptor is open; the call only changes its flags.
    let result = unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) };
    if result < 0 {
        return Err(std::io::Error::last_os_error()).context("fcntl on the truth channel");
    }
    Ok(())
}
