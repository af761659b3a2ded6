//! `masim`: configuration files of the masim program (github.com/sjp38/masim), run as by that program.
//!
//! A file has paragraphs: the regions (`name, bytes[, data file]`), then the phases, each a name, a time in ms, and
//! patterns (`region, randomness, stride, probability[, mode]`). In a phase a pattern is drawn by its probability and
//! makes 131,072 accesses; the end of the phase's time is checked between draws. masim has one thread: the other
//! vCPUs are idle. Each of its accesses counts, there is no cache.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::draw::{Random, access};
use super::values::PAGE;
use super::{Context, WorkloadError};
use crate::base::access::{Access, LINE, Pace, Source};
use crate::base::random::Purpose;

/// Number of accesses of a draw.
const DRAW: u64 = 131_072;

/// The keys of `masim`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Masim {
    pub(super) file: PathBuf,
}

/// The content of a file. Regions lie one after another, each from the start of a page.
#[derive(Clone, Debug, Default, PartialEq)]
struct Program {
    regions: Vec<Region>,
    phases: Vec<Phase>,
    pages: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Region {
    name: String,
    /// The region's first byte.
    start: u64,
    bytes: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Phase {
    ns: u64,
    patterns: Vec<Pattern>,
    /// The sum of the patterns' probabilities.
    total: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Pattern {
    /// The first byte of the pattern's region, and the number of its bytes.
    start: u64,
    bytes: u64,
    random: bool,
    stride: u64,
    probability: u64,
    /// Whether the pattern writes: writing and read-modify-writing are the same to memory.
    write: bool,
    offset: u64,
}

impl Masim {
    fn read(&self, folder: &Path) -> Result<Program, WorkloadError> {
        let path = folder.join(&self.file);
        let text = std::fs::read_to_string(&path).map_err(|why| {
            WorkloadError(format!(
                "masim file {} cannot be read: {why}",
                path.display()
            ))
        })?;
        parse(&text).map_err(|(line, why)| {
            WorkloadError(format!("masim file {}, line {line}: {why}", path.display()))
        })
    }

    pub(super) fn pages(&self, folder: &Path) -> Result<u64, WorkloadError> {
        self.read(folder).map(|program| program.pages)
    }

    pub(super) fn sources(
        &self,
        context: &Context,
        pace: Pace,
    ) -> Result<Vec<Box<dyn Source>>, WorkloadError> {
        let run = Run {
            random: Random::new(context, 0, Purpose::Accesses),
            program: self.read(context.folder)?,
            pace,
            phase: 0,
            started: None,
            drawn: 0,
            left: 0,
        };
        let idle = |_| {
            let program = Program::default();
            let run = Run {
                program,
                ..run.clone()
            };
            Box::new(run) as Box<dyn Source>
        };
        let mut sources: Vec<_> = (1..context.vcpus).map(idle).collect();
        sources.insert(0, Box::new(run));
        Ok(sources)
    }
}

/// A fault and its line, from 1.
type Fault = (usize, String);

fn parse(text: &str) -> Result<Program, Fault> {
    let mut program = Program::default();
    let mut paragraph: Vec<(usize, &str)> = Vec::new();
    let mut end = 0;
    for (number, line) in text.lines().enumerate() {
        end = number + 1;
        let line = line.trim();
        if line.starts_with('#') {
            continue;
        }
        if line.is_empty() {
            program.add(std::mem::take(&mut paragraph))?;
        } else {
            paragraph.push((end, line));
        }
    }
    program.add(paragraph)?;
    if program.phases.is_empty() {
        return Err((
            end,
            "it ends without a phase: after the regions and an empty line come a phase's name, its \
             time in ms and its patterns"
                .into(),
        ));
    }
    Ok(program)
}

impl Program {
    fn add(&mut self, paragraph: Vec<(usize, &str)>) -> Result<(), Fault> {
        if paragraph.is_empty() {
            Ok(())
        } else if self.regions.is_empty() {
            paragraph.into_iter().try_for_each(|line| self.region(line))
        } else {
            self.phase(&paragraph)
        }
    }

    fn region(&mut self, (line, text): (usize, &str)) -> Result<(), Fault> {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let (name, bytes) = match fields[..] {
            [name, bytes] | [name, bytes, _] => (name.to_owned(), bytes),
            _ => {
                return Err((
                    line,
                    format!(
                        "{text:?} is no region: expected \"name, bytes\" or \"name, bytes, file\""
                    ),
                ));
            }
        };
        let bytes = number(line, "bytes", bytes, 1, 1 << 50)?;
        if self.regions.iter().any(|region| region.name == name) {
            return Err((line, format!("there are two regions {name:?}")));
        }
        let start = self.pages * PAGE;
        self.pages += bytes.div_ceil(PAGE);
        if self.pages > 1 << 38 {
            return Err((line, "the regions are more than 1PiB together".into()));
        }
        self.regions.push(Region { name, start, bytes });
        Ok(())
    }

    fn phase(&mut self, paragraph: &[(usize, &str)]) -> Result<(), Fault> {
        let [(_, _), (line, time), patterns @ ..] = paragraph else {
            return Err((
                paragraph[0].0,
                "a phase needs three lines or more: its name, its time in ms, its patterns".into(),
            ));
        };
        let ns = number(*line, "time in ms", time, 1, 1 << 42)? * 1_000_000;
        let patterns: Result<Vec<_>, _> = patterns.iter().map(|line| self.pattern(*line)).collect();
        let patterns = patterns?;
        let total = patterns.iter().map(|pattern| pattern.probability).sum();
        if total == 0 {
            return Err((
                paragraph[0].0,
                format!(
                    "phase {:?} has no pattern with a probability above 0",
                    paragraph[0].1
                ),
            ));
        }
        self.phases.push(Phase {
            ns,
            patterns,
            total,
        });
        Ok(())
    }

    fn pattern(&self, (line, text): (usize, &str)) -> Result<Pattern, Fault> {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let (name, random, stride, probability, mode) = match fields[..] {
            [name, random, stride, probability] => (name, random, stride, probability, "wo"),
            [name, random, stride, probability, mode] => (name, random, stride, probability, mode),
            _ => {
                return Err((
                    line,
                    format!(
                        "{text:?} is no pattern: expected \"region, randomness, stride, probability\" \
                         and perhaps \", mode\""
                    ),
                ));
            }
        };
        let region = self
            .regions
            .iter()
            .find(|region| region.name == name)
            .ok_or_else(|| (line, format!("there is no region {name:?}")))?;
        let write = match mode {
            "ro" => false,
            "wo" | "rw" => true,
            _ => return Err((line, format!("mode {mode:?}: allowed are ro, wo and rw"))),
        };
        let random = number(line, "randomness", random, 0, 1)? == 1;
        Ok(Pattern {
            start: region.start,
            bytes: region.bytes,
            random,
            stride: number(line, "stride", stride, u64::from(!random), 1 << 50)?,
            probability: number(line, "probability", probability, 0, 1 << 31)?,
            write,
            offset: 0,
        })
    }
}

fn number(line: usize, what: &str, text: &str, least: u64, most: u64) -> Result<u64, Fault> {
    text.parse()
        .ok()
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| {
            (
                line,
                format!("{what} {text:?}: allowed is a whole number from {least} to {most}"),
            )
        })
}

/// The source of the one thread.
#[derive(Clone)]
struct Run {
    random: Random,
    program: Program,
    pace: Pace,
    phase: usize,
    /// The time at which the phase started, ns.
    started: Option<u64>,
    /// The pattern that was drawn last, and the number of its accesses that are left.
    drawn: usize,
    left: u64,
}

impl Run {
    /// Draws a pattern; returns `false` if the last phase is over.
    fn draw(&mut self, now_ns: u64) -> bool {
        let started = *self.started.get_or_insert(now_ns);
        if let Some(phase) = self.program.phases.get(self.phase)
            && now_ns.saturating_sub(started) > phase.ns
        {
            self.phase += 1;
            self.started = Some(now_ns);
        }
        let Some(phase) = self.program.phases.get(self.phase) else {
            return false;
        };
        let mut ticket = self.random.below(phase.total);
        for (number, pattern) in phase.patterns.iter().enumerate() {
            if ticket < pattern.probability {
                self.drawn = number;
                break;
            }
            ticket -= pattern.probability;
        }
        self.left = DRAW;
        true
    }
}

impl Source for Run {
    /// Gives at most the rest of one draw, so that the time is checked after each draw.
    fn fill(&mut self, now_ns: u64, batch: &mut [Access]) -> usize {
        if self.left == 0 && !self.draw(now_ns) {
            return 0;
        }
        let pattern = &mut self.program.phases[self.phase].patterns[self.drawn];
        let some = usize::try_from(self.left).map_or(batch.len(), |left| left.min(batch.len()));
        for slot in &mut batch[..some] {
            let offset = if pattern.random {
                self.random.below(pattern.bytes)
            } else {
                pattern.offset += pattern.stride;
                if pattern.offset >= pattern.bytes {
                    pattern.offset = 0;
                }
                pattern.offset
            };
            *slot = access((pattern.start + offset) / LINE, pattern.write);
        }
        self.left -= super::values::from_usize(some);
        some
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    fn fork(&self) -> Box<dyn Source> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests;
