//! The operator's settings of transparent huge pages.
//!
//! The kernel collapses on request whatever these say. The operator's word counts here all the same.

use terrace_proto::provision::NotCollapsed;

use crate::HostRoot;

/// The memory that may have huge pages by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thp {
    /// All of it.
    Always,
    /// The memory that asked for them (`MADV_HUGEPAGE`), as QEMU does for its guests'.
    Madvise,
}

/// The settings for a process.
pub(super) fn thp(root: &HostRoot, pid: u32) -> Result<Thp, NotCollapsed> {
    const FOLDER: &str = "sys/kernel/mm/transparent_hugepage";
    let read = |name: &str| {
        let text = root.read(format!("{FOLDER}/{name}")).ok()?;
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    };
    // That of the size goes before that of all sizes (Linux 6.8).
    let of_size = read("hugepages-2048kB/enabled").filter(|word| word != "inherit");
    let never = |why: &str| Err(NotCollapsed::Never(why.into()));
    let status = root.read(format!("proc/{pid}/status")).unwrap_or_default();
    let is_off = status
        .lines()
        .filter_map(|line| line.strip_prefix("THP_enabled:"))
        .any(|word| word.trim() == "0");
    if is_off {
        return never("huge pages are switched off for its process");
    }
    match of_size.or_else(|| read("enabled")).as_deref() {
        Some("always") => Ok(Thp::Always),
        Some("madvise") => Ok(Thp::Madvise),
        Some("never") => never(
            "transparent huge pages are set to `never` on this host (/sys/kernel/mm/transparent_hugepage/enabled)",
        ),
        _ => never("this kernel has no transparent huge pages"),
    }
}
