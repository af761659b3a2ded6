//! The daemon's side: which VMs are looked after, and the one way of an order.

use std::collections::{BTreeMap, BTreeSet};

use terrace_api::elastic::Resize;
use terrace_host::elastic::Bytes;
use terrace_host::{Finding, node_memory};
use terrace_sys::ProcessId;

use super::admission::{self, Claim, Free, admit};
use super::keeper::{Keeper, News, Sent, Told};
use super::kept::Kept;
use super::lookout::Lookout;
use super::{Finder, Kind, Look, Origin, Pace, Place, TierLook, size, three_ways, tier_name};
use crate::api::Failure;
use crate::daemon::Daemon;

/// The least that a guest's first tier may be left with: below it no Linux lives, and a number so small is more likely
/// a wrong unit.
const LEAST: u64 = 64 << 20;

/// All elastic memory of this host.
pub struct Elastics {
    /// By the VM's name.
    pub vms: BTreeMap<String, Kept>,
    /// VMs, by name, with nothing that resizes them, and their processes then: found again, they are not asked again.
    without: BTreeMap<String, Option<ProcessId>>,
    /// How VMs are looked after.
    pub pace: Pace,
    finder: Finder,
    lookout: Lookout,
    /// Of the next keeper.
    next_keeper: u64,
    /// Of the last order.
    last_order: u64,
}

impl Elastics {
    /// No VM yet.
    pub fn new(finder: Finder, pace: Pace) -> Self {
        Self {
            vms: BTreeMap::new(),
            without: BTreeMap::new(),
            pace,
            finder,
            lookout: Lookout::default(),
            next_keeper: 0,
            last_order: 0,
        }
    }
}

/// An order that is on its way, and how it is spoken of.
pub struct Given {
    /// The order.
    pub sent: Sent,
    /// What resizes the VM, as the API calls it.
    pub by: &'static str,
    /// The same, to stand after "by".
    pub by_words: String,
    /// `fast 512 MiB → 256 MiB`.
    pub words: String,
    /// What each tier shall have, bytes.
    pub size_bytes: Vec<Option<u64>>,
}

/// Why an order is not given.
enum Refusal {
    Absent(String),
    Invalid(String),
    Pinned(String),
    Full(String),
}

impl Daemon {
    /// Looks after a VM that was found, or that an operator asks for, where it has elastic memory.
    pub fn keep_elastic(&mut self, name: &str, is_asked_for: bool) {
        let Some(entry) = self.vms.get(name) else {
            return;
        };
        let process = entry.process;
        if let Some(kept) = self.elastics.vms.get_mut(name)
            // A look that could not find out the process says nothing of another one.
            && (kept.process == process || process.is_none())
        {
            if is_asked_for && kept.is_quiet {
                kept.heard_of();
            }
            return;
        }
        if !is_asked_for && self.elastics.without.get(name) == Some(&process) {
            return;
        }
        let Ok(config) = self.config.vm(name) else {
            return;
        };
        let is_configured = config.hyperflex.is_some();
        let place = Place {
            name: name.to_owned(),
            pid: process.map(|process| process.pid),
            monitor: entry.socket.clone(),
            config,
            is_asked_for,
            root: self.root.clone(),
            lookout: self.elastics.lookout.clone(),
        };
        let is_quiet = place.is_quiet();
        let Some(find) = (self.elastics.finder)(&place) else {
            return;
        };
        self.elastics.next_keeper += 1;
        let (id, pace) = (self.elastics.next_keeper, self.elastics.pace);
        match Keeper::start(id, place, find, pace, self.inbox.clone()) {
            Ok(keeper) => {
                let mut kept = Kept::new(keeper, process);
                (kept.is_configured, kept.is_quiet) = (is_configured, is_quiet);
                self.elastics.vms.insert(name.to_owned(), kept);
            }
            Err(error) => self.tell(
                Some(name),
                format!("its elastic memory is not looked after: no thread: {error}"),
            ),
        }
    }

    /// Ends the keepers of VMs that are gone.
    pub fn forget_elastic(&mut self) {
        let vms = &self.vms;
        self.elastics.vms.retain(|name, _| vms.contains_key(name));
        let without = &mut self.elastics.without;
        without.retain(|name, _| vms.contains_key(name));
    }

    /// Takes a keeper's news in.
    pub fn elastic_news(&mut self, name: &str, news: News) {
        let pace = self.elastics.pace;
        let kept = self.elastics.vms.get_mut(name);
        let Some(kept) = kept.filter(|kept| kept.keeper.id == news.keeper) else {
            return;
        };
        if news.told.is_nothing() {
            // Its monitor is left alone until an operator asks for it again.
            let gone = self.elastics.vms.remove(name);
            let process = gone.and_then(|kept| kept.process);
            self.elastics.without.insert(name.to_owned(), process);
            return;
        }
        let given = match &news.told {
            Told::Looked(looked) if looked.look.is_ok() => Some(looked.order),
            Told::Looked(_) | Told::Answered(..) => None,
        };
        let events = kept.take(news.told, &pace);
        let held = given.and_then(|given| kept.held(given));
        for event in events {
            self.tell(Some(name), event);
        }
        if let Some(held) = held {
            self.hold(name, held);
        }
    }

    /// Takes back a target that stands from before a device was passed through, or before the guest started anew:
    /// its driver would go on giving back memory that the device writes to.
    fn hold(&mut self, name: &str, wanted: Vec<Option<u64>>) {
        let Some(kept) = self.elastics.vms.get(name) else {
            return;
        };
        let Some(look) = kept.seen.as_ref().map(|seen| &seen.look) else {
            return;
        };
        let (origin, kind) = (kept.holding(), kept.kind());
        let words = words(kind, look, &wanted, &Resize::default());
        let told = format!("{words} ordered by {}, by {}", origin.words(), kept.words());
        // Nobody waits for it: what comes of it is an event.
        let _sent = self.send_order(name, origin, wanted, told);
    }

    /// Sends an order that was checked.
    fn send_order(
        &mut self,
        name: &str,
        origin: Origin,
        wanted: Vec<Option<u64>>,
        told: String,
    ) -> Option<Sent> {
        self.elastics.last_order += 1;
        let number = self.elastics.last_order;
        let kept = self.elastics.vms.get_mut(name)?;
        kept.ordered(number, origin, wanted.clone());
        let sent = kept.keeper.order(number, wanted);
        self.tell(Some(name), told);
        Some(sent)
    }

    /// Notices keepers that hang.
    pub fn watch_elastic(&mut self) {
        let pace = self.elastics.pace;
        let vms = self.elastics.vms.iter_mut();
        let hung = vms.filter_map(|(name, kept)| Some((name.clone(), kept.silence(&pace)?)));
        for (name, event) in hung.collect::<Vec<_>>() {
            self.tell(Some(&name), event);
        }
    }

    /// What is kept of a VM's elastic memory.
    pub fn kept(&self, name: &str) -> Result<&Kept, Failure> {
        self.elastics
            .vms
            .get(name)
            .ok_or_else(|| Failure::NotNow(three_ways(name)))
    }

    /// The one way of an order: checks it, records it, makes it an event and sends it.
    ///
    /// # Errors
    /// Where it cannot be, or not now; that is recorded too.
    pub fn order_sizes(
        &mut self,
        name: &str,
        origin: Origin,
        sizes: &Resize,
    ) -> Result<Given, Failure> {
        self.kept(name)?;
        if let Err(refusal) = self.known(name, sizes) {
            let told = format!("an order of {}", origin.words());
            return Err(self.refuse(name, &told, refusal));
        }
        let kept = self.kept(name)?;
        let Some(look) = kept.seen.as_ref().map(|seen| &seen.look) else {
            return Err(Failure::Ending);
        };
        let kind = kept.kind();
        let wanted = wanted(name, kind, look, sizes).map_err(Failure::Invalid)?;
        let words = words(kind, look, &wanted, sizes);
        let by_words = kept.words().to_owned();
        let told = format!("{words} ordered by {}, by {by_words}", origin.words());
        if let Err(refusal) = self.check(name, &wanted) {
            return Err(self.refuse(name, &told, refusal));
        }
        let sent = self.send_order(name, origin, wanted.clone(), told);
        let sent = sent.ok_or(Failure::Ending)?;
        Ok(Given {
            sent,
            by: kind.name(),
            by_words,
            words,
            size_bytes: wanted,
        })
    }

    /// An order that nobody waits for any longer was taken back before it was given.
    pub fn withdraw_order(&mut self, name: &str, number: u64, why: String) {
        let Some(kept) = self.elastics.vms.get_mut(name) else {
            return;
        };
        for event in kept.withdrawn(number, why) {
            self.tell(Some(name), event);
        }
    }

    /// Records that an order is not given.
    fn refuse(&mut self, name: &str, told: &str, refusal: Refusal) -> Failure {
        let Some(kept) = self.elastics.vms.get_mut(name) else {
            return Failure::Ending;
        };
        let counts = &mut kept.counts;
        let (count, why, failure): (_, _, fn(String) -> Failure) = match refusal {
            Refusal::Absent(why) => (&mut counts.failed, why, Failure::NotNow),
            Refusal::Invalid(why) => (&mut counts.refused_invalid, why, Failure::Invalid),
            Refusal::Pinned(why) => (&mut counts.refused_pinned, why, Failure::NotNow),
            Refusal::Full(why) => (&mut counts.refused_admission, why, Failure::NotNow),
        };
        *count += 1;
        self.tell(Some(name), format!("{told}: refused: {why}"));
        if why.starts_with(name) {
            return failure(why);
        }
        failure(format!("{name}: {why}"))
    }

    /// Whether anything is known that an order could be checked against, and whether it makes sense.
    fn known(&self, name: &str, sizes: &Resize) -> Result<(), Refusal> {
        let Some(kept) = self.elastics.vms.get(name) else {
            return Ok(());
        };
        let Some(seen) = kept.seen.as_ref().filter(|_| kept.trouble.is_none()) else {
            let why = kept.trouble.as_deref();
            let why = why.unwrap_or("what resizes it has not answered yet");
            return Err(Refusal::Absent(why.to_owned()));
        };
        let wanted = wanted(name, kept.kind(), &seen.look, sizes);
        wanted.map(drop).map_err(Refusal::Invalid)
    }

    fn check(&self, name: &str, wanted: &[Option<u64>]) -> Result<(), Refusal> {
        let kept = self.elastics.vms.get(name);
        let Some((kept, seen)) = kept.and_then(|kept| Some((kept, kept.seen.as_ref()?))) else {
            return Ok(());
        };
        let kind = kept.kind();
        let tiers = seen.look.tiers.iter().zip(wanted).enumerate();
        let tiers = tiers.filter_map(|(i, (tier, wanted))| Some((i, tier, (*wanted)?)));
        for (i, tier, wanted) in tiers.clone() {
            let tier_name = tier_name(kind, i);
            // Others have limits of more kinds, and say them themselves.
            if kind == Kind::HyperFlex && wanted > tier.whole_bytes {
                return Err(Refusal::Invalid(format!(
                    "its {tier_name} memory has {} at most, what it was started with",
                    size(tier.whole_bytes)
                )));
            }
            may_shrink(kept, i, tier, wanted)?;
        }
        let claims = self.claims_of_vms();
        // With all that is ordered at once.
        let grown = |claim: &Claim| {
            let wanted = wanted.get(claim.tier).copied().flatten();
            let wanted = wanted.filter(|_| claim.vm == name);
            Claim {
                counted_bytes: wanted.map_or(claim.counted_bytes, |w| w.max(claim.counted_bytes)),
                ..claim.clone()
            }
        };
        let all: Vec<Claim> = claims.iter().map(grown).collect();
        for (i, tier, wanted) in tiers {
            if wanted <= tier.size_bytes {
                continue;
            }
            let own = claims.iter().find(|c| c.vm == name && c.tier == i);
            let Some(own) = own else { continue };
            if let Some(why) = self.unseen(name, &tier.host_nodes) {
                return Err(Refusal::Full(why));
            }
            let growing = Claim {
                counted_bytes: wanted,
                ..own.clone()
            };
            let pool = tier.pool();
            let all: Vec<Claim> = all.iter().filter(|c| c.pool == pool).cloned().collect();
            admit(&growing, tier.size_bytes, &all, &self.free_in(pool)).map_err(|why| {
                Refusal::Full(match pool {
                    0 => why,
                    page => format!("its memory is huge pages of {}, of which {why}", size(page)),
                })
            })?;
        }
        Ok(())
    }

    /// Why nothing can be given of these nodes: a VM that may take memory there has told nothing yet.
    fn unseen(&self, name: &str, nodes: &[u32]) -> Option<String> {
        let mut vms = self.elastics.vms.iter();
        let unseen = vms.find(|(other, kept)| {
            let is_unseen = kept.seen.is_none() && kept.is_configured && *other != name;
            let of = self.config.vm(other).map(|vm| vm.hyperflex_nodes);
            let of = of.unwrap_or_default();
            let meets = of.is_empty() || nodes.is_empty() || of.iter().any(|n| nodes.contains(n));
            is_unseen && meets
        });
        let (other, kept) = unseen?;
        let why = kept.trouble.as_deref().unwrap_or("it was not asked yet");
        Some(format!(
            "what {other} may still take is not known, because its HyperFlex device has never answered: {why}"
        ))
    }

    /// What each tier of each VM counts for.
    pub fn claims_of_vms(&self) -> Vec<Claim> {
        let vms = self.elastics.vms.iter();
        let tiers = vms.flat_map(|(name, kept)| {
            let tiers = kept.seen.iter().flat_map(|seen| &seen.look.tiers);
            tiers.enumerate().map(move |(i, tier)| Claim {
                vm: name.clone(),
                tier: i,
                name: tier_name(kept.kind(), i),
                nodes: tier.host_nodes.clone(),
                counted_bytes: kept.counted(i, tier),
                present_bytes: kept.present_bytes(i),
                is_inflated: kept.is_inflated(i),
                pool: tier.pool(),
            })
        });
        tiers.collect()
    }

    /// Free memory of each node in the pool of that page size; 0: in none.
    fn free_in(&self, pool: u64) -> Free {
        if pool == 0 {
            return self.free_for_vms();
        }
        let nodes = node_memory::available_huge(&self.root, &self.topology, pool);
        nodes.into_iter().map(|(node, n)| (node.0, n)).collect()
    }

    /// Free memory of each node, with page cache that nobody used lately, less what the operator keeps back.
    pub fn free_for_vms(&self) -> Free {
        let reserve = |node| {
            let tier = self.topology.tier_of(node)?;
            let nodes = u64::try_from(self.topology.nodes_of(tier).len()).ok()?;
            let tier = self.config.engine.tiers.get(tier.index())?;
            Some(tier.reserve_bytes.div_ceil(nodes.max(1)))
        };
        let nodes = node_memory::available(&self.root, &self.topology);
        let nodes = nodes.into_iter();
        nodes
            .map(|(node, bytes)| (node.0, bytes.saturating_sub(reserve(node).unwrap_or(0))))
            .collect()
    }

    /// What there is to say about the host's elastic memory, for `doctor`.
    pub fn elastic_host_findings(&self) -> Vec<Finding> {
        if self.elastics.vms.is_empty() {
            return Vec::new();
        }
        let claims = self.claims_of_vms();
        let pools: BTreeSet<u64> = claims.iter().map(|claim| claim.pool).collect();
        let over = pools.into_iter().flat_map(|pool| {
            let here = claims.iter().filter(|claim| claim.pool == pool);
            let here: Vec<Claim> = here.cloned().collect();
            let said = admission::overcommitted(&here, &self.free_in(pool)).into_iter();
            said.map(move |said| match pool {
                0 => said,
                page => format!("of huge pages of {}, {said}", size(page)),
            })
        });
        let over: Vec<String> = over.collect();
        if over.is_empty() {
            let found = "what VMs with elastic memory may still take is free";
            return vec![Finding::ok("elastic-memory", found)];
        }
        let advice = "shrink VMs (`terrace resize`), or load the driver in the guests that are counted whole";
        let each = over.into_iter();
        each.map(|found| Finding::degraded("elastic-memory", found, advice))
            .collect()
    }
}

/// Whether tier `i` may be asked to have no more than that.
fn may_shrink(kept: &Kept, i: usize, tier: &TierLook, wanted: u64) -> Result<(), Refusal> {
    let kind = kept.kind();
    if wanted >= tier.size_bytes {
        return Ok(());
    }
    if kind == Kind::HyperFlex && i == 0 && wanted < LEAST {
        return Err(Refusal::Invalid(format!(
            "{} of {} memory are too little for any guest; {} can be had at least. Did you mean MiB?",
            size(wanted),
            tier_name(kind, i),
            size(LEAST)
        )));
    }
    if let Some(who) = &kept.held_by {
        return Err(Refusal::Pinned(format!(
            "{who}, may have pinned it for a device, from under which it would be taken. It can grow, and shrink once \
             that process is gone; if its program never pins memory, say so: do_not_pin = [\"/path/of/program\"] under \
             [vm.NAME] or [defaults]"
        )));
    }
    if let Some(why) = &kept.holding_unknown {
        return Err(Refusal::Pinned(format!(
            "whether another process has its RAM, and may have pinned it, is not known: {why}. It can grow, and shrink \
             once terraced may see all processes: grant it CAP_SYS_PTRACE and CAP_DAC_OVERRIDE, or say nobody_pins = true \
             under [vm.NAME] if none ever pins its memory"
        )));
    }
    let unknown = kept.pinning_unknown.as_ref();
    if let Some(why) = unknown.filter(|_| kind == Kind::HyperFlex) {
        return Err(Refusal::Pinned(format!(
            "whether a device is passed through, which would pin its memory, is not known: {why}. It can grow, and \
             shrink once terraced may see the descriptors of the hypervisor: grant it CAP_SYS_PTRACE and \
             CAP_DAC_OVERRIDE, or run it as the hypervisor's user"
        )));
    }
    let Some(device) = &kept.pinned_by else {
        return Ok(());
    };
    Err(Refusal::Pinned(format!(
        "a device is passed through ({device}), which pins all of its memory: what the guest gave back would stay, or \
         be taken from under the device. It can grow, and cannot shrink while it has the device"
    )))
}

/// What each tier shall have, from what was asked for.
fn wanted(name: &str, kind: Kind, look: &Look, sizes: &Resize) -> Result<Vec<Option<u64>>, String> {
    let asked = [sizes.fast_bytes, sizes.slow_bytes];
    if asked == [None; 2] {
        return Err("say what to resize: fast_bytes, slow_bytes or both".into());
    }
    if !kind.knows_tiers() {
        let [Some(fast), Some(slow)] = asked else {
            return Err(format!(
                "{name} is resized by the balloon, which knows no tiers: say both sizes, of which it gives the VM the \
                 sum; to resize one tier, start it with a virtio-mem device for each node of the guest, or with \
                 HyperFlex"
            ));
        };
        let sum = fast.saturating_add(slow);
        return Ok(vec![Some(
            look.tiers.first().map_or(sum, |t| t.rounded(sum)),
        )]);
    }
    let tiers = look.tiers.len();
    if asked.iter().skip(tiers).any(Option::is_some) {
        return Err(format!(
            "{name} has {tiers} tier of elastic memory: there is no slow one to resize"
        ));
    }
    let asked = asked.into_iter().chain(std::iter::repeat(None));
    let each = look.tiers.iter().zip(asked);
    Ok(each
        .map(|(tier, asked)| asked.map(|bytes| tier.rounded(bytes)))
        .collect())
}

fn words(kind: Kind, look: &Look, wanted: &[Option<u64>], sizes: &Resize) -> String {
    let mut asked = [sizes.fast_bytes, sizes.slow_bytes];
    if !kind.knows_tiers() {
        let sum = asked.into_iter().flatten().fold(0, u64::saturating_add);
        asked = [Some(sum), None];
    }
    let tiers = look.tiers.iter().zip(wanted).enumerate();
    let each = tiers.filter_map(|(i, (tier, wanted))| {
        let (name, from) = (tier_name(kind, i), size(tier.size_bytes));
        let wanted = (*wanted)?;
        let asked = asked.get(i).copied().flatten();
        let rounded = asked.filter(|asked| *asked != wanted);
        let rounded = rounded.map(|asked| {
            let [asked, block] = [asked, tier.block_bytes].map(Bytes);
            format!(" ({asked} rounded down to blocks of {block})")
        });
        let rounded = rounded.unwrap_or_default();
        Some(format!("{name} {from} → {}{rounded}", size(wanted)))
    });
    each.collect::<Vec<_>>().join(", ")
}
