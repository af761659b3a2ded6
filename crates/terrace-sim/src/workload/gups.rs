//! `gups`: random updates, most of them to a hot section. Each is a read-modify-write: one access, which
//! loads and stores.

use serde::Deserialize;

use super::draw::{Permutation, Random, part};
use super::hot_cold::{HotCold, Scatter, Span};
use super::source::Generate;
use super::values;
use super::{Context, Endlessly, WorkloadError};
use crate::base::access::{Access, LINES_PER_PAGE};
use crate::base::random::Purpose;

/// The keys of `gups`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Raw")]
pub(super) struct Gups {
    size: u64,
    hot: f64,
    variant: Variant,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    variant: Name,
    #[serde(deserialize_with = "values::size")]
    size: u64,
    #[serde(deserialize_with = "values::share")]
    hot: f64,
    #[serde(default, deserialize_with = "values::optional_time")]
    move_at: Option<u64>,
    #[serde(default, deserialize_with = "weight")]
    weight: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Name {
    Hemem,
    Hypertier,
    Colloid,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Variant {
    /// A contiguous hot section; the other updates are uniform over all memory.
    Hemem { move_at: Option<u64> },
    /// A hot section at the end; the other updates are uniform over the memory before it.
    Hypertier { weight: f64 },
    /// Hot objects of single lines anywhere; the other updates are uniform over all memory.
    Colloid,
}

/// Share of the updates that hot objects take in `hemem` and `colloid`.
const HOT_ACCESS: f64 = 0.9;

/// The ratio in which the hot section is chosen more often than the cold one in `hypertier` (§6.2).
const WEIGHT: f64 = 10.0;

fn weight<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    values::up_to_a_million(from).map(Some)
}

impl TryFrom<Raw> for Gups {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        if raw.move_at.is_some() && raw.variant != Name::Hemem {
            return Err("move_at is allowed for variant = \"hemem\" only".into());
        }
        if raw.weight.is_some() && raw.variant != Name::Hypertier {
            return Err("weight is allowed for variant = \"hypertier\" only".into());
        }
        if raw.weight == Some(0.0) {
            return Err("weight = 0 leaves the hot section alone: allowed is more than 0".into());
        }
        let variant = match raw.variant {
            Name::Hemem => Variant::Hemem {
                move_at: raw.move_at,
            },
            Name::Hypertier if raw.hot >= 1.0 => {
                return Err(format!(
                    "hot = {} leaves no cold section: allowed for variant = \"hypertier\" is more \
                     than 0 and less than 1",
                    raw.hot
                ));
            }
            Name::Hypertier => Variant::Hypertier {
                weight: raw.weight.unwrap_or(WEIGHT),
            },
            Name::Colloid => Variant::Colloid,
        };
        Ok(Self {
            size: raw.size,
            hot: raw.hot,
            variant,
        })
    }
}

impl Endlessly for Gups {
    type Generator = Generator;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        values::pages("size", self.size, scale)
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Generator, WorkloadError> {
        let pages = self.pages(context.scale)?;
        let hot = part(pages, self.hot);
        let mut layout = Random::new(context, 0, Purpose::Layout);
        let share = match self.variant {
            Variant::Hypertier { weight } => weight / (weight + 1.0),
            Variant::Hemem { .. } | Variant::Colloid => HOT_ACCESS,
        };
        let mut accesses = HotCold::new(context, vcpu, pages, share, 1.0);
        let mut moved = None;
        match self.variant {
            Variant::Hemem { move_at } => {
                let start = layout.below(pages - hot + 1);
                accesses.spans.hot = Span::pages(start, hot);
                moved = move_at.map(|at| (at, Span::pages((start + hot) % pages, hot)));
            }
            Variant::Hypertier { .. } => {
                if hot == pages {
                    return Err(WorkloadError(format!(
                        "workload of kind \"gups\": hot = {} leaves no cold page of {pages}",
                        self.hot
                    )));
                }
                accesses.spans.hot = Span::pages(pages - hot, hot);
                accesses.spans.cold = Span::pages(0, pages - hot);
            }
            Variant::Colloid => {
                let lines = pages * LINES_PER_PAGE;
                accesses.spans.hot = Span {
                    start: 0,
                    lines: part(lines, self.hot),
                };
                accesses.scatter = Scatter::Lines(Permutation::new(lines, layout.bits()));
            }
        }
        Ok(Generator { accesses, moved })
    }
}

/// The accesses of one vCPU.
#[derive(Clone)]
pub(super) struct Generator {
    accesses: HotCold,
    /// The time from which the hot section is elsewhere, ns, and that new section.
    moved: Option<(u64, Span)>,
}

impl Generate for Generator {
    fn fill(&mut self, now_ns: u64, batch: &mut [Access]) {
        if let Some((at, span)) = self.moved
            && now_ns >= at
        {
            self.accesses.spans.hot = span;
        }
        self.accesses.fill(batch);
        for access in batch {
            *access = access.updating();
        }
    }
}
