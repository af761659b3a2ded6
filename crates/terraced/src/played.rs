//! The daemon's thread and its API in one process, on a host that is a folder of files, for tests of several modules.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use anyhow::Result;
use serde::de::DeserializeOwned;
use terrace_api::client::Client;
use terrace_api::types::Vm;
use terrace_config::{Config, Sources};
use terrace_core::provision::ProvisionConfig;
use terrace_host::HostRoot;
use terrace_host::qemu::who::HypervisorConfig;
use terrace_sys::{ProcessId, SocketFile};

use crate::api;
use crate::daemon::Daemon;
use crate::discovery::Claims;
use crate::messages::{Discovered, DiscoveryScan, Input, State};
use crate::provisioning::{self, Provisioning};

pub struct Served {
    pub folder: tempfile::TempDir,
    pub inbox: Sender<Input>,
    pub claims: Claims,
    pub client: Client,
    _file: SocketFile,
    pub daemon: Option<JoinHandle<Result<()>>>,
}

pub fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A process of a test.
pub fn process(pid: u32) -> ProcessId {
    ProcessId {
        start_time: 100,
        pid,
    }
}

/// Puts a process into the tree of a test.
pub fn play_process(root: &Path, process: ProcessId) {
    let ProcessId { start_time, pid } = process;
    let stat = format!("{pid} (qemu) S {}{start_time} 0\n", "0 ".repeat(18));
    put(root, &format!("proc/{pid}/stat"), &stat);
}

/// Makes a process of this machine a QEMU of this user in the tree of a test.
pub fn play_qemu(root: &Path, pid: u32) {
    let program = root.join("usr/bin/qemu-system-x86_64");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    fs::write(&program, "").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let folder = root.join(format!("proc/{pid}"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("cmdline"), "qemu\0").unwrap();
    for name in ["stat", "status"] {
        fs::copy(format!("/proc/{pid}/{name}"), folder.join(name)).unwrap();
    }
    fs::write(folder.join("cgroup"), "0::/machine.slice/vm.scope\n").unwrap();
    symlink(&program, folder.join("exe")).unwrap();
}

/// A host with a fast and a slow node of 2 MiB each.
pub fn host(root: &Path) {
    put(root, "sys/devices/system/node/online", "0-1\n");
    for (id, cpus) in [(0, "0-1\n"), (1, "\n")] {
        let base = format!("sys/devices/system/node/node{id}");
        put(root, &format!("{base}/cpulist"), cpus);
        put(root, &format!("{base}/distance"), "10 30\n");
        let meminfo = format!("Node {id} MemTotal:  2048 kB\nNode {id} MemFree: 1024 kB\n");
        put(root, &format!("{base}/meminfo"), &meminfo);
    }
    let zones = "Node 0, zone Normal\n  pages free 300\n  high 44\n\
                 Node 1, zone Normal\n  pages free 276\n  high 20\n";
    put(root, "proc/zoneinfo", zones);
}

/// A daemon whose configuration may name the test's folder.
pub fn serve_with(config: impl FnOnce(&Path) -> String) -> Served {
    serve_resizable(
        config,
        Provisioning::new(
            provisioning::finder(HypervisorConfig::default()),
            ProvisionConfig::default(),
        ),
    )
}

/// A daemon as [`serve_with`] starts it, with resizable memory of the test's making.
pub fn serve_resizable(config: impl FnOnce(&Path) -> String, provisioning: Provisioning) -> Served {
    let folder = tempfile::tempdir().unwrap();
    host(folder.path());
    let text = config(folder.path());
    let socket = folder.path().join("terraced.sock");
    let text = format!("[daemon]\nsocket = \"{}\"\n{text}", socket.display());
    let mut config = Config::parse(&text).unwrap();
    let root = HostRoot::new(folder.path());
    let topology =
        Arc::new(crate::host::read_topology(&root, &mut config, &Sources::default()).unwrap());
    let claims = Claims::default();
    let (inbox, inputs) = channel();
    let file = api::start(&socket, inbox.clone()).unwrap();
    let daemon = Daemon::new(
        Arc::new(config),
        root,
        topology,
        inbox.clone(),
        claims.clone(),
        provisioning,
    )
    .unwrap();
    Served {
        folder,
        inbox,
        claims,
        client: Client::new(&socket),
        _file: file,
        daemon: Some(std::thread::spawn(move || daemon.run(&inputs))),
    }
}

impl Served {
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let answer = runtime().block_on(self.client.get(path));
        answer.map_err(|e| e.to_string())
    }

    pub fn find(&self, name: &str, pid: Option<u32>, state: State) {
        let found = Discovered {
            name: name.into(),
            process: pid.map(process),
            socket: self.socket(name),
            state,
            findings: Vec::new(),
        };
        self.inbox.send(Input::Discovered(Box::new(found))).unwrap();
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.sock"))
    }

    pub fn discovery_scan(&self, sockets: &[&str]) {
        let discovery_scan = DiscoveryScan {
            findings: Vec::new(),
            sockets: sockets
                .iter()
                .map(|s| self.socket(s))
                .collect::<BTreeSet<_>>(),
        };
        self.inbox
            .send(Input::DiscoveryScan(discovery_scan))
            .unwrap();
    }

    pub fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let answer = runtime().block_on(self.client.post(path, &()));
        answer.map_err(|e| e.to_string())
    }

    pub fn post_body<B: serde::Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, String> {
        let answer = runtime().block_on(self.client.post(path, body));
        answer.map_err(|e| e.to_string())
    }

    pub fn names(&self) -> Vec<String> {
        let vms: Vec<Vm> = self.get("/v1/vms").unwrap();
        vms.into_iter().map(|vm| vm.name).collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The daemon may have ended already.
        let _ = self.inbox.send(Input::Stop);
        if let Some(daemon) = self.daemon.take() {
            daemon.join().unwrap().unwrap();
        }
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// The answer of `/metrics` at a daemon's socket.
pub fn figures(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("application/openmetrics-text"), "{answer}");
    answer
}
