//! Starts the QEMU of an L2 guest and stays as its parent, to keep the guest's truth channel.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use terrace_lab_programs::vm::{self, RamPolicy, VmSpec};
use terrace_lab_programs::{numa, port};

use crate::events::Events;
use crate::{balanced, bridge};

/// The initial file system of every guest.
const L2_INITRD: &str = "/lab/l2.cpio";

/// Runs the guest until its QEMU ends.
pub fn run(spec: &VmSpec) -> Result<()> {
    let port = port::open(&spec.truth_port, false)?;
    if spec.policy == RamPolicy::Balanced {
        balanced::create(&vm::ram_path(spec), spec.memory_mib << 20)?;
    }
    numa::pin(processor(spec)).context("sched_setaffinity")?;
    if spec.agent {
        append_agent(spec)?;
    }
    let (ours, theirs) = UnixStream::pair().context("socketpair")?;
    let events = Events::new()?;
    let mut qemu = start(spec, theirs.into(), &events)?;
    events.write_down(&spec.name)?;
    let pid = vm::pid_path(&spec.name);
    // On a line of its own, as all guests' files are read at once.
    fs::write(&pid, format!("{}\n", qemu.id())).with_context(|| format!("cannot write {pid}"))?;
    bridge::bridge(port, ours)?;
    let status = qemu.wait()?;
    // QEMU leaves the file that was its RAM behind when it is killed.
    for path in [pid, vm::ram_path(spec), vm::gather_path(spec)] {
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

fn start(spec: &VmSpec, truth: OwnedFd, events: &Events) -> Result<Child> {
    let descriptor = truth.as_raw_fd();
    // The child must inherit it; QEMU takes the number.
    clear_close_on_exec(descriptor)?;
    clear_close_on_exec(events.descriptor())?;
    Command::new("qemu-system-x86_64")
        .args(options(spec, descriptor, events.descriptor()))
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start qemu-system-x86_64 in L1")
}

fn options(spec: &VmSpec, truth: i32, events: i32) -> Vec<String> {
    let name = &spec.name;
    let pairs = [
        ("-name", name.clone()),
        ("-accel", "kvm".to_owned()),
        ("-cpu", processor_model(spec).to_owned()),
        ("-smp", "1".to_owned()),
        ("-bios", "qboot.rom".to_owned()),
        ("-m", format!("{}M", spec.memory_mib)),
        ("-kernel", "/lab/vmlinuz".to_owned()),
        ("-initrd", initrd(spec)),
        ("-append", kernel_command_line(spec)),
        ("-display", "none".to_owned()),
        ("-serial", format!("file:{}", vm::console_path(name))),
        (
            "-qmp",
            format!("unix:{},server=on,wait=off", vm::qmp_path(name)),
        ),
        ("-chardev", format!("socket,id=events,fd={events}")),
        ("-mon", "chardev=events,mode=control".to_owned()),
        ("-device", "virtio-serial-pci".to_owned()),
        ("-chardev", format!("socket,id=truth,fd={truth}")),
        (
            "-device",
            format!("virtserialport,chardev=truth,name={}", port::TRUTH),
        ),
    ];
    let memory = match (spec.fast_mib, spec.gather_mib) {
        (0, 0) => one_node(spec),
        (0, _) => with_small_node(spec),
        _ => two_nodes(spec),
    };
    ["-nodefaults", "-no-reboot"]
        .into_iter()
        .map(str::to_owned)
        .chain(
            pairs
                .into_iter()
                .chain(memory)
                .chain(agent_channel(spec))
                .flat_map(|(option, value)| [option.to_owned(), value]),
        )
        .collect()
}

/// The processor model of the guest. L1's own processor can run nested guests, and so could every guest's that is
/// given the same: of the first one KVM has to report that it runs none, before its registers count. All others could
/// not.
fn processor_model(spec: &VmSpec) -> &'static str {
    if spec.truth_port == vm::truth_port(1) {
        "host"
    } else {
        "host,-svm"
    }
}

type Options = Vec<(&'static str, String)>;

fn one_node(spec: &VmSpec) -> Options {
    let VmSpec {
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
    vec![
        ("-machine", "q35,memory-backend=mem,graphics=off".to_owned()),
        ("-object", memory),
    ]
}

/// Options for a second, small node of the same tier.
fn with_small_node(spec: &VmSpec) -> Options {
    let first_mib = spec.memory_mib.saturating_sub(spec.gather_mib);
    let mut options = vec![("-machine", "q35,graphics=off".to_owned())];
    for (node, path, mib, cpus) in [
        (0, vm::ram_path(spec), first_mib, ",cpus=0"),
        (1, vm::gather_path(spec), spec.gather_mib, ""),
    ] {
        let backend = format!(
            "memory-backend-file,id=m{node},mem-path={path},share=on,align=2M,size={mib}M,prealloc=on"
        );
        let host = spec.node;
        options.push((
            "-object",
            format!("{backend},host-nodes={host},policy=preferred"),
        ));
        options.push(("-numa", format!("node,nodeid={node},memdev=m{node}{cpus}")));
    }
    options
}

/// Options for a node per tier, described to the guest as L1's are to L1. These pages are not moved: they are bound.
fn two_nodes(spec: &VmSpec) -> Options {
    let slow_mib = spec.memory_mib.saturating_sub(spec.fast_mib);
    let mut options = vec![("-machine", "q35,hmat=on,graphics=off".to_owned())];
    for (node, path, mib, cpus) in [
        (0, vm::ram_path(spec), spec.fast_mib, ",cpus=0"),
        (1, vm::gather_path(spec), slow_mib, ""),
    ] {
        // In files, so that the host can read the guest's page tables.
        let backend = format!(
            "memory-backend-file,id=m{node},mem-path={path},share=on,align=2M,size={mib}M,prealloc=on"
        );
        options.push((
            "-object",
            format!("{backend},host-nodes={node},policy=bind"),
        ));
        let numa = format!("node,nodeid={node},memdev=m{node},initiator=0{cpus}");
        options.push(("-numa", numa));
    }
    options.push(("-numa", "dist,src=0,dst=1,val=30".to_owned()));
    for (node, latency_ns, bandwidth) in [(0, 80, "100G"), (1, 300, "20G")] {
        for property in [
            format!("data-type=access-latency,latency={latency_ns}"),
            format!("data-type=access-bandwidth,bandwidth={bandwidth}"),
        ] {
            let target = format!("hmat-lb,initiator=0,target={node},hierarchy=memory");
            options.push(("-numa", format!("{target},{property}")));
        }
    }
    options
}

/// Options for the port that the agent in the guest opens, and for a socket for the daemon.
fn agent_channel(spec: &VmSpec) -> Options {
    if !spec.agent {
        return Vec::new();
    }
    let socket = vm::agent_socket_path(&spec.name);
    vec![
        (
            "-chardev",
            format!("socket,id=agent,path={socket},server=on,wait=off"),
        ),
        (
            "-device",
            format!("virtserialport,chardev=agent,name={}", vm::AGENT_PORT),
        ),
    ]
}

fn initrd(spec: &VmSpec) -> String {
    match spec.agent {
        true => format!("/run/lab/{}.cpio", spec.name),
        false => L2_INITRD.to_owned(),
    }
}

/// Appends the agent's archive to the initial file system. The kernel unpacks archives that follow each other in one
/// file.
fn append_agent(spec: &VmSpec) -> Result<()> {
    let mut archive = fs::read(L2_INITRD).with_context(|| format!("cannot read {L2_INITRD}"))?;
    let files = fs::read(vm::AGENT_FILES);
    archive.extend(files.with_context(|| format!("cannot read {}", vm::AGENT_FILES))?);
    let path = initrd(spec);
    fs::write(&path, archive).with_context(|| format!("cannot write {path}"))?;
    let socket = vm::agent_socket_path(&spec.name);
    let folder = Path::new(&socket)
        .parent()
        .context("a socket in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

fn kernel_command_line(spec: &VmSpec) -> String {
    // pti=on makes every entry into the guest's kernel flush its translations, without which an
    // emulated CPU keeps the hottest pages in its TLB and never sets their accessed bits again.
    // pci=lastbus=0 keeps Linux from searching for devices on 255 empty buses, at two exits a probe.
    format!(
        "console=ttyS0 quiet panic=-1 pti=on pci=lastbus=0 numa_balancing=disable region={} hot={} seed={} clustered={} sparse={} thp={} node={} pause_ms={}",
        spec.region_mib,
        spec.hot_percent,
        spec.seed,
        u8::from(spec.clustered),
        spec.sparse,
        u8::from(spec.thp),
        match spec.fast_mib {
            0 => 0,
            _ => vm::GUEST_SLOW_NODE,
        },
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
