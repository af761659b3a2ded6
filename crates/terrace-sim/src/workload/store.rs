//! `kv` and `ycsb`: stores that serve requests for values by key.
//!
//! Memory is an index (a hash table, 16 bytes per key) and then the values, each in whole lines. Both have
//! their own random order, unless the values lie in the keys'. A request is one access to the index, then one to each line of the value.

use serde::Deserialize;

use super::draw::{Places, Random, access};
use super::head::Head;
use super::keys::{Items, Law};
use super::source::{Operate, Operations};
use super::values::{self, PAGE};
use super::{Context, Endlessly, WorkloadError};
use crate::base::access::{Access, LINE, LINES_PER_PAGE};
use crate::base::random::{Purpose, mix};

/// Bytes of the index per key: a hash and a place.
const ENTRY: u64 = 16;

/// The largest value, bytes.
const MAX_VALUE: u64 = 1 << 20;

/// Records of the longest scan (YCSB's default).
const MAX_SCAN: u64 = 100;

/// The keys of `kv`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kv {
    #[serde(deserialize_with = "values::count")]
    keys: u64,
    #[serde(deserialize_with = "value")]
    value: u64,
    #[serde(default)]
    dist: KvDist,
    #[serde(default = "fifth", deserialize_with = "values::share")]
    hot: f64,
    #[serde(default = "four_fifths", deserialize_with = "values::fraction")]
    hot_access: f64,
    #[serde(default = "zipf_exponent", deserialize_with = "values::exponent")]
    exponent: f64,
    #[serde(default)]
    head: Option<Head>,
    #[serde(default = "sixth", deserialize_with = "values::share")]
    sigma: f64,
    #[serde(default = "values::half", deserialize_with = "values::fraction")]
    read: f64,
    #[serde(default)]
    order: Order,
}

/// The order of the values in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    /// Any.
    #[default]
    Random,
    /// That of the keys, as values lie that were written in that order.
    Keys,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KvDist {
    #[default]
    Hotspot,
    Zipf,
    Gauss,
}

/// The keys of `ycsb`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawYcsb")]
pub(super) struct Ycsb(RawYcsb);

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawYcsb {
    #[serde(deserialize_with = "values::size")]
    size: u64,
    #[serde(default = "thousand", deserialize_with = "value")]
    value: u64,
    #[serde(default)]
    dist: YcsbDist,
    #[serde(default = "zipf_exponent", deserialize_with = "values::exponent")]
    exponent: f64,
    #[serde(default)]
    head: Option<Head>,
    #[serde(default, deserialize_with = "values::fraction")]
    read: f64,
    #[serde(default, deserialize_with = "values::fraction")]
    update: f64,
    #[serde(default, deserialize_with = "values::fraction")]
    insert: f64,
    #[serde(default, deserialize_with = "values::fraction")]
    scan: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum YcsbDist {
    #[default]
    Zipf,
    Latest,
    Uniform,
}

fn value<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let bytes = values::bytes(from)?;
    if bytes > MAX_VALUE {
        return Err(serde::de::Error::custom(format!(
            "{bytes} bytes are too many for one value: allowed is at most 1MiB"
        )));
    }
    Ok(bytes)
}

fn thousand() -> u64 {
    1000
}

fn fifth() -> f64 {
    0.2
}

fn four_fifths() -> f64 {
    0.8
}

fn sixth() -> f64 {
    1.0 / 6.0
}

fn zipf_exponent() -> f64 {
    0.99
}

impl TryFrom<RawYcsb> for Ycsb {
    type Error = String;

    fn try_from(raw: RawYcsb) -> Result<Self, String> {
        let sum = raw.read + raw.update + raw.insert + raw.scan;
        if (sum - 1.0).abs() > 1e-9 {
            return Err(format!(
                "read + update + insert + scan = {sum}: they must be 1; preset = \"a\" to \"f\" sets \
                 them as YCSB's workloads have them"
            ));
        }
        Ok(Self(raw))
    }
}

impl Endlessly for Kv {
    type Generator = Operations<Store>;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        let layout = Layout::new(self.keys.div_ceil(scale), self.value);
        Ok(layout.pages)
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Self::Generator, WorkloadError> {
        let layout = Layout {
            order: self.order,
            ..Layout::new(self.keys.div_ceil(context.scale), self.value)
        };
        let law = match self.dist {
            KvDist::Hotspot => Law::Hotspot {
                hot: self.hot,
                hot_access: self.hot_access,
            },
            KvDist::Zipf => Law::Zipf {
                exponent: self.exponent,
                head: self.head.unwrap_or(Head::usual(context)),
            },
            KvDist::Gauss => Law::Gauss { sigma: self.sigma },
        };
        let mix = [self.read, 1.0 - self.read, 0.0];
        Ok(Store::new(context, vcpu, layout, &law, false, mix))
    }
}

impl Ycsb {
    fn layout(&self, scale: u64) -> Result<Layout, WorkloadError> {
        let pages = values::pages("size", self.0.size, scale)?;
        // Index and values each may leave a part of a page.
        let room = pages.saturating_sub(2) * PAGE;
        let keys = room / (ENTRY + self.0.value.div_ceil(LINE) * LINE);
        if keys == 0 {
            return Err(WorkloadError(format!(
                "workload of kind \"ycsb\": size = {} bytes has no room for one value at scale {scale}",
                self.0.size
            )));
        }
        Ok(Layout {
            pages,
            ..Layout::new(keys, self.0.value)
        })
    }
}

impl Endlessly for Ycsb {
    type Generator = Operations<Store>;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        self.layout(scale).map(|layout| layout.pages)
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Self::Generator, WorkloadError> {
        // The latest keys take turns by themselves.
        let head = match self.0.dist {
            YcsbDist::Latest => Head::Merged,
            _ => self.0.head.unwrap_or(Head::usual(context)),
        };
        let law = match self.0.dist {
            YcsbDist::Uniform => Law::Uniform,
            YcsbDist::Zipf | YcsbDist::Latest => Law::Zipf {
                exponent: self.0.exponent,
                head,
            },
        };
        let latest = self.0.dist == YcsbDist::Latest;
        let mix = [self.0.read, self.0.update, self.0.insert];
        let layout = self.layout(context.scale)?;
        Ok(Store::new(context, vcpu, layout, &law, latest, mix))
    }
}

/// The locations of index and values.
#[derive(Clone, Copy)]
struct Layout {
    keys: u64,
    value_lines: u64,
    /// The first line of the values.
    values: u64,
    pages: u64,
    order: Order,
}

impl Layout {
    fn new(keys: u64, value: u64) -> Self {
        let value_lines = value.div_ceil(LINE);
        let index_pages = (keys * ENTRY).div_ceil(PAGE);
        Self {
            keys,
            value_lines,
            values: index_pages * LINES_PER_PAGE,
            pages: index_pages + (keys * value_lines).div_ceil(LINES_PER_PAGE),
            order: Order::default(),
        }
    }
}

/// The requests of one vCPU.
#[derive(Clone)]
pub(super) struct Store {
    random: Random,
    requests: Random,
    layout: Layout,
    items: Items,
    latest: bool,
    /// Cumulative shares: of reads, of reads and updates, and of these and inserts; the rest are scans.
    up_to: [f64; 3],
    index: Places,
    places: Places,
    /// The key that this vCPU inserts next, in place of the oldest: vCPUs take turns.
    next_key: u64,
    vcpus: u64,
}

impl Store {
    fn new(
        context: &Context,
        vcpu: u32,
        layout: Layout,
        law: &Law,
        latest: bool,
        [read, update, insert]: [f64; 3],
    ) -> Operations<Self> {
        let seed = Random::new(context, 0, Purpose::Layout).bits();
        Operations::new(Self {
            random: Random::new(context, vcpu, Purpose::Accesses),
            requests: Random::new(context, vcpu, Purpose::Writes),
            layout,
            items: Items::new(layout.keys, context.scale, law),
            latest,
            up_to: [read, read + update, read + update + insert],
            index: law.places(context, layout.keys, mix(seed)),
            places: match layout.order {
                Order::Random => law.places(context, layout.keys, seed),
                Order::Keys => Places::in_order(layout.keys),
            },
            next_key: u64::from(vcpu) % layout.keys,
            vcpus: context.vcpus.into(),
        })
    }

    fn key(&mut self) -> u64 {
        let item = self.items.choose(&mut self.random);
        if self.latest {
            let keys = self.layout.keys;
            (self.next_key + keys - 1 - item) % keys
        } else {
            item
        }
    }

    fn find(&self, key: u64, write: bool, out: &mut Vec<Access>) {
        let line = self.index.of(key) * ENTRY / LINE;
        out.push(access(line, write).within_operation());
    }

    fn value(&self, key: u64, write: bool, out: &mut Vec<Access>) {
        let first = self.layout.values + self.places.of(key) * self.layout.value_lines;
        let lines = first..first + self.layout.value_lines;
        out.extend(lines.map(|line| access(line, write).within_operation()));
    }
}

impl Operate for Store {
    fn operate(&mut self, out: &mut Vec<Access>) {
        let request = self.requests.unit();
        if request < self.up_to[1] {
            let write = request >= self.up_to[0];
            let key = self.key();
            self.find(key, false, out);
            self.value(key, write, out);
        } else if request < self.up_to[2] {
            let key = self.next_key;
            self.next_key = (key + self.vcpus) % self.layout.keys;
            self.find(key, true, out);
            self.value(key, true, out);
        } else {
            let key = self.key();
            let records = 1 + self.random.below(MAX_SCAN);
            self.find(key, false, out);
            for record in 0..records {
                self.value((key + record) % self.layout.keys, false, out);
            }
        }
        // The last access of the request ends it.
        if let Some(last) = out.last_mut() {
            *last = Access::new(last.page(), last.line(), last.is_write());
        }
    }
}
