//! `terrace doctor` if no daemon answers.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A user that owns nothing: root runs programs as this user to try what others can.
const NOBODY: u32 = 65534;

/// A folder with the command and a program that calls itself QEMU, which every user can run.
struct Host {
    dir: tempfile::TempDir,
    qemu: Child,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), mode).expect("for all");
        let copy = |from: &Path, name: &str| -> PathBuf {
            let to = dir.path().join(name);
            // Another process writes it: a child that another test forks meanwhile would have ours open for writing,
            // and no such file can be executed.
            let copied = Command::new("cp").arg(from).arg(&to).status();
            assert!(copied.expect("cp").success(), "a copy");
            to
        };
        copy(Path::new(env!("CARGO_BIN_EXE_terrace")), "terrace");
        let qemu = copy(Path::new("/bin/sleep"), "qemu-system-x86_64");
        let qemu = Command::new(qemu).arg("1000").stdin(Stdio::null()).spawn();
        Self {
            dir,
            qemu: qemu.expect("a process"),
        }
    }

    fn terrace(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.dir.path().join("terrace"));
        command.args(args);
        command
    }

    fn is_root(&self) -> bool {
        std::fs::metadata(self.dir.path())
            .expect("the folder")
            .uid()
            == 0
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.qemu.kill().ok();
        self.qemu.wait().ok();
    }
}

fn run(command: &mut Command) -> (Output, String, String) {
    let output = command.output().expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

#[test]
fn doctor_without_a_daemon_says_so_and_reports_the_host() {
    let host = Host::new();
    let socket = "/nonexistent/terraced.sock";
    let (output, out, err) = run(&mut host.terrace(&["--socket", socket, "doctor"]));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.contains("the daemon is not running") && err.contains(socket));
    assert!(out.contains("the daemon is not running"), "{out}");
    assert!(out.contains("-> systemctl start terraced"), "{out}");
    for name in [
        "move-pages",
        "topology",
        "numa-balancing",
        "thp",
        "cap-sys-nice",
        "privileges",
    ] {
        assert!(out.contains(&format!(" {name} ")), "no {name}: {out}");
    }
    let said = format!("process {} is not taken for a VM: ", host.qemu.id());
    assert!(out.contains(&said), "{said}: {out}");

    let (output, out, _) = run(&mut host.terrace(&["--socket", socket, "doctor", "--json"]));
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["daemon"]["answers"], false);
    assert_eq!(report["daemon"]["health"], "missing");
    assert!(report["host"].as_array().is_some_and(|host| host.len() > 8));
    assert!(report["vms"].is_object());
}

#[test]
fn doctor_without_a_daemon_needs_no_privileges() {
    let host = Host::new();
    let socket = host.dir.path().join("terraced.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let mode = std::fs::Permissions::from_mode(0o660);
    std::fs::set_permissions(&socket, mode).expect("for its owner alone");
    if !host.is_root() {
        println!("left out: only root can run the command as somebody else");
        return;
    }
    let socket = socket.to_str().expect("a path");
    let mut command = host.terrace(&["--socket", socket, "doctor"]);
    let (output, out, err) = run(command.uid(NOBODY).gid(NOBODY));
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("permission denied"), "{err}");
    let qemu = format!("process {} (qemu-system-x86) of user 0", host.qemu.id());
    assert!(out.contains(&qemu), "{qemu}: {out}");
    assert!(
        out.contains("could not be read: permission denied"),
        "{out}"
    );
    assert!(out.contains(" topology "), "{out}");
}

#[test]
fn doctor_without_a_daemon_uses_a_valid_configuration() {
    let host = Host::new();
    let file = host.dir.path().join("terrace.toml");
    let name = file.to_str().expect("a path");
    let qemu = host.dir.path().join("qemu-system-x86_64");
    let text = format!(
        "[daemon]\nsocket = \"/nonexistent/other\"\n[hypervisors]\nexecutables = [\"{}\"]\ncgroups = [\"/*\"]\n",
        qemu.display()
    );
    std::fs::write(&file, text).expect("a file");
    let args = ["--socket", "/nonexistent/a", "doctor", "--config", name];
    let (_, out, _) = run(&mut host.terrace(&args));
    let section = format!("process {}\n", host.qemu.id());
    assert!(out.contains(&section), "{section}: {out}");
    assert!(out.contains("--socket /nonexistent/other"), "{out}");
    std::fs::write(&file, "[hypervisors]\nusers = 7\n").expect("a file");
    let (output, out, _) = run(&mut host.terrace(&args));
    assert_eq!(output.status.code(), Some(1));
    assert!(out.contains("this report uses the defaults"), "{out}");
    assert!(out.contains(" move-pages "), "{out}");
}
