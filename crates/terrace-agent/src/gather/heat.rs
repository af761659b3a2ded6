//! The source of hot base pages: the first that works.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, anyhow, bail, ensure};
use terrace_core::gather::WINDOWS;
use terrace_sys::HostRoot;
use terrace_sys::guest_module::GuestModule;

use super::bits;
use super::by_host;
use super::damos::Damos;
use super::hot::{HotPages, read_list};
use super::idle::IdleBits;
use super::samples::Samples;
use super::scan::ScanBits;
use super::watch::{AccessedBits, watch};
use crate::config::{Config, SamplerChoice};
use crate::gathering::HeatChoice;
use crate::processes;
use crate::sampler::by_pmu;

/// A source of hot base pages.
pub enum Source<'a> {
    /// A list of another tool's.
    List(&'a Path),
    /// Pages that are accessed in windows.
    Windows(Box<dyn AccessedBits>),
    /// DAMOS, which tells by moving pages to this node.
    Damos(u32),
    /// The host, which names frames.
    Host,
}

impl<'a> Source<'a> {
    /// A list, if there is one; the host, if the configuration says so; else the guest module's SCAN, idle-page tracking, the PMU's samples, or DAMOS. DAMON's regions are
    /// too coarse.
    ///
    /// # Errors
    /// If nothing works: the reason of each.
    pub fn choose(root: &HostRoot, config: &Config, list: Option<&'a Path>) -> Result<Self> {
        if let Some(list) = list {
            return Ok(Self::List(list));
        }
        if config.gather.heat == HeatChoice::Host {
            return Ok(Self::Host);
        }
        let no_scan = match scan(root, config) {
            Ok(scan) => return Ok(Self::Windows(Box::new(scan))),
            Err(error) => error,
        };
        if let Some(idle) = IdleBits::open(root)? {
            return Ok(Self::Windows(Box::new(idle)));
        }
        let no_pmu = match by_pmu(root, SamplerChoice::Auto) {
            Ok(pmu) => return Ok(Self::Windows(Box::new(Samples::new(pmu)))),
            Err(error) => error,
        };
        if let Some(node) = config.gather.node.filter(|_| Damos::is_known(root)) {
            return Ok(Self::Damos(node));
        }
        bail!(
            "no source of hot base pages: {no_scan:#}; this kernel has no idle-page tracking (CONFIG_IDLE_PAGE_TRACKING); {no_pmu}; \
             DAMOS takes Linux 6.11 and gather.node. Load the module, or name a list (--pages FILE)"
        )
    }

    /// The source's name, for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::List(_) => "a list",
            Self::Windows(bits) => bits.name(),
            Self::Damos(_) => "DAMOS",
            Self::Host => "the host",
        }
    }

    /// The hot pages. `say` is told what is waited for.
    ///
    /// # Errors
    /// If the source fails, or no process is selected.
    pub fn hot_pages(
        self,
        root: &HostRoot,
        config: &Config,
        say: &mut dyn FnMut(String) -> Result<()>,
    ) -> Result<HotPages> {
        let mut bits = match self {
            Self::List(list) => return read_list(list),
            Self::Host => return by_host::hot_pages(root, config, say),
            Self::Windows(bits) => bits,
            Self::Damos(_) => bail!(
                "DAMOS finds hot pages by moving them: terrace-agent gather can use it, and nothing that moves none. Load the module, or \
                 name a list (--pages FILE)"
            ),
        };
        let pids = selected(root, config)?;
        let _held = bits::hold(root)?;
        let window = config.gather.window;
        watch(root, bits.as_mut(), &pids, window, &mut |number| {
            say(format!(
                "window {number} of {WINDOWS} ({} s), {} processes",
                window.as_secs(),
                pids.len()
            ))
        })
    }
}

/// The processes that the configuration selects.
///
/// # Errors
/// If there is none.
pub fn selected(root: &HostRoot, config: &Config) -> Result<Vec<u32>> {
    let found = processes::find(root, &config.following.wanted, &BTreeSet::new())?;
    ensure!(
        !found.is_empty(),
        "no process that the configuration selects has {} or more",
        bytesize::ByteSize(config.following.wanted.min_bytes)
    );
    Ok(found.iter().map(|process| process.pid).collect())
}

fn scan(root: &HostRoot, config: &Config) -> Result<ScanBits> {
    ensure!(
        config.module,
        "module = false switches the guest module off"
    );
    let module = GuestModule::open(root).map_err(|error| anyhow!(error))?;
    ScanBits::new(module)
}
