use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use super::*;

const MIB: u64 = 1 << 20;

/// A QEMU that answers what a test wants.
pub(in crate::memory_map) struct FakeTree {
    pub memdevs: Vec<&'static str>,
    pub ram: Vec<FlatRange>,
    /// Guest address, host address and length of what `gpa2hva` knows.
    pub known: Vec<(u64, u64, u64)>,
    /// Questions so far.
    pub asked: u64,
}

impl MemoryTree for FakeTree {
    fn memdevs(&mut self) -> Result<Vec<Memdev>, QemuError> {
        self.asked += 1;
        let memdev = |id: &&str| Memdev {
            id: (*id).into(),
            size: 0,
            share: true,
            host_nodes: Vec::new(),
        };
        Ok(self.memdevs.iter().map(memdev).collect())
    }

    fn ram(&mut self) -> Result<Vec<FlatRange>, QemuError> {
        Ok(self.ram.clone())
    }

    fn host_address(&mut self, gpa: Gpa) -> Result<Option<(String, Hva)>, QemuError> {
        let hit = self
            .known
            .iter()
            .find(|(g, _, len)| (*g..g + len).contains(&gpa.0));
        let mut flat = self.ram.iter();
        let flat = flat
            .rfind(|range| range.start <= gpa)
            .map(|range| range.region.clone());
        let region = flat.unwrap_or_default();
        Ok(hit.map(|(g, hva, _)| (region, Hva(hva + (gpa.0 - g)))))
    }
}

pub(in crate::memory_map) fn flat(start: u64, len: u64, region: &str) -> FlatRange {
    FlatRange {
        start: Gpa(start),
        len,
        region: region.into(),
        offset: 0,
    }
}

/// A process 42 with one 8 MiB file mapped at 0x10000000, and a QEMU with RAM below and above a hole.
pub(in crate::memory_map) struct Fixture {
    pub dir: tempfile::TempDir,
    pub tree: FakeTree,
}

pub(in crate::memory_map) const HVA: u64 = 0x1000_0000;

impl Fixture {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ram");
        fs::File::create(&file).unwrap().set_len(8 * MIB).unwrap();
        fs::create_dir_all(dir.path().join("proc/42/fd")).unwrap();
        let fixture = Self {
            dir,
            tree: FakeTree {
                memdevs: vec!["m0"],
                ram: vec![
                    flat(0, MIB, "m0"),
                    flat(MIB, 3 * MIB, "m0"),
                    flat(0xfd00_0000, MIB, "vga.vram"),
                    flat(1 << 32, 4 * MIB, "m0"),
                ],
                known: vec![(0, HVA, 4 * MIB), (1 << 32, HVA + 4 * MIB, 4 * MIB)],
                asked: 0,
            },
        };
        symlink(&file, fixture.dir.path().join("proc/42/fd/9")).unwrap();
        fixture.flags(9, "02100002");
        fixture.maps(&[(0, 8 * MIB, "rw-s", 0)]);
        fixture
    }

    /// Sets the open flags of a descriptor, octal.
    fn flags(&self, fd: u32, flags: &str) {
        let folder = self.dir.path().join("proc/42/fdinfo");
        fs::create_dir_all(&folder).unwrap();
        let text = format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t9\n");
        fs::write(folder.join(fd.to_string()), text).unwrap();
    }

    /// Offsets from [`HVA`], mode, file offset.
    pub fn maps(&self, lines: &[(u64, u64, &str, u64)]) {
        let meta = fs::metadata(self.dir.path().join("ram")).unwrap();
        let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
        let line = |(from, to, mode, offset): &(u64, u64, &str, u64)| {
            let (from, to) = (HVA + from, HVA + to);
            let inode = meta.ino();
            format!("{from:x}-{to:x} {mode} {offset:08x} {major:02x}:{minor:02x} {inode}   /ram\n")
        };
        let text: String = lines.iter().map(line).collect();
        fs::write(self.dir.path().join("proc/42/maps"), text).unwrap();
    }

    fn build(&mut self) -> Result<GuestMemory, MemoryMapError> {
        build(&HostRoot::new(self.dir.path()), 42, &mut self.tree)
    }

    fn error(&mut self) -> String {
        self.build().unwrap_err().to_string()
    }
}

#[test]
fn ram_is_joined_with_its_file_and_adjacent_runs_become_one() {
    let memory = Fixture::new().build().unwrap();
    let ranges: Vec<_> = memory
        .ranges()
        .iter()
        .map(|r| (r.gpa.0, r.len, r.hva.0, r.file_index, r.file_offset))
        .collect();
    let want = [
        (0, 4 * MIB, HVA, 0, 0),
        (1 << 32, 4 * MIB, HVA + 4 * MIB, 0, 4 * MIB),
    ];
    assert_eq!(ranges, want);
    assert_eq!(memory.files().len(), 1);
    assert!(memory.is_huge_aligned());
}

#[test]
fn a_vms_resident_memory_is_counted_by_its_own_files() {
    let mut fixture = Fixture::new();
    let present = |fixture: &mut Fixture| {
        let root = HostRoot::new(fixture.dir.path());
        present(&root, 42, &mut fixture.tree).unwrap()
    };
    let file = fixture.dir.path().join("ram");
    let blocks = fs::metadata(&file).unwrap().blocks();
    let m0 = Present {
        region: "m0".into(),
        bytes: blocks * 512,
    };
    assert_eq!(present(&mut fixture), [m0]);
    // Two backends in one file, and RAM that is no file.
    fixture.tree.memdevs = vec!["m0", "m1"];
    fixture.tree.ram[3].region = "m1".into();
    assert_eq!(present(&mut fixture), []);
    let mut private = Fixture::new();
    private.maps(&[(0, 8 * MIB, "rw-p", 0)]);
    assert_eq!(present(&mut private), []);
}

#[test]
fn a_mapping_cut_by_memory_policies_is_followed() {
    let mut fixture = Fixture::new();
    fixture.maps(&[(0, 2 * MIB, "rw-s", 0), (2 * MIB, 8 * MIB, "rw-s", 2 * MIB)]);
    assert_eq!(fixture.build().unwrap().ranges().len(), 2);
    fixture.maps(&[(0, 2 * MIB, "rw-s", 0), (2 * MIB, 8 * MIB, "rw-s", 3 * MIB)]);
    assert!(fixture.error().contains("maps no such file"));
}

#[test]
fn ram_that_cannot_be_scanned_says_which_option_helps() {
    let mut private = Fixture::new();
    private.maps(&[(0, 8 * MIB, "rw-p", 0)]);
    assert!(private.error().contains("share=on"));
    let mut closed = Fixture::new();
    fs::remove_file(closed.dir.path().join("proc/42/fd/9")).unwrap();
    assert!(closed.error().contains("no descriptor"));
    let mut device = Fixture::new();
    symlink("/dev/vfio/17", device.dir.path().join("proc/42/fd/10")).unwrap();
    assert!(device.error().contains("/dev/vfio/17"));
    let mut encrypted = Fixture::new();
    let line = "qemu-system-x86_64\0-object\0sev-snp-guest,id=s\0";
    fs::write(encrypted.dir.path().join("proc/42/cmdline"), line).unwrap();
    assert!(encrypted.error().contains("encrypted (sev-snp-guest)"));
}

#[test]
fn ram_that_qemu_may_not_write_is_not_opened_for_writing() {
    for mode in ["r--s", "rwxs", "-w-s"] {
        let mut fixture = Fixture::new();
        fixture.maps(&[(0, 8 * MIB, mode, 0)]);
        assert!(fixture.error().contains("reading and writing"), "{mode}");
    }
    let mut half = Fixture::new();
    half.maps(&[(0, 2 * MIB, "rw-s", 0), (2 * MIB, 8 * MIB, "r--s", 2 * MIB)]);
    assert!(half.error().contains("maps no such file"));
    for flags in ["0100000", "0100001", "nonsense"] {
        let mut fixture = Fixture::new();
        fixture.flags(9, flags);
        assert!(fixture.error().contains("no descriptor"), "{flags}");
        // Another one that is open for both does.
        let ram = fixture.dir.path().join("ram");
        symlink(ram, fixture.dir.path().join("proc/42/fd/11")).unwrap();
        fixture.flags(11, "02");
        assert!(fixture.build().is_ok());
    }
}

#[test]
fn a_descriptor_of_another_file_or_of_no_file_is_passed_over() {
    let mut fixture = Fixture::new();
    let fds = fixture.dir.path().join("proc/42/fd");
    fs::remove_file(fds.join("9")).unwrap();
    fs::write(fixture.dir.path().join("other"), "").unwrap();
    symlink(fixture.dir.path().join("other"), fds.join("9")).unwrap();
    symlink(fixture.dir.path(), fds.join("8")).unwrap();
    symlink("/dev/zero", fds.join("7")).unwrap();
    for fd in 7..10 {
        fixture.flags(fd, "02");
    }
    assert!(fixture.error().contains("no descriptor"));
}

#[test]
fn qmp_that_lies_about_the_memory_map_is_an_error() {
    type Change = fn(&mut FakeTree);
    let cases: [(&str, Change); 7] = [
        ("overlaps", |t| t.ram.push(flat(2 * MIB, 4096, "m0"))),
        ("above 16 TiB", |t| {
            t.ram.push(flat(u64::MAX - 4095, 4096, "m0"))
        }),
        ("above 16 TiB", |t| t.ram.push(flat(16 << 40, 4096, "m0"))),
        ("no RAM of a memory backend", |t| t.memdevs.clear()),
        ("not in one piece", |t| {
            t.known = vec![
                (0, HVA, MIB),
                (MIB, HVA + MIB, MIB),
                (2 * MIB, HVA, 2 * MIB),
                (1 << 32, HVA, 4 * MIB),
            ];
        }),
        ("maps no such file", |t| t.known[1].1 = HVA + 5 * MIB),
        ("not mapped", |t| t.known.truncate(1)),
    ];
    for (want, change) in cases {
        let mut fixture = Fixture::new();
        change(&mut fixture.tree);
        let error = fixture.error();
        assert!(error.contains(want), "{want:?} not in {error:?}");
    }
    let mut short = Fixture::new();
    fs::File::create(short.dir.path().join("ram")).unwrap();
    assert!(short.error().contains("beyond the end of its file"));
}

#[test]
fn ranges_of_part_pages_and_of_nothing_are_cut_away() {
    let mut fixture = Fixture::new();
    fixture.tree.ram = vec![
        flat(0, 0, "m0"),
        flat(100, 200, "m0"),
        flat(4095, 8193, "m0"),
    ];
    let memory = fixture.build().unwrap();
    assert_eq!(
        (memory.ranges()[0].gpa.0, memory.ranges()[0].len),
        (4096, 8192)
    );
}

#[test]
fn private_ram_has_addresses_that_its_mapping_bears_out() {
    let mut fixture = Fixture::new();
    let addresses = |f: &mut Fixture| {
        let root = HostRoot::new(f.dir.path());
        build_addresses(&root, 42, &mut f.tree).map_err(|error| error.to_string())
    };
    let anonymous = |f: &Fixture, to: u64, mode: &str, name: &str| {
        let line = format!(
            "{HVA:x}-{:x} {mode} 00000000 00:00 0 {name}\n",
            HVA + to * MIB
        );
        fs::write(f.dir.path().join("proc/42/maps"), line).unwrap();
    };
    anonymous(&fixture, 8, "rw-p", "");
    let memory = addresses(&mut fixture).unwrap();
    let ranges: Vec<_> = memory
        .ranges()
        .iter()
        .map(|r| (r.gpa.0, r.len, r.hva.0))
        .collect();
    let want = [(0, 4 * MIB, HVA), (1 << 32, 4 * MIB, HVA + 4 * MIB)];
    assert_eq!(ranges, want);
    assert!(memory.files().is_empty() && memory.is_huge_aligned());
    anonymous(&fixture, 7, "rw-p", "");
    assert!(
        addresses(&mut fixture)
            .unwrap_err()
            .contains("maps no such file")
    );
    anonymous(&fixture, 8, "r--p", "");
    assert!(
        addresses(&mut fixture)
            .unwrap_err()
            .contains("reading and writing")
    );
    anonymous(&fixture, 8, "rw-p", "/anon_hugepage (deleted)");
    assert!(addresses(&mut fixture).unwrap_err().contains("hugetlbfs"));
    anonymous(&fixture, 8, "rw-p", "");
    symlink("/dev/vfio/17", fixture.dir.path().join("proc/42/fd/10")).unwrap();
    assert!(
        addresses(&mut fixture)
            .unwrap_err()
            .contains("/dev/vfio/17")
    );
    let line = "qemu-system-x86_64\0-object\0sev-snp-guest,id=s\0";
    fs::write(fixture.dir.path().join("proc/42/cmdline"), line).unwrap();
    assert!(addresses(&mut fixture).unwrap_err().contains("encrypted"));
}
