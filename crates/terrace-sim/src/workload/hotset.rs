//! `hotset`: pages of which some are accessed much more than the others (vTMM §4.3 and §4.6).

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use toml::Value;

use super::draw::{Permutation, part, to_f64, to_u64};
use super::hot_cold::{HotCold, Scatter, Span, Stride};
use super::source::Generate;
use super::values::{self, half};
use super::{Context, Endlessly, WorkloadError};
use crate::base::access::Access;
use crate::base::random::{Purpose, mix};

/// The keys of `hotset`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Raw")]
pub(super) struct Hotset(Raw);

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(deserialize_with = "values::size")]
    size: u64,
    #[serde(default, deserialize_with = "values::optional_share")]
    hot: Option<f64>,
    #[serde(default = "nine_tenths", deserialize_with = "values::fraction")]
    hot_access: f64,
    #[serde(default = "half", deserialize_with = "values::fraction")]
    write: f64,
    #[serde(default)]
    layout: Layout,
    #[serde(default, deserialize_with = "stages")]
    stages: Option<Stages>,
    #[serde(default, deserialize_with = "values::optional_time")]
    stage_every: Option<u64>,
    #[serde(default, deserialize_with = "values::up_to_a_million")]
    drift_per_s: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Layout {
    #[default]
    Scattered,
    /// At equal distances: as many of them in each stretch of memory.
    Even,
    Clustered,
}

/// The stages, in each of which the hot set is at another place.
#[derive(Clone, Debug, PartialEq)]
enum Stages {
    /// A number of stages of the same size.
    Count(u64),
    /// A stage for each of these hot shares.
    Shares(Vec<f64>),
}

fn nine_tenths() -> f64 {
    0.9
}

fn stages<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Stages>, D::Error> {
    let wrong = |value: &Value| {
        D::Error::custom(format!(
            "{value} is no number of stages: allowed is a whole number from 1, or a list of hot \
             shares, each more than 0 and at most 1"
        ))
    };
    let value = Value::deserialize(from)?;
    match &value {
        Value::Integer(count) => match u64::try_from(*count) {
            Ok(count) if count > 0 => Ok(Some(Stages::Count(count))),
            _ => Err(wrong(&value)),
        },
        Value::Array(shares) if !shares.is_empty() => {
            let share = |share: &Value| match share {
                Value::Float(share) if *share > 0.0 && *share <= 1.0 => Ok(*share),
                Value::Integer(1) => Ok(1.0),
                _ => Err(wrong(&value)),
            };
            let shares: Result<_, _> = shares.iter().map(share).collect();
            Ok(Some(Stages::Shares(shares?)))
        }
        _ => Err(wrong(&value)),
    }
}

impl TryFrom<Raw> for Hotset {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        match (&raw.stages, raw.hot) {
            (Some(Stages::Shares(_)), Some(_)) => {
                return Err(
                    "hot and a list of stages: the list has the hot shares, leave hot out".into(),
                );
            }
            (None | Some(Stages::Count(_)), None) => return Err("missing field `hot`".into()),
            _ => {}
        }
        match (&raw.stages, raw.stage_every) {
            (Some(_), None) => Err("stages needs stage_every, like \"60s\"".into()),
            (None, Some(_)) => Err("stage_every needs stages, like 4".into()),
            (Some(_), Some(_)) if raw.layout == Layout::Even => {
                Err("stages with layout = \"even\": the hot pages are the same in each, leave stages out".into())
            }
            _ if raw.layout == Layout::Even && raw.drift_per_s > 0.0 => {
                Err("drift_per_s with layout = \"even\": the hot pages stay, leave it out".into())
            }
            _ => Ok(Self(raw)),
        }
    }
}

impl Hotset {
    /// The stage at a time, and its hot share.
    fn stage(&self, now_ns: u64) -> (u64, f64) {
        let passed = self.0.stage_every.map_or(0, |every| now_ns / every);
        match &self.0.stages {
            Some(Stages::Shares(shares)) => {
                let last = shares.len() - 1;
                let stage = usize::try_from(passed).map_or(last, |stage| stage.min(last));
                (passed.min(values::from_usize(last)), shares[stage])
            }
            Some(Stages::Count(count)) => (passed.min(count - 1), self.0.hot.unwrap_or(1.0)),
            None => (0, self.0.hot.unwrap_or(1.0)),
        }
    }
}

impl Endlessly for Hotset {
    type Generator = Generator;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        values::pages("size", self.0.size, scale)
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Generator, WorkloadError> {
        let pages = self.pages(context.scale)?;
        let mut layout = super::draw::Random::new(context, 0, Purpose::Layout);
        let accesses = HotCold::new(context, vcpu, pages, self.0.hot_access, self.0.write);
        Ok(Generator {
            load: self.clone(),
            pages,
            layout: layout.bits(),
            stage: None,
            start: 0,
            accesses,
        })
    }
}

/// The accesses of one vCPU.
#[derive(Clone)]
pub(super) struct Generator {
    load: Hotset,
    pages: u64,
    /// Seed of the places of the hot set, which is the same for all vCPUs.
    layout: u64,
    /// The stage of `accesses` and `start`.
    stage: Option<u64>,
    /// The start of the hot pages before they drift.
    start: u64,
    accesses: HotCold,
}

impl Generator {
    fn enter(&mut self, stage: u64, hot: u64) {
        let seed = mix(self.layout ^ stage);
        self.stage = Some(stage);
        match self.load.0.layout {
            Layout::Scattered => {
                self.accesses.scatter = Scatter::Pages(Permutation::new(self.pages, seed));
            }
            Layout::Even => self.accesses.scatter = Scatter::Even(Stride::new(self.pages, hot)),
            Layout::Clustered => self.start = seed % (self.pages - hot + 1),
        }
    }
}

impl Generate for Generator {
    fn fill(&mut self, now_ns: u64, batch: &mut [Access]) {
        let (stage, share) = self.load.stage(now_ns);
        let hot = part(self.pages, share);
        if self.stage != Some(stage) {
            self.enter(stage, hot);
        }
        // Hot pages are a window of the numbers from 0; drifting moves it, so that it loses some and
        // gains as many.
        let drifted = to_u64(to_f64(now_ns) * 1e-9 * self.load.0.drift_per_s * to_f64(hot));
        self.accesses.spans.hot =
            Span::pages((self.start + drifted % self.pages) % self.pages, hot);
        self.accesses.fill(batch);
    }
}
