//! The events of each CPU, which come and go with it.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use terrace_sys::perf::{Event, EventAttr, Ring, Scope};
use terrace_sys::topology::parse_list;
use terrace_sys::{HostRoot, SysError};

use super::intake::Layout;
use super::recipe::{ONLINE, Recipe};
use super::refusal::explain;
use crate::sampler::SamplerError;

/// An opener of events.
pub trait Opener: fmt::Debug + Send {
    /// Opens an event, disabled; see [`Event::open`].
    ///
    /// # Errors
    /// As the kernel's.
    fn open(
        &self,
        attr: &EventAttr,
        scope: Scope,
        leader: Option<&Event>,
    ) -> Result<Event, SysError>;
}

/// The running kernel as an opener.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

impl Opener for Kernel {
    fn open(
        &self,
        attr: &EventAttr,
        scope: Scope,
        leader: Option<&Event>,
    ) -> Result<Event, SysError> {
        Event::open(attr, scope, leader)
    }
}

/// Events of one CPU before they have a ring.
#[derive(Debug)]
pub(super) struct Opened {
    /// The sampled events, in the recipe's order.
    sampled: Vec<Event>,
    /// The events that only have to be counted.
    companions: Vec<Event>,
}

/// Opens a recipe's events on one CPU.
///
/// # Errors
/// If any of them fails: the first error.
pub(super) fn open_on(
    recipe: &Recipe,
    cpu: u32,
    ring_bytes: u32,
    opener: &dyn Opener,
) -> Result<Opened, SysError> {
    let scope = Scope::Cpu(cpu);
    let (mut sampled, mut companions) = (Vec::new(), Vec::new());
    for wanted in &recipe.events {
        let leader = match &wanted.leader {
            Some(attr) => Some(opener.open(attr, scope, None)?),
            None => None,
        };
        let attr = EventAttr {
            wakeup_bytes: ring_bytes / 2,
            ..wanted.attr
        };
        sampled.push(opener.open(&attr, scope, leader.as_ref())?);
        companions.extend(leader);
    }
    Ok(Opened {
        sampled,
        companions,
    })
}

/// CPUs that a recipe's PMU has and that are online.
pub(super) fn online(root: &HostRoot, recipe: &Recipe) -> Result<Vec<u32>, SamplerError> {
    let list = |file: &str| {
        let text = root.read(file).map_err(|e| SamplerError(e.to_string()))?;
        parse_list(&text).ok_or_else(|| SamplerError(format!("{file}: {text:?} is no list")))
    };
    let mut cpus = list(ONLINE)?;
    if let Some(file) = &recipe.cpus {
        let of_the_pmu = list(file)?;
        cpus.retain(|cpu| of_the_pmu.contains(cpu));
    }
    Ok(cpus)
}

/// A CPU's events and their ring.
#[derive(Debug)]
struct Cpu {
    events: Opened,
    ring: Ring,
    layout: Layout,
}

impl Cpu {
    fn set_running(&self, running: bool) -> Result<(), SysError> {
        // A group's leader starts first.
        let all = self.events.companions.iter().chain(&self.events.sampled);
        for event in all {
            if running {
                event.enable()?;
            } else {
                event.disable()?;
            }
        }
        Ok(())
    }
}

/// All CPUs.
#[derive(Debug)]
pub(super) struct Cpus {
    root: HostRoot,
    recipe: Recipe,
    ring_pages: u32,
    opener: Box<dyn Opener>,
    cpus: BTreeMap<u32, Cpu>,
    failed: Option<(usize, String)>,
    running: bool,
}

impl Cpus {
    /// # Errors
    /// If no CPU can be sampled.
    pub(super) fn open(
        root: HostRoot,
        recipe: Recipe,
        ring_pages: u32,
        opener: Box<dyn Opener>,
    ) -> Result<Self, SamplerError> {
        let mut cpus = Self {
            root,
            recipe,
            ring_pages,
            opener,
            cpus: BTreeMap::new(),
            failed: None,
            running: false,
        };
        cpus.follow_hotplug()?;
        Ok(cpus)
    }

    /// Starts or stops all events, after a check for CPUs that came and went.
    ///
    /// # Errors
    /// If no CPU can be sampled any more.
    pub(super) fn set_running(&mut self, running: bool) -> Result<(), SamplerError> {
        if running != self.running {
            self.running = running;
            // One that cannot be started ended with its CPU.
            self.cpus.retain(|_, cpu| cpu.set_running(running).is_ok());
        }
        self.follow_hotplug()
    }

    /// Forgets CPUs that went offline, whose events ended with them, and opens those that came.
    fn follow_hotplug(&mut self) -> Result<(), SamplerError> {
        let online = online(&self.root, &self.recipe)?;
        self.cpus.retain(|cpu, _| online.contains(cpu));
        let mut failed: Option<(usize, String)> = None;
        for cpu in online {
            if self.cpus.contains_key(&cpu) {
                continue;
            }
            match self.add(cpu) {
                Ok(()) => {}
                Err(why) => {
                    let before = failed.map_or(0, |(number, _)| number);
                    failed = Some((before + 1, format!("CPU {cpu}: {why}")));
                }
            }
        }
        self.failed = failed;
        match &self.failed {
            Some((_, why)) if self.cpus.is_empty() => Err(SamplerError(why.clone())),
            None if self.cpus.is_empty() => {
                Err(SamplerError(format!("{ONLINE}: no CPU has this PMU")))
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, number: u32) -> Result<(), String> {
        let ring_bytes = self.ring_pages.saturating_mul(4096);
        let events =
            open_on(&self.recipe, number, ring_bytes, self.opener.as_ref()).map_err(|error| {
                let (why, change) = explain(&self.root, &self.recipe, &error);
                format!("{why}; {change}")
            })?;
        let [owner, others @ ..] = &events.sampled[..] else {
            return Err("no events".into());
        };
        let ring = Ring::new(owner, self.ring_pages).map_err(|e| e.to_string())?;
        for other in others {
            other.output_to(owner).map_err(|e| e.to_string())?;
        }
        let ids: Vec<u64> = events.sampled.iter().map(Event::id).collect();
        let cpu = Cpu {
            layout: Layout::new(&self.recipe, &ids),
            events,
            ring,
        };
        if self.running {
            cpu.set_running(true).map_err(|e| e.to_string())?;
        }
        self.cpus.insert(number, cpu);
        Ok(())
    }

    /// Each CPU's ring, and how to read it.
    pub(super) fn rings(&mut self) -> impl Iterator<Item = (&mut Ring, &Layout)> {
        self.cpus
            .values_mut()
            .map(|cpu| (&mut cpu.ring, &cpu.layout))
    }

    pub(super) fn len(&self) -> usize {
        self.cpus.len()
    }

    pub(super) fn failed(&self) -> Option<&(usize, String)> {
        self.failed.as_ref()
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let owners = self
            .cpus
            .values()
            .filter_map(|cpu| cpu.events.sampled.first());
        owners.map(AsFd::as_fd)
    }

    pub(super) fn ring_bytes(&self) -> usize {
        self.cpus.values().map(|cpu| cpu.ring.bytes()).sum()
    }

    pub(super) fn running_share(&self) -> Option<f64> {
        let events = self.cpus.values().flat_map(|cpu| &cpu.events.sampled);
        let (mut wanted, mut had) = (0_u64, 0_u64);
        for times in events.filter_map(|event| event.times().ok()) {
            wanted = wanted.saturating_add(times.enabled_ns);
            had = had.saturating_add(times.running_ns);
        }
        (wanted > 0).then(|| had as f64 / wanted as f64)
    }
}
