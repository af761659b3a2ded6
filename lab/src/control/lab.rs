//! A running lab, and what can be done with it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use terrace_lab_programs::frame::{FrameKind, Run};
use terrace_lab_programs::pages::{PageRange, Placement};
use terrace_lab_programs::vm::{self, VmSpec};

use super::channel::Control;
use super::truth::Truth;
use crate::machine::blueprint::Blueprint;
use crate::machine::process::{Lifetime, Process};
use crate::machine::qmp::Qmp;
use crate::machine::slow_node::SlowNode;
use crate::machine::snapshot;
use crate::progress::{Wait, say};
use crate::{places, programs};

/// Longest wait for a machine's boot; an emulated one on a busy machine is slow.
const BOOT: Duration = Duration::from_secs(600);

/// Longest time for the lab's own small commands and for a guest's answer.
const SHORT: Duration = Duration::from_secs(120);

/// Command that stops the guests' QEMUs and waits until every thread of theirs has stopped. QEMU 7.2 writes snapshots
/// that it cannot read again when a CPU of L1 is just executing a guest.
const FREEZE_GUESTS: &str = "for file in /run/lab/*.pid; do
    kill -STOP $(cat $file) || exit
    while grep -qv ') T ' /proc/$(cat $file)/task/*/stat; do sleep 0.02; done
done";

/// Command that waits until each guest's QEMU runs or its parent has noted how it ended: the daemon sees that end earlier.
const AWAIT_ENDS: &str = "for turn in $(seq 100); do
    ending=
    for file in /run/lab/*.pid; do
        [ -e $file ] || continue
        state=$(cut -d ' ' -f 3 /proc/$(cat $file)/stat 2>/dev/null)
        [ -z \"$state\" ] || [ \"$state\" = Z ] && ending=1
    done
    [ $turn -gt 5 ] && [ -z \"$ending\" ] && break
    sleep 0.2
done";

/// Command that prints `ended`, and a guest's console, if its QEMU ended by itself.
const FIND_RESET: &str = "for log in /run/lab/*.log; do \
    grep -q 'ended: exit status: 0' $log && ! grep -q 'terminating on signal' $log && echo ended && cat ${log%.log}.console; \
    done; true";

const THAW_GUESTS: &str = "kill -CONT $(cat /run/lab/*.pid)";

/// The result of a command in L1: its output and its exit code.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exit code; 128 and the signal's number if a signal ended it.
    pub exit: i32,
}

/// A running lab. The machine ends with this value, unless it is left running.
pub struct Lab {
    process: Process,
    control: Control,
    truths: BTreeMap<String, Truth>,
}

impl Lab {
    /// Starts a lab called `name`: from its snapshot if there is one, else by booting, which also takes a snapshot.
    pub fn start(blueprint: &Blueprint, name: &str, life: Lifetime) -> Result<Self> {
        let lock = places::lock("snapshots")?;
        if blueprint.has_snapshot()? {
            drop(lock);
            return Self::restore(blueprint, name, life);
        }
        let mut lab = Self::boot(blueprint, name, life)?;
        lab.check(FREEZE_GUESTS)?;
        snapshot::take(&lab.process, &blueprint.key)?;
        lab.check(THAW_GUESTS)?;
        Ok(lab)
    }

    /// A machine without nested guests, once it answers.
    pub fn without_guests(process: Process) -> Result<Self> {
        let control = Control::connect(&process, Wait::begin("booting", BOOT))?;
        Ok(Self {
            process,
            control,
            truths: BTreeMap::new(),
        })
    }

    /// The same machine after a reset, once it answers again.
    pub fn after_a_reboot(self) -> Result<Self> {
        let Self {
            process, control, ..
        } = self;
        // QEMU serves one client at a time.
        drop(control);
        Self::without_guests(process)
    }

    fn boot(blueprint: &Blueprint, name: &str, life: Lifetime) -> Result<Self> {
        let process = Process::start(name, &blueprint.machine, life, &blueprint.extra)?;
        let control = Control::connect(&process, Wait::begin("booting L1", BOOT))?;
        let mut lab = Self {
            process,
            control,
            truths: BTreeMap::new(),
        };
        lab.check(&blueprint.before_vm)?;
        lab.start_vm(&blueprint.vm)?;
        Ok(lab)
    }

    fn restore(blueprint: &Blueprint, name: &str, life: Lifetime) -> Result<Self> {
        let option = snapshot::restore_option(&blueprint.key);
        let mut options = vec!["-incoming".to_owned(), option];
        options.extend(blueprint.extra.iter().cloned());
        let process = Process::start(name, &blueprint.machine, life, &options)?;
        snapshot::finish_restore(&process)?;
        Self::connect(process, &blueprint.vm)
    }

    /// The lab that an earlier task left running.
    pub fn attach(name: &str, vm: &VmSpec) -> Result<Self> {
        let process = Process::find(name)?
            .context("the lab is not running; start it with `cargo xtask lab up`")?;
        Self::connect(process, vm)
    }

    fn connect(process: Process, vm: &VmSpec) -> Result<Self> {
        let wait = Wait::begin_silently("waiting for L1", SHORT);
        let control = Control::connect(&process, wait)?;
        let mut lab = Self {
            process,
            control,
            truths: BTreeMap::new(),
        };
        lab.check(THAW_GUESTS)?;
        let wait = Wait::begin_silently("waiting for the guest", SHORT);
        let truth = Truth::connect(&lab.process, &vm.truth_port, wait)?;
        lab.truths.insert(vm.name.clone(), truth);
        Ok(lab)
    }

    /// The counters of the emulator's plugin.
    ///
    /// # Errors
    /// If the lab was started without it.
    pub fn slow_node(&self) -> Result<SlowNode> {
        SlowNode::open(self.process.folder())
    }

    /// QEMU's own control channel; keep it no longer than needed.
    pub fn qmp(&self) -> Result<Qmp> {
        self.process.qmp()
    }

    /// Connects to one of the machine's other sockets.
    pub fn port(&self, socket: &str) -> Result<UnixStream> {
        self.process.connect(socket)
    }

    /// Lets the machine run on after this task.
    pub fn leave_running(self) {
        self.process.leave_running();
    }

    /// Starts a guest, beside those that run, and waits until its workload does.
    pub fn start_vm(&mut self, spec: &VmSpec) -> Result<()> {
        let name = &spec.name;
        // A guest of that name may have run before; L1's port serves one client.
        self.truths.remove(name);
        let json = serde_json::to_string(spec)?;
        self.check(&format!(
            "setsid lab-host start-vm '{json}' </dev/null >/run/lab/{name}.log 2>&1 &"
        ))?;
        let mut wait = Wait::begin(&format!("booting guest {name} in L1"), BOOT);
        let truth = loop {
            let patience = Wait::begin_silently("waiting for the guest", Duration::from_secs(5));
            match Truth::connect(&self.process, &spec.truth_port, patience) {
                Ok(truth) => break truth,
                Err(_) => self.check_vm_alive(name)?,
            }
            wait.go_on()?;
        };
        self.truths.insert(name.clone(), truth);
        self.wait_until("the guest works on its hot set", SHORT, |lab| {
            let stats = lab.guest_of(name, "stats")?;
            Ok((stats["passes"].as_u64() >= Some(10)).then_some(()))
        })
    }

    fn check_vm_alive(&mut self, name: &str) -> Result<()> {
        let pid = vm::pid_path(name);
        let output = self.run(&format!("kill -0 $(cat {pid})"), SHORT)?;
        if output.exit != 0 {
            let console = vm::console_path(name);
            let logs = self.run(&format!("tail -n 40 /run/lab/{name}.log {console}"), SHORT)?;
            bail!("guest {name} did not start:\n{}", logs.stdout);
        }
        Ok(())
    }

    /// Runs a shell command in L1.
    pub fn run(&mut self, command: &str, timeout: Duration) -> Result<Output> {
        self.run_with_input(command, "", timeout)
    }

    /// Runs a shell command in L1, with something on its standard input.
    pub fn run_with_input(
        &mut self,
        command: &str,
        input: &str,
        timeout: Duration,
    ) -> Result<Output> {
        let request = Run {
            command: command.to_owned(),
            input: input.to_owned(),
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let exit = self
            .control
            .run(&self.process, &request, timeout, |kind, bytes| {
                let stream = if kind == FrameKind::Stderr {
                    &mut stderr
                } else {
                    &mut stdout
                };
                stream.extend_from_slice(bytes);
            })?;
        Ok(Output {
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            exit,
        })
    }

    /// Runs a command that must succeed within two minutes; returns its standard output.
    pub fn check(&mut self, command: &str) -> Result<String> {
        self.check_with_input(command, "")
    }

    fn check_with_input(&mut self, command: &str, input: &str) -> Result<String> {
        let output = self.run_with_input(command, input, SHORT)?;
        if output.exit != 0 {
            let Output {
                stdout,
                stderr,
                exit,
            } = output;
            bail!("in L1: `{command}` failed with {exit}\n{stdout}{stderr}");
        }
        Ok(output.stdout)
    }

    /// Runs a command and hands on each line of its output (of both streams) as it comes.
    pub fn stream(
        &mut self,
        command: &str,
        timeout: Duration,
        mut on_line: impl FnMut(&str),
    ) -> Result<i32> {
        let request = Run {
            command: command.to_owned(),
            input: String::new(),
        };
        let mut pending: [Vec<u8>; 2] = Default::default();
        let exit = self
            .control
            .run(&self.process, &request, timeout, |kind, bytes| {
                let pending = &mut pending[usize::from(kind == FrameKind::Stderr)];
                pending.extend_from_slice(bytes);
                while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                    on_line(&String::from_utf8_lossy(&pending[..end]));
                    pending.drain(..=end);
                }
            })?;
        for rest in pending.iter().filter(|rest| !rest.is_empty()) {
            on_line(&String::from_utf8_lossy(rest));
        }
        Ok(exit)
    }

    /// Copies a file of this machine into L1.
    pub fn push(&mut self, file: &Path, path: &str) -> Result<()> {
        self.control.store(&self.process, file, path)
    }

    /// Builds the product if need be and puts its programs into L1's `/bin`.
    pub fn install_product(&mut self) -> Result<()> {
        for program in programs::build_product()? {
            let name = program.file_name().context("a program without a name")?;
            let path = format!("/bin/{}", name.display());
            let begin = Instant::now();
            self.push(program, &path)?;
            let mib = fs::metadata(program)?.len() >> 20;
            let seconds = begin.elapsed().as_secs_f64();
            say(&format!("pushed {path} ({mib} MiB in {seconds:.1} s)"));
        }
        Ok(())
    }

    /// Asks the first guest, `vm1`, over its truth channel.
    pub fn guest(&mut self, line: &str) -> Result<Value> {
        self.guest_of("vm1", line)
    }

    /// Asks a guest: `truth`, `region`, `move SEED`, `idle`, `run`, `churn N`, `verify` or `stats`.
    pub fn guest_of(&mut self, vm: &str, line: &str) -> Result<Value> {
        let truth = self
            .truths
            .get_mut(vm)
            .with_context(|| format!("no guest {vm} was started in this lab"))?;
        truth.ask(&self.process, line, SHORT)
    }

    /// The guest frames that are hot now, by the guest's own word.
    pub fn hot_pages(&mut self, vm: &str) -> Result<Vec<PageRange>> {
        let answer = self.guest_of(vm, "truth")?;
        serde_json::from_value(answer["ranges"].clone()).context("ranges of the hot set")
    }

    /// The nodes of these guest frames, by the word of L1's kernel.
    pub fn placement(&mut self, vm: &str, pages: &[PageRange]) -> Result<Placement> {
        let input = serde_json::to_string(pages)?;
        let answer = self.check_with_input(&format!("lab-host placement {vm}"), &input)?;
        serde_json::from_str(&answer).context("lab-host placement")
    }

    /// The nodes of all of a guest's RAM.
    pub fn residents(&mut self, vm: &str) -> Result<Placement> {
        let answer = self.check(&format!("lab-host residents {vm}"))?;
        serde_json::from_str(&answer).context("lab-host residents")
    }

    /// The frames of a guest's RAM that are on a node.
    pub fn frames_on(&mut self, vm: &str, node: i32) -> Result<Vec<PageRange>> {
        let answer = self.check(&format!("lab-host frames {vm} {node}"))?;
        serde_json::from_str(&answer).context("lab-host frames")
    }

    /// Moves guest frames to a node, 512 pages a call; returns their nodes afterwards.
    pub fn move_pages(&mut self, vm: &str, pages: &[PageRange], node: i32) -> Result<Placement> {
        let input = serde_json::to_string(pages)?;
        let answer = self.check_with_input(&format!("lab-host move {vm} {node}"), &input)?;
        serde_json::from_str(&answer).context("lab-host move")
    }

    /// Repeats `condition` until it gives something.
    ///
    /// # Errors
    /// If the time is up, or a check fails.
    pub fn wait_until<T>(
        &mut self,
        what: &str,
        timeout: Duration,
        mut condition: impl FnMut(&mut Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut wait = Wait::begin_silently(&format!("waiting until {what}"), timeout);
        loop {
            if let Some(value) = condition(self)? {
                return Ok(value);
            }
            wait.go_on()?;
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Whether L1's QEMU is gone, and L1's kernel logged nothing.
    pub fn emulator_ended(&self) -> bool {
        self.process.check_alive().is_err() && is_silent(&self.process.console_tail())
    }

    /// Whether L1's QEMU runs and nothing in L1 answers.
    pub fn hangs(&mut self) -> bool {
        self.process.check_alive().is_ok() && self.run("true", Duration::from_secs(30)).is_err()
    }

    /// Whether a guest's QEMU ended as it does when the guest resets itself (status 0, under `-no-reboot`), and the
    /// guest's kernel logged nothing.
    pub fn guest_reset_in_silence(&mut self) -> bool {
        let output = self.run(&format!("{AWAIT_ENDS}\n{FIND_RESET}"), SHORT);
        output.is_ok_and(|output| output.stdout.contains("ended") && is_silent(&output.stdout))
    }

    /// The evidence about a failure: L1's console and the product's logs.
    pub fn diagnosis(&mut self) -> String {
        let logs = "for f in /run/terrace/*.log /run/lab/*.log /run/lab/*.console; do \
                    [ -s $f ] && echo \"--- end of L1:$f ---\" && tail -n 60 $f; done";
        let logs = match self.run(logs, Duration::from_secs(30)) {
            Ok(output) => output.stdout,
            Err(error) => format!(
                "(L1 does not tell its logs: {error:#})\n{}",
                self.process.processors()
            ),
        };
        format!("{}\n{logs}", self.process.console_tail())
    }
}

/// Whether no kernel reports on a console why it ended.
fn is_silent(console: &str) -> bool {
    let messages = ["Kernel panic", "Oops", "BUG:", "Out of memory"];
    !messages.iter().any(|word| console.contains(word))
}
