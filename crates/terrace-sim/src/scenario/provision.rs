//! The device that sizes a guest's tiers, and later resizes: `provision` and `resize` of a VM.
//!
//! Responsible for: the keys, each checked on its own, and the conditions that they set for the VM's other keys. It
//! leaves to others: the work of a device ([`crate::host::provision`]).

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use terrace_proto::PageSize;

use super::error::Fault;
use super::quantity::{Size, Time, size_text};
use super::raw::{above_zero, as_many};
use super::{HostPolicy, Vm};
use crate::base::side::Side;
use crate::base::tier::Tier;
use crate::host::device::{BLOCK, Device, Provision, Resize};

/// Most resizes of a VM.
const MAX_RESIZES: usize = 1024;

/// `provision` as written: a device's name, or a table.
#[derive(Debug)]
pub(super) enum RawProvision {
    Name(String),
    Table(RawTable),
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of by, nodes and page")]
pub(super) struct RawTable {
    by: String,
    nodes: Option<Vec<Size>>,
    page: Option<PageSize>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of at, fast and slow")]
pub(super) struct RawResize {
    at: Time,
    fast: Option<Size>,
    slow: Option<Size>,
    tiers: Option<Vec<Size>>,
}

impl<'de> Deserialize<'de> for RawProvision {
    /// Deserializes by hand: a derived untagged enum would hide which key is wrong.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = RawProvision;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a device's name, or a table with `by`")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<RawProvision, E> {
                Ok(RawProvision::Name(name.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawProvision, A::Error> {
                RawTable::deserialize(MapAccessDeserializer::new(map)).map(RawProvision::Table)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Checks the keys of a VM of these sizes, which may get as much as its ceiling; `None` if no device sizes its nodes.
pub(super) fn check(
    (raw, ceiling): (Option<RawProvision>, Option<u64>),
    resizes: Vec<RawResize>,
    path: &str,
    sizes: &[u64],
    tiers: &[Tier],
) -> Result<Option<Provision>, Fault> {
    let at = format!("{path}.provision");
    let (name, nodes, page) = match raw {
        None => ("static".into(), None, None),
        Some(RawProvision::Name(name)) => (name, None, None),
        Some(RawProvision::Table(raw)) => (raw.by, raw.nodes, raw.page),
    };
    let steps = check_resizes(resizes, path, tiers)?;
    if name == "static" {
        return match (nodes, steps.is_empty()) {
            (None, true) => Ok(None),
            (None, false) => {
                let what = "memory that is just there cannot be resized: set provision = \"hyperflex\", \"balloon\" or \"virtio-mem\"";
                Err(Fault::new(format!("{path}.resize"), what))
            }
            (Some(_), _) => {
                let what =
                    "nodes of static memory are as large as the VM's sizes say: leave nodes out";
                Err(Fault::new(format!("{at}.nodes"), what))
            }
        };
    }
    let by = Device::ALL.into_iter().find(|device| device.name() == name);
    let Some(by) = by else {
        let all = Device::ALL.map(Device::name).join(", ");
        let what = format!("there is no \"{name}\": allowed is static, {all}");
        return Err(Fault::new(at, what));
    };
    let mut provision = Provision::up_to(by, sizes, steps, ceiling.unwrap_or(0));
    provision.page = page.unwrap_or(PageSize::Base);
    if page.is_some() && by == Device::VirtioMem {
        let what = "virtio-mem takes blocks, not pages: leave page out";
        return Err(Fault::new(format!("{at}.page"), what));
    }
    if let Some(nodes) = nodes {
        as_many(&format!("{at}.nodes"), nodes.len(), tiers)?;
        let node = |(t, size)| above_zero(&format!("{at}.nodes[{t}]"), size);
        let nodes = nodes.into_iter().enumerate().map(node);
        provision.nodes = nodes.collect::<Result<_, _>>()?;
    }
    Ok(Some(provision))
}

fn check_resizes(raw: Vec<RawResize>, path: &str, tiers: &[Tier]) -> Result<Vec<Resize>, Fault> {
    if raw.len() > MAX_RESIZES {
        let what = format!("{} are too many: at most {MAX_RESIZES}", raw.len());
        return Err(Fault::new(format!("{path}.resize"), what));
    }
    let mut all: Vec<Resize> = Vec::new();
    for (i, step) in raw.into_iter().enumerate() {
        let path = format!("{path}.resize[{i}]");
        let at_ns = step.at.0;
        let given = match (step.fast, step.slow, step.tiers) {
            (None, None, Some(given)) => given,
            (Some(fast), Some(slow), None) if tiers.len() == 2 => vec![fast, slow],
            _ if tiers.len() == 2 => {
                let what = "give what the VM is to have as fast and slow, or as tiers, not both";
                return Err(Fault::new(path, what));
            }
            _ => {
                let what = format!(
                    "the machine has {} tiers: give a size for each, as tiers = [\"8GiB\", …]",
                    tiers.len()
                );
                return Err(Fault::new(path, what));
            }
        };
        as_many(&format!("{path}.tiers"), given.len(), tiers)?;
        let size = |(t, size): (usize, Size)| match size.0 {
            0 => Ok(0),
            _ => above_zero(&format!("{path}.tiers[{t}]"), size),
        };
        let sizes = given.into_iter().enumerate().map(size);
        let sizes = sizes.collect::<Result<_, _>>()?;
        if all.last().is_some_and(|before| before.at_ns >= at_ns) {
            let what = "not later than the resize before it: write them in order of time";
            return Err(Fault::new(format!("{path}.at"), what));
        }
        all.push(Resize { at_ns, sizes });
    }
    Ok(all)
}

impl Vm {
    /// Checks the conditions that a device sets for its VM.
    pub(super) fn check_provision(&self, path: &str) -> Result<(), Fault> {
        let Some(provision) = &self.provision else {
            return Ok(());
        };
        let at = format!("{path}.provision");
        if !self.shortage.balloon.is_empty() {
            let what =
                "cannot be simulated with `balloon`: leave that out, and say sizes by `resize`";
            return Err(Fault::new(at, what));
        }
        if self.shortage.swap > 0 && self.policy == HostPolicy::StaticBest {
            let what = "static-best knows no guest that swaps while a device sizes it: leave swap out, or name another policy";
            return Err(Fault::new(at, what));
        }
        if !self.pages.agree() || !self.pages.all(PageSize::Base) && self.baseline().is_some() {
            let what = "only pages of 4KiB can be taken from this guest: set page = \"4KiB\"";
            return Err(Fault::new(at, what));
        }
        if provision.page > self.pages.guest {
            let what =
                "the guest has no pages as large: set the VM's page = \"2MiB\", or leave this out";
            return Err(Fault::new(format!("{at}.page"), what));
        }
        self.check_owner(&at)?;
        self.check_nodes(provision, path)
    }

    /// Checks that the guest places the VM's pages, or that none are moved: otherwise sized nodes are of no use.
    /// Under a bound, tiers have no end.
    pub(crate) fn check_owner(&self, path: &str) -> Result<(), Fault> {
        let unbound = matches!(
            self.policy,
            HostPolicy::AllFast
                | HostPolicy::AllSlow
                | HostPolicy::FirstTouch
                | HostPolicy::StaticBest
        );
        let in_guest = self.baseline().is_some_and(|(_, side)| side == Side::Guest);
        let moves_none = unbound || self.policy.stays();
        if self.provision.is_none() || moves_none || in_guest || self.moves_in_guest() {
            return Ok(());
        }
        let what = format!(
            "a device sizes the nodes of a guest that places its own pages, and \"{}\" places them at the host: \
             set move = \"guest\" in a policy of the engine, or guest_policy, or leave provision out",
            self.policy.name()
        );
        Err(Fault::new(path, what))
    }

    /// Checks that a guest which is to move its own pages has nodes to move them between, pages of 4 KiB to move, and free memory
    /// that is known.
    pub(super) fn check_guest_moves(&self, path: &str) -> Result<(), Fault> {
        if !self.moves_in_guest() {
            return Ok(());
        }
        let what = if self.policy.stays() {
            "this policy moves no page, so there is none for the guest to move: leave move out"
        } else if self.sizes.iter().filter(|size| **size > 0).count() < 2 {
            "a guest with memory of one tier has no other node to move pages to: give it memory of two, or name another policy"
        } else if !self.pages.all(PageSize::Base) {
            "a guest moves pages of 4KiB, and none of 2MiB are named to it: set page = \"4KiB\", or move = \"linux\""
        } else if !self.shortage.balloon.is_empty() {
            "a balloon takes pages of no node in particular, and a guest that moves pages must know its nodes: leave balloon out, or set provision"
        } else {
            return Ok(());
        };
        Err(Fault::new(format!("{path}.policy"), what))
    }

    fn check_nodes(&self, provision: &Provision, path: &str) -> Result<(), Fault> {
        let first = (format!("{path}.tiers"), &self.sizes);
        let resizes = provision.resizes.iter().enumerate();
        let later = resizes.map(|(i, r)| (format!("{path}.resize[{i}].tiers"), &r.sizes));
        for (path, sizes) in std::iter::once(first).chain(later) {
            for (t, (bytes, node)) in sizes.iter().zip(&provision.nodes).enumerate() {
                let path = format!("{path}[{t}]");
                if bytes > node {
                    let what = format!(
                        "{} is more than the guest's node has ({}): take less, or make provision.nodes larger",
                        size_text(*bytes),
                        size_text(*node)
                    );
                    return Err(Fault::new(path, what));
                }
                if provision.by == Device::VirtioMem && !bytes.is_multiple_of(BLOCK) {
                    let what = format!(
                        "{} is no whole number of virtio-mem's blocks of {}",
                        size_text(*bytes),
                        size_text(BLOCK)
                    );
                    return Err(Fault::new(path, what));
                }
            }
        }
        Ok(())
    }

    /// The least memory that the VM is to have at any time, bytes.
    pub(super) fn least_bytes(&self) -> u64 {
        let resizes = self.provision.iter().flat_map(|p| &p.resizes);
        let later = resizes.map(|resize| resize.sizes.iter().sum());
        later.fold(self.bytes(), u64::min)
    }
}
