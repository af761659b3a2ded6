//! A running guest: asked for the truth on one side, scanned by the product on the other.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use terrace_host::HostRoot;
use terrace_host::memory_map::GuestMemory;
use terrace_host::qemu::Candidate;
use terrace_host::qemu::who::{HypervisorConfig, Rules};
use terrace_host::tracker::GuestTables;
use terrace_host::vm::Vm;
use terrace_host::worker::WorkerCommand;
use terrace_proto::{
    PAGE_SIZE, PagingRegisters, Part, PartRequest, Passed, Rearm, RequestId, ScanAnswer,
    ScanFailure, ScanRequest, ScanStats, Space, VmId,
};

use crate::machine::{CONSOLE, CONTROL, Machine, QMP, TRUTH};
use crate::qmp::Qmp;

/// For whatever an emulated guest is asked to do on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// Time between two checks for an answer.
const MOMENT: Duration = Duration::from_millis(1);
/// Requests until a kernel is recognised.
const ATTEMPTS: usize = 200;

/// Guest frame numbers.
pub type Frames = BTreeSet<u64>;

/// The parameters of a scan.
#[derive(Clone)]
pub struct Pass {
    pub rearm: Rearm,
    pub prune: bool,
    pub discover: bool,
}

/// Reads all leaves, changes nothing.
pub const READ_ONLY: Pass = Pass {
    rearm: Rearm::None,
    prune: false,
    discover: false,
};

/// Reads all leaves and clears every accessed bit.
pub const CLEAR: Pass = Pass {
    rearm: Rearm::All,
    prune: false,
    discover: false,
};

/// The same, after a search for top-level tables.
pub const SEARCH_AND_CLEAR: Pass = Pass {
    rearm: Rearm::All,
    prune: false,
    discover: true,
};

pub struct Guest {
    qemu: Child,
    control: Qmp,
    truth: BufReader<UnixStream>,
    vm: Vm,
    pub memory: Arc<GuestMemory>,
    tables: GuestTables,
    /// The file behind its RAM, which has no name any more.
    pub ram: File,
    folder: TempDir,
}

/// The VM of a QEMU that this test started, wherever the machine has the program and this test's cgroup.
fn open(pid: u32, socket: &Path) -> Vm {
    let config = HypervisorConfig {
        executables: vec![std::fs::read_link(format!("/proc/{pid}/exe")).unwrap()],
        own_cgroups: vec!["/*".into()],
        ..HypervisorConfig::default()
    };
    let root = HostRoot::default();
    let (rules, _) = Rules::read(&root, &config);
    let vm = Vm::open(&root, &rules, &Candidate::at(socket), PATIENCE).unwrap();
    assert_eq!(vm.identity().pid, pid);
    vm
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Guest {
    /// Boots a machine and waits until its program answers.
    pub fn boot(machine: &Machine, images: &Path) -> Self {
        let begin = Instant::now();
        let folder = tempfile::tempdir().unwrap();
        let ram = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        ram.as_file().set_len(machine.memory_mib << 20).unwrap();
        let mut qemu = machine.start(images, folder.path(), ram.path());
        let connect = |qemu: &mut Child, name| connect(qemu, &folder.path().join(name));
        let control = Qmp::new(connect(&mut qemu, CONTROL));
        let mut truth = BufReader::new(connect(&mut qemu, TRUTH));
        // QEMU has it open: nothing is left behind should this process be killed.
        let (ram, path) = ram.into_parts();
        path.close().unwrap();
        ask(&mut truth, "ping 1");
        let mut vm = open(qemu.id(), &folder.path().join(QMP));
        let memory = Arc::new(vm.memory().unwrap());
        let tables = attach(&memory);
        let seconds = begin.elapsed().as_secs_f64();
        println!("guest ready after {seconds:.1} s: {}", machine.options);
        Self {
            qemu,
            control,
            truth,
            vm,
            memory,
            tables,
            ram,
            folder,
        }
    }

    /// The guest's answer to one line.
    pub fn ask(&mut self, line: &str) -> Value {
        ask(&mut self.truth, line)
    }

    /// The same, while something else runs: `meanwhile` is called again and again until the answer is there.
    pub fn ask_meanwhile(&mut self, line: &str, mut meanwhile: impl FnMut(&mut Self)) -> Value {
        let stream = self.truth.get_mut();
        stream.set_read_timeout(Some(MOMENT)).unwrap();
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let mut answer = Vec::new();
        loop {
            match self.truth.read_until(b'\n', &mut answer) {
                Ok(0) => panic!("QEMU ended at {line:?}"),
                Ok(_) => return understood(line, &answer),
                Err(error) if error.kind() == ErrorKind::WouldBlock => meanwhile(self),
                Err(error) => panic!("no answer to {line:?}: {error}"),
            }
            assert!(Instant::now() < deadline, "no answer to {line:?}");
        }
    }

    /// The number that an answer has under `key`.
    pub fn number(&mut self, line: &str, key: &str) -> u64 {
        let answer = self.ask(line);
        let number = answer[key].as_u64();
        number.unwrap_or_else(|| panic!("no {key} in {answer}"))
    }

    /// The frames that an answer lists as ranges.
    pub fn frames(&mut self, line: &str) -> Frames {
        ranges(&self.ask(line)["ranges"])
    }

    /// Waits until the guest went over its hot pages some times more.
    pub fn wait_for_passes(&mut self, passes: u64) {
        let end = self.number("stats", "passes") + passes;
        let deadline = Instant::now() + PATIENCE;
        while self.number("stats", "passes") < end {
            assert!(Instant::now() < deadline, "the guest makes no passes");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Fails if the guest found any byte of its memory wrong.
    pub fn expect_intact(&mut self) {
        let verified = self.ask("verify");
        for count in ["bad", "errors", "churn_errors"] {
            assert_eq!(
                verified[count], 0,
                "the guest's memory is damaged: {verified}"
            );
        }
    }

    /// Whether scans report writes from now on, by moving dirty bits aside.
    pub fn tell_writes(&mut self, on: bool) {
        self.tables.tell_writes(on);
    }

    pub fn stop(&mut self) {
        self.control.execute("stop");
    }

    pub fn go_on(&mut self) {
        self.control.execute("cont");
    }

    /// Resets the machine in the middle of whatever it does; the same kernel starts again.
    pub fn reset(&mut self) {
        self.control.reset();
    }

    pub fn registers(&mut self) -> Vec<PagingRegisters> {
        self.vm.registers().unwrap()
    }

    /// Has the guest scanned by a new worker, which knows none of its tables.
    pub fn forget(&mut self) {
        self.tables = attach(&self.memory);
    }

    /// One request, as the daemon makes it.
    pub fn try_scan(&mut self, pass: Pass) -> Result<ScanAnswer, ScanFailure> {
        self.tables.scan(&mut self.vm, request(pass))
    }

    /// Lets the next requests use so many threads.
    pub fn use_threads(&mut self, threads: u8) {
        self.tables.use_threads(threads);
    }

    /// One request about a part of the tables, as the daemon makes it: the number of its leaves and of the bits that it cleared.
    pub fn try_part(&mut self, part: Part, clear: bool) -> Result<ScanStats, ScanFailure> {
        let request = PartRequest {
            id: RequestId(1),
            space: Space::Guest(VmId(1)),
            part,
            clear,
            prune: !clear,
            discover: false,
        };
        match self
            .tables
            .make(&mut self.vm, terrace_proto::Pass::Part(request))?
        {
            Passed::Part(answer) => Ok(answer.stats),
            Passed::All(_) => panic!("an answer about all of the tables"),
        }
    }

    /// The same from registers that the test makes up.
    pub fn try_scan_from(
        &mut self,
        pass: Pass,
        vcpus: Vec<PagingRegisters>,
    ) -> Result<ScanAnswer, ScanFailure> {
        self.tables.scan_from(request(pass), vcpus.into())
    }

    /// Requests until one is answered: a kernel has to be recognised first.
    pub fn scan(&mut self, pass: Pass) -> ScanAnswer {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            match self.try_scan(pass.clone()) {
                Ok(answer) => return answer,
                Err(failure) => {
                    assert!(!failure.fatal, "{}", failure.reason);
                    last = Some(failure.reason);
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("no scan of {ATTEMPTS} was answered: {last:?}");
    }

    /// A guest frame's place in the file.
    pub fn offset(&self, frame: u64) -> u64 {
        let gpa = frame * PAGE_SIZE;
        let range = self
            .memory
            .ranges()
            .iter()
            .find(|r| (r.gpa.0..r.gpa.0 + r.len).contains(&gpa))
            .expect("a frame of RAM");
        range.file_offset + (gpa - range.gpa.0)
    }

    /// The guest frame at a place in the file, if there is one.
    pub fn frame_at(&self, offset: u64) -> Option<u64> {
        let ranges = self.memory.ranges().iter();
        let mut holding =
            ranges.filter(|r| (r.file_offset..r.file_offset + r.len).contains(&offset));
        let range = holding.next()?;
        Some((range.gpa.0 + (offset - range.file_offset)) / PAGE_SIZE)
    }

    /// The last words of the guest and of QEMU.
    pub fn console_tail(&self) -> String {
        [CONSOLE, "qemu.log"]
            .map(|name| {
                let bytes = fs::read(self.folder.path().join(name)).unwrap_or_default();
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let lines: Vec<&str> = text.lines().collect();
                let last = &lines[lines.len().saturating_sub(25)..];
                format!("--- end of {name} ---\n{}\n", last.join("\n"))
            })
            .concat()
    }
}

fn attach(memory: &Arc<GuestMemory>) -> GuestTables {
    let command = WorkerCommand::this_program(&["worker"]);
    GuestTables::attach(command, memory.clone(), PATIENCE).unwrap()
}

fn request(pass: Pass) -> ScanRequest {
    ScanRequest {
        id: RequestId(1),
        space: Space::Guest(VmId(1)),
        rearm: pass.rearm,
        prune: pass.prune,
        discover: pass.discover,
    }
}

/// `[[first, count], …]` as numbers.
pub fn ranges(value: &Value) -> Frames {
    let ranges = value.as_array().unwrap().iter();
    let range = |range: &Value| {
        let (first, count) = (range[0].as_u64().unwrap(), range[1].as_u64().unwrap());
        first..first + count
    };
    ranges.flat_map(range).collect()
}

fn ask(truth: &mut BufReader<UnixStream>, line: &str) -> Value {
    let stream = truth.get_mut();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    let read = truth.read_line(&mut answer);
    let read = read.unwrap_or_else(|error| panic!("no answer to {line:?}: {error}"));
    assert_ne!(read, 0, "QEMU ended at {line:?}");
    understood(line, answer.as_bytes())
}

fn understood(line: &str, answer: &[u8]) -> Value {
    let answer: Value = serde_json::from_slice(answer).unwrap();
    assert!(answer.get("error").is_none(), "{line:?}: {answer}");
    answer
}

fn connect(qemu: &mut Child, path: &Path) -> UnixStream {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return stream,
            Err(error) => {
                let log = || fs::read_to_string(path.with_file_name("qemu.log"));
                if let Some(status) = qemu.try_wait().unwrap() {
                    panic!("QEMU ended ({status}): {}", log().unwrap_or_default());
                }
                assert!(Instant::now() < deadline, "{}: {error}", path.display());
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
