//! Rounds, one after the other: where hot pages come from, how long is waited, what is told.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use terrace_core::gather::{Pace, WINDOWS};
use terrace_sys::{HostRoot, process_cpu_time};

use super::bits;
use super::by_host;
use super::damos::Damos;
use super::round::{Gatherer, Round};
use super::state::GatherStatus;
use super::way::Way;
use super::{heat, report, way};
use crate::config::Config;
use crate::gathering::HeatChoice;
use crate::output;

/// Pause after rounds that did not pay, beside `terrace-agent run`.
const LONG_REST: Duration = Duration::from_secs(1800);

/// How what happens is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// To people.
    Text,
    /// A line of JSON for each round.
    Json,
    /// A line of JSON for each change, to the agent.
    Report,
}

/// One after the other.
pub struct Session<'a> {
    pub root: &'a HostRoot,
    pub config: &'a Config,
    /// A list of hot pages from another tool.
    pub list: Option<&'a Path>,
    pub output: Output,
    gatherer: Gatherer,
    status: GatherStatus,
    /// The last failure.
    failure: String,
}

impl<'a> Session<'a> {
    /// Before the first round.
    #[must_use]
    pub fn new(
        root: &'a HostRoot,
        config: &'a Config,
        list: Option<&'a Path>,
        output: Output,
    ) -> Self {
        Self {
            root,
            config,
            list,
            output,
            gatherer: Gatherer::new(root),
            status: GatherStatus::default(),
            failure: String::new(),
        }
    }

    /// Rounds until they do not pay; beside the agent they begin again after a while.
    ///
    /// # Errors
    /// If the first round fails or three in a row did not pay. Beside the agent, if that does not listen any more.
    pub fn go_on(&mut self) -> Result<()> {
        loop {
            let began = process_cpu_time();
            let first = self.status.rounds == 0;
            match self.round() {
                Err(error) if first && self.output != Output::Report => return Err(error),
                Err(error) => self.failed(&error)?,
                Ok(()) if self.gatherer.rounds.rests() => self.does_not_pay()?,
                Ok(()) => {
                    let spent = process_cpu_time().saturating_sub(began);
                    self.rest(Duration::from_millis(self.pace().rest_ms(millis(spent))))?;
                }
            }
        }
    }

    /// One round.
    ///
    /// # Errors
    /// If nothing can gather, hot pages cannot be found, or the way cannot be made ready.
    pub fn round(&mut self) -> Result<()> {
        let mut way = way::choose(self.root, self.config)?;
        let source = heat::Source::choose(self.root, self.config, self.list)?;
        self.status.heat = source.name().into();
        let round = match source {
            heat::Source::Damos(node) => self.round_by_damos(way.as_mut(), node),
            source => self.round_by(way.as_mut(), source),
        };
        // Pages have other frames now than the host saw them in.
        by_host::note_end(self.root)?;
        let first = self.status.rounds == 0;
        if let Some(left) = way
            .left()
            .filter(|_| first && self.output != Output::Report)
        {
            eprintln!("{left}");
        }
        self.took(&round?)
    }

    fn round_by(&mut self, way: &mut dyn Way, source: heat::Source<'a>) -> Result<Round> {
        let (root, config) = (self.root, self.config);
        let hot = source.hot_pages(root, config, &mut |text| self.tell("watching", text))?;
        self.status.by_host = hot.by_host;
        self.tell(
            "moving",
            format!("{} hot pages, by the {}", hot.count(), way.name()),
        )?;
        self.gatherer.gather(config, self.pace(), way, &hot)
    }

    fn round_by_damos(&mut self, way: &mut dyn Way, node: u32) -> Result<Round> {
        let (root, config, pace) = (self.root, self.config, self.pace());
        let _held = bits::hold(root)?;
        let begun = self.gatherer.begin_by_damos(config, pace, way)?;
        let found = Damos::start(root, node, config.gather.window)
            .and_then(|damos| damos.find(node, &mut |text| self.tell("watching", text)));
        if let Err(error) = found {
            // The node's memory was opened up.
            way.finish()?;
            return Err(error);
        }
        self.gatherer.end_by_damos(&begun, config, way)
    }

    fn pace(&self) -> Pace {
        let gather = &self.config.gather;
        let windows = match self.list {
            Some(_) => Duration::ZERO,
            None if gather.heat == HeatChoice::Host => Duration::ZERO,
            None => gather.window * WINDOWS,
        };
        Pace {
            bytes_per_s: self.config.budgets.bytes_per_s(),
            cpu_percent: self.config.budgets.cpu_percent(),
            windows_ms: millis(windows),
            rest_ms: millis(gather.rest),
        }
    }

    fn took(&mut self, round: &Round) -> Result<()> {
        self.status.count(round);
        match self.output {
            Output::Text => output::print(report::round(round)),
            Output::Json => output::print_line(serde_json::to_string(round)?),
            Output::Report => Ok(()),
        }
    }

    fn failed(&mut self, error: &anyhow::Error) -> Result<()> {
        let rest = self.config.gather.rest;
        let text = format!("{error:#}; tried again in {} s", rest.as_secs());
        // The agent's log has each failure once.
        if self.output != Output::Report || self.failure != text {
            eprintln!("gathering: {text}");
            self.failure.clone_from(&text);
        }
        self.tell("failed", text)?;
        std::thread::sleep(rest);
        Ok(())
    }

    fn does_not_pay(&mut self) -> Result<()> {
        const WHY: &str = "three rounds in a row freed less than half of what was planned: it does not pay here. Hot pages \
                           change too fast, or something takes them back (khugepaged, NUMA balancing, another tiering program)";
        if self.output != Output::Report {
            bail!(WHY);
        }
        self.tell(
            "resting",
            format!("{} min: {WHY}", LONG_REST.as_secs() / 60),
        )?;
        std::thread::sleep(LONG_REST);
        self.gatherer.rounds.try_again();
        Ok(())
    }

    fn rest(&mut self, pause: Duration) -> Result<()> {
        self.tell("resting", format!("{} s", pause.as_secs()))?;
        std::thread::sleep(pause);
        Ok(())
    }

    /// Tells the agent of a change, and people of what they wait for.
    fn tell(&mut self, state: &str, detail: String) -> Result<()> {
        if self.output != Output::Report {
            if state == "watching" {
                eprintln!("{detail}");
            }
            return Ok(());
        }
        self.status.enter(state, detail);
        let line = serde_json::to_string(&self.status)?;
        // An agent that has ended listens no more.
        writeln!(std::io::stdout(), "{line}")?;
        Ok(())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
