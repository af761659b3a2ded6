//! Frames that a host names: the lab has the host's end of the agent's port, and a program's pages begin on the slow node.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use terrace_lab_programs::native::HotSet;
use terrace_proto::agent::Report;

use super::{MARK, MODULE, load};
use crate::control::agent::{AgentSetup, AgentStatus, PATIENCE};
use crate::control::lab::Lab;
use crate::control::naming::NamingHost;
use crate::guests::module::{self, AGENT, More};
use crate::guests::tiered;
use crate::machine::kernel::Kernel;
use crate::tests::test::Test;

/// Frames that are named at once, as many as the host names in a second.
const NAMED: usize = 1024;
/// Frames of which the agent moves some before it is killed: as many as one message has.
const BATCH: usize = 4096;
/// Pages that have moved by then.
const MID: u64 = 300;
/// Times that the kill may miss the middle of a batch.
const TRIES: usize = 12;
/// Frames that are to be where they were named, percent: some are in use.
const PLACED: u64 = 95;
/// Times that frames are named for figures.
const ROUNDS: usize = 7;
/// Batches that move beside processes that fork.
const BESIDE_FORKS: usize = 4;

const FAST: i32 = 0;
const NAME: &str = "hotset";
const PID: &str = "/run/terrace/agent.pid";
/// Pages that the guest's kernel has moved, by its count.
const MOVED: &str = "awk '$1 == \"pgmigrate_success\" {print $2}' /proc/vmstat";
/// Tiers are named: the guest's kernel knows of no difference between its nodes. Nothing is sampled: what moves was named.
const SETUP: AgentSetup = AgentSetup {
    sampler: "pebs",
    sections: "[[tier]]\nname = \"fast\"\nnodes = [0]\n[[tier]]\nname = \"slow\"\nnodes = [1]\n",
    ..AgentSetup::SEEDED
};

pub const TESTS: &[Test] = &[Test::on_guest(
    "the_agent_moves_frames_that_a_host_names",
    moves_frames,
)];

pub const FIGURES: &[Test] = &[Test::on_guest("named_frames_tell_their_timings", timings)];

/// A guest with a program on its slow node, and the host's end of its agent's port.
struct Named {
    guest: Lab,
    host: NamingHost,
}

/// By the addresses of their pages; beside a cpuset without the node and processes that fork; the agent is killed in the
/// middle of a batch; by the guest module, of processes that are not managed.
fn moves_frames() -> Result<()> {
    let mut named = Named::start(&HotSet {
        region_mib: 64,
        hot_mib: 16,
        ..HotSet::default()
    })?;
    named.start_agent(SETUP)?;
    named.expect_moved(NAMED)?;
    named.cpuset()?;
    named.restart_agent(SETUP)?;
    named.killed()?;
    named.beside_forks()?;
    load(&mut named.guest)?;
    let nobody = AgentSetup {
        process: "nobody",
        ..SETUP
    };
    named.restart_agent(nobody)?;
    let status = named.guest.agent_status()?;
    ensure!(
        status.word("no_migrate").is_empty(),
        "the module is not used: {}",
        status.0
    );
    named.expect_moved(NAMED)?;
    named.finish()
}

/// The times of the index and of moving; none is judged.
fn timings() -> Result<()> {
    let mut named = Named::start(&HotSet {
        region_mib: 160,
        hot_mib: 32,
        ..HotSet::default()
    })?;
    named.start_agent(SETUP)?;
    named.figures("move_pages")?;
    load(&mut named.guest)?;
    named.restart_agent(SETUP)?;
    named.figures("MIGRATE")?;
    named.finish()
}

impl Named {
    fn start(program: &HotSet) -> Result<Self> {
        let kernel = Kernel::get(false)?;
        let mut guest = module::start_with(MODULE, &kernel, More::AgentPort)?;
        guest.check(&format!("echo {MARK} >/dev/kmsg"))?;
        guest.install_agent()?;
        guest.install_native()?;
        guest.check("echo madvise >/sys/kernel/mm/transparent_hugepage/enabled")?;
        guest.start_hot_set(program)?;
        let host = NamingHost::start(guest.port(AGENT)?)?;
        Ok(Self { guest, host })
    }

    fn finish(mut self) -> Result<()> {
        self.guest.finish_agent()?;
        self.guest.expect_native_intact(NAME)?;
        tiered::expect_a_quiet_kernel(&mut self.guest, MARK)
    }

    fn start_agent(&mut self, setup: AgentSetup) -> Result<()> {
        self.guest.start_agent(setup)?;
        self.guest
            .wait_for_agent("the agent follows the host", |status| {
                Ok(status.word("mode") == "coordinated")
            })?;
        Ok(())
    }

    fn restart_agent(&mut self, setup: AgentSetup) -> Result<()> {
        self.guest.stop_agent()?;
        self.start_agent(setup)
    }

    /// The frames of the hot set, in the order of its pages.
    fn frames(&mut self) -> Result<Vec<u64>> {
        let answer = self
            .guest
            .check(&format!("lab-native ask {NAME} truth | lab-native frames"))?;
        let frames: Vec<u64> = serde_json::from_str(&answer).context("lab-native frames")?;
        ensure!(!frames.contains(&0), "some pages have no frame");
        Ok(frames)
    }

    fn on_fast(&mut self) -> Result<u64> {
        Ok(self.guest.native_placement(NAME, "truth")?.on(FAST))
    }

    /// Names frames, and waits until the agent has counted all of them. Returns how many it moved, and how long that took.
    fn name(&mut self, promote: &[u64], demote: &[u64]) -> Result<(u64, Duration)> {
        let counted = |report: &Report| report.frames_taken + report.frames_refused;
        let before = self.report()?;
        let all = (promote.len() + demote.len()) as u64;
        let begin = Instant::now();
        self.host.name(promote, demote)?;
        loop {
            let now = self.report()?;
            if counted(&now) >= counted(&before) + all {
                return Ok((now.frames_taken - before.frames_taken, begin.elapsed()));
            }
            ensure!(
                begin.elapsed() < PATIENCE,
                "of {all} frames the agent counted {}",
                counted(&now) - counted(&before)
            );
        }
    }

    /// The next report.
    fn report(&mut self) -> Result<Report> {
        let host = &self.host;
        self.guest
            .wait_until("the agent reports", PATIENCE, |_| Ok(host.take_report()))
    }

    /// Names pages of the slow node; nearly all of them come up.
    fn expect_moved(&mut self, count: usize) -> Result<(AgentStatus, Duration)> {
        self.bring_down()?;
        let frames = self.frames()?;
        let (taken, time) = self.name(&frames[..count], &[])?;
        let fast = self.on_fast()?;
        let status = self.guest.agent_status()?;
        println!("of {count} frames {taken} moved, {fast} are on the fast node");
        ensure!(
            fast * 100 >= count as u64 * PLACED && fast <= count as u64,
            "{fast} are on the fast node: {}",
            status.0
        );
        self.guest.expect_native_intact(NAME)?;
        Ok((status, time))
    }

    /// All of the hot set goes to the slow node.
    fn bring_down(&mut self) -> Result<()> {
        let frames = self.frames()?;
        for frames in frames.chunks(BATCH) {
            self.name(&[], frames)?;
        }
        let fast = self.on_fast()?;
        let most = frames.len() as u64 * (100 - PLACED) / 100;
        ensure!(fast <= most, "{fast} are still on the fast node");
        Ok(())
    }

    /// The kernel refuses pages of a process whose cpuset lacks the node; they stay, and the agent goes on.
    fn cpuset(&mut self) -> Result<()> {
        self.bring_down()?;
        self.guest.check(
            "mkdir -p /run/cgroup && mount -t cgroup2 none /run/cgroup && cd /run/cgroup && \
             echo +cpuset >cgroup.subtree_control && mkdir only && echo 1 >only/cpuset.mems",
        )?;
        self.guest.check(&to_group("only/cgroup.procs"))?;
        let before = self.on_fast()?;
        let frames = self.frames()?;
        let (taken, _) = self.name(&frames[..NAMED], &[])?;
        let fast = self.on_fast()?;
        let status = self.guest.agent_status()?;
        println!("a cpuset without the node:\n{}", status.events());
        ensure!(
            taken == 0 && fast == before,
            "{taken} moved, {before} and then {fast} are on the fast node"
        );
        let said = "its pages stay where they are for a while";
        ensure!(status.events().contains(said), "{}", status.0);
        self.guest.check(&to_group("cgroup.procs"))?;
        self.guest.expect_native_intact(NAME)
    }

    /// The agent is killed when some pages of a batch have moved; no byte is lost, and the next agent goes on.
    fn killed(&mut self) -> Result<()> {
        for _ in 0..TRIES {
            self.bring_down()?;
            let frames = self.frames()?;
            self.guest.check(&format!(
                "end=$(($({MOVED}) + {MID})); (while [ $({MOVED}) -lt $end ]; do :; done; kill -9 $(cat {PID})) \
                 </dev/null >/dev/null 2>&1 &"
            ))?;
            self.host.name(&frames[..BATCH], &[])?;
            self.guest
                .wait_until("the agent is killed", PATIENCE, |guest| {
                    Ok((!guest.agent_runs()?).then_some(()))
                })?;
            let fast = self.on_fast()?;
            println!("killed when {fast} of {BATCH} pages had moved");
            self.guest.expect_native_intact(NAME)?;
            self.start_agent(SETUP)?;
            if fast > 0 && fast < BATCH as u64 {
                return Ok(());
            }
        }
        bail!("no kill of {TRIES} came in the middle of a batch")
    }

    /// Pages go up and down beside processes that fork; those that are shared stay.
    fn beside_forks(&mut self) -> Result<()> {
        self.guest.ask(NAME, "churn 2")?;
        for round in 0..BESIDE_FORKS {
            let frames = self.frames()?;
            let frames = &frames[..NAMED];
            match round % 2 {
                0 => self.name(frames, &[])?,
                _ => self.name(&[], frames)?,
            };
        }
        let churn: Value = self.guest.ask(NAME, "churn 0")?;
        println!("beside forks: {churn}");
        self.guest.expect_native_intact(NAME)
    }

    /// Prints the median of several rounds, and the least and the most.
    fn figures(&mut self, way: &str) -> Result<()> {
        let (mut whole, mut own, mut pass) = (Vec::new(), Vec::new(), Vec::new());
        let (mut pages, mut bytes) = (0, 0);
        for _ in 0..ROUNDS {
            let (status, time) = self.expect_moved(NAMED)?;
            let index = &status.0["frames_index"];
            let count = |name: &str| index[name].as_u64().context("a count of the index");
            (pages, bytes) = (count("pages")?, count("bytes")?);
            whole.push(time.as_millis() as f64);
            own.push(status.count("frames_last_ns")? as f64 / 1e6);
            pass.push(count("pass_ns")? as f64 / pages.max(1) as f64);
        }
        println!("{way}: {NAMED} frames, {ROUNDS} rounds");
        println!("{way}: host's word to its report, ms: {}", spread(whole));
        println!("{way}: of these looking up and moving, ms: {}", spread(own));
        if pages > 0 {
            let each = bytes as f64 / pages as f64;
            println!("{way}: index of {pages} pages: {each:.2} bytes a page");
            println!("{way}: a refresh of it, ns a page: {}", spread(pass));
        }
        Ok(())
    }
}

/// The median of figures, with the least and the most.
fn spread(mut figures: Vec<f64>) -> String {
    figures.sort_by(f64::total_cmp);
    let at = |part: usize| figures.get(part).copied().unwrap_or(f64::NAN);
    let (median, last) = (at(figures.len() / 2), figures.len().saturating_sub(1));
    format!("{median:.1} ({:.1} to {:.1})", at(0), at(last))
}

/// A command that brings the program into a cgroup.
fn to_group(procs: &str) -> String {
    format!("for pid in $(pidof lab-native); do echo $pid >/run/cgroup/{procs} || exit 1; done")
}
