//! The policy of a VM, parsed from its name or table.

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use terrace_core::policy::{HotnessThreshold, Observe, Place, Policy, PolicyStages, Registry};
use terrace_core::{ConfigError, PolicyChoice, PolicyName};

use super::error::Fault;
use super::parameters::{self, label, tuned};
use super::{GuestPolicy, HostPolicy};
use crate::base::side::Side;
use crate::host::bounds::clairvoyant::By;
use crate::mechanisms::Name;

/// Policies without an engine: name, description, and value.
const UNMANAGED: [(&str, &str, HostPolicy); 5] = [
    (
        "first-touch",
        "pages stay where they are first put",
        HostPolicy::FirstTouch,
    ),
    (
        "interleave",
        "pages are dealt to the tiers in turn, and stay",
        HostPolicy::Interleave,
    ),
    (
        "all-fast",
        "every page in the first tier, as if it had no end",
        HostPolicy::AllFast,
    ),
    (
        "all-slow",
        "every page in the last tier, as if it had no end",
        HostPolicy::AllSlow,
    ),
    (
        "static-best",
        "a bound: the whole run's most costly pages and page tables, known beforehand and placed once",
        HostPolicy::StaticBest,
    ),
];

/// The bound that knows each window: its names, the second from before it had the first, and its description.
const CLAIRVOYANT: [(&str, &str); 2] = [
    (
        "clairvoyant",
        "a bound: each window's most costly pages and page tables, known beforehand and prefetched for free",
    ),
    ("oracle", "another name of clairvoyant"),
];

/// The hardware that needs no policy: name and description.
const MEMORY_MODE: (&str, &str) = (
    "memory-mode",
    "the first tier is no memory but a direct-mapped cache of the second, of the machine and all its VMs",
);

/// The gathering by the guest, beside a policy of the host: its description.
const GATHERING: &str = "the guest gathers its scattered hot pages into few blocks of 2 MiB (GPAC), beside any policy of \
                         the host: guest_policy alone, NAME+gpac in --policies; keys: cl";

/// The description of a policy for people.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Description {
    /// The policy's name.
    pub name: String,
    /// Each stage with the component that serves it; empty if no engine runs.
    pub stages: Vec<(String, String)>,
    /// A description; of a policy of the engine its own keys, if it has some.
    pub what: Option<String>,
}

/// Every policy that a scenario may name.
#[must_use]
pub fn descriptions() -> Vec<Description> {
    let mut all = Vec::new();
    for name in engine_names() {
        let policy = Registry::Simulator.stages(name);
        let stages = [
            ("observe", policy.observe.name()),
            ("estimate", policy.estimate.name()),
            ("share", policy.share.name()),
            ("place", policy.place.name()),
            ("move", policy.moves.name()),
        ];
        all.push(Description {
            name: name.name().into(),
            stages: stages.map(|(k, v)| (k.into(), v.into())).to_vec(),
            what: engine_text(name).map(str::to_owned),
        });
    }
    all.extend(Name::ALL.iter().map(|baseline| Description {
        name: baseline.name().into(),
        stages: Vec::new(),
        what: Some(format!(
            "{} ({} by nature{})",
            baseline.what(),
            baseline.nature().name(),
            parameters::text(baseline.name()),
        )),
    }));
    let unmanaged = UNMANAGED.map(|(name, what, _)| (name, what));
    all.extend(
        [MEMORY_MODE]
            .into_iter()
            .chain(unmanaged)
            .chain(CLAIRVOYANT)
            .chain([(GuestPolicy::GATHERS, GATHERING)])
            .map(|(name, what)| Description {
                name: name.into(),
                stages: Vec::new(),
                what: Some(what.into()),
            }),
    );
    all
}

/// The purpose of a policy of the engine whose stages do not say it, and its own keys of a policy's table.
fn engine_text(name: PolicyName) -> Option<&'static str> {
    match name {
        PolicyName::Hmvisor => Some(
            "hot lists: pages that stay hot climb them, and their top is moved a little each second (HMvisor); \
             keys: lists, sub_epoch, sub_epochs, hotness_threshold, decay_time, sides; beside a device that sizes the \
             VM's nodes, move = \"guest\"",
        ),
        PolicyName::Terrace => Some(
            "Terrace's own, not the default yet: how often each page is touched, averaged over rounds; windows as long as the pages at the fast tier's border need; \
             a page moves if what it saves exceeds what its move costs",
        ),
        PolicyName::Hpmbs => Some(
            "moves nothing: finds how much memory a VM uses, and what it would gain from more (HPMBS); keys in \
             [engine.demand]",
        ),
        _ => None,
    }
}

/// The keys of lists in a policy's table.
const LIST_KEYS: [&str; 6] = [
    "lists",
    "sub_epoch",
    "sub_epochs",
    "hotness_threshold",
    "decay_time",
    "sides",
];

/// The keys that a policy's table with this base may have; `None` of a base that there is not.
pub(super) fn keys(base: &str) -> Option<Vec<&'static str>> {
    let own = if baseline(base).is_some() {
        [vec!["where"], parameters::keys(base)].concat()
    } else if is_clairvoyant(base) {
        vec!["by"]
    } else if let Some(name) = engine_names().find(|name| name.name() == base) {
        let lists: &[&str] = match name {
            PolicyName::Hmvisor => &LIST_KEYS,
            _ => &[],
        };
        let stages = ["observe", "estimate", "share", "place", "move", "where"];
        [&stages[..], lists].concat()
    } else {
        return None;
    };
    Some([vec!["base"], own].concat())
}

/// Whether a policy of that name places no pages, or is run by neither the engine nor a mechanism, so that it has no
/// rounds.
#[must_use]
pub fn is_unmanaged(name: &str) -> bool {
    let bare = bare(name);
    let stays = |name: &PolicyName| name.stages().place == Place::Stay && name.name() == bare;
    let has_no_rounds = is_memory_mode(bare) || engine_names().any(|name| stays(&name));
    has_no_rounds || is_clairvoyant(bare) || UNMANAGED.iter().any(|(n, ..)| *n == bare)
}

/// Whether the policy of that name is a bound.
#[must_use]
pub fn is_bound(name: &str) -> bool {
    let bare = bare(name);
    is_clairvoyant(bare) || ["static-best", "all-fast", "all-slow"].contains(&bare)
}

/// A policy's name without its side and parameters.
fn bare(name: &str) -> &str {
    host_part(name).0.split(['@', ' ']).next().unwrap_or(name)
}

fn is_clairvoyant(name: &str) -> bool {
    CLAIRVOYANT.iter().any(|(known, _)| *known == name)
}

/// Whether the name is that of memory mode, which is hardware on either side.
fn is_memory_mode(name: &str) -> bool {
    name == MEMORY_MODE.0
}

/// Checks that a scenario may name the policy.
///
/// # Errors
/// If there is no such policy; the message lists the policies that there are.
pub fn check(name: &str) -> Result<(), String> {
    let known = by_name(host_part(name).0, "policy");
    known.map(|_| ()).map_err(|fault| fault.what)
}

/// The name of the host's policy, and whether the guest gathers beside it: `NAME+gpac`.
pub(super) fn host_part(name: &str) -> (&str, bool) {
    let host = name.strip_suffix(GuestPolicy::GATHERS);
    let host = host.and_then(|host| host.strip_suffix('+'));
    (host.unwrap_or(name), host.is_some())
}

/// Policies of the engine that are simulated.
fn engine_names() -> impl Iterator<Item = PolicyName> {
    Registry::Simulator.policies().iter().copied()
}

/// A policy as written: a name, or a table with `base`, stages and `where`.
#[derive(Debug)]
pub(super) enum RawPolicy {
    Name(String),
    Table(Box<RawTable>),
}

/// The keys of a policy's table: those of [`PolicyStages`], `where`, and the parameters of mechanisms (a flattened
/// struct would hide which key is unknown).
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTable {
    pub base: String,
    observe: Option<String>,
    estimate: Option<String>,
    share: Option<String>,
    place: Option<String>,
    #[serde(rename = "move")]
    moves: Option<String>,
    #[serde(rename = "where")]
    pub side: Option<String>,
    pub by: Option<By>,
    pub period: Option<u64>,
    pub epoch_ms: Option<u32>,
    pub tau_split: Option<u32>,
    pub literal: Option<bool>,
    pub hot_threshold_ms: Option<u32>,
    pub rate_limit_mb_s: Option<u32>,
    pub adapt: Option<bool>,
    pub interval_ms: Option<u32>,
    pub scan_ms: Option<u32>,
    pub migrate_ms: Option<u32>,
    pub decay_ms: Option<u32>,
    pub sample_ms: Option<u32>,
    pub aggregate_ms: Option<u32>,
    pub min_regions: Option<u32>,
    pub max_regions: Option<u32>,
    pub quota_mb: Option<u32>,
    pub quota_ms: Option<u32>,
    pub cold_age_ms: Option<u32>,
    lists: Option<u8>,
    sub_epoch: Option<String>,
    sub_epochs: Option<u8>,
    hotness_threshold: Option<HotnessThreshold>,
    decay_time: Option<String>,
    sides: Option<String>,
    pub goals: Option<bool>,
    pub young: Option<bool>,
}

impl<'de> Deserialize<'de> for RawPolicy {
    /// Deserializes by hand: a derived untagged enum would hide which key is wrong.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = RawPolicy;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a policy's name, or a table with `base`")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<RawPolicy, E> {
                Ok(RawPolicy::Name(name.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawPolicy, A::Error> {
                let table = RawTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(RawPolicy::Table(Box::new(table)))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl RawTable {
    /// The stages that it names, and the keys of lists.
    fn stages(self) -> PolicyStages {
        PolicyStages {
            base: self.base,
            observe: self.observe,
            estimate: self.estimate,
            share: self.share,
            place: self.place,
            moves: self.moves,
            lists: self.lists,
            sub_epoch: self.sub_epoch,
            sub_epochs: self.sub_epochs,
            hotness_threshold: self.hotness_threshold,
            decay_time: self.decay_time,
            sides: self.sides,
        }
    }

    /// A key of hot lists that is set, if one is.
    fn list_key(&self) -> Option<&'static str> {
        let set = [
            ("lists", self.lists.is_some()),
            ("sub_epoch", self.sub_epoch.is_some()),
            ("sub_epochs", self.sub_epochs.is_some()),
            ("hotness_threshold", self.hotness_threshold.is_some()),
            ("decay_time", self.decay_time.is_some()),
            ("sides", self.sides.is_some()),
        ];
        set.into_iter()
            .find_map(|(key, is_set)| is_set.then_some(key))
    }
}

impl RawPolicy {
    /// The policy that the text names, checked.
    pub fn check(self, path: &str) -> Result<HostPolicy, Fault> {
        let raw = match self {
            Self::Name(name) => return by_name(&name, path),
            Self::Table(raw) => *raw,
        };
        let side = check_side(raw.side.as_deref(), &format!("{path}.where"))?;
        no_lists_without_engine(&raw, path)?;
        let own = [
            &raw.observe,
            &raw.estimate,
            &raw.share,
            &raw.place,
            &raw.moves,
        ];
        let mechanism = tuned(&raw, baseline(&raw.base), path)?;
        if let Some(bound) = bound(&raw, side, path)? {
            return Ok(bound);
        }
        if mechanism.is_some() || is_memory_mode(&raw.base) {
            if own.iter().any(|stage| stage.is_some()) {
                let what = format!(
                    "\"{}\" is one mechanism: no stage of it can be replaced; leave the other keys out",
                    raw.base
                );
                return Err(Fault::new(path, what));
            }
            let label = label(&raw);
            return Ok(match mechanism {
                Some(name) => of_baseline(label, name, side),
                None => HostPolicy::MemoryMode(label),
            });
        }
        no_engine_in_guests(side, &format!("{path}.where"))?;
        let stages = raw.stages();
        let name = stages_label(&stages);
        if name == stages.base {
            return by_name(&name, &format!("{path}.base"));
        }
        let choice = simulated(stages);
        let resolved = choice.resolve(path).map_err(|error| fault(error, path))?;
        check_stages(&resolved, &choice, path)?;
        Ok(HostPolicy::Engine(name, choice))
    }
}

/// The fault in a policy's table, at the key at fault.
fn fault(error: ConfigError, path: &str) -> Fault {
    match error {
        ConfigError::Name {
            key,
            value,
            allowed,
        } => Fault::new(key, format!("\"{value}\" is unknown: allowed is {allowed}")),
        ConfigError::Range {
            key,
            value,
            allowed,
        } => Fault::new(
            key,
            format!("{value} is out of range: allowed is {allowed}"),
        ),
        ConfigError::Stages { key, stage, needs } => {
            Fault::new(key, format!("{stage} needs {needs} as well"))
        }
        other @ ConfigError::SimulatorOnly { .. } => Fault::new(path, other.to_string()),
    }
}

/// Checks that under a policy of hot lists some page can be hot, where the slowest tier has these weights.
pub(super) fn check_threshold(
    policy: &HostPolicy,
    weights: (u8, u8),
    path: &str,
) -> Result<(), Fault> {
    let HostPolicy::Engine(_, choice) = policy else {
        return Ok(());
    };
    let resolved = choice.resolve(path);
    let checked = resolved.and_then(|resolved| resolved.check_threshold(weights, path));
    checked.map_err(|error| fault(error, path))
}

/// Checks that the stages together can be simulated.
fn check_stages(resolved: &Policy, choice: &PolicyChoice, path: &str) -> Result<(), Fault> {
    if resolved.observe == Observe::None {
        let what = "nothing is observed, so there is nothing to simulate: set observe, or name \
                    first-touch, interleave, all-fast, all-slow, static-best or clairvoyant alone";
        return Err(Fault::new(path, what));
    }
    if resolved.observe == Observe::ProtectionFaults && resolved.place != Place::Stay {
        let what = format!(
            "protection faults show which memory is used, not how often: place = \"{}\" cannot rank by them; set \
             observe, or name hpmbs",
            resolved.place.name()
        );
        return Err(Fault::new(format!("{path}.place"), what));
    }
    if Registry::Simulator.lacks(resolved).is_some() {
        let all: Vec<&str> = engine_names().map(PolicyName::name).collect();
        let what = format!(
            "\"{}\" has no stages that can be replaced: allowed is {}",
            choice.base(),
            all.join(", ")
        );
        return Err(Fault::new(format!("{path}.base"), what));
    }
    Ok(())
}

/// Refuses a key of hot lists on a policy that the engine does not run: nothing would read it.
fn no_lists_without_engine(raw: &RawTable, path: &str) -> Result<(), Fault> {
    let is_known = by_name(&raw.base, path).is_ok();
    let has_engine = engine_names().any(|name| name.name() == raw.base);
    match raw.list_key() {
        Some(key) if is_known && !has_engine => {
            let what = "a key of hot lists belongs to base = \"hmvisor\" alone: leave it out";
            Err(Fault::new(format!("{path}.{key}"), what))
        }
        _ => Ok(()),
    }
}

/// The bound that knows each window, if the table names it.
fn bound(raw: &RawTable, side: Option<Side>, path: &str) -> Result<Option<HostPolicy>, Fault> {
    if !is_clairvoyant(&raw.base) && raw.by.is_some() {
        let what = "belongs to base = \"clairvoyant\" alone: leave it out";
        return Err(Fault::new(format!("{path}.by"), what));
    }
    let stages = [
        &raw.observe,
        &raw.estimate,
        &raw.share,
        &raw.place,
        &raw.moves,
    ];
    if is_bound(&raw.base) && stages.iter().any(|stage| stage.is_some()) {
        let all: Vec<&str> = engine_names().map(PolicyName::name).collect();
        let what = format!(
            "\"{}\" is a bound, no stage of it can be replaced: allowed is {}",
            raw.base,
            all.join(", ")
        );
        return Err(Fault::new(format!("{path}.base"), what));
    }
    if !is_clairvoyant(&raw.base) {
        return Ok(None);
    }
    no_engine_in_guests(side, &format!("{path}.where"))?;
    Ok(Some(HostPolicy::Clairvoyant(
        label(raw),
        raw.by.unwrap_or_default(),
    )))
}

/// The policy of that name; `NAME@host` and `NAME@guest` name the side that runs it.
pub(crate) fn by_name(text: &str, path: &str) -> Result<HostPolicy, Fault> {
    let (name, side) = match text.split_once('@') {
        Some((name, side)) => (name, Some(side)),
        None => (text, None),
    };
    let side = check_side(side, path)?;
    if name == GuestPolicy::GATHERS {
        let what = format!(
            "{name} gathers in the guest, beside a policy of the host: tpp+{name} in a list of policies, guest_policy = \"{name}\" in a scenario"
        );
        return Err(Fault::new(path, what));
    }
    if let Some(found) = baseline(name) {
        return Ok(of_baseline(text.into(), found, side));
    }
    if is_memory_mode(name) {
        return Ok(HostPolicy::MemoryMode(text.into()));
    }
    no_engine_in_guests(side, path)?;
    if is_clairvoyant(name) {
        return Ok(HostPolicy::Clairvoyant(text.into(), By::default()));
    }
    if let Some((.., policy)) = UNMANAGED.iter().find(|(n, ..)| *n == name) {
        return Ok(policy.clone());
    }
    match engine_names().find(|n| n.name() == name) {
        Some(found) => {
            let choice = simulated(PolicyStages {
                base: found.name().into(),
                ..PolicyStages::default()
            });
            Ok(HostPolicy::Engine(text.into(), choice))
        }
        None => {
            let engine = engine_names().map(PolicyName::name);
            let baselines = Name::ALL.iter().map(|name| name.name());
            let all: Vec<&str> = engine
                .chain(baselines)
                .chain([MEMORY_MODE.0])
                .chain(UNMANAGED.map(|(name, ..)| name))
                .chain(CLAIRVOYANT.map(|(name, _)| name))
                .collect();
            let what = format!(
                "there is no policy \"{name}\": allowed is {}",
                all.join(", ")
            );
            Err(Fault::new(path, what))
        }
    }
}

/// The policy written as in a scenario's `policy`: a quoted name, or a table with `base`.
pub(crate) fn by_text(text: &str) -> Result<HostPolicy, String> {
    #[derive(serde::Deserialize)]
    struct Only {
        policy: RawPolicy,
    }
    let only: Only = toml::from_str(&format!("policy = {text}")).map_err(|e| e.to_string())?;
    let known = only.policy.check("policy");
    known.map_err(|fault| fault.what)
}

fn check_side(side: Option<&str>, path: &str) -> Result<Option<Side>, Fault> {
    let what = match side {
        None => return Ok(None),
        Some("host") => return Ok(Some(Side::Host)),
        Some("guest") => return Ok(Some(Side::Guest)),
        Some(other) => format!("a policy does not run in \"{other}\": allowed is host, guest"),
    };
    Err(Fault::new(path, what))
}

/// Refuses a policy of the engine in the guest: the engine is the host's.
fn no_engine_in_guests(side: Option<Side>, path: &str) -> Result<(), Fault> {
    if side != Some(Side::Guest) {
        return Ok(());
    }
    let what = format!(
        "this policy is the host's and cannot run in the guest: allowed is host (in the guest can run: {})",
        baseline_names().join(", ")
    );
    Err(Fault::new(path, what))
}

pub(super) fn baseline_names() -> Vec<&'static str> {
    Name::ALL.iter().map(|name| name.name()).collect()
}

pub(super) fn baseline(name: &str) -> Option<Name> {
    Name::ALL.iter().copied().find(|n| n.name() == name)
}

fn of_baseline(label: String, name: Name, side: Option<Side>) -> HostPolicy {
    let side = side.unwrap_or(name.nature());
    HostPolicy::Baseline(label, name, side)
}

/// The policy with the stages that its base has in the simulator and nowhere else.
fn simulated(mut stages: PolicyStages) -> PolicyChoice {
    if let Some(base) = engine_names().find(|n| n.name() == stages.base) {
        let here = Registry::Simulator.stages(base).observe;
        if stages.observe.is_none() && here != base.stages().observe {
            stages.observe = Some(here.name().into());
        }
        if stages.is_bare() {
            return PolicyChoice::from(base);
        }
    }
    PolicyChoice::Composed(stages)
}

/// The policy's name with its stages, as `vtmm observe=ept-scan`.
fn stages_label(stages: &PolicyStages) -> String {
    let own = [
        ("observe", &stages.observe),
        ("estimate", &stages.estimate),
        ("share", &stages.share),
        ("place", &stages.place),
        ("move", &stages.moves),
    ];
    let mut name = stages.base.clone();
    for (stage, value) in own {
        if let Some(value) = value {
            name += &format!(" {stage}={value}");
        }
    }
    for (key, value) in stages.list_keys().into_iter().flatten() {
        name += &format!(" {key}={value}");
    }
    name
}
