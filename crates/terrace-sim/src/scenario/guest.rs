//! A guest's own policy, parsed from its name or table.

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use terrace_core::gather::{BLOCK_PAGES, Cl};

use super::GuestPolicy;
use super::error::Fault;
use super::policy::{baseline, baseline_names};
use super::quantity::Whole;

/// A guest's policy as written: a name, or a table with `base`.
#[derive(Debug)]
pub(super) enum RawGuestPolicy {
    Name(String),
    Table(RawTable),
}

/// The table of a guest that gathers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTable {
    base: String,
    cl: Option<Whole>,
}

impl<'de> Deserialize<'de> for RawGuestPolicy {
    /// Deserializes by hand: a derived untagged enum would hide which key is wrong.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = RawGuestPolicy;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a policy's name, or a table with `base`")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<RawGuestPolicy, E> {
                Ok(RawGuestPolicy::Name(name.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawGuestPolicy, A::Error> {
                let table = RawTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(RawGuestPolicy::Table(table))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl RawGuestPolicy {
    /// The policy that the text names, checked.
    pub fn check(self, path: &str) -> Result<GuestPolicy, Fault> {
        let raw = match self {
            Self::Name(name) => return by_name(&name, path),
            Self::Table(raw) => raw,
        };
        let policy = by_name(&raw.base, &format!("{path}.base"))?;
        let Some(Whole(cl)) = raw.cl else {
            return Ok(policy);
        };
        let path = format!("{path}.cl");
        if policy != GuestPolicy::AUTO {
            let what = format!(
                "belongs to base = \"{}\" alone: leave it out",
                GuestPolicy::GATHERS
            );
            return Err(Fault::new(path, what));
        }
        let cl = u16::try_from(cl).ok();
        let cl = cl.filter(|cl| (2..=BLOCK_PAGES).contains(cl));
        cl.map(|cl| GuestPolicy::Gathers(Cl::Below(cl)))
            .ok_or_else(|| {
                let what =
                    format!("out of range: allowed is 2 to {BLOCK_PAGES} hot pages of a block");
                Fault::new(path, what)
            })
    }
}

/// The policy of a name that a guest gives for itself.
fn by_name(name: &str, path: &str) -> Result<GuestPolicy, Fault> {
    if name == GuestPolicy::GATHERS {
        return Ok(GuestPolicy::AUTO);
    }
    baseline(name).map(GuestPolicy::Places).ok_or_else(|| {
        let what = format!(
            "\"{name}\" cannot be simulated in the guest: allowed is {}, {}",
            GuestPolicy::GATHERS,
            baseline_names().join(", ")
        );
        Fault::new(path, what)
    })
}
