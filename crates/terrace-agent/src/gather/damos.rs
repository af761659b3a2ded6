//! Hot pages by DAMON's operations scheme `migrate_hot` with the `young` filter (Linux 6.11): the kernel asks each page's accessed
//! bit, and tells by moving it.
//!
//! A pass that sends pages to their own node moves nothing and clears the bits. What was accessed in the window after it goes to
//! the node for gathering, and what was not accessed in one more window goes home by `migrate_cold`. What is on the node then was
//! accessed in two windows. The scheme acts on all programs' pages, and knows no blocks: which of them stay is decided afterwards.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use terrace_proto::PAGE_SIZE;
use terrace_sys::HostRoot;
use terrace_sys::topology::{NodeId, node_memory};

const KDAMONDS: &str = "sys/kernel/mm/damon/admin/kdamonds";
/// Our contexts by their update interval, µs: that of physical memory has no effect.
const MARK: u64 = 132_205_264;
/// The file of a context that bears the mark.
const MARKED: &str = "0/monitoring_attrs/intervals/update_us";
/// Passes of the scheme before it sends pages to the node: bits are clear then.
const CLEARING: u64 = 3;
/// Windows after which a pass that did not end will not.
const LATE: u32 = 10;
/// Time for which a running agent is waited for, which gives DAMON up while windows run.
const PATIENCE: Duration = Duration::from_secs(10);

/// A scheme on one node's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Scheme {
    action: &'static str,
    /// Addresses of the node's memory.
    memory: Range<u64>,
    /// The node to which pages go.
    to: NodeId,
    /// Whether pages that were accessed stay, instead of those that were not.
    young_stay: bool,
}

/// DAMON, in use by us. Dropping it ends its threads and leaves it to others.
pub struct Damos {
    root: HostRoot,
    /// The nodes from which hot pages come, each with a thread, and the last one: the node for gathering.
    schemes: Vec<Scheme>,
    window: Duration,
}

impl Damos {
    /// Whether this kernel can do that. Another program may use DAMON all the same.
    #[must_use]
    pub fn is_known(root: &HostRoot) -> bool {
        let release = root.read("proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release
            .split(['.', '-'])
            .map_while(|part| part.parse::<u32>().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        version >= (6, 11) && root.join(KDAMONDS).join("nr_kdamonds").exists()
    }

    /// Ends threads that a killed predecessor left, which would move pages for ever. Those of others are not touched.
    pub fn stop_leftovers(root: &HostRoot) {
        if count(root).unwrap_or(0) > 0 && is_ours(root).unwrap_or(false) {
            end(root);
        }
    }

    /// Takes DAMON, for windows of this length.
    ///
    /// # Errors
    /// If another program uses it, or the kernel refuses a setting.
    pub fn start(root: &HostRoot, node: u32, window: Duration) -> Result<Self> {
        let memory = node_memory(root)?;
        let bytes = |frames: &Range<u64>| frames.start * PAGE_SIZE..frames.end * PAGE_SIZE;
        let mut schemes: Vec<Scheme> = Vec::new();
        for (id, of_node) in memory
            .iter()
            .filter(|(id, of)| id.0 != node && !of.frames.is_empty())
        {
            schemes.push(Scheme {
                action: "migrate_hot",
                memory: bytes(&of_node.frames),
                // To their own node at first.
                to: *id,
                young_stay: false,
            });
        }
        let own = memory
            .get(&NodeId(node))
            .context("the node has no memory")?;
        schemes.push(Scheme {
            action: "migrate_cold",
            memory: bytes(&own.frames),
            to: schemes.first().context("there is no other node")?.to,
            young_stay: true,
        });
        take(root, schemes.len(), PATIENCE)?;
        // From here on it is ours, and is left to others whatever comes.
        let damos = Self {
            root: root.clone(),
            schemes,
            window,
        };
        let all = 0..damos.schemes.len();
        for index in all.clone() {
            damos.mark(index).context("setting DAMON up")?;
        }
        for index in all {
            damos.prepare(index).context("setting DAMON up")?;
        }
        Ok(damos)
    }

    /// Sends pages to the node that were accessed in two windows. `say` is told what is waited for.
    ///
    /// # Errors
    /// If the kernel refuses, or a pass does not end.
    pub fn find(&self, node: u32, say: &mut dyn FnMut(String) -> Result<()>) -> Result<()> {
        let (last, homes) = (self.schemes.len() - 1, 0..self.schemes.len() - 1);
        say(format!(
            "DAMOS: accessed bits are cleared, {} windows of {} s",
            CLEARING,
            self.window.as_secs()
        ))?;
        for index in homes.clone() {
            self.set(index, "state", "on")?;
        }
        for index in homes.clone() {
            self.passes(index, CLEARING)?;
        }
        say("DAMOS: what was accessed in the last window goes to the node".into())?;
        for index in homes.clone() {
            self.set(index, "contexts/0/schemes/0/target_nid", &node.to_string())?;
            self.set(index, "state", "commit")?;
        }
        for index in homes {
            self.passes(index, 1)?;
            self.set(index, "state", "off")?;
        }
        say("DAMOS: what is not accessed in one more window goes home".into())?;
        self.set(last, "state", "on")?;
        // The first one clears the bits of pages that were there before.
        self.passes(last, 2)?;
        self.set(last, "state", "off")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.root.join(KDAMONDS).join(name)
    }

    fn set(&self, index: usize, name: &str, value: &str) -> Result<()> {
        let file = self.file(&format!("{index}/{name}"));
        fs::write(&file, value).with_context(|| format!("writing {value} to {}", file.display()))
    }

    /// Marks a context as ours, before anything else.
    fn mark(&self, index: usize) -> Result<()> {
        self.set(index, "contexts/nr_contexts", "1")?;
        self.set(index, &format!("contexts/{MARKED}"), &MARK.to_string())
    }

    fn prepare(&self, index: usize) -> Result<()> {
        let scheme = &self.schemes[index];
        let window_us = self.window.as_micros();
        let young_goes = if scheme.young_stay { "Y" } else { "N" };
        for (name, value) in [
            ("0/operations", "paddr".to_owned()),
            (
                "0/monitoring_attrs/intervals/aggr_us",
                window_us.to_string(),
            ),
            (
                "0/monitoring_attrs/intervals/sample_us",
                (window_us / 10).to_string(),
            ),
            ("0/monitoring_attrs/nr_regions/min", "10".to_owned()),
            ("0/monitoring_attrs/nr_regions/max", "20".to_owned()),
            ("0/targets/nr_targets", "1".to_owned()),
            ("0/targets/0/regions/nr_regions", "1".to_owned()),
            (
                "0/targets/0/regions/0/start",
                scheme.memory.start.to_string(),
            ),
            ("0/targets/0/regions/0/end", scheme.memory.end.to_string()),
            ("0/schemes/nr_schemes", "1".to_owned()),
            ("0/schemes/0/action", scheme.action.to_owned()),
            ("0/schemes/0/target_nid", scheme.to.0.to_string()),
            ("0/schemes/0/access_pattern/nr_accesses/min", "0".to_owned()),
            (
                "0/schemes/0/access_pattern/nr_accesses/max",
                u32::MAX.to_string(),
            ),
            ("0/schemes/0/access_pattern/age/min", "0".to_owned()),
            ("0/schemes/0/access_pattern/age/max", u32::MAX.to_string()),
            ("0/schemes/0/access_pattern/sz/max", u64::MAX.to_string()),
            ("0/schemes/0/filters/nr_filters", "1".to_owned()),
            ("0/schemes/0/filters/0/type", "young".to_owned()),
            ("0/schemes/0/filters/0/matching", young_goes.to_owned()),
        ] {
            self.set(index, &format!("contexts/{name}"), &value)?;
        }
        Ok(())
    }

    /// Waits until a scheme was applied so often more to all of its memory.
    fn passes(&self, index: usize, more: u64) -> Result<()> {
        let memory = &self.schemes[index].memory;
        let goal = self
            .tried(index)?
            .saturating_add((memory.end - memory.start).saturating_mul(more));
        let late = Instant::now() + self.window * LATE * u32::try_from(more).unwrap_or(1);
        while self.tried(index)? < goal {
            if Instant::now() > late {
                bail!(
                    "DAMOS does not get through the memory of a node: another program stopped it, or the machine is too busy"
                );
            }
            std::thread::sleep(self.window / 20);
        }
        Ok(())
    }

    /// Bytes to which a scheme was applied so far.
    fn tried(&self, index: usize) -> Result<u64> {
        self.set(index, "state", "update_schemes_stats")?;
        number(&self.file(&format!("{index}/contexts/0/schemes/0/stats/sz_tried")))
    }
}

/// Threads that DAMON has.
fn count(root: &HostRoot) -> Result<u64> {
    number(&root.join(KDAMONDS).join("nr_kdamonds"))
}

/// Whether all contexts that there are bear our mark.
fn is_ours(root: &HostRoot) -> Result<bool> {
    let mark = |index| {
        let file = format!("{KDAMONDS}/{index}/contexts/{MARKED}");
        number(&root.join(file)).unwrap_or(0)
    };
    Ok((0..count(root)?).all(|index| mark(index) == MARK))
}

/// Becomes the one user, after a predecessor of ours that was killed. Others are waited for, and left alone.
fn take(root: &HostRoot, threads: usize, patience: Duration) -> Result<()> {
    let begin = Instant::now();
    while count(root)? > 0 && !is_ours(root)? {
        ensure!(
            begin.elapsed() < patience,
            "DAMON is in use by another program (nr_kdamonds = {}); end that",
            count(root)?
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    end(root);
    fs::write(root.join(KDAMONDS).join("nr_kdamonds"), threads.to_string())
        .context("asking DAMON for threads")
}

/// Ends all threads and leaves DAMON to others.
fn end(root: &HostRoot) {
    for index in 0..count(root).unwrap_or(0) {
        // One that does not run refuses.
        let _ = fs::write(root.join(format!("{KDAMONDS}/{index}/state")), "off");
    }
    let _ = fs::write(root.join(KDAMONDS).join("nr_kdamonds"), "0");
}

impl Drop for Damos {
    fn drop(&mut self) {
        end(&self.root);
    }
}

fn number(file: &std::path::Path) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    text.trim()
        .parse()
        .with_context(|| format!("{}: {text:?}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel's files, of so many threads that bear a mark.
    fn kernel(release: &str, threads: u64, mark: u64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("proc/sys/kernel/osrelease", release);
        put(&format!("{KDAMONDS}/nr_kdamonds"), &format!("{threads}\n"));
        for thread in 0..2 {
            let base = format!("{KDAMONDS}/{thread}/contexts/0");
            put(
                &format!("{base}/monitoring_attrs/intervals/update_us"),
                &mark.to_string(),
            );
            for folder in [
                "monitoring_attrs/nr_regions",
                "targets/0/regions/0",
                "schemes/0/filters/0",
                "schemes/0/access_pattern/nr_accesses",
                "schemes/0/access_pattern/age",
                "schemes/0/access_pattern/sz",
            ] {
                fs::create_dir_all(dir.path().join(&base).join(folder)).unwrap();
            }
        }
        let zone = |node: u32, first: u32| {
            format!(
                "Node {node}, zone Normal\n  pages free 600\n    low 100\n    high 200\n    spanned 512\n  start_pfn: {first}\n"
            )
        };
        put("proc/zoneinfo", &(zone(0, 512) + &zone(1, 1024)));
        dir
    }

    const WINDOW: Duration = Duration::from_secs(2);

    #[test]
    fn a_thread_for_each_node_is_set_up_and_ended_again() {
        let dir = kernel("6.12.9-amd64\n", 0, 0);
        let root = HostRoot::new(dir.path());
        let read = |name: &str| fs::read_to_string(root.join(KDAMONDS).join(name)).unwrap();
        assert!(Damos::is_known(&root));
        let damos = Damos::start(&root, 1, WINDOW).unwrap();
        assert_eq!(read("nr_kdamonds"), "2");
        let of = |thread: u32, name: &str| read(&format!("{thread}/contexts/0/{name}"));
        assert_eq!(of(0, "schemes/0/action"), "migrate_hot");
        assert_eq!(
            (
                of(0, "schemes/0/target_nid"),
                of(0, "schemes/0/filters/0/matching")
            ),
            ("0".into(), "N".into())
        );
        assert_eq!(
            (
                of(0, "targets/0/regions/0/start"),
                of(0, "targets/0/regions/0/end")
            ),
            ("2097152".into(), "4194304".into())
        );
        assert_eq!(of(1, "schemes/0/action"), "migrate_cold");
        assert_eq!(
            (
                of(1, "schemes/0/target_nid"),
                of(1, "schemes/0/filters/0/matching")
            ),
            ("0".into(), "Y".into())
        );
        assert_eq!(of(1, "monitoring_attrs/intervals/aggr_us"), "2000000");
        drop(damos);
        assert_eq!(read("nr_kdamonds"), "0");
    }

    #[test]
    fn threads_that_a_killed_predecessor_left_are_taken_over() {
        let dir = kernel("6.12.9", 2, MARK);
        let root = HostRoot::new(dir.path());
        let damos = Damos::start(&root, 1, WINDOW).unwrap();
        drop(damos);
        let state = fs::read_to_string(root.join(KDAMONDS).join("0/state")).unwrap();
        assert_eq!(state, "off");
    }

    #[test]
    fn threads_of_others_are_left_alone() {
        for (mark, left) in [(MARK, "0"), (60_000_000, "2\n")] {
            let dir = kernel("6.12.9", 2, mark);
            let root = HostRoot::new(dir.path());
            Damos::stop_leftovers(&root);
            let taken = take(&root, 2, Duration::ZERO);
            assert_eq!(taken.is_ok(), mark == MARK);
            if taken.is_ok() {
                end(&root);
            }
            let threads = fs::read_to_string(root.join(KDAMONDS).join("nr_kdamonds")).unwrap();
            assert_eq!(threads, left);
        }
    }

    #[test]
    fn older_kernels_are_known_by_their_release() {
        for (release, known) in [
            ("6.11.0\n", true),
            ("7.2-rc1", true),
            ("6.10.3", false),
            ("5.19", false),
            ("", false),
        ] {
            let dir = kernel(release, 0, 0);
            assert_eq!(
                Damos::is_known(&HostRoot::new(dir.path())),
                known,
                "{release}"
            );
        }
    }
}
