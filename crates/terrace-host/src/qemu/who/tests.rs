//! Decisions about which processes may be VMs, by facts that a test makes up.

use std::path::PathBuf;

use super::*;

const NOBODY: u32 = 65534;
const LIBVIRT: u32 = 64055;
const QEMU: &str = "/usr/bin/qemu-system-x86_64";
const QEMU_FILE: FileId = FileId {
    device: 1,
    inode: 42,
};
const OTHER_FILE: FileId = FileId {
    device: 1,
    inode: 43,
};

fn rules() -> Rules {
    Rules::of_test(&[0, LIBVIRT], 0, QEMU, QEMU_FILE)
}

fn qemu(uid: u32) -> ProcessFacts {
    ProcessFacts {
        uids: [uid; 4],
        executable: Executable {
            path: QEMU.into(),
            replaced: false,
            file: QEMU_FILE,
            owner: 0,
            mode: 0o100_755,
        },
        cgroup: Some("/machine.slice/machine-qemu.scope".into()),
    }
}

fn refusal(facts: &ProcessFacts) -> Refusal {
    may_be_hypervisor(facts, &rules()).unwrap_err()
}

#[test]
fn an_impostor_of_the_right_name_is_refused_by_its_owner() {
    assert_eq!(may_be_hypervisor(&qemu(LIBVIRT), &rules()), Ok(()));
    // Even with the real executable in the right cgroup.
    let refused = refusal(&qemu(NOBODY));
    assert!(refused.why.contains("65534"), "{refused}");
    assert!(refused.change.contains("users under [hypervisors]"));
}

#[test]
fn no_process_but_roots_speaks_for_a_vm_that_is_another_process() {
    let by = |uid| {
        let pid = Some(7);
        may_hand_over(Peer { pid, uid }, &rules())
    };
    assert_eq!(by(0), Ok(()));
    let refused = by(LIBVIRT).unwrap_err();
    assert!(refused.why.contains("64055"), "{refused}");
    assert!(by(NOBODY).is_err());
}

#[test]
fn an_executable_is_known_by_its_file_and_not_by_its_path() {
    // In a mount namespace of its own a process has what it likes at that path.
    let mut mounted = qemu(LIBVIRT);
    mounted.executable.file = OTHER_FILE;
    let refused = refusal(&mounted);
    assert!(refused.why.contains("not the file that the host has there"));
    assert!(refused.change.contains("executables under [hypervisors]"));
    // The right file by a hard link or a bind mount is the right program.
    let mut linked = qemu(LIBVIRT);
    linked.executable.path = "/tmp/x".into();
    assert_eq!(may_be_hypervisor(&linked, &rules()), Ok(()));
    // A script runs its interpreter.
    let mut script = qemu(LIBVIRT);
    script.executable.path = "/usr/bin/dash".into();
    script.executable.file = OTHER_FILE;
    assert!(refusal(&script).why.contains("/usr/bin/dash"));
}

#[test]
fn a_vm_whose_executable_an_upgrade_replaced_is_still_a_vm() {
    let mut replaced = qemu(LIBVIRT);
    replaced.executable.replaced = true;
    replaced.executable.file = OTHER_FILE;
    assert_eq!(may_be_hypervisor(&replaced, &rules()), Ok(()));
    // Not a file that the process's user made and deleted.
    let mut made = replaced.clone();
    made.executable.owner = LIBVIRT;
    assert!(refusal(&made).why.contains("belongs to user 64055"));
    let mut elsewhere = replaced.clone();
    elsewhere.executable.path = "/memfd:qemu-system-x86_64".into();
    assert!(refusal(&elsewhere).why.contains("deleted since"));
    // A file that is called so is there.
    let mut called = qemu(LIBVIRT);
    called.executable.path = format!("{QEMU} (deleted)").into();
    called.executable.file = OTHER_FILE;
    assert!(may_be_hypervisor(&called, &rules()).is_err());
}

#[test]
fn an_executable_that_others_write_is_refused() {
    for mode in [0o100_757, 0o100_775] {
        let mut writable = qemu(LIBVIRT);
        writable.executable.mode = mode;
        assert!(refusal(&writable).change.contains("chmod go-w"), "{mode:o}");
    }
    let mut foreign = qemu(LIBVIRT);
    foreign.executable.owner = NOBODY;
    assert!(refusal(&foreign).why.contains("belongs to user 65534"));
}

#[test]
fn a_process_in_the_wrong_cgroup_is_refused() {
    let in_cgroup = |uid, cgroup: Option<&str>| {
        let facts = ProcessFacts {
            cgroup: cgroup.map(str::to_owned),
            ..qemu(uid)
        };
        may_be_hypervisor(&facts, &rules())
    };
    let session = Some("/user.slice/user-1000.slice/session-1.scope");
    let refused = in_cgroup(LIBVIRT, session).unwrap_err();
    assert!(refused.why.contains("/user.slice/user-1000.slice"));
    assert!(refused.change.contains("cgroups under [hypervisors]"));
    for cgroup in [None, Some("/"), Some("/machine.slice.x/y")] {
        assert!(in_cgroup(LIBVIRT, cgroup).is_err(), "{cgroup:?}");
    }
    // Root starts VMs by hand, from a session or an init.
    for cgroup in [session, Some("/"), None, Some("/init.scope")] {
        assert_eq!(in_cgroup(0, cgroup), Ok(()), "{cgroup:?}");
    }
    for cgroup in [
        "/machine.slice/x",
        "/qemu.slice/100.scope",
        "/system.slice/y",
    ] {
        assert_eq!(in_cgroup(LIBVIRT, Some(cgroup)), Ok(()), "{cgroup}");
    }
    assert!(in_cgroup(0, Some("/docker/abc")).is_err());
}

#[test]
fn a_process_that_is_set_user_id_is_refused() {
    for uids in [[NOBODY, 0, 0, 0], [0, 0, NOBODY, 0], [0, 0, 0, NOBODY]] {
        let facts = ProcessFacts { uids, ..qemu(0) };
        assert!(
            refusal(&facts).why.contains("cannot be determined"),
            "{uids:?}"
        );
    }
}

fn socket(owner: u32, folders: &[(&str, u32, u32)]) -> SocketFacts {
    let component = |(path, owner, mode): &(&str, u32, u32)| Component {
        path: PathBuf::from(path),
        owner: *owner,
        mode: *mode,
    };
    SocketFacts {
        path: "/x/y/vm.sock".into(),
        is_socket: true,
        owner,
        folders: folders.iter().map(component).collect(),
    }
}

#[test]
fn a_socket_in_a_folder_that_others_write_is_refused() {
    let root = ("/", 0, 0o755);
    let allowed = |facts: &SocketFacts| may_be_monitor(facts, Some(LIBVIRT), &rules());
    let good = [("/run/terrace/qmp", 0, 0o755), root];
    assert_eq!(allowed(&socket(LIBVIRT, &good)), Ok(()));
    assert_eq!(allowed(&socket(0, &good)), Ok(()));
    // Its own folder, too.
    let own = [("/var/lib/vm", LIBVIRT, 0o700), root];
    assert_eq!(allowed(&socket(LIBVIRT, &own)), Ok(()));
    for folders in [
        [("/x/y", 0, 0o777), root],
        [("/x/y", 0, 0o775), root],
        [("/x/y", NOBODY, 0o755), root],
        [("/x/y", 0, 0o755), ("/", NOBODY, 0o755)],
        [("/x/y", 0, 0o755), ("/x", 0, 0o777)],
    ] {
        let refused = allowed(&socket(LIBVIRT, &folders)).unwrap_err();
        assert!(refused.why.contains("its monitor is in"), "{refused}");
    }
}

#[test]
fn a_sticky_folder_is_as_good_as_the_owner_of_what_is_in_it() {
    let tmp = [("/tmp", 0, 0o1777), ("/", 0, 0o755)];
    let allowed = |owner| may_be_monitor(&socket(owner, &tmp), Some(LIBVIRT), &rules());
    assert_eq!(allowed(LIBVIRT), Ok(()));
    assert_eq!(allowed(0), Ok(()));
    assert!(allowed(NOBODY).unwrap_err().why.contains("65534"));
    // Another VM's user owns no other VM's monitor.
    assert!(may_be_monitor(&socket(LIBVIRT, &tmp), Some(0), &rules()).is_err());
    // A user's folder inside /tmp does not inherit the protection of /tmp's sticky bit.
    let below = [("/tmp/x", NOBODY, 0o755), ("/tmp", 0, 0o1777)];
    assert!(may_be_monitor(&socket(LIBVIRT, &below), None, &rules()).is_err());
}

#[test]
fn what_is_no_socket_is_no_monitor() {
    let facts = SocketFacts {
        is_socket: false,
        ..socket(0, &[("/", 0, 0o755)])
    };
    assert!(may_be_monitor(&facts, None, &rules()).is_err());
}

#[test]
fn reasons_hold_no_escapes_and_no_megabytes() {
    let mut facts = qemu(LIBVIRT);
    facts.executable.path = format!("/tmp/\x1b[2J{}", "x".repeat(1 << 20)).into();
    facts.executable.file = OTHER_FILE;
    let mut cgroup = qemu(LIBVIRT);
    cgroup.cgroup = Some(format!("/\x1b]0;{}", "y".repeat(1 << 20)));
    for facts in [facts, cgroup] {
        let finding = refusal(&facts).finding("process 7");
        assert!(finding.found.len() < 1000, "{}", finding.found.len());
        assert!(!finding.found.contains('\x1b') && finding.found.contains("\\u{1b}"));
    }
}
