//! The registry: a named policy is a composition of stages, and each stage can be overridden.
//!
//! Responsible for: names, what they stand for, and what is allowed. It leaves to others: the stages
//! themselves ([`crate::track`], [`crate::estimate`], [`crate::share`], [`crate::place`]).

mod lists;

pub(crate) use lists::write_weight;
pub use lists::{HotLists, HotnessThreshold, Sides};

use std::fmt;

use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Serialize};

use crate::error::ConfigError;

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $text)] $variant),+
        }

        impl $name {
            /// All there are.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name as people write it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            fn find(key: &str, value: &str) -> Result<Self, ConfigError> {
                Self::ALL
                    .iter()
                    .copied()
                    .find(|n| n.name() == value)
                    .ok_or_else(|| ConfigError::Name {
                        key: key.into(),
                        value: value.into(),
                        allowed: [$($text),+].join(", "),
                    })
            }
        }
    };
}

names! {
    /// A named policy.
    PolicyName {
        /// vTMM.
        Vtmm = "vtmm",
        /// Terrace's own: rates that outlive rounds, windows that measure, moves by benefit.
        Terrace = "terrace",
        /// vTMM with the paper's own mechanisms, which only the simulator has: scans of the table pages
        /// that PML logged, pre-copy migration.
        VtmmPaper = "vtmm-paper",
        /// vTMM with HeMem's way of telling hot from cold (vTMM §4.5).
        FixedThreshold = "fixed-threshold",
        /// HMvisor: short windows back to back, lists of hot and of cold pages, a bounded number of pages a second.
        /// Live it scans the guest's tables, in the simulator the second stage's.
        Hmvisor = "hmvisor",
        /// vTMM with a shuffled ranking: a control that a placement test must fail.
        Random = "random",
        /// Pages stay where the kernel first put them; nothing is managed.
        FirstTouch = "first-touch",
        /// HPMBS: the demand of a VM from protection faults; no page moves. Simulator only.
        Hpmbs = "hpmbs",
        /// Every page into the first tier, as far as limits allow.
        PreferFast = "prefer-fast",
        /// Every page into the last tier, as far as limits allow.
        PreferSlow = "prefer-slow",
    }
}

names! {
    /// How pages touched are seen.
    Observe {
        /// Guest page tables, re-armed through the multi-level queue (vTMM §3.2).
        GuestScan = "guest-scan",
        /// Guest page tables, every page re-armed in every window.
        GuestScanPlain = "guest-scan-plain",
        /// As `guest-scan`, but only the table pages that the processor's page-modification log names
        /// (vTMM §3.2.1). Simulator only.
        PmlLog = "pml-log",
        /// Second-stage tables, every page re-armed in every window (vTMM's "EPT scanner").
        /// Simulator only.
        EptScan = "ept-scan",
        /// Faults of accesses to 2 MiB blocks outside of a hot set, whose permission was taken from the second stage
        /// (HPMBS §2). Simulator only.
        ProtectionFaults = "protection-faults",
        /// Not at all: every page counts as known.
        None = "none",
    }
}

names! {
    /// How pages are ranked.
    Estimate {
        /// Weighted reads and writes, bucket-sorted (vTMM §3.3).
        PageDegree = "page-degree",
        /// Hot or cold by a fixed number of visits (vTMM §4.5, after HeMem).
        FixedThreshold = "fixed-threshold",
        /// Counts of an epoch above a threshold, and lists on which pages rise and fall (HMvisor §3.2.1).
        HotLists = "hot-lists",
        /// Touches per second, averaged over rounds.
        Rates = "rates",
        /// Shuffled, from a seed.
        Random = "random",
        /// All alike.
        Uniform = "uniform",
    }
}

names! {
    /// Who gets which share of the fast tier.
    Share {
        /// Each VM has its own, of fixed size: its nominal size if it has one, and within the limits
        /// that are set from outside. Also written `limits`.
        Island = "island",
        /// A pool moves fast memory between VMs that have a nominal size (vTMM §3.5); the others are
        /// as under `island`.
        Pool = "pool",
    }
}

names! {
    /// Which pages travel.
    Place {
        /// Hottest against coldest (vTMM §3.3.2).
        Exchange = "exchange",
        /// What is expected to save more than it costs.
        Benefit = "benefit",
        /// What the top lists hold, at most so many bytes a second (HMvisor §3.2.1).
        TopLists = "top-lists",
        /// All towards the first tier.
        Fastest = "fastest",
        /// All towards the last tier.
        Slowest = "slowest",
        /// Pages stay where they are.
        Stay = "stay",
    }
}

names! {
    /// How they travel.
    Move {
        /// The kernel's migration (`move_pages`).
        Linux = "linux",
        /// Copied while write-protected (HeMem, as vTMM §4.4 describes it). Simulator only.
        WriteProtect = "write-protect",
        /// Copied while mapped; what was written meanwhile by PML is copied again, and the mapping is
        /// filled at once (vTMM §3.4). Simulator only.
        PmlCopy = "pml-copy",
        /// The guest moves what lies in the frames that the host names, between its own nodes (HMvisor §3.2.2).
        /// Simulator only.
        Guest = "guest",
    }
}

/// A policy as people write it: a name, or a name and stages that replace its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum PolicyChoice {
    /// `"vtmm"`.
    Named(String),
    /// `{ base = "vtmm", estimate = "fixed-threshold" }`.
    Composed(PolicyStages),
}

/// A named policy and the stages that replace its own.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyStages {
    /// The named policy.
    pub base: String,
    /// See [`Observe`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observe: Option<String>,
    /// See [`Estimate`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<String>,
    /// See [`Share`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// See [`Place`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// See [`Move`].
    #[serde(default, rename = "move", skip_serializing_if = "Option::is_none")]
    pub moves: Option<String>,
    /// See [`HotLists::lists`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lists: Option<u8>,
    /// See [`HotLists::sub_epoch_ms`]; a time, as `"100ms"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_epoch: Option<String>,
    /// See [`HotLists::sub_epochs`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_epochs: Option<u8>,
    /// See [`HotLists::threshold`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hotness_threshold: Option<HotnessThreshold>,
    /// See [`HotLists::decay_epochs`]; a time, as `"10s"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decay_time: Option<String>,
    /// See [`HotLists::sides`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sides: Option<String>,
}

impl PolicyStages {
    /// Whether nothing of the base is replaced.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        let bare = Self {
            base: self.base.clone(),
            ..Self::default()
        };
        *self == bare
    }
}

impl<'de> Deserialize<'de> for PolicyChoice {
    /// By hand: a derived untagged enum would hide which key is unknown.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Choice;
        impl<'de> Visitor<'de> for Choice {
            type Value = PolicyChoice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a policy's name, or a table with `base`")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<PolicyChoice, E> {
                Ok(PolicyChoice::Named(name.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PolicyChoice, A::Error> {
                PolicyStages::deserialize(MapAccessDeserializer::new(map))
                    .map(PolicyChoice::Composed)
            }
        }
        deserializer.deserialize_any(Choice)
    }
}

impl Default for PolicyChoice {
    fn default() -> Self {
        Self::from(PolicyName::Terrace)
    }
}

impl From<PolicyName> for PolicyChoice {
    fn from(name: PolicyName) -> Self {
        Self::Named(name.name().into())
    }
}

/// A policy with every stage known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The base's name.
    pub name: PolicyName,
    /// How pages touched are seen.
    pub observe: Observe,
    /// How pages are ranked.
    pub estimate: Estimate,
    /// Who gets which share.
    pub share: Share,
    /// Which pages travel.
    pub place: Place,
    /// How they travel.
    pub moves: Move,
    /// The parameters of hot lists, for a policy that has them.
    pub lists: HotLists,
}

/// The places in which policies run, each with the stages that exist there. An engine itself takes whatever a log may
/// have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registry {
    /// A live host.
    Live,
    /// The simulator. Its bounds and other systems' mechanisms are its own, and no policies of an engine.
    Simulator,
}

impl Registry {
    /// The named policies.
    #[must_use]
    pub fn policies(self) -> &'static [PolicyName] {
        match self {
            Self::Live => &[
                PolicyName::Vtmm,
                PolicyName::Terrace,
                PolicyName::FixedThreshold,
                PolicyName::Hmvisor,
                PolicyName::Random,
                PolicyName::FirstTouch,
                PolicyName::PreferFast,
                PolicyName::PreferSlow,
            ],
            Self::Simulator => &[
                PolicyName::Vtmm,
                PolicyName::Terrace,
                PolicyName::VtmmPaper,
                PolicyName::FixedThreshold,
                PolicyName::Hmvisor,
                PolicyName::Random,
                PolicyName::Hpmbs,
            ],
        }
    }

    /// How pages touched are seen.
    #[must_use]
    pub fn observe(self) -> &'static [Observe] {
        match self {
            Self::Live => &[Observe::GuestScan, Observe::GuestScanPlain, Observe::None],
            Self::Simulator => &[
                Observe::GuestScan,
                Observe::GuestScanPlain,
                Observe::PmlLog,
                Observe::EptScan,
                Observe::ProtectionFaults,
            ],
        }
    }

    /// How pages travel.
    #[must_use]
    pub fn moves(self) -> &'static [Move] {
        match self {
            Self::Live => &[Move::Linux],
            Self::Simulator => &[Move::Linux, Move::WriteProtect, Move::PmlCopy, Move::Guest],
        }
    }

    /// The stages that a name stands for in this place.
    #[must_use]
    pub fn stages(self, name: PolicyName) -> Policy {
        let stages = name.stages();
        match (self, name) {
            (Self::Simulator, PolicyName::Hmvisor) => Policy {
                observe: Observe::EptScan,
                ..stages
            },
            _ => stages,
        }
    }

    /// The part of a policy that is not in the registry, as `key = "value"`.
    #[must_use]
    pub fn lacks(self, policy: &Policy) -> Option<String> {
        let said = |is_there: bool, key: &str, name: &str| {
            (!is_there).then(|| format!("{key} = \"{name}\""))
        };
        let observe = self.observe().contains(&policy.observe);
        let moves = self.moves().contains(&policy.moves);
        // Live, a base is no more than where stages come from, and each of them was checked.
        let named = self == Self::Live || self.policies().contains(&policy.name);
        said(observe, "observe", policy.observe.name())
            .or_else(|| said(moves, "move", policy.moves.name()))
            .or_else(|| said(named, "base", policy.name.name()))
    }
}

/// Names that policies had, accepted for one version: they mean the simulator's bounds, which have no limits.
const OLD_NAMES: [(&str, PolicyName); 2] = [
    ("all-fast", PolicyName::PreferFast),
    ("all-slow", PolicyName::PreferSlow),
];

impl PolicyName {
    fn by_old_name(value: &str) -> Option<Self> {
        let mut old = OLD_NAMES.iter();
        old.find(|(name, _)| *name == value).map(|(_, now)| *now)
    }

    fn by_name(key: &str, value: &str) -> Result<Self, ConfigError> {
        Self::by_old_name(value).map_or_else(|| Self::find(key, value), Ok)
    }

    /// The stages that the name stands for.
    #[must_use]
    pub fn stages(self) -> Policy {
        let vtmm = Policy {
            name: self,
            observe: Observe::GuestScan,
            estimate: Estimate::PageDegree,
            share: Share::Pool,
            place: Place::Exchange,
            moves: Move::Linux,
            lists: HotLists::default(),
        };
        let blind = |place| Policy {
            observe: Observe::None,
            estimate: Estimate::Uniform,
            share: Share::Island,
            place,
            ..vtmm
        };
        match self {
            Self::Terrace => Policy {
                observe: Observe::GuestScanPlain,
                estimate: Estimate::Rates,
                place: Place::Benefit,
                ..vtmm
            },
            Self::Vtmm => vtmm,
            Self::VtmmPaper => Policy {
                observe: Observe::PmlLog,
                moves: Move::PmlCopy,
                ..vtmm
            },
            Self::FixedThreshold => Policy {
                estimate: Estimate::FixedThreshold,
                ..vtmm
            },
            Self::Hmvisor => Policy {
                observe: Observe::GuestScanPlain,
                estimate: Estimate::HotLists,
                share: Share::Island,
                place: Place::TopLists,
                ..vtmm
            },
            Self::Random => Policy {
                estimate: Estimate::Random,
                ..vtmm
            },
            Self::FirstTouch => blind(Place::Stay),
            Self::Hpmbs => Policy {
                observe: Observe::ProtectionFaults,
                ..blind(Place::Stay)
            },
            Self::PreferFast => blind(Place::Fastest),
            Self::PreferSlow => blind(Place::Slowest),
        }
    }
}

impl PolicyChoice {
    /// The same with another sharing stage.
    #[must_use]
    pub fn with_share(&self, share: Share) -> Self {
        Self::Composed(PolicyStages {
            share: Some(share.name().into()),
            ..self.stages()
        })
    }

    /// The same with another way of moving.
    #[must_use]
    pub fn with_move(&self, moves: Move) -> Self {
        Self::Composed(PolicyStages {
            moves: Some(moves.name().into()),
            ..self.stages()
        })
    }

    /// The base with the stages that replace its own.
    fn stages(&self) -> PolicyStages {
        match self {
            Self::Named(base) => PolicyStages {
                base: base.clone(),
                ..PolicyStages::default()
            },
            Self::Composed(stages) => stages.clone(),
        }
    }

    /// The named policy that it is made of, as written.
    #[must_use]
    pub fn base(&self) -> &str {
        match self {
            Self::Named(name) => name,
            Self::Composed(stages) => &stages.base,
        }
    }

    /// A message if the policy goes by an old name; `key` is the choice's own key.
    #[must_use]
    pub fn renamed(&self, key: &str) -> Option<String> {
        let old = self.base();
        let now = PolicyName::by_old_name(old)?.name();
        Some(format!(
            "{key}: \"{old}\" is called \"{now}\" now; the old name is accepted for this version alone"
        ))
    }

    /// Resolves all names for a live host.
    ///
    /// # Errors
    /// If a name is not in the registry, or no live host has it.
    pub fn resolve_live(&self, key: &str) -> Result<Policy, ConfigError> {
        let policy = self.resolve(key)?;
        match Registry::Live.lacks(&policy) {
            None => Ok(policy),
            Some(stage) => Err(ConfigError::SimulatorOnly {
                key: key.into(),
                stage,
            }),
        }
    }

    /// Resolves all names; `key` is the choice's own, for the error.
    ///
    /// # Errors
    /// If a name is not in the registry.
    pub fn resolve(&self, key: &str) -> Result<Policy, ConfigError> {
        let s = match self {
            Self::Named(name) => return Ok(PolicyName::by_name(key, name)?.stages()),
            Self::Composed(stages) => stages,
        };
        let mut policy = PolicyName::by_name(&format!("{key}.base"), &s.base)?.stages();
        if let Some(v) = &s.observe {
            policy.observe = Observe::find(&format!("{key}.observe"), v)?;
        }
        if let Some(v) = &s.estimate {
            policy.estimate = Estimate::find(&format!("{key}.estimate"), v)?;
        }
        if let Some(v) = &s.share {
            let v = if v == "limits" { "island" } else { v };
            policy.share = Share::find(&format!("{key}.share"), v)?;
        }
        if let Some(v) = &s.place {
            policy.place = Place::find(&format!("{key}.place"), v)?;
        }
        if let Some(v) = &s.moves {
            policy.moves = Move::find(&format!("{key}.move"), v)?;
        }
        policy.lists = HotLists::of(s, key)?;
        policy.check_lists(s, key)?;
        Ok(policy)
    }
}

impl Policy {
    /// Lists are one thing in two stages, and count windows that stand alone.
    fn check_lists(&self, stages: &PolicyStages, key: &str) -> Result<(), ConfigError> {
        let pairs = |key: &str, stage: &str, needs: &str| ConfigError::Stages {
            key: key.into(),
            stage: stage.into(),
            needs: needs.into(),
        };
        let (estimate, place) = (self.estimate.name(), self.place.name());
        match (self.estimate, self.place) {
            (Estimate::HotLists, Place::TopLists) => {}
            (Estimate::HotLists, _) => {
                let needs = "place = \"top-lists\"";
                return Err(pairs(&format!("{key}.estimate"), estimate, needs));
            }
            (_, Place::TopLists) => {
                let needs = "estimate = \"hot-lists\"";
                return Err(pairs(&format!("{key}.place"), place, needs));
            }
            (Estimate::Rates, Place::Benefit) => Self::no_list_key(stages, key)?,
            (Estimate::Rates, _) => {
                let needs = "place = \"benefit\"";
                return Err(pairs(&format!("{key}.estimate"), estimate, needs));
            }
            (_, Place::Benefit) => {
                let needs = "estimate = \"rates\"";
                return Err(pairs(&format!("{key}.place"), place, needs));
            }
            _ => return Self::no_list_key(stages, key),
        }
        self.counts_windows(key)
    }

    fn no_list_key(stages: &PolicyStages, key: &str) -> Result<(), ConfigError> {
        match stages.list_key() {
            None => Ok(()),
            Some(own) => Err(ConfigError::Stages {
                key: format!("{key}.{own}"),
                stage: "a key of lists".into(),
                needs: "base = \"hmvisor\"".into(),
            }),
        }
    }

    /// A page that is not re-armed in each window has no count of windows.
    fn counts_windows(&self, key: &str) -> Result<(), ConfigError> {
        match self.observe {
            Observe::GuestScanPlain | Observe::EptScan => Ok(()),
            _ => Err(ConfigError::Stages {
                key: format!("{key}.estimate"),
                stage: self.estimate.name().into(),
                needs: "observe = \"guest-scan-plain\", or in the simulator \"ept-scan\"".into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_stages_are_not_live_nor_blind_live_ones_simulated() {
        let lacks = |registry: Registry, name: PolicyName| registry.lacks(&name.stages());
        for name in PolicyName::ALL {
            let live = Registry::Live.policies().contains(name);
            let simulated = Registry::Simulator.policies().contains(name);
            assert!(live || simulated, "{name:?}");
            assert_eq!(lacks(Registry::Live, *name).is_none(), live, "{name:?}");
            assert_eq!(
                lacks(Registry::Simulator, *name).is_none(),
                simulated,
                "{name:?}"
            );
        }
        let paper = lacks(Registry::Live, PolicyName::VtmmPaper);
        assert_eq!(paper.as_deref(), Some("observe = \"pml-log\""));
    }

    fn choice(json: &str) -> PolicyChoice {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn every_name_resolves_to_itself() {
        for name in PolicyName::ALL {
            let policy = PolicyChoice::from(*name).resolve("policy").unwrap();
            assert_eq!(policy.name, *name);
        }
    }

    #[test]
    fn fixed_threshold_is_vtmm_with_that_estimate() {
        let composed = choice(r#"{"base": "vtmm", "estimate": "fixed-threshold"}"#)
            .resolve("policy")
            .unwrap();
        let named = choice(r#""fixed-threshold""#).resolve("policy").unwrap();
        assert_eq!(
            Policy {
                name: PolicyName::Vtmm,
                ..named
            },
            composed
        );
    }

    #[test]
    fn each_stage_can_be_replaced_and_unknown_names_list_the_known() {
        let policy = choice(r#"{"base": "vtmm", "observe": "ept-scan", "move": "linux"}"#)
            .resolve("policy")
            .unwrap();
        assert_eq!(policy.observe, Observe::EptScan);
        let err = choice(r#"{"base": "vtmm", "estimate": "lru"}"#)
            .resolve("policy")
            .unwrap_err();
        assert_eq!(
            err.to_string(),
            "policy.estimate = \"lru\" is unknown: allowed is page-degree, fixed-threshold, hot-lists, rates, random, uniform"
        );
    }

    #[test]
    fn old_names_are_accepted_with_a_word_about_the_new_ones() {
        for (old, now) in [("all-fast", "prefer-fast"), ("all-slow", "prefer-slow")] {
            let choice = PolicyChoice::Named(old.into());
            let policy = choice.resolve("policy").unwrap();
            assert_eq!(policy.name.name(), now);
            let said = choice.renamed("engine.policy").unwrap();
            assert!(said.contains(old) && said.contains(now), "{said}");
            let island = choice.with_share(Share::Island);
            assert!(island.renamed("engine.policy").is_some());
            assert_eq!(PolicyChoice::Named(now.into()).renamed("policy"), None);
        }
        let error = PolicyChoice::Named("lru".into()).resolve("policy");
        assert!(!error.unwrap_err().to_string().contains("all-fast"));
    }

    #[test]
    fn limits_is_an_older_name_of_island_and_vtmm_shares_by_a_pool() {
        let share = |json| choice(json).resolve("policy").unwrap().share;
        assert_eq!(share(r#""vtmm""#), Share::Pool);
        assert_eq!(
            share(r#"{"base": "vtmm", "share": "limits"}"#),
            Share::Island
        );
        let island = choice(r#""vtmm""#).with_share(Share::Island);
        assert_eq!(island, choice(r#"{"base": "vtmm", "share": "island"}"#));
    }

    #[test]
    fn an_unknown_stage_is_named() {
        let err =
            serde_json::from_str::<PolicyChoice>(r#"{"base": "vtmm", "obsrve": "x"}"#).unwrap_err();
        assert!(err.to_string().contains("unknown field `obsrve`"), "{err}");
    }
}
