//! Tests of discovery on hosts that are folders of files.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;

use super::super::who::HypervisorConfig;
use super::*;

/// A host with an executable of QEMU, and processes of this test's user.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for program in [
            "usr/bin/qemu-system-x86_64",
            "tmp/qemu-system-x86_64",
            "usr/bin/vim",
        ] {
            let path = dir.path().join(program);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { dir }
    }

    fn root(&self) -> HostRoot {
        HostRoot::new(self.dir.path())
    }

    /// A process that runs a program of this host, that started at its number.
    fn process(&self, pid: u32, program: &str, args: &[&str]) {
        let folder = self.dir.path().join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cmdline"), args.join("\0") + "\0").unwrap();
        let uid = fs::metadata(&folder).unwrap();
        let uid = std::os::unix::fs::MetadataExt::uid(&uid);
        self.user(pid, uid);
        fs::write(folder.join("cgroup"), "0::/machine.slice/x\n").unwrap();
        let stat = format!("{pid} (x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 {pid} 20");
        fs::write(folder.join("stat"), stat).unwrap();
        symlink(self.dir.path().join(program), folder.join("exe")).unwrap();
    }

    fn user(&self, pid: u32, uid: u32) {
        let status = self.dir.path().join(format!("proc/{pid}/status"));
        fs::write(status, format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")).unwrap();
    }

    fn qemu(&self, pid: u32, args: &[&str]) {
        let args: Vec<&str> = ["qemu"].into_iter().chain(args.iter().copied()).collect();
        self.process(pid, "usr/bin/qemu-system-x86_64", &args);
    }

    fn discover(&self, folders: &[&str]) -> Discovery {
        let config = DiscoveryConfig {
            folders: folders.iter().map(|f| self.dir.path().join(f)).collect(),
            processes: true,
            ..DiscoveryConfig::default()
        };
        self.discover_with(&config)
    }

    fn discover_with(&self, config: &DiscoveryConfig) -> Discovery {
        let (rules, _) = Rules::read(&self.root(), &HypervisorConfig::default());
        discover(&self.root(), config, &rules)
    }

    fn folder(&self, name: &str, mode: u32) -> PathBuf {
        let folder = self.dir.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
        folder
    }
}

fn listening(socket: &Path) -> String {
    format!("unix:{},server=on,wait=off", socket.display())
}

fn claims(found: &Discovery) -> Vec<(PathBuf, Vec<u32>)> {
    let pids = |c: &Candidate| c.claims.iter().map(|claim| claim.pid).collect();
    let candidates = found.candidates.iter();
    candidates.map(|c| (c.socket.clone(), pids(c))).collect()
}

#[test]
fn folders_and_processes_are_joined_by_socket() {
    let host = Host::new();
    let folder = host.folder("run", 0o755);
    fs::write(folder.join("no-socket"), "").unwrap();
    let a = folder.join("a.sock");
    let _listener = UnixListener::bind(&a).unwrap();
    let own = listening(&a);
    host.qemu(
        7,
        &["-qmp", "unix:/x/libvirt,server", "-qmp", &own, "-name", "a"],
    );
    host.qemu(8, &["-qmp", "unix:/elsewhere/b,server=on", "-uuid", "u"]);
    host.qemu(9, &["-name", "c"]);
    host.process(10, "usr/bin/vim", &["vim", "qemu-system-x86_64"]);
    let got = host.discover(&["run", "none"]);
    assert_eq!(
        claims(&got),
        [("/elsewhere/b".into(), vec![8]), (a, vec![7])]
    );
    assert_eq!(got.candidates[1].claims[0].name.as_deref(), Some("a"));
    assert_eq!(got.candidates[0].claims[0].uuid.as_deref(), Some("u"));
    let whys: Vec<_> = got.findings.iter().map(|f| f.found.as_str()).collect();
    assert_eq!(whys.len(), 2, "{whys:?}");
    assert!(whys[0].contains("none") && whys[1].contains("process 9 (c)"));
    let by_age: Vec<u32> = got.hypervisors.iter().map(|h| h.pid).collect();
    assert_eq!(by_age, [7, 8, 9]);
}

#[test]
fn a_program_that_only_calls_itself_qemu_is_no_candidate() {
    let host = Host::new();
    // `exec -a qemu-system-x86_64 vim`: by its name and its command line it is the VM.
    let args = [
        "qemu-system-x86_64",
        "-name",
        "a",
        "-qmp",
        "unix:/x/a,server=on",
    ];
    host.process(7, "usr/bin/vim", &args);
    // A file of that name somewhere else.
    host.process(8, "tmp/qemu-system-x86_64", &args);
    let got = host.discover(&[]);
    assert_eq!(claims(&got), []);
    assert_eq!(got.hypervisors, []);
    assert_eq!(got.findings.len(), 1, "{:?}", got.findings);
    let finding = &got.findings[0];
    assert!(
        finding.found.contains("process 8") && finding.found.contains("tmp/qemu-system-x86_64")
    );
    let change = finding.advice.as_deref().unwrap();
    assert!(
        change.contains("executables under [hypervisors]"),
        "{change}"
    );
}

#[test]
fn a_vm_is_not_hidden_by_another_process_that_names_its_socket() {
    let host = Host::new();
    let folder = host.folder("run", 0o755);
    let socket = folder.join("a.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    let own = listening(&socket);
    // Lower numbers than the VM's own, so that they are seen first.
    host.qemu(5, &["-qmp", &own]);
    host.user(5, 65534);
    host.process(6, "usr/bin/vim", &["qemu-system-x86_64", "-qmp", &own]);
    host.qemu(7, &["-qmp", &own, "-name", "a"]);
    let got = host.discover(&[]);
    assert_eq!(claims(&got), [(socket.clone(), vec![7])]);
    assert!(got.findings.iter().any(|f| f.found.contains("process 5")));
    // One that may be a VM takes nothing either: the connection shows which process listens there.
    host.qemu(4, &["-qmp", &own, "-name", "b"]);
    assert_eq!(claims(&host.discover(&[])), [(socket, vec![4, 7])]);
}

#[test]
fn sockets_in_a_folder_that_others_write_are_no_candidates() {
    let host = Host::new();
    for (name, mode, want) in [("open", 0o777, 0), ("sticky", 0o1777, 1), ("own", 0o755, 1)] {
        let folder = host.folder(name, mode);
        let _listener = UnixListener::bind(folder.join("a.sock")).unwrap();
        let got = host.discover(&[name]);
        assert_eq!(got.candidates.len(), want, "{name}");
        assert_eq!(got.findings.len(), 1 - want, "{name}: {:?}", got.findings);
    }
    // Named by a command line, too.
    let folder = host.folder("open", 0o777);
    host.qemu(7, &["-qmp", &listening(&folder.join("a.sock"))]);
    let got = host.discover(&[]);
    assert_eq!(got.candidates, []);
    assert!(
        got.findings[0].found.contains("which others write"),
        "{:?}",
        got.findings
    );
}

#[test]
fn findings_are_bounded_and_a_refused_user_uses_up_none() {
    let host = Host::new();
    let folder = host.folder("run", 0o755);
    for pid in 100..300 {
        host.process(pid, "tmp/qemu-system-x86_64", &["qemu-system-x86_64"]);
        host.user(pid, 65534);
    }
    let socket = folder.join("a.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    host.qemu(400, &["-qmp", &listening(&socket)]);
    host.qemu(401, &["-name", "without-a-monitor"]);
    let got = host.discover(&["run"]);
    assert_eq!(claims(&got), [(socket, vec![400])]);
    assert!(
        got.findings.len() <= MAX_FINDINGS + 1,
        "{}",
        got.findings.len()
    );
    assert!(
        got.findings[0].found.contains("process 401"),
        "its own user's first"
    );
    assert!(
        got.findings
            .last()
            .unwrap()
            .found
            .contains("more like these")
    );
}

#[test]
fn a_long_command_line_is_read_up_to_a_limit() {
    let host = Host::new();
    let long = "x".repeat(15 << 20);
    host.qemu(
        7,
        &[
            "-qmp",
            "unix:/run/a,server=on",
            "-name",
            &long,
            "-uuid",
            "late",
        ],
    );
    let got = host.discover(&[]);
    assert_eq!(claims(&got), [("/run/a".into(), vec![7])]);
    assert_eq!(got.candidates[0].claims[0].name, None);
    assert_eq!(got.candidates[0].claims[0].uuid, None);
    assert!(
        got.findings[0].found.contains("too long"),
        "{:?}",
        got.findings
    );
}

#[test]
fn a_reason_holds_no_escapes() {
    let host = Host::new();
    host.qemu(9, &["-name", "\x1b[2Jc"]);
    let got = host.discover(&[]);
    assert!(
        got.findings[0].found.contains("(\\u{1b}[2Jc)"),
        "{:?}",
        got.findings
    );
}

#[test]
fn more_monitors_than_a_vm_has_are_not_looked_at() {
    let host = Host::new();
    let args: Vec<String> = (0..1000)
        .flat_map(|i| ["-qmp".to_owned(), format!("unix:/x/{i},server=on")])
        .collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    host.qemu(7, &args);
    assert_eq!(host.discover(&[]).candidates.len(), 1);
    let line = command_line::of_process(&host.root(), 7).unwrap();
    assert_eq!(line.monitors.len(), 16);
}

#[test]
fn a_link_to_a_monitor_is_followed_once() {
    let host = Host::new();
    let folder = host.folder("run", 0o755);
    let socket = folder.join("a.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    let link = host.dir.path().join("link");
    symlink(&folder, &link).unwrap();
    host.qemu(7, &["-qmp", &listening(&link.join("a.sock"))]);
    assert_eq!(claims(&host.discover(&["run"])), [(socket, vec![7])]);
}

#[test]
fn a_process_whose_facts_cannot_be_read_is_none() {
    let host = Host::new();
    host.qemu(7, &["-qmp", "unix:/x,server=on"]);
    fs::remove_file(host.dir.path().join("proc/7/status")).unwrap();
    let got = host.discover(&[]);
    assert_eq!(got.candidates, []);
    assert!(
        got.findings[0].found.contains("cannot be determined"),
        "{:?}",
        got.findings
    );
}

/// Copies a program by another process: a child that another test forks meanwhile would have this one's descriptor open
/// for writing, and no such file can be executed.
fn copy_program(from: &Path, to: &Path) {
    let mut cp = std::process::Command::new("cp");
    assert!(cp.arg(from).arg(to).status().unwrap().success());
}

/// A process of this machine whose executable is replaced as an upgrade does it.
#[test]
fn a_process_is_known_after_its_executable_was_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("qemu-system-x86_64");
    let sleep = fs::canonicalize("/bin/sleep").unwrap();
    copy_program(&sleep, &path);
    let mut child = std::process::Command::new(&path)
        .arg("1000")
        .spawn()
        .unwrap();
    let config = HypervisorConfig {
        executables: vec![path.clone()],
        // The tests do not choose the cgroup that they run in.
        own_cgroups: vec!["/*".into()],
        ..HypervisorConfig::default()
    };
    let root = HostRoot::default();
    let executable = || {
        let (rules, _) = Rules::read(&root, &config);
        let facts = ProcessFacts::read(&root, child.id()).unwrap();
        assert_eq!(who::may_be_hypervisor(&facts, &rules), Ok(()));
        facts.executable
    };
    // Until it is started it is this test's own program.
    while fs::read_link(format!("/proc/{}/exe", child.id())).unwrap() != path {
        std::thread::yield_now();
    }
    let before = executable();
    assert!(!before.replaced && before.path == path);
    let new = dir.path().join("new");
    fs::copy(&sleep, &new).unwrap();
    fs::rename(&new, &path).unwrap();
    let after = executable();
    assert!(after.replaced && after.path == path);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A program that runs until its input ends, with a command line of one's own.
fn start(program: &Path, uid: u32, args: &[&str]) -> std::process::Child {
    use std::os::unix::process::CommandExt as _;
    let mut command = std::process::Command::new(program);
    command
        .arg0("qemu-system-x86_64")
        .args(["-c", "read x", "x"])
        .args(args)
        .stdin(std::process::Stdio::piped())
        .current_dir("/")
        .uid(uid)
        .gid(uid);
    let child = command.spawn().unwrap();
    while fs::read_link(format!("/proc/{}/exe", child.id())).unwrap() != program {
        std::thread::yield_now();
    }
    child
}

#[test]
fn a_folder_full_of_foreign_sockets_is_one_finding() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    if !status.lines().any(|l| l.starts_with("Uid:\t0\t")) {
        println!("a_folder_full_of_foreign_sockets…: skipped, only root can give files away");
        return;
    }
    let host = Host::new();
    let folder = host.folder("sticky", 0o1777);
    let bind = |i: u32| {
        let path = folder.join(format!("\x1b[2J{i:02}"));
        let listener = UnixListener::bind(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        listener
    };
    let listeners: Vec<_> = (0..100).map(bind).collect();
    let got = host.discover(&["sticky"]);
    assert_eq!((got.candidates.len(), got.findings.len()), (0, 1));
    let why = &got.findings[0].found;
    assert!(
        why.contains("u{1b}[2J00, with 99 more in its folder"),
        "{why}"
    );
    drop(listeners);
}

/// Real processes of root and of nobody, on this machine.
#[test]
fn an_unowned_process_is_no_vm_whatever_it_runs() {
    const NOBODY: u32 = 65534;
    let own = fs::read_to_string("/proc/self/status").unwrap();
    if !own.lines().any(|l| l.starts_with("Uid:\t0\t0\t0\t0")) {
        println!("a_process_of_nobody_is_no_vm…: skipped, only root can start a process as nobody");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let shell = fs::canonicalize("/bin/sh").unwrap();
    let program = dir.path().join("qemu-system-x86_64");
    copy_program(&shell, &program);
    let socket = dir.path().join("vm.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    let qmp = listening(&socket);
    let args = ["-name", "web1", "-qmp", &qmp];
    // The real program as nobody, another one under its name as nobody and as root, and the VM.
    let fakes = [
        start(&program, NOBODY, &args),
        start(&shell, NOBODY, &args),
        start(&shell, 0, &args),
    ];
    let vm = start(&program, 0, &args);
    let config = HypervisorConfig {
        executables: vec![program],
        own_cgroups: vec!["/*".into()],
        ..HypervisorConfig::default()
    };
    let root = HostRoot::default();
    let (rules, _) = Rules::read(&root, &config);
    let discovery = DiscoveryConfig {
        processes: true,
        ..DiscoveryConfig::default()
    };
    let found = discover(&root, &discovery, &rules);
    let candidate = found
        .candidates
        .iter()
        .find(|c| c.socket == socket)
        .unwrap();
    let claims: Vec<u32> = candidate.claims.iter().map(|claim| claim.pid).collect();
    assert_eq!(claims, [vm.id()]);
    let fake = format!(
        "process {} is not taken for a VM: user 65534",
        fakes[0].id()
    );
    assert!(
        found.findings.iter().any(|f| f.found.contains(&fake)),
        "{:?}",
        found.findings
    );
    for mut child in fakes.into_iter().chain([vm]) {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
