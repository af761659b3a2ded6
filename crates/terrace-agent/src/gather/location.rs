//! The frames of hot pages, and why some must stay where they are.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use terrace_core::gather::Skew;
use terrace_sys::{HostRoot, PageEntry, Pagemap};

use super::areas;
use super::hot::HotPages;
use crate::channel::guest_memory_end;

/// Bits of `/proc/kpageflags` (`linux/kernel-page-flags.h`): hugetlb, a transparent huge page.
const LARGE: u64 = 1 << 17 | 1 << 22;

/// A hot page by its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotFrame {
    pub pid: u32,
    /// Number of the virtual page.
    pub page: u64,
    pub frame: u64,
    /// Whether it may be moved.
    pub movable: bool,
}

/// Hot pages that stay where they are, by the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Staying {
    /// Of a file, of shared memory, or of several processes.
    pub shared: u64,
    /// Part of a larger page.
    pub huge: u64,
    /// khugepaged would take it home.
    pub khugepaged: u64,
    /// Not there any more.
    pub gone: u64,
    /// Of a process that could not be looked at.
    pub unreadable: u64,
}

impl Staying {
    /// Number of those that are in memory: their blocks cannot be emptied.
    #[must_use]
    pub fn in_memory(&self) -> u64 {
        self.shared + self.huge + self.khugepaged
    }
}

/// The frames of all hot pages.
#[derive(Clone, Debug, Default)]
pub struct Located {
    pub frames: Vec<HotFrame>,
    pub staying: Staying,
}

/// Finds the frames of hot pages. A process that has ended has none.
///
/// # Errors
/// If the kernel hides frames from this process.
pub fn locate(root: &HostRoot, hot: &HotPages) -> Result<Located> {
    let flags = FrameFlags::open(root)?;
    let collapsing = areas::collapsing(root);
    let mut located = Located::default();
    for (pid, pages) in &hot.pages {
        let entries =
            Pagemap::open(&root.process(*pid, "pagemap")).and_then(|map| map.entries(pages));
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) if matches!(error.errno(), libc::ENOENT | libc::ESRCH) => {
                located.staying.gone += pages.len() as u64;
                continue;
            }
            Err(error) => {
                tracing::debug!("process {pid}: {error}");
                located.staying.unreadable += pages.len() as u64;
                continue;
            }
        };
        ensure!(
            entries
                .iter()
                .all(|entry| !entry.is_present() || entry.frame().is_some()),
            "the kernel hides frame numbers: run as root, with CAP_SYS_ADMIN"
        );
        let place = Place {
            flags: &flags,
            areas: areas::collapsible(root, *pid, collapsing),
        };
        for (page, entry) in pages.iter().zip(entries) {
            place.add(&mut located, *pid, *page, entry);
        }
    }
    Ok(located)
}

/// Facts that decide on a process's pages.
struct Place<'a> {
    flags: &'a FrameFlags,
    areas: Vec<terrace_core::ranges::Range>,
}

impl Place<'_> {
    fn add(&self, located: &mut Located, pid: u32, page: u64, entry: PageEntry) {
        let Some(frame) = entry.frame() else {
            located.staying.gone += 1;
            return;
        };
        let staying = &mut located.staying;
        let reason = if !entry.is_own() {
            Some(&mut staying.shared)
        } else if self.flags.is_large(frame) {
            Some(&mut staying.huge)
        } else if areas::has(&self.areas, page) {
            Some(&mut staying.khugepaged)
        } else {
            None
        };
        let movable = reason.is_none();
        if let Some(count) = reason {
            *count += 1;
        }
        located.frames.push(HotFrame {
            pid,
            page,
            frame,
            movable,
        });
    }
}

/// The kernel's flags of frames (`/proc/kpageflags`).
#[derive(Debug)]
pub struct FrameFlags(File);

impl FrameFlags {
    /// Opens the file, which is root's.
    ///
    /// # Errors
    /// If it may not be opened.
    pub fn open(root: &HostRoot) -> Result<Self> {
        let file = File::open(root.join("proc/kpageflags"));
        file.map(Self)
            .context("opening /proc/kpageflags: run as root")
    }

    /// Whether a frame is part of a larger page, or that cannot be known.
    #[must_use]
    pub fn is_large(&self, frame: u64) -> bool {
        let mut bits = [0; 8];
        let read = self.0.read_exact_at(&mut bits, frame.saturating_mul(8));
        read.is_err() || u64::from_ne_bytes(bits) & LARGE != 0
    }
}

impl Located {
    /// Counts the frames by blocks of this guest's memory.
    ///
    /// # Errors
    /// If the kernel does not say where that ends.
    pub fn skew(&self, root: &HostRoot) -> Result<Skew> {
        let end = guest_memory_end(root);
        ensure!(end.0 > 0, "the kernel names no frames in /proc/zoneinfo");
        let mut skew = Skew::new(end.0);
        let mut counted = BTreeSet::new();
        for hot in &self.frames {
            // One that several processes have counts once.
            if hot.movable || counted.insert(hot.frame) {
                skew.count(hot.frame, hot.movable);
            }
        }
        Ok(skew)
    }
}
