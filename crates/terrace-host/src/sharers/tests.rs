//! Real processes that have a real file, and played ones.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use terrace_sys::{SharedMapping, memory_file};

use super::*;

const MIB: u64 = 1 << 20;

/// A process that was forked from this one and waits, with what `keep` left it.
struct Forked(libc::pid_t);

impl Forked {
    /// The other one calls nothing but `close` and `pause`, as a process with threads may after a fork.
    fn new(close: Option<&File>) -> Self {
        let close = close.map(File::as_raw_fd);
        // SAFETY: the child calls only functions that are safe after a fork, and never returns.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: takes no pointers.
            unsafe {
                close.map(|fd| libc::close(fd));
                loop {
                    libc::pause();
                }
            }
        }
        Self(pid)
    }

    fn pid(&self) -> u32 {
        self.0.unsigned_abs()
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        // SAFETY: the child is this process's own and was not waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// A host on which only these run.
fn host(pids: &[u32]) -> (tempfile::TempDir, HostRoot) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("proc")).unwrap();
    for pid in pids {
        see(&folder, *pid);
    }
    let root = HostRoot::new(folder.path());
    (folder, root)
}

fn see(folder: &tempfile::TempDir, pid: u32) {
    let to = folder.path().join(format!("proc/{pid}"));
    symlink(format!("/proc/{pid}"), to).unwrap();
}

struct Ram {
    file: File,
    _mapped: SharedMapping,
    id: FileId,
}

fn ram() -> Ram {
    let file = memory_file(c"ram", 4 * MIB).unwrap();
    let mapped = SharedMapping::new(file.as_fd(), 0, 4 << 20).unwrap();
    let id = FileId::of(&file.metadata().unwrap());
    Ram {
        file,
        _mapped: mapped,
        id,
    }
}

fn take(root: &HostRoot, files: &BTreeSet<FileId>, before: &Census) -> Census {
    Census::take(root, files, before, &AtomicU32::new(0))
}

fn found(root: &HostRoot, files: &BTreeSet<FileId>, ours: &[u32], programs: &[PathBuf]) -> Holders {
    let ours = ours.iter().filter_map(|pid| process_id(root, *pid));
    let known = Known {
        processes: &ours.collect::<Vec<_>>(),
        programs: &super::programs(programs),
    };
    take(root, files, &Census::default()).who_else(files, known)
}

fn somebody(found: Holders) -> String {
    match found {
        Holders::Somebody(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_second_process_that_maps_the_ram_is_seen_by_its_file() {
    let (ram, me) = (ram(), std::process::id());
    let (folder, root) = host(&[me]);
    let files = ram_files(&root, me).unwrap();
    assert!(files.contains(&ram.id), "{files:?}");
    let files = BTreeSet::from([ram.id]);
    assert_eq!(found(&root, &files, &[me], &[]), Holders::Nobody);
    // A child that has not called exec maps what its parent does.
    let other = Forked::new(Some(&ram.file));
    see(&folder, other.pid());
    let text = somebody(found(&root, &files, &[me], &[]));
    let exe = fs::read_link("/proc/self/exe").unwrap();
    for has in [
        format!("process {}", other.pid()),
        exe.display().to_string(),
        "maps".into(),
    ] {
        assert!(text.contains(&has), "no {has:?} in {text}");
    }
    // By its number and when it started it is known; not by what it is called.
    assert_eq!(
        found(&root, &files, &[me, other.pid()], &[]),
        Holders::Nobody
    );
    let same_number = ProcessId {
        start_time: 1,
        pid: other.pid(),
    };
    let known = Known {
        processes: &[process_id(&root, me).unwrap(), same_number],
        programs: &BTreeSet::new(),
    };
    let census = take(&root, &files, &Census::default());
    assert!(matches!(
        census.who_else(&files, known),
        Holders::Somebody(_)
    ));
    drop(other);
    assert_eq!(found(&root, &files, &[me], &[]), Holders::Nobody);
}

#[test]
fn a_process_with_only_a_descriptor_is_seen_until_it_closes_it() {
    let (ram, me) = (ram(), std::process::id());
    let (folder, root) = host(&[me]);
    let files = BTreeSet::from([ram.id]);
    let held = ram.file.try_clone().unwrap();
    let mut other = Command::new("sleep")
        .arg("600")
        .stdin(Stdio::from(held))
        .spawn()
        .unwrap();
    see(&folder, other.id());
    // Until it has called exec it maps, too.
    let exe = FileId::behind(Path::new("/proc/self/exe")).unwrap();
    while FileId::behind(&root.process(other.id(), "exe")).unwrap() == exe {
        std::thread::yield_now();
    }
    let text = somebody(found(&root, &files, &[me], &[]));
    assert!(text.contains("holds open"), "{text}");
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(found(&root, &files, &[me], &[]), Holders::Nobody);
}

#[test]
fn a_do_not_pin_program_is_known_by_file_not_by_name() {
    let (ram, me) = (ram(), std::process::id());
    let other = Forked::new(None);
    let (folder, root) = host(&[me, other.pid()]);
    let files = BTreeSet::from([ram.id]);
    let exe = fs::read_link("/proc/self/exe").unwrap();
    assert_eq!(
        found(&root, &files, &[me], std::slice::from_ref(&exe)),
        Holders::Nobody
    );
    let same_name = folder.path().join(exe.file_name().unwrap());
    fs::write(&same_name, "another program").unwrap();
    somebody(found(&root, &files, &[me], &[same_name]));
    let link = folder.path().join("link");
    symlink(&exe, &link).unwrap();
    assert_eq!(found(&root, &files, &[me], &[link]), Holders::Nobody);
}

/// A process that a test plays.
fn play(folder: &tempfile::TempDir, pid: u32, maps: &str) -> PathBuf {
    let base = folder.path().join(format!("proc/{pid}"));
    fs::create_dir_all(base.join("fd")).unwrap();
    fs::write(base.join("maps"), maps).unwrap();
    let stat = format!("{pid} (qemu) S 1{}", " 0".repeat(17) + " 77 0");
    fs::write(base.join("stat"), stat).unwrap();
    base
}

const MAPPED: &str = "1000-400000 rw-s 00000000 00:01 7 /memfd:ram (deleted)\n";
const OTHER: &str = "1000-400000 rw-p 00000000 00:01 8 /lib/x\n";

fn file() -> BTreeSet<FileId> {
    BTreeSet::from([FileId::new(0, 1, 7)])
}

#[test]
fn a_process_that_cannot_be_looked_at_is_not_nobody() {
    let (folder, root) = host(&[]);
    let base = play(&folder, 7, OTHER);
    let ask = || found(&root, &file(), &[], &[]);
    assert_eq!(ask(), Holders::Nobody);
    fs::write(base.join("maps"), "what the kernel never writes\n").unwrap();
    let Holders::Unknown(why) = ask() else {
        panic!()
    };
    assert!(why.contains("proc/7/maps"), "{why}");
    assert_eq!(
        found(&root, &file(), &[7], &[]),
        Holders::Nobody,
        "it is known"
    );
    // Who is seen goes before who is not.
    play(&folder, 9, MAPPED);
    assert!(somebody(ask()).contains("process 9"));
    fs::remove_dir_all(folder.path().join("proc/9")).unwrap();
    // One that is gone has nothing.
    fs::remove_file(base.join("maps")).unwrap();
    assert_eq!(ask(), Holders::Nobody);
    fs::remove_dir_all(folder.path().join("proc")).unwrap();
    assert!(matches!(ask(), Holders::Unknown(_)));
}

#[test]
fn the_threads_of_a_process_whose_first_one_ended_are_looked_at() {
    let (folder, root) = host(&[]);
    let base = play(&folder, 7, "");
    let thread = base.join("task/8");
    fs::create_dir_all(thread.join("fd")).unwrap();
    fs::write(thread.join("maps"), MAPPED).unwrap();
    somebody(found(&root, &file(), &[], &[]));
}

#[test]
fn who_had_the_ram_counts_on_while_it_has_an_iommu() {
    let (folder, root) = host(&[]);
    let base = play(&folder, 7, MAPPED);
    let first = take(&root, &file(), &Census::default());
    fs::write(base.join("maps"), OTHER).unwrap();
    symlink("/dev/iommu", base.join("fd/5")).unwrap();
    let nobody = Known {
        processes: &[],
        programs: &BTreeSet::new(),
    };
    let second = take(&root, &file(), &first);
    let text = somebody(second.who_else(&file(), nobody));
    assert!(text.contains("may have pinned"), "{text}");
    let third = take(&root, &file(), &second);
    somebody(third.who_else(&file(), nobody));
    fs::remove_file(base.join("fd/5")).unwrap();
    let fourth = take(&root, &file(), &third);
    assert_eq!(fourth.who_else(&file(), nobody), Holders::Nobody);
    // A process that got the same number later is another one.
    symlink("/dev/iommu", base.join("fd/5")).unwrap();
    fs::write(
        base.join("stat"),
        format!("7 (x) S 1{}", " 0".repeat(17) + " 78 0"),
    )
    .unwrap();
    let later = take(&root, &file(), &third);
    assert_eq!(later.who_else(&file(), nobody), Holders::Nobody);
}

#[test]
fn a_former_holder_counts_while_it_can_pin_without_a_mapping() {
    for keeps in [
        "anon_inode:[io_uring]",
        "/dev/infiniband/uverbs0",
        "/dmabuf:ram",
    ] {
        let (folder, root) = host(&[]);
        let base = play(&folder, 7, MAPPED);
        let first = take(&root, &file(), &Census::default());
        fs::write(base.join("maps"), OTHER).unwrap();
        symlink(keeps, base.join("fd/5")).unwrap();
        let nobody = Known {
            processes: &[],
            programs: &BTreeSet::new(),
        };
        let second = take(&root, &file(), &first);
        let text = somebody(second.who_else(&file(), nobody));
        assert!(text.contains("may have pinned"), "{text}");
        // A hypervisor has such things for its own work: they pin nothing of its VM's.
        assert_eq!(crate::process_memory::pinned_by(&root, 7).unwrap(), None);
        fs::remove_file(base.join("fd/5")).unwrap();
        let third = take(&root, &file(), &second);
        assert_eq!(third.who_else(&file(), nobody), Holders::Nobody);
    }
}

#[test]
fn a_process_that_forks_and_ends_over_and_over_is_not_nobody() {
    // Each is listed, and has ended when it is inspected; what it had is its child's.
    let runner = |always: bool| {
        let mut next = 100;
        let listed = move || {
            next += u32::from(always || next < 109);
            Ok(vec![7, next])
        };
        let mut met = false;
        let inspected = inspect_all(listed, |pid| {
            met |= pid == 109;
            pid == 7 || pid == 109 && !always
        });
        (inspected.is_ok(), met)
    };
    assert_eq!(runner(true), (false, true), "nobody knows what it has");
    assert_eq!(runner(false), (true, true), "it is followed until it stays");
}

#[test]
fn a_zombie_is_one_that_ended_while_it_was_looked_at() {
    let (folder, root) = host(&[]);
    let base = play(&folder, 7, "");
    let ended = || process::of_process(&root, 7, &file()).unwrap().has_ended;
    // A thread of the kernel.
    assert!(!ended());
    fs::write(base.join("stat"), "7 (a) b) Z 1 0").unwrap();
    assert!(ended());
    fs::remove_dir_all(base).unwrap();
    assert!(ended());
}

#[test]
fn only_what_may_be_memory_of_a_vm_counts_as_its_ram() {
    let (folder, root) = host(&[]);
    fs::create_dir(folder.path().join("dev")).unwrap();
    let dev = FileId::behind(&folder.path().join("dev")).unwrap().dev;
    let (major, minor) = (libc::major(dev), libc::minor(dev));
    // A file system mounted at /dev/1g is no device.
    let maps = format!(
        "1000-400000 rw-s 00000000 ffe:01 7 /memfd:ram (deleted)\n\
         400000-800000 rw-s 00000000 ffe:01 8 /dev/shm/ram\n\
         800000-c00000 rw-s 00000000 {major:02x}:{minor:02x} 9 /dev/vfio/7\n\
         c00000-f00000 rw-s 00000000 ffe:0e 10 anon_inode:kvm-vcpu:0\n\
         f00000-f01000 rw-s 00000000 ffe:01 11 /memfd:ring (deleted)\n\
         1000000-1400000 rw-p 00000000 ffd:01 12 /usr/lib/firmware\n\
         1400000-1800000 rw-s 00000000 ffe:02 13 /dev/1g/ram\n"
    );
    play(&folder, 7, &maps);
    let files = ram_files(&root, 7).unwrap();
    let memory = [(1, 7), (1, 8), (2, 13)].map(|(minor, inode)| FileId::new(0xffe, minor, inode));
    assert_eq!(files, BTreeSet::from(memory));
    assert!(ram_files(&root, 8).is_err());
}

#[test]
fn a_program_with_an_odd_name_steers_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("exe");
    symlink(
        format!("/tmp/\x1b]0;owned\x07\n{}", "x".repeat(3000)),
        &link,
    )
    .unwrap();
    let text = program(&link);
    assert!(
        !text.contains(char::is_control) && text.len() < 3 * MAX_PATH_CHARS,
        "{text:?}"
    );
}
