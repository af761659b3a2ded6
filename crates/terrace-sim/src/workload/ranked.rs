//! `zipf` and `gauss`: pages of unequal heat.

use serde::Deserialize;

use super::draw::{Places, Random, Writes};
use super::head::Head;
use super::keys::{Items, Law};
use super::source::Generate;
use super::values::{self, half};
use super::{Context, Endlessly, WorkloadError};
use crate::base::access::{Access, LINES_PER_PAGE};
use crate::base::random::Purpose;

/// The keys of `zipf`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Zipf {
    #[serde(deserialize_with = "values::size")]
    size: u64,
    #[serde(deserialize_with = "values::exponent")]
    exponent: f64,
    #[serde(default)]
    head: Option<Head>,
    #[serde(default = "half", deserialize_with = "values::fraction")]
    write: f64,
    #[serde(default = "yes")]
    scatter: bool,
}

/// The keys of `gauss`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Gauss {
    #[serde(deserialize_with = "values::size")]
    size: u64,
    #[serde(deserialize_with = "values::share")]
    sigma: f64,
    #[serde(default = "half", deserialize_with = "values::fraction")]
    write: f64,
    #[serde(default = "yes")]
    scatter: bool,
}

fn yes() -> bool {
    true
}

impl Endlessly for Zipf {
    type Generator = Generator;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        values::pages("size", self.size, scale)
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Generator, WorkloadError> {
        let head = self.head.unwrap_or(Head::usual(context));
        let law = Law::Zipf {
            exponent: self.exponent,
            head,
        };
        let pages = self.pages(context.scale)?;
        Ok(Generator::new(
            context,
            vcpu,
            pages,
            &law,
            self.write,
            self.scatter,
        ))
    }
}

impl Endlessly for Gauss {
    type Generator = Generator;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        values::pages("size", self.size, scale)
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Generator, WorkloadError> {
        let law = Law::Gauss { sigma: self.sigma };
        let pages = self.pages(context.scale)?;
        Ok(Generator::new(
            context,
            vcpu,
            pages,
            &law,
            self.write,
            self.scatter,
        ))
    }
}

/// The accesses of one vCPU: any line of a page that the law chooses.
#[derive(Clone)]
pub(super) struct Generator {
    random: Random,
    writes: Writes,
    items: Items,
    places: Option<Places>,
}

impl Generator {
    fn new(context: &Context, vcpu: u32, pages: u64, law: &Law, write: f64, scatter: bool) -> Self {
        let seed = Random::new(context, 0, Purpose::Layout).bits();
        Self {
            random: Random::new(context, vcpu, Purpose::Accesses),
            writes: Writes::new(context, vcpu, write),
            items: Items::new(pages, context.scale, law),
            places: scatter.then(|| law.places(context, pages, seed)),
        }
    }
}

impl Generate for Generator {
    fn fill(&mut self, _now_ns: u64, batch: &mut [Access]) {
        for slot in batch {
            let page = self.items.choose(&mut self.random);
            let page = self.places.as_ref().map_or(page, |p| p.of(page));
            let line = self.random.below(LINES_PER_PAGE);
            *slot = Access::new(page, line, self.writes.draw());
        }
    }
}
