//! Hot base pages by the host's word: the frames that it named, and which pages of selected processes lie in them.
//!
//! `terrace-agent run` writes each whole set down, in a file that root alone may read; whoever gathers waits for one, and finds the
//! pages. A set is too old if it came minutes ago, and if its accesses were counted in part before the last round: pages that moved then
//! have other frames, look cold there, and would go home.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use terrace_proto::agent::MAX_HOT;
use terrace_proto::{PAGE_SIZE, PageBitmap, Tick};
use terrace_sys::{HostRoot, Pagemap, monotonic_now};

use super::hot::HotPages;
use super::pool::{FOLDER, make_folder};
use crate::channel::HotFrames;
use crate::config::Config;
use crate::sampler::Target;

/// The set, and the time of the last round's end.
const SET: &str = "hot-by-host";
const ENDED: &str = "gathered-at";
/// Greatest age of a set that is used.
const MAX_AGE: Duration = Duration::from_secs(120);
/// Time that the host's word may have taken to come here.
const ON_ITS_WAY: Duration = Duration::from_secs(3);
/// Time between two looks whether a set has come, and after which it is given up. Rounds of a quiet host are minutes apart.
const POLL: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(900);
/// Pages whose frames are read at once.
const AT_ONCE: u64 = 1 << 16;

/// Frames that the host named, by their fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedByHost {
    /// Hot pages that the host named.
    pub pages: u64,
    /// Those that no selected process has: page cache, the kernel's, others', gone by now; and those that were refused.
    pub unknown: u64,
}

impl NamedByHost {
    /// Whether the host may have more hot pages than it names.
    #[must_use]
    pub fn is_cut(self) -> bool {
        self.pages >= MAX_HOT as u64
    }
}

/// A set as it is written down; times are those of the clock that all processes share, ns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Set {
    came: u64,
    counted_since: u64,
    named: u64,
    frames: Vec<u64>,
}

impl Set {
    fn new(hot: &HotFrames, now: Tick) -> Self {
        let counted = hot.counted.saturating_add(ON_ITS_WAY).as_nanos();
        let counted = u64::try_from(counted).unwrap_or(u64::MAX);
        Self {
            came: now.0,
            counted_since: now.0.saturating_sub(counted),
            named: hot.named,
            frames: hot.frames.iter().map(|gfn| gfn.0).collect(),
        }
    }

    fn age(&self, now: Tick) -> Duration {
        now.since(Tick(self.came))
    }

    /// Whether a round may go by it.
    ///
    /// # Errors
    /// If not, with the reason.
    fn check(&self, now: Tick, last_round: Tick) -> Result<(), String> {
        let age = self.age(now);
        if Tick(self.came) > now {
            return Err("its last word is of before the boot".into());
        }
        if age > MAX_AGE {
            return Err(format!("its last word is {} s old", age.as_secs()));
        }
        if Tick(self.counted_since) < last_round {
            return Err(
                "its last word is in part of before the last round: its next one counts".into(),
            );
        }
        Ok(())
    }
}

/// Writes a set down for whoever gathers.
///
/// # Errors
/// If the file cannot be written; the one before may be there then.
pub fn write(root: &HostRoot, hot: &HotFrames) -> Result<()> {
    let set = serde_json::to_vec(&Set::new(hot, monotonic_now()))?;
    replace(root, SET, &set)
}

/// Notes that a round has ended now.
///
/// # Errors
/// If that cannot be written down.
pub fn note_end(root: &HostRoot) -> Result<()> {
    replace(root, ENDED, monotonic_now().0.to_string().as_bytes())
}

/// Replaces a file as a whole: whoever reads it sees the one or the other.
fn replace(root: &HostRoot, name: &str, bytes: &[u8]) -> Result<()> {
    let file = root.join(FOLDER).join(name);
    let new = file.with_extension("new");
    let replace = || -> io::Result<()> {
        make_folder(root)?;
        fs::write(&new, bytes)?;
        fs::rename(&new, &file)
    };
    replace().with_context(|| format!("writing {}", file.display()))
}

fn read(root: &HostRoot) -> Option<Set> {
    let file: PathBuf = root.join(FOLDER).join(SET);
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

/// When the last round ended; at the beginning of time if none did.
fn last_round(root: &HostRoot) -> Tick {
    let text = fs::read_to_string(root.join(FOLDER).join(ENDED));
    let at = text.ok().and_then(|text| text.trim().parse().ok());
    // After a boot that kept the folder the clock began anew.
    Tick(at.unwrap_or(0)).min(monotonic_now())
}

/// The host's last word, for people.
///
/// # Errors
/// If the host named nothing for so long that gathering gives up; the error says so.
pub fn last_word(root: &HostRoot) -> Result<String, String> {
    let Some(set) = read(root) else {
        return Err("the host has named no hot page yet".into());
    };
    let age = set.age(monotonic_now());
    match age <= PATIENCE {
        true => Ok(format!("{} pages {} s ago", set.named, age.as_secs())),
        false => Err(format!(
            "the host has named no hot page for {} min",
            age.as_secs() / 60
        )),
    }
}

/// Waits for a set that a round may go by, and finds its pages. `say` is told what is waited for.
///
/// # Errors
/// If none comes, with what to do; if no process is selected.
pub fn hot_pages(
    root: &HostRoot,
    config: &Config,
    say: &mut dyn FnMut(String) -> Result<()>,
) -> Result<HotPages> {
    let begun = Instant::now();
    let mut said = String::new();
    loop {
        let set = read(root);
        let why = match &set {
            None => "it has named none yet".to_owned(),
            Some(set) => match set.check(monotonic_now(), last_round(root)) {
                Ok(()) => return Ok(found(root, &super::by_damos::targets(root, config)?, set)),
                Err(why) => why,
            },
        };
        if begun.elapsed() > PATIENCE {
            bail!(
                "gather.heat = \"host\", and the host named no hot pages for {} min ({why}). It takes gather = true under [vm.NAME] on the \
                 host, and terrace-agent run here (terrace-agent status has the channel)",
                PATIENCE.as_secs() / 60
            );
        }
        let text = format!("waits until the host names hot pages: {why}");
        if said != text {
            say(text.clone())?;
            said = text;
        }
        std::thread::sleep(POLL);
    }
}

/// The pages of these processes that lie in a set's frames. A process that ends meanwhile is left out.
fn found(root: &HostRoot, targets: &[Target], set: &Set) -> HotPages {
    let mut wanted = PageBitmap::new(set.frames.iter().max().map_or(0, |most| most + 1));
    set.frames.iter().for_each(|frame| wanted.put(*frame, true));
    let mut hot = HotPages::default();
    for target in targets {
        let Ok(map) = Pagemap::open(&root.process(target.pid, "pagemap")) else {
            continue;
        };
        let ranges = target.ranges.iter();
        let runs = ranges.flat_map(|range| {
            map.present(range.start * PAGE_SIZE, range.end * PAGE_SIZE)
                .unwrap_or_default()
        });
        let mut pages: Vec<u64> = Vec::new();
        for run in runs {
            let (mut start, end) = (run.start / PAGE_SIZE, run.end / PAGE_SIZE);
            while start < end {
                let part: Vec<u64> = (start..end.min(start + AT_ONCE)).collect();
                start += AT_ONCE;
                let entries = map.entries(&part).unwrap_or_default();
                for (page, entry) in part.iter().zip(entries) {
                    if entry.frame().is_some_and(|frame| take(&mut wanted, frame)) {
                        pages.push(*page);
                    }
                }
            }
        }
        pages.sort_unstable();
        hot.pages.insert(target.pid, pages);
    }
    hot.by_host = Some(NamedByHost {
        pages: set.named,
        unknown: set.named.saturating_sub(hot.count()),
    });
    hot
}

/// Takes a frame off those that are wanted; `false` if it is none of them.
fn take(wanted: &mut PageBitmap, frame: u64) -> bool {
    let is_wanted = frame < wanted.pages() && wanted.get(frame);
    if is_wanted {
        wanted.put(frame, false);
    }
    is_wanted
}

#[cfg(test)]
mod tests {
    use terrace_core::ranges::Range;
    use terrace_proto::Gfn;

    use terrace_testkit::pages::put_pagemap;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn hot(frames: &[u64], counted_s: u64) -> HotFrames {
        HotFrames {
            generation: 1,
            counted: Duration::from_secs(counted_s),
            named: frames.len() as u64,
            frames: frames.iter().copied().map(Gfn).collect(),
        }
    }

    #[test]
    fn frames_are_pages_of_selected_processes_others_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        put_pagemap(dir.path(), 7, &[10, 0, 12, 13]);
        put_pagemap(dir.path(), 8, &[20, 12, 0, 0]);
        put_pagemap(dir.path(), 9, &[30, 0, 0, 0]);
        let ranges = vec![Range { start: 0, end: 4 }];
        // Process 5 has ended, and 9 is not selected.
        let targets = [7, 8, 5].map(|pid| Target {
            pid,
            ranges: ranges.clone(),
        });
        let set = Set::new(&hot(&[12, 20, 30, 99, 13], 1), Tick(SECOND));
        let hot = found(&HostRoot::new(dir.path()), &targets, &set);
        assert_eq!(hot.pages, [(7, vec![2, 3]), (8, vec![0])].into());
        let named = NamedByHost {
            pages: 5,
            unknown: 2,
        };
        assert_eq!(hot.by_host, Some(named));
    }

    #[test]
    fn a_set_of_minutes_ago_is_not_used() {
        let set = Set::new(&hot(&[1], 5), Tick(100 * SECOND));
        assert_eq!(set.check(Tick(220 * SECOND), Tick(0)), Ok(()));
        let why = set.check(Tick(221 * SECOND), Tick(0)).unwrap_err();
        assert!(why.contains("121 s old"), "{why}");
        let why = set.check(Tick(99 * SECOND), Tick(0)).unwrap_err();
        assert!(why.contains("before the boot"), "{why}");
    }

    #[test]
    fn a_set_that_was_counted_before_the_last_round_is_not_used() {
        let set = Set::new(&hot(&[1], 5), Tick(100 * SECOND));
        let round = |ended: u64| set.check(Tick(101 * SECOND), Tick(ended * SECOND));
        assert_eq!(round(92), Ok(()));
        assert!(round(93).unwrap_err().contains("before the last round"));
        assert!(round(100).is_err(), "nor is one that was used");
    }

    #[test]
    fn the_newest_set_is_read_as_a_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::new(dir.path());
        assert_eq!(read(&root), None);
        assert!(last_word(&root).unwrap_err().contains("no hot page yet"));
        write(&root, &hot(&[5, 6], 1)).unwrap();
        write(&root, &hot(&[7], 1)).unwrap();
        assert_eq!(read(&root).unwrap().frames, [7]);
        assert!(last_word(&root).unwrap().starts_with("1 pages 0 s ago"));
        fs::write(dir.path().join(FOLDER).join(SET), "{\"came\":1").unwrap();
        assert_eq!(read(&root), None);
    }

    #[test]
    fn the_end_of_a_round_is_remembered_and_never_in_the_future() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::new(dir.path());
        assert_eq!(last_round(&root), Tick(0));
        let before = monotonic_now();
        note_end(&root).unwrap();
        assert!(last_round(&root) >= before);
        fs::write(dir.path().join(FOLDER).join(ENDED), u64::MAX.to_string()).unwrap();
        assert!(last_round(&root) <= monotonic_now());
    }

    #[test]
    fn a_set_of_the_greatest_size_may_be_cut() {
        let of = |pages| NamedByHost { pages, unknown: 0 };
        assert!(of(MAX_HOT as u64).is_cut() && !of(MAX_HOT as u64 - 1).is_cut());
    }
}
