//! `sequential`: a hot window is swept line by line, by parts, and moves on every now and then (vTMM §4.5).

use serde::Deserialize;

use super::draw::{Writes, access, part};
use super::source::Generate;
use super::values::{self, half};
use super::{Context, Endlessly, WorkloadError};
use crate::base::access::{Access, LINES_PER_PAGE};

/// The keys of `sequential`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sequential {
    #[serde(deserialize_with = "values::size")]
    size: u64,
    #[serde(default = "all", deserialize_with = "values::share")]
    hot: f64,
    #[serde(default = "half", deserialize_with = "values::fraction")]
    write: f64,
    #[serde(default, deserialize_with = "values::optional_time")]
    period: Option<u64>,
    sweep: Option<Sweep>,
}

/// The part of the window that each vCPU sweeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Sweep {
    /// A part of its own, as threads that share an array do.
    Own,
    /// All of it, from another place on.
    Shared,
}

impl Sweep {
    /// The part that is usual. Behind a cache, vCPUs that sweep all of it follow each other after the first wait for a
    /// page, and all but the first of them hit: a program whose threads divide the work shows nothing of that.
    fn usual(context: &Context) -> Self {
        if context.is_cached {
            Self::Own
        } else {
            Self::Shared
        }
    }
}

fn all() -> f64 {
    1.0
}

impl Endlessly for Sequential {
    type Generator = Generator;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        values::pages("size", self.size, scale)
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Generator, WorkloadError> {
        let pages = self.pages(context.scale)?;
        let window = part(pages, self.hot) * LINES_PER_PAGE;
        let (first, end) = slice(window, vcpu, context.vcpus);
        let sweep = self.sweep.unwrap_or(Sweep::usual(context));
        // A window of fewer lines than vCPUs has no part for each.
        let own = (sweep == Sweep::Own && first < end).then_some((first, end));
        Ok(Generator {
            lines: pages * LINES_PER_PAGE,
            window,
            period: self.period,
            part: own.unwrap_or((0, window)),
            next: first % window,
            writes: Writes::new(context, vcpu, self.write),
        })
    }
}

/// First item of a vCPU's part of `items`, and the first item behind it.
pub(super) fn slice(items: u64, vcpu: u32, vcpus: u32) -> (u64, u64) {
    let (each, rest) = (items / u64::from(vcpus), items % u64::from(vcpus));
    let start = |vcpu: u64| vcpu * each + vcpu.min(rest);
    (start(vcpu.into()), start(u64::from(vcpu) + 1))
}

/// The accesses of one vCPU: a sweep over its part of the window, or over all of it from its part on.
#[derive(Clone)]
pub(super) struct Generator {
    lines: u64,
    window: u64,
    period: Option<u64>,
    /// First place of the part that is swept, and the first one behind it.
    part: (u64, u64),
    /// The next place in the window.
    next: u64,
    writes: Writes,
}

impl Generate for Generator {
    fn fill(&mut self, now_ns: u64, batch: &mut [Access]) {
        // The window moves by its own length, and goes round.
        let moves = self.period.map_or(0, |period| now_ns / period);
        let start = u128::from(moves) * u128::from(self.window) % u128::from(self.lines);
        let start = u64::try_from(start).unwrap_or(0);
        for slot in batch {
            let line = start + self.next;
            let line = if line >= self.lines {
                line - self.lines
            } else {
                line
            };
            *slot = access(line, self.writes.draw());
            self.next += 1;
            if self.next == self.part.1 {
                self.next = self.part.0;
            }
        }
    }
}
