//! QEMU's answers as data. Pure functions on input that is not trusted.

use std::collections::BTreeSet;

use qapi::qmp::MemoryDeviceInfo;
use terrace_proto::printable::excerpt;
use terrace_proto::{Gpa, Hva, PagingRegisters};

/// Text that is not what QEMU prints.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("QEMU's answer to '{command}' makes no sense: {what}")]
pub struct ParseError {
    /// The command that was asked.
    pub command: &'static str,
    /// The problem with the answer.
    pub what: String,
}

/// A run of guest physical addresses that RAM backs, from `info mtree -f`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlatRange {
    /// First address.
    pub start: Gpa,
    /// Length, bytes.
    pub len: u64,
    /// Name of the memory region; that of a memory backend if it is the VM's main memory.
    pub region: String,
    /// The start in that region, bytes.
    pub offset: u64,
}

/// Memory of one of the guest's NUMA nodes, from `info numa`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMemory {
    /// The node's number.
    pub node: u32,
    /// The node's memory, bytes, to the mebibyte; what was plugged in is part of it.
    pub size: u64,
    /// The plugged part of it, bytes.
    pub plugged: u64,
}

/// A virtio-mem device, from `query-memory-devices`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtioMem {
    /// The device's name, by which it is resized; `None` if it was given none.
    pub id: Option<String>,
    /// The device's memory backend, as a path of QEMU's objects.
    pub memdev: String,
    /// The guest's node that it plugs memory into.
    pub node: u32,
    /// The memory that the guest has plugged, bytes.
    pub size: u64,
    /// The memory that the guest is asked to plug, bytes.
    pub requested: u64,
    /// The most memory that the guest may plug, bytes.
    pub max: u64,
    /// The device's granularity, bytes, a power of two.
    pub block: u64,
}

impl VirtioMem {
    /// The name of its memory backend.
    pub(crate) fn backend(&self) -> &str {
        self.memdev.rsplit('/').next().unwrap_or_default()
    }
}

const NUMA: &str = "info numa";
const MEMORY_DEVICES: &str = "query-memory-devices";
const UUID: &str = "query-uuid";
const BALLOON: &str = "query-balloon";
/// Most nodes of a guest that are believed; QEMU has 128.
const MAX_NODES: usize = 1024;
/// Most memory devices of a VM that are believed.
const MAX_DEVICES: usize = 1024;
/// Most memory of a node or device that is believed: what an x86-64 processor can address.
const MAX_BYTES: u64 = 1 << 52;
/// Longest name that is believed.
const MAX_NAME: usize = 256;

const MTREE: &str = "info mtree -f";
const REGISTERS: &str = "info registers -a";
const GPA2HVA: &str = "gpa2hva";
/// Most RAM ranges of a VM that are believed.
const MAX_RANGES: usize = 4096;
/// Most virtual CPUs that are believed.
pub(super) const MAX_VCPUS: usize = 4096;

/// The `ram` ranges of the flat view that the VM's physical address space ("memory") has now. ROM, I/O
/// and ranges of devices that decode accesses (`ramd`) are left out.
pub(super) fn mtree_ram(text: &str) -> Result<Vec<FlatRange>, ParseError> {
    let fail = |what: String| ParseError {
        command: MTREE,
        what,
    };
    let view = text
        .split("FlatView #")
        .find(|view| {
            view.lines()
                .any(|l| l.trim_start().starts_with("AS \"memory\","))
        })
        .ok_or_else(|| fail("no flat view of the address space \"memory\"".into()))?;
    let ranges: Vec<FlatRange> = view
        .lines()
        .filter_map(flat_range)
        .take(MAX_RANGES + 1)
        .collect();
    match ranges.len() {
        0 => Err(fail("the address space \"memory\" has no RAM".into())),
        n if n > MAX_RANGES => Err(fail(format!("more than {MAX_RANGES} RAM ranges"))),
        _ => Ok(ranges),
    }
}

/// One line such as `  0000000100000000-00000001bfffffff (prio 0, ram): m0 @0000000080000000 KVM`; `None` if it is no
/// RAM.
fn flat_range(line: &str) -> Option<FlatRange> {
    let (addresses, rest) = line.trim().split_once(" (prio ")?;
    let (first, last) = addresses.split_once('-')?;
    let (first, last) = (hex(first)?, hex(last)?);
    let (_, rest) = rest.split_once(", ")?;
    let name = rest.strip_prefix("ram): ")?;
    let (region, offset) = match name.rsplit_once(" @") {
        Some((region, offset)) => (region, hex(offset.split(' ').next()?)?),
        None => (name.strip_suffix(" KVM").unwrap_or(name), 0),
    };
    Some(FlatRange {
        start: Gpa(first),
        len: last.checked_sub(first)?.checked_add(1)?,
        region: region.into(),
        offset,
    })
}

/// A virtual CPU's control registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbered {
    /// The virtual CPU's number.
    pub number: u64,
    /// The paging registers' contents.
    pub registers: PagingRegisters,
}

/// Control registers of each virtual CPU, in their order.
pub(super) fn registers(text: &str) -> Result<Vec<PagingRegisters>, ParseError> {
    let numbered = numbered_registers(text)?.into_iter();
    Ok(numbered.map(|vcpu| vcpu.registers).collect())
}

/// The same with the virtual CPUs' numbers.
pub(super) fn numbered_registers(text: &str) -> Result<Vec<Numbered>, ParseError> {
    let fail = |what: String| ParseError {
        command: REGISTERS,
        what,
    };
    let mut vcpus = Vec::new();
    for (number, block) in text.split("CPU#").skip(1).enumerate() {
        if number >= MAX_VCPUS {
            return Err(fail(format!("more than {MAX_VCPUS} virtual CPUs")));
        }
        let value = |name: &str| {
            block
                .split_whitespace()
                .find_map(|word| hex(word.strip_prefix(name)?.strip_prefix('=')?))
                .ok_or_else(|| fail(format!("virtual CPU {number} shows no {name}")))
        };
        let own = block.split_whitespace().next().and_then(decimal);
        vcpus.push(Numbered {
            number: own.ok_or_else(|| fail(format!("virtual CPU {number} has no number")))?,
            registers: PagingRegisters {
                cr0: value("CR0")?,
                cr3: value("CR3")?,
                cr4: value("CR4")?,
                efer: value("EFER")?,
            },
        });
    }
    if vcpus.is_empty() {
        return Err(fail("no virtual CPU in it".into()));
    }
    Ok(vcpus)
}

/// Region and host address from `Host virtual address for 0x0 (m0) is 0x7fc58ffff000`; `None` if QEMU reports that no
/// RAM is there.
pub(super) fn gpa2hva(text: &str) -> Result<Option<(String, Hva)>, ParseError> {
    let text = text.trim();
    if text.starts_with("No memory is mapped") || text.ends_with("is not RAM") {
        return Ok(None);
    }
    let parse = || {
        let rest = text.strip_prefix("Host virtual address for ")?;
        let (_, rest) = rest.split_once(" (")?;
        let (region, address) = rest.rsplit_once(") is 0x")?;
        Some((region.to_owned(), Hva(hex(address)?)))
    };
    parse().map(Some).ok_or_else(|| ParseError {
        command: GPA2HVA,
        what: format!("{:?}", text.chars().take(120).collect::<String>()),
    })
}

/// Nodes and their memory, in the order of their numbers. A guest without NUMA has none.
pub(super) fn numa(text: &str) -> Result<Vec<NodeMemory>, ParseError> {
    let fail = |what: String| ParseError {
        command: NUMA,
        what,
    };
    let mut lines = text.lines().map(str::trim);
    let count = lines.next().and_then(|line| {
        let (count, rest) = line.split_once(' ')?;
        (rest == "nodes").then(|| decimal(count)).flatten()
    });
    let count = count.and_then(|count| usize::try_from(count).ok());
    let count = count.ok_or_else(|| fail("it does not begin with a number of nodes".into()))?;
    if count > MAX_NODES {
        return Err(fail(format!("{count} nodes")));
    }
    let mut nodes = Vec::new();
    for line in lines {
        let Some((node, size)) = node_value(line, "size") else {
            continue;
        };
        let plugged = lines_plugged(text, node).unwrap_or(0);
        let last: Option<&NodeMemory> = nodes.last();
        if last.is_some_and(|last| last.node >= node) || plugged > size || size > MAX_BYTES {
            return Err(fail(format!(
                "node {node}: {line}, {plugged} bytes plugged"
            )));
        }
        nodes.push(NodeMemory {
            node,
            size,
            plugged,
        });
    }
    if nodes.len() != count {
        return Err(fail(format!("{count} nodes, and sizes of {}", nodes.len())));
    }
    Ok(nodes)
}

fn lines_plugged(text: &str, node: u32) -> Option<u64> {
    let values = text.lines().filter_map(|line| node_value(line, "plugged"));
    let mut of_node = values.filter(|(of, _)| *of == node);
    of_node.next().map(|(_, bytes)| bytes)
}

/// Node and bytes of a line such as `node 1 size: 256 MB`, if it is about `what`.
fn node_value(line: &str, what: &str) -> Option<(u32, u64)> {
    let (node, rest) = line.trim().strip_prefix("node ")?.split_once(' ')?;
    let mib = rest.strip_prefix(what)?.strip_prefix(": ")?;
    let mib = decimal(mib.strip_suffix(" MB")?)?;
    Some((decimal(node)?.try_into().ok()?, mib.checked_mul(1 << 20)?))
}

/// The virtio-mem devices among the memory devices, by node and name.
pub(super) fn virtio_mems(list: Vec<MemoryDeviceInfo>) -> Result<Vec<VirtioMem>, ParseError> {
    let fail = |what: String| ParseError {
        command: MEMORY_DEVICES,
        what,
    };
    if list.len() > MAX_DEVICES {
        return Err(fail(format!("more than {MAX_DEVICES} devices")));
    }
    let mut names = BTreeSet::new();
    let mut devices = Vec::new();
    for info in list {
        let MemoryDeviceInfo::virtio_mem(info) = info else {
            continue;
        };
        let device = virtio_mem(info.data).map_err(fail)?;
        if let Some(id) = &device.id
            && !names.insert(id.clone())
        {
            return Err(fail(format!("two devices are called {id:?}")));
        }
        devices.push(device);
    }
    devices.sort_by(|a, b| (a.node, &a.id).cmp(&(b.node, &b.id)));
    Ok(devices)
}

fn virtio_mem(info: qapi::qmp::VirtioMEMDeviceInfo) -> Result<VirtioMem, String> {
    // It becomes part of a path.
    let is_name = |id: &String| {
        (1..=MAX_NAME).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic() && b != b'/')
    };
    if let Some(id) = info.id.as_ref().filter(|id| !is_name(id)) {
        let id: String = id.chars().take(MAX_NAME).collect();
        return Err(format!("a device is called {id:?}"));
    }
    let name = info.id.as_deref().unwrap_or("without a name");
    let wrong = |what: String| Err(format!("virtio-mem device {name}: {what}"));
    let (block, max) = (info.block_size, info.max_size);
    if !block.is_power_of_two() || max > MAX_BYTES || !max.is_multiple_of(block) {
        return wrong(format!("blocks of {block} bytes, {max} bytes at most"));
    }
    let is_size = |bytes: u64| bytes <= max && bytes.is_multiple_of(block);
    if !is_size(info.size) || !is_size(info.requested_size) {
        return wrong(format!(
            "{} bytes plugged and {} requested, of {max}",
            info.size, info.requested_size
        ));
    }
    let Ok(node) = u32::try_from(info.node) else {
        return wrong(format!("node {}", info.node));
    };
    Ok(VirtioMem {
        memdev: info.memdev.chars().take(MAX_NAME).collect(),
        node,
        size: info.size,
        requested: info.requested_size,
        max,
        block,
        id: info.id,
    })
}

/// A balloon that leaves less than nothing to the guest.
/// A UUID is at most 36 hexadecimal digits and dashes, also from a program that sends something else.
pub(super) fn uuid(said: String) -> Result<String, ParseError> {
    let good = said.len() <= 36 && said.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    if good {
        return Ok(said);
    }
    Err(ParseError {
        command: UUID,
        what: format!("no UUID: {}", excerpt(&said, 64)),
    })
}

pub(super) fn wrong_balloon(bytes: i64) -> ParseError {
    ParseError {
        command: BALLOON,
        what: format!("the guest has {bytes} bytes"),
    }
}

/// Digits only, without a sign.
fn decimal(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

/// One to sixteen hexadecimal digits, without a sign.
fn hex(digits: &str) -> Option<u64> {
    let plain = digits.len() <= 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    macro_rules! sample {
        ($name:literal) => {
            sample!("7.2", $name)
        };
        ($version:literal, $name:literal) => {
            include_str!(concat!("../../samples/qemu-", $version, "/", $name, ".txt"))
        };
    }

    fn ram(text: &str) -> Vec<(u64, u64, String, u64)> {
        mtree_ram(text)
            .unwrap()
            .into_iter()
            .map(|r| (r.start.0, r.start.0 + r.len, r.region, r.offset))
            .collect()
    }

    fn m(start: u64, end: u64, region: &str, offset: u64) -> (u64, u64, String, u64) {
        (start, end, region.into(), offset)
    }

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn ram_above_four_gib_is_not_at_its_own_offset() {
        assert_eq!(
            ram(sample!("mtree-q35-5g-prelaunch")),
            [
                m(0, 0xa_0000, "m0", 0),
                m(MIB, 2 * GIB, "m0", MIB),
                m(4 * GIB, 7 * GIB, "m0", 2 * GIB),
            ]
        );
    }

    #[test]
    fn what_qemu_10_prints_is_read_as_well() {
        assert_eq!(
            ram(sample!("10.0", "mtree-q35-5g-prelaunch")),
            [
                m(0, 0xc_0000, "m0", 0),
                m(0xe_0000, 0xf_0000, "m0", 0xe_0000),
                m(MIB, 2 * GIB, "m0", MIB),
                m(4 * GIB, 7 * GIB, "m0", 2 * GIB),
            ]
        );
        assert_eq!(
            ram(sample!("10.0", "mtree-q35-5g-linux")),
            [m(0, 2 * GIB, "m0", 0), m(4 * GIB, 7 * GIB, "m0", 2 * GIB),]
        );
        let linux = registers(sample!("10.0", "registers-2cpus-la57-linux")).unwrap();
        assert_eq!(linux.len(), 2);
        for vcpu in &linux {
            assert_eq!((vcpu.cr0, vcpu.efer), (0x8005_0033, 0xd01));
            // LA57, PAE.
            assert_eq!(vcpu.cr4 & 0x1020, 0x1020);
        }
        let early = registers(sample!("10.0", "registers-2cpus-prelaunch")).unwrap();
        assert_eq!((early.len(), early[0].efer), (2, 0));
    }

    #[test]
    fn shadowed_rom_is_left_out_after_boot() {
        assert_eq!(
            ram(sample!("mtree-q35-5g-linux")),
            [
                m(0, 0xc_3000, "m0", 0),
                m(0xe_8000, 0xf_0000, "m0", 0xe_8000),
                m(MIB, 2 * GIB, "m0", MIB),
                m(4 * GIB, 7 * GIB, "m0", 2 * GIB),
            ]
        );
    }

    #[test]
    fn several_backends_dimms_and_microvms_are_told_apart() {
        assert_eq!(
            ram(sample!("mtree-pc-4g-two-backends-prelaunch")),
            [
                m(0, 0xa_0000, "r0", 0),
                m(MIB, 2 * GIB, "r0", MIB),
                m(2 * GIB, 3 * GIB, "r1", 0),
                m(4 * GIB, 5 * GIB, "r1", GIB),
            ]
        );
        assert_eq!(
            ram(sample!("mtree-q35-dimm-prelaunch")),
            [
                m(0, 0xa_0000, "m0", 0),
                m(MIB, GIB, "m0", MIB),
                m(4 * GIB, 5 * GIB, "d1", 0),
            ]
        );
        assert_eq!(
            ram(sample!("mtree-microvm-4g-prelaunch")),
            [
                m(0, 0xf_0000, "mem", 0),
                m(0xf_0000, MIB, "pc.bios", 0),
                m(MIB, 3 * GIB, "mem", MIB),
                m(4 * GIB - 0x1_0000, 4 * GIB, "pc.bios", 0),
                m(4 * GIB, 5 * GIB, "mem", 3 * GIB),
            ]
        );
        assert_eq!(
            ram(sample!("mtree-q35-512m-prelaunch"))[1],
            m(MIB, 512 * MIB, "m0", MIB)
        );
        assert_eq!(
            ram(sample!("mtree-q35-private-prelaunch"))[1],
            m(MIB, 512 * MIB, "pc.ram", MIB)
        );
    }

    #[test]
    fn what_kvm_appends_is_no_part_of_the_name() {
        let line = "  0000000000000000-000000000009ffff (prio 0, ram): m0 KVM";
        assert_eq!(flat_range(line).unwrap().region, "m0");
        let line = "  0000000000100000-00000000001fffff (prio 0, ram): m0 @0000000000100000 KVM";
        let range = flat_range(line).unwrap();
        assert_eq!((range.region.as_str(), range.offset), ("m0", MIB));
    }

    #[test]
    fn registers_of_every_vcpu_are_read() {
        let linux = registers(sample!("registers-2cpus-linux")).unwrap();
        assert_eq!(linux.len(), 2);
        for vcpu in &linux {
            assert_eq!((vcpu.cr0, vcpu.cr4), (0x8005_0033, 0x75_0ef0));
            assert_eq!(vcpu.efer, 0xd01);
            assert!(vcpu.cr3 != 0 && vcpu.cr3 % 4096 == 0);
        }
        let early = registers(sample!("registers-2cpus-prelaunch")).unwrap();
        assert_eq!(early.len(), 2);
        assert_eq!((early[0].cr0, early[0].efer), (0x6000_0010, 0));
        assert!(registers("CPU#0\nCR0=1 CR3=2 CR4=3\n").is_err());
        assert!(registers("").is_err());
    }

    #[test]
    fn host_addresses_are_read_and_holes_are_no_error() {
        assert_eq!(
            gpa2hva("Host virtual address for 0x0 (m0) is 0x7f83b3fff000\r\n"),
            Ok(Some(("m0".into(), Hva(0x7f83_b3ff_f000))))
        );
        for none in [
            "No memory is mapped at address 0x100000000",
            "Memory at address 0xfed00000 is not RAM",
        ] {
            assert_eq!(gpa2hva(none), Ok(None));
        }
        assert!(gpa2hva("unknown command: 'gpa2hva'").is_err());
    }

    /// A sample with one piece of it replaced by something else.
    fn mangled() -> impl Strategy<Value = String> {
        let samples = prop::sample::select(vec![
            sample!("mtree-q35-5g-linux"),
            sample!("registers-2cpus-linux"),
            "Host virtual address for 0x0 (m0) is 0x7f83b3fff000",
        ]);
        (
            samples,
            any::<prop::sample::Index>(),
            0_usize..60,
            ".{0,30}",
        )
            .prop_map(|(text, at, cut, put)| {
                let at = at.index(text.len());
                let rest = text.get(at + cut..).unwrap_or("");
                format!("{}{put}{rest}", text.get(..at).unwrap_or(""))
            })
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in prop_oneof![mangled(), ".{0,300}"]) {
            let _ = mtree_ram(&text);
            let _ = registers(&text);
            let _ = gpa2hva(&text);
        }
    }
}
