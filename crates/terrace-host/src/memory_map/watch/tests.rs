use std::sync::atomic::{AtomicU64, Ordering};

use terrace_proto::{Gpa, Hva};

use super::super::build::tests::{FakeTree, Fixture, HVA, flat};
use super::*;
use crate::qemu::{FlatRange, Memdev, QemuError};

const MIB: u64 = 1 << 20;
const HIGH: u64 = 1 << 32;

/// A QEMU that answers what a test wants, and sends the events that it wants.
struct FakeQemu {
    tree: FakeTree,
    events: AtomicU64,
}

impl MemoryTree for FakeQemu {
    fn memdevs(&mut self) -> Result<Vec<Memdev>, QemuError> {
        self.tree.memdevs()
    }

    fn ram(&mut self) -> Result<Vec<FlatRange>, QemuError> {
        self.tree.ram()
    }

    fn host_address(&mut self, gpa: Gpa) -> Result<Option<(String, Hva)>, QemuError> {
        self.tree.host_address(gpa)
    }
}

impl Witness for FakeQemu {
    fn memory_events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }
}

/// The watch of a VM with 4 MiB of RAM and 4 more above 4 GiB, and its entries in procfs.
fn watched() -> (State<FakeQemu>, Fixture, HostRoot) {
    let mut fixture = Fixture::new();
    let root = HostRoot::new(fixture.dir.path());
    let tree = std::mem::replace(&mut fixture.tree, Fixture::new().tree);
    let events = AtomicU64::new(0);
    let mut qemu = FakeQemu { tree, events };
    let (layout, _) = Layout::read(&root, 42, &mut qemu).unwrap();
    (State::new(qemu, 42, layout), fixture, root)
}

/// A line of `maps`: from and to (from [`HVA`]), mode, file offset.
type Line = (u64, u64, &'static str, u64);

/// A change to the answers of the fake QEMU.
type Change = fn(&mut FakeTree);

fn tell(state: &State<FakeQemu>) {
    state.witness.events.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn an_unchanged_map_is_not_queried_until_qemu_reports_a_change() {
    let (mut state, _fixture, root) = watched();
    state.glance(&root).unwrap();
    let asked = state.witness.tree.asked;
    for _ in 0..3 {
        state.glance(&root).unwrap();
    }
    assert_eq!(state.witness.tree.asked, asked);
    tell(&state);
    state.glance(&root).unwrap();
    assert_eq!(state.witness.tree.asked, asked + 1);
    state.check(&root).unwrap();
    assert_eq!(state.witness.tree.asked, asked + 2);
}

#[test]
fn changed_ram_is_another_map_for_good() {
    let changes: [(&str, Change); 4] = [
        ("'d1' at 0x180000000 is new", |tree| {
            tree.memdevs.push("d1");
            tree.ram.push(flat(HIGH + (2 << 30), MIB, "d1"));
            tree.known.push((HIGH + (2 << 30), HVA + 2 * MIB, MIB));
        }),
        ("'m0' at 0x100000000 is gone or elsewhere", |tree| {
            tree.ram.pop();
        }),
        ("'m0' at 0x100000000 is gone or elsewhere", |tree| {
            tree.known[1].1 = HVA;
        }),
        ("no RAM of a memory backend", |tree| tree.ram.clear()),
    ];
    for (text, change) in changes {
        let (mut state, _fixture, root) = watched();
        state.glance(&root).unwrap();
        let before = Fixture::new().tree;
        change(&mut state.witness.tree);
        state.glance(&root).unwrap();
        tell(&state);
        let Err(MapDoubt::Changed(why)) = state.glance(&root) else {
            panic!("not noticed: {text}");
        };
        assert!(why.contains(text), "{why}");
        // It does not become the old one again, which others may have been given meanwhile.
        state.witness.tree = before;
        assert!(matches!(state.check(&root), Err(MapDoubt::Changed(_))));
        assert!(matches!(state.glance(&root), Err(MapDoubt::Changed(_))));
    }
}

#[test]
fn ram_mapped_elsewhere_is_noticed_without_qemus_help() {
    let moved: [&[Line]; 4] = [
        // Unmapped; a hole in it; another part of the file there; private now.
        &[],
        &[(0, 5 * MIB, "rw-s", 0), (6 * MIB, 8 * MIB, "rw-s", 6 * MIB)],
        &[(0, 4 * MIB, "rw-s", 0), (4 * MIB, 8 * MIB, "rw-s", 0)],
        &[(0, 8 * MIB, "rw-p", 0)],
    ];
    for lines in moved {
        let (mut state, fixture, root) = watched();
        state.glance(&root).unwrap();
        let asked = state.witness.tree.asked;
        // Cut in two by a memory policy it is what it was.
        fixture.maps(&[(0, MIB, "rw-s", 0), (MIB, 8 * MIB, "rw-s", MIB)]);
        state.glance(&root).unwrap();
        fixture.maps(lines);
        let doubt = state.glance(&root).unwrap_err();
        assert!(matches!(&doubt, MapDoubt::Changed(_)), "{lines:?}: {doubt}");
        assert_eq!(state.witness.tree.asked, asked);
    }
}

/// With each reset the BIOS area and SMRAM come and go.
#[test]
fn what_firmware_shadows_is_no_other_map() {
    let (mut state, _fixture, root) = watched();
    let tree = &mut state.witness.tree;
    tree.ram[0].len = 0xa_0000;
    tree.ram.insert(1, flat(0xe_8000, 0x8000, "m0"));
    let high = tree.ram.last_mut().unwrap();
    high.len = 3 * MIB;
    state.check(&root).unwrap();
}

#[test]
fn an_unreadable_process_leaves_pinning_unknown() {
    let (mut state, fixture, root) = watched();
    state.glance(&root).unwrap();
    std::fs::remove_file(fixture.dir.path().join("proc/42/maps")).unwrap();
    assert!(matches!(state.glance(&root), Err(MapDoubt::Unknown(_))));
    assert!(matches!(state.check(&root), Err(MapDoubt::Unknown(_))));
    fixture.maps(&[(0, 8 * MIB, "rw-s", 0)]);
    state.glance(&root).unwrap();
    state.layout = Layout::default();
    std::fs::remove_file(fixture.dir.path().join("proc/42/maps")).unwrap();
    state.glance(&root).unwrap();
}
