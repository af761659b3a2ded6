//! The guest agent at work in the lab: started in L1, asked by its own `status`.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Deserializer, Value};
use terrace_lab_programs::pages::Placement;
use terrace_lab_programs::vm;

use super::daemon::{FAST, HotOnFast};
use super::lab::Lab;
use crate::machine::cpio::Image;
use crate::{places, programs};

const FILE: &str = "/run/terrace/agent.toml";
const LOG: &str = "/run/terrace/agent.log";
const PID: &str = "/run/terrace/agent.pid";

/// Longest time for anything that is counted in epochs of half a second.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The settings that a test changes in the agent's configuration.
#[derive(Clone, Copy, Debug)]
pub struct AgentSetup {
    /// The source of samples.
    pub sampler: &'static str,
    /// The start of the tree of ranges.
    pub root: &'static str,
    /// Whether pages may be moved.
    pub moves: bool,
    /// The one process that is managed.
    pub process: &'static str,
    /// Least size of a process that is managed.
    pub min: &'static str,
    /// Most fast memory of all processes together.
    pub fast: &'static str,
    /// More keys, before the first section.
    pub head: &'static str,
    /// More sections of the configuration.
    pub sections: &'static str,
}

impl AgentSetup {
    /// Ranges from the process's mappings, and more fast memory than is hot but far less than all.
    pub const SEEDED: Self = Self {
        sampler: "auto",
        root: "maps",
        moves: true,
        process: "lab-native",
        min: "32MiB",
        fast: "32MiB",
        head: "",
        sections: "",
    };

    /// The paper's root: from the heap's start to the base of mappings.
    pub const PAPER: Self = Self {
        root: "paper",
        ..Self::SEEDED
    };

    /// The text of the configuration file.
    pub fn text(self) -> String {
        let Self {
            sampler,
            root,
            moves,
            process,
            min,
            fast,
            head,
            sections,
        } = self;
        format!(
            "sampler = \"{sampler}\"\nroot = \"{root}\"\nmoves = {moves}\n{head}\
             [processes]\nnames = [\"{process}\"]\nmin = \"{min}\"\n\
             [capacity]\nfast = \"{fast}\"\n{sections}\n"
        )
    }
}

/// The agent's status, with the answers to what was asked at the same time.
#[derive(Clone, Debug)]
pub struct AgentStatus(pub Value);

impl AgentStatus {
    pub fn count(&self, name: &str) -> Result<u64> {
        let count = self.0[name].as_u64();
        count.with_context(|| format!("no {name} in the agent's status: {}", self.0))
    }

    pub fn word(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or("?")
    }

    pub fn epochs(&self) -> Result<u64> {
        self.count("epochs")
    }

    /// Pages moved in either direction.
    pub fn moved(&self) -> Result<u64> {
        Ok(self.count("promoted_pages")? + self.count("demoted_pages")?)
    }

    /// Leaves of all processes' trees.
    pub fn leaves(&self) -> u64 {
        let processes = self.0["processes"].as_array().into_iter().flatten();
        processes
            .filter_map(|process| process["leaves"].as_u64())
            .sum()
    }

    /// The latest events, in the agent's words.
    pub fn events(&self) -> String {
        let events = self.0["events"].as_array().into_iter().flatten();
        let lines = events.map(|event| {
            format!(
                "  epoch {}: {}\n",
                event["epoch"],
                event["text"].as_str().unwrap_or("?")
            )
        });
        lines.collect()
    }

    /// The agent's costs and work as text: sampler, CPU time, memory, ranges and moves.
    pub fn cost(&self) -> Result<String> {
        let epochs = self.epochs()?.max(1);
        Ok(format!(
            "agent: sampler {} ({}), {} epochs, {:.2} ms of CPU an epoch, {:.1} MiB resident, {} leaves, \
             {} pages promoted, {} demoted, {} failed",
            self.word("sampler"),
            self.word("sampler_reason"),
            epochs,
            self.count("cpu_ns")? as f64 / 1e6 / epochs as f64,
            self.count("resident_bytes")? as f64 / f64::from(1 << 20),
            self.leaves(),
            self.count("promoted_pages")?,
            self.count("demoted_pages")?,
            self.count("failed_pages")?,
        ))
    }
}

impl Lab {
    /// Puts the agent and its configuration into the archive for guests that are started with it.
    pub fn push_agent_files(&mut self, setup: AgentSetup) -> Result<()> {
        self.push_agent_files_with(setup, &[])
    }

    /// The same, with more files beside them.
    pub fn push_agent_files_with(
        &mut self,
        setup: AgentSetup,
        more: &[(&str, &Path)],
    ) -> Result<()> {
        let built = programs::build_product()?;
        let agent = built.iter().find(|path| path.ends_with(programs::AGENT));
        let mut image = Image::default();
        image
            .copy(
                "agent/terrace-agent",
                agent.context("the agent was not built")?,
            )
            .bytes("agent/agent.toml", setup.text().as_bytes());
        for (name, file) in more {
            image.copy(&format!("agent/{name}"), file);
        }
        let path = places::lab("images")?.with_file_name("agent.cpio");
        let mut file = File::create(&path)?;
        image.write(&mut file)?;
        self.push(&path, vm::AGENT_FILES)
    }

    /// Puts the agent alone into a guest.
    pub fn install_agent(&mut self) -> Result<()> {
        let built = programs::build_product()?;
        let agent = built.iter().find(|path| path.ends_with(programs::AGENT));
        let agent = agent.context("the agent was not built")?;
        self.push(agent, &format!("/bin/{}", programs::AGENT))
    }

    /// Starts the agent and waits until it answers.
    pub fn start_agent(&mut self, setup: AgentSetup) -> Result<()> {
        let write = format!("mkdir -p /run/terrace /run/terrace-agent && cat >{FILE}");
        let output = self.run_with_input(&write, &setup.text(), PATIENCE)?;
        ensure!(output.exit == 0, "writing {FILE} in L1: {}", output.stderr);
        self.check(&format!(
            "setsid terrace-agent run --config {FILE} </dev/null >>{LOG} 2>&1 & echo $! >{PID}"
        ))?;
        self.wait_until("the agent answers", PATIENCE, |lab| {
            if !lab.agent_runs()? {
                bail!("the agent ended: {}", lab.check(&format!("tail {LOG}"))?);
            }
            let asked = lab.run("terrace-agent status --json", PATIENCE)?;
            Ok((asked.exit == 0).then_some(()))
        })
    }

    /// Ends the agent as an operator does, and waits until it has.
    pub fn stop_agent(&mut self) -> Result<()> {
        self.check(&format!("kill $(cat {PID})"))?;
        self.wait_until("the agent has ended", PATIENCE, |lab| {
            Ok((!lab.agent_runs()?).then_some(()))
        })
    }

    /// Ends the agent, which must be still there, and prints its costs and events.
    pub fn finish_agent(&mut self) -> Result<()> {
        let status = self.agent_status()?;
        println!("{}\n{}", status.cost()?, status.events());
        self.stop_agent()
    }

    /// Whether the agent that was started last is there.
    pub fn agent_runs(&mut self) -> Result<bool> {
        let asked = self.run(&format!("kill -0 $(cat {PID})"), PATIENCE)?;
        Ok(asked.exit == 0)
    }

    /// The agent's status.
    pub fn agent_status(&mut self) -> Result<AgentStatus> {
        let answer = self.check("terrace-agent status --json")?;
        let status = serde_json::from_str(&answer);
        Ok(AgentStatus(status.with_context(|| {
            format!("terrace-agent status: {answer}")
        })?))
    }

    /// Waits until the agent's status is as it should be.
    pub fn wait_for_agent(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&AgentStatus) -> Result<bool>,
    ) -> Result<AgentStatus> {
        self.wait_until(what, PATIENCE, |lab| {
            let status = lab.agent_status()?;
            Ok(condition(&status)?.then_some(status))
        })
    }

    /// Waits until the agent has completed that many epochs.
    pub fn wait_for_epoch(&mut self, epoch: u64) -> Result<AgentStatus> {
        self.wait_for_agent(&format!("epoch {epoch} is complete"), |status| {
            Ok(status.epochs()? >= epoch)
        })
    }

    /// The epochs until at least 90 % of a workload's hot set is in fast memory, counted from epoch `first`. `None`
    /// if it takes more than `most`. Prints how it goes.
    pub fn epochs_to_place(&mut self, name: &str, first: u64, most: u64) -> Result<Option<u64>> {
        let mut last = None;
        self.wait_until("the hot set is in fast memory", PATIENCE, |lab| {
            let (now, status) = lab.sample_epoch(name)?;
            let taken = status.epochs()?.saturating_sub(first);
            if last != Some(now) {
                last = Some(now);
                println!("epoch {taken}: {now}");
            }
            if taken > most {
                return Ok(Some(None));
            }
            Ok((now.fast * 10 >= now.hot * 9).then_some(Some(taken)))
        })
    }

    /// How much of the hot set was in fast memory, and the agent's status right after.
    fn sample_epoch(&mut self, name: &str) -> Result<(HotOnFast, AgentStatus)> {
        let answer = self.check(&format!(
            "lab-native ask {name} truth | lab-native placement && terrace-agent status --json"
        ))?;
        let mut answers = Deserializer::from_str(&answer).into_iter::<Value>();
        let mut next = || anyhow::Ok(answers.next().context("an answer is missing")??);
        let placement: Placement = serde_json::from_value(next()?)?;
        let now = HotOnFast {
            fast: placement.on(FAST),
            hot: placement.total(),
        };
        Ok((now, AgentStatus(next()?)))
    }

    /// Waits until the agent has moved nothing for five epochs.
    pub fn wait_until_quiet(&mut self, most_epochs: u64) -> Result<AgentStatus> {
        let first = self.agent_status()?;
        let end = first.epochs()? + most_epochs;
        let quiet = self.wait_for_agent("the agent moves nothing more", |status| {
            ensure!(
                status.epochs()? <= end,
                "after {most_epochs} epochs pages still move: {}",
                status.0
            );
            Ok(status.count("quiet_epochs")? >= 5)
        })?;
        println!(
            "quiet {} epochs later, after {} more pages moved",
            quiet.epochs()? - first.epochs()?,
            quiet.moved()? - first.moved()?
        );
        Ok(quiet)
    }
}
