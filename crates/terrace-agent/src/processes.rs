//! Choice of the processes of this guest that are managed.
//!
//! Responsible for: reading `/proc`, and choosing the largest ones (HyperTier §5 takes the largest alone). It leaves
//! to others: which parts of them are managed.

use std::collections::BTreeSet;
use std::fs;

use terrace_sys::HostRoot;

/// Most entries of `/proc` that are inspected in one go; a fork storm must not hold up the agent.
const MAX_INSPECTED: usize = 32_768;

/// The processes that the configuration asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The only names that are managed; if empty, all are.
    pub names: Vec<String>,
    /// Names that are never managed.
    pub exclude: Vec<String>,
    /// Least resident memory, bytes.
    pub min_bytes: u64,
    /// Most processes at a time.
    pub most: usize,
}

/// A process that is to be managed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// The process's number.
    pub pid: u32,
    /// The process's name, as the kernel shows it (at most 15 bytes).
    pub name: String,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
}

/// Factor, in quarters, by which a process must be larger to take a managed one's place. Processes of about one size
/// would otherwise take turns, and what was learned of them would be lost each time.
const STAYS_QUARTERS: u64 = 5;

/// The processes that are wanted, the largest first; those that are managed already stay unless others are
/// clearly larger. One that ends meanwhile is left out.
///
/// # Errors
/// If `/proc` cannot be listed.
pub fn find(
    root: &HostRoot,
    wanted: &Wanted,
    managed: &BTreeSet<u32>,
) -> std::io::Result<Vec<ProcessInfo>> {
    let me = std::process::id();
    let entries = fs::read_dir(root.proc())?.flatten().take(MAX_INSPECTED);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<ProcessInfo> = pids
        .filter(|pid| *pid != me)
        .filter_map(|pid| inspect(root, pid, wanted, managed.contains(&pid)))
        .collect();
    let weight = |found: &ProcessInfo| match managed.contains(&found.pid) {
        true => found.resident_bytes / 4 * STAYS_QUARTERS,
        false => found.resident_bytes,
    };
    found.sort_by_key(|found| (std::cmp::Reverse(weight(found)), found.pid));
    found.truncate(wanted.most);
    Ok(found)
}

fn inspect(root: &HostRoot, pid: u32, wanted: &Wanted, managed: bool) -> Option<ProcessInfo> {
    let status = root.read(format!("proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim())
    };
    let name = field("Name:")?;
    // A kernel thread has no memory of its own and no such line.
    let resident_kib: u64 = field("VmRSS:")?.strip_suffix("kB")?.trim().parse().ok()?;
    let resident_bytes = resident_kib.saturating_mul(1024);
    let is = |list: &[String]| list.iter().any(|listed| is_named(listed, name));
    let named = wanted.names.is_empty() || is(&wanted.names);
    let min_bytes = match managed {
        true => wanted.min_bytes / STAYS_QUARTERS * 4,
        false => wanted.min_bytes,
    };
    (named && !is(&wanted.exclude) && resident_bytes >= min_bytes).then(|| ProcessInfo {
        pid,
        name: name.to_owned(),
        resident_bytes,
    })
}

/// Whether a listed name is that of a process; the kernel cuts names at 15 bytes.
fn is_named(listed: &str, name: &str) -> bool {
    listed == name || (name.len() == 15 && listed.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(processes: &[(u32, &str, Option<u64>)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (pid, name, kib) in processes {
            let folder = dir.path().join(format!("proc/{pid}"));
            fs::create_dir_all(&folder).unwrap();
            let rss = kib.map_or(String::new(), |kib| format!("VmRSS:\t  {kib} kB\n"));
            fs::write(folder.join("status"), format!("Name:\t{name}\n{rss}")).unwrap();
        }
        fs::create_dir_all(dir.path().join("proc/sys")).unwrap();
        dir
    }

    fn wanted() -> Wanted {
        Wanted {
            names: Vec::new(),
            exclude: Vec::new(),
            min_bytes: 1 << 20,
            most: 2,
        }
    }

    fn pids(dir: &tempfile::TempDir, wanted: &Wanted) -> Vec<u32> {
        let found = find(&HostRoot::new(dir.path()), wanted, &BTreeSet::new()).unwrap();
        found.iter().map(|found| found.pid).collect()
    }

    #[test]
    fn the_largest_processes_are_managed_and_kernel_threads_are_not() {
        let dir = guest(&[
            (2, "kthreadd", None),
            (10, "small", Some(1000)),
            (11, "a", Some(5000)),
            (12, "b", Some(9000)),
            (13, "c", Some(7000)),
        ]);
        assert_eq!(pids(&dir, &wanted()), [12, 13]);
    }

    #[test]
    fn of_processes_of_about_one_size_the_managed_ones_stay() {
        let dir = guest(&[
            (10, "a", Some(5000)),
            (11, "b", Some(5500)),
            (12, "c", Some(6000)),
            (13, "d", Some(900)),
        ]);
        let found = |managed: &[u32]| -> Vec<u32> {
            let managed = managed.iter().copied().collect();
            let found = find(&HostRoot::new(dir.path()), &wanted(), &managed).unwrap();
            found.iter().map(|found| found.pid).collect()
        };
        assert_eq!(found(&[]), [12, 11]);
        assert_eq!(found(&[10]), [10, 12]);
        let alone = Wanted {
            most: 9,
            ..wanted()
        };
        let retained = find(&HostRoot::new(dir.path()), &alone, &BTreeSet::from([13])).unwrap();
        assert!(
            retained.iter().any(|found| found.pid == 13),
            "a little below the least"
        );
    }

    #[test]
    fn names_choose_and_exclude() {
        let dir = guest(&[(10, "redis-server", Some(5000)), (11, "b", Some(9000))]);
        let by = |names: &[&str], exclude: &[&str]| {
            let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let wanted = Wanted {
                names: list(names),
                exclude: list(exclude),
                ..wanted()
            };
            pids(&dir, &wanted)
        };
        assert_eq!(by(&["redis-server"], &[]), [10]);
        assert_eq!(by(&[], &["b"]), [10]);
        assert_eq!(by(&["none"], &[]), [] as [u32; 0]);
    }

    #[test]
    fn a_long_name_is_compared_as_the_kernel_cuts_it() {
        assert!(is_named("a-very-long-name-of-a-program", "a-very-long-nam"));
        assert!(!is_named("redis-server", "redis"));
    }
}
