//! The node from which a file in memory takes its pages: the policy that tmpfs and memfd keep with the file, for
//! any process that touches it. Hugetlbfs keeps none: there the policy is that of the process that touches a page
//! first.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::SysError;
use crate::topology::parse_list;

/// Words of a set of nodes: one bit for each of the most nodes that a kernel is built for.
const WORDS: usize = 16;
/// Exclusive upper bound of node numbers.
pub const MAX_NODES: u32 = 1024;
/// Number of bits passed for a set of nodes; the kernel reads one fewer.
const NODE_BITS: libc::c_ulong = 1025;

/// The flag that asks for the policy of an address; libc does not name it.
const MPOL_F_ADDR: libc::c_ulong = 2;

/// Prefers a node for the pages behind `len` bytes of this process's address space that do not exist yet. If a file
/// of tmpfs or a memfd is mapped shared there, the file keeps this, for faults of all processes; pages that exist
/// stay where they are. A node that is full is passed over, as `MPOL_BIND` would not.
///
/// # Errors
/// If the kernel knows no such node (also because a cpuset hides it), if it was built without NUMA, or if nothing is
/// mapped there.
pub fn prefer_node(start: usize, len: usize, node: u32) -> Result<(), SysError> {
    let what = || format!("{len} bytes at {start:#x}, node {node}");
    let unknown = || SysError {
        call: "mbind",
        what: what(),
        source: std::io::Error::from_raw_os_error(libc::EINVAL),
    };
    let mut nodes = [0_u64; WORDS];
    let word = usize::try_from(node / u64::BITS).map_err(|_| unknown())?;
    *nodes.get_mut(word).ok_or_else(unknown)? = 1 << (node % u64::BITS);
    // SAFETY: the kernel reads the set, which lives during the call; where pages come from changes no contents.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start,
            len,
            libc::MPOL_PREFERRED,
            nodes.as_ptr(),
            NODE_BITS,
            0,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(SysError::last("mbind(MPOL_PREFERRED)", what()))
    }
}

/// The node that a file itself prefers at `offset`, seen through a new mapping; `None` if it has no policy or another
/// one. `page_bytes` is the size of the file's pages. No page of it is touched.
///
/// # Errors
/// If the file cannot be mapped there or the kernel does not say.
pub fn file_prefers(
    fd: BorrowedFd<'_>,
    offset: u64,
    page_bytes: usize,
) -> Result<Option<u32>, SysError> {
    let what = || format!("descriptor {} at {offset:#x}", fd.as_raw_fd());
    let at = libc::off_t::try_from(offset).unwrap_or(libc::off_t::MAX);
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice harms no existing memory.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            page_bytes,
            libc::PROT_NONE,
            flags,
            fd.as_raw_fd(),
            at,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(SysError::last("mmap", what()));
    }
    let mut mode: libc::c_int = libc::MPOL_DEFAULT;
    let mut nodes = [0_u64; WORDS];
    // SAFETY: mode and set live during the call, and the set has room for as many nodes as is said.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            nodes.as_mut_ptr(),
            NODE_BITS,
            start,
            MPOL_F_ADDR,
        )
    };
    let said = if rc == 0 {
        Ok(())
    } else {
        Err(SysError::last("get_mempolicy", what()))
    };
    // SAFETY: the range is exactly the mapping made above, to which there is no pointer.
    unsafe { libc::munmap(start, page_bytes) };
    said.map(|()| {
        (mode == libc::MPOL_PREFERRED)
            .then(|| only(&nodes))
            .flatten()
    })
}

/// The nodes that this process may prefer: all but those that its cpuset hides. Empty if the kernel does not say.
#[must_use]
pub fn allowed_nodes() -> Vec<u32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    allowed(&status).unwrap_or_default()
}

fn allowed(status: &str) -> Option<Vec<u32>> {
    let list = |line: &str| parse_list(line.strip_prefix("Mems_allowed_list:")?.trim());
    status.lines().find_map(list)
}

/// The one node of a set; `None` if it has none or several.
fn only(nodes: &[u64; WORDS]) -> Option<u32> {
    let mut found = None;
    for (word, bits) in (0_u32..).zip(nodes) {
        match (bits.count_ones(), found) {
            (0, _) => {}
            (1, None) => found = Some(word * u64::BITS + bits.trailing_zeros()),
            _ => return None,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::topology::{NodeId, node_free_bytes};
    use crate::{
        HostRoot, KernelPages, Pages as _, SharedMapping, is_tmpfs, memory_file, punch_hole,
    };

    const PAGE: usize = 4096;

    /// Says past the capture of the test harness that a test was skipped: a run without policies must show it.
    fn skipped(test: &str, error: &dyn std::fmt::Display) {
        use std::io::Write;
        let text = format!("\nSKIPPED {test}: NOT TESTED, since {error}\n");
        std::io::stderr().write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn a_file_in_memory_keeps_the_node_for_all_who_map_it() {
        let file = memory_file(c"policy", 8 * PAGE as u64).unwrap();
        let mapping = SharedMapping::new(file.as_fd(), 0, 8 * PAGE).unwrap();
        let seen = |page: u64| file_prefers(file.as_fd(), page * PAGE as u64, PAGE);
        match seen(0) {
            Err(error) if [libc::ENOSYS, libc::EPERM].contains(&error.errno()) => {
                return skipped("a_file_in_memory_keeps_the_node_for_all_who_map_it", &error);
            }
            other => assert_eq!(other.unwrap(), None),
        }
        let second_half = mapping.as_ptr().addr() + 4 * PAGE;
        // A kernel that has policies reports which nodes this process may use.
        let node = *allowed_nodes().last().unwrap();
        prefer_node(second_half, 4 * PAGE, node).unwrap();
        assert_eq!([seen(3).unwrap(), seen(4).unwrap()], [None, Some(node)]);
        drop(mapping);
        assert_eq!(seen(7).unwrap(), Some(node));
        let mapping = SharedMapping::new(file.as_fd(), 0, 8 * PAGE).unwrap();
        for unknown in [MAX_NODES - 1, MAX_NODES, u32::MAX] {
            let error = prefer_node(mapping.as_ptr().addr(), PAGE, unknown).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{error}");
        }
    }

    /// Says little on a machine with one node; with more, it checks where each page is.
    #[test]
    fn pages_come_from_the_files_node_also_where_they_come_again() {
        let test = "pages_come_from_the_files_node_also_where_they_come_again";
        let nodes = node_free_bytes(&HostRoot::new("/"));
        let allowed = allowed_nodes();
        for (NodeId(node), free) in nodes {
            if !allowed.contains(&node) {
                skipped(test, &format!("a cpuset hides node {node}"));
                continue;
            }
            // A full node is passed over: that is what preferring is.
            if free < 256 << 20 {
                skipped(test, &format!("node {node} has {free} free bytes"));
                continue;
            }
            let file = memory_file(c"refault", 8 * PAGE as u64).unwrap();
            let setting = SharedMapping::new(file.as_fd(), 0, 8 * PAGE).unwrap();
            match prefer_node(setting.as_ptr().addr(), 8 * PAGE, node) {
                Err(error) if [libc::ENOSYS, libc::EPERM].contains(&error.errno()) => {
                    return skipped(test, &error);
                }
                done => done.unwrap(),
            }
            drop(setting);
            // The hypervisor's: this mapping never heard of a node.
            let using = SharedMapping::new(file.as_fd(), 0, 8 * PAGE).unwrap();
            let pages: Vec<*mut u8> = (0..8)
                .map(|i| using.as_ptr().wrapping_add(i * PAGE))
                .collect();
            let addresses: Vec<u64> = pages.iter().map(|page| page.addr() as u64).collect();
            for _ in 0..2 {
                for page in &pages {
                    // SAFETY: inside of the mapping and of the file.
                    unsafe { page.write_volatile(1) };
                }
                let mut status = [0; 8];
                KernelPages
                    .query(std::process::id(), &addresses, &mut status)
                    .unwrap();
                assert_eq!(status, [i32::try_from(node).unwrap(); 8]);
                punch_hole(file.as_fd(), 0, 8 * PAGE as u64).unwrap();
            }
        }
    }

    #[test]
    fn a_file_on_disk_keeps_nothing() {
        // Beside the program: /tmp is often in memory.
        let folder = std::env::current_exe().unwrap();
        let file = tempfile::tempfile_in(folder.parent().unwrap()).unwrap();
        file.set_len(PAGE as u64).unwrap();
        let test = "a_file_on_disk_keeps_nothing";
        if is_tmpfs(file.as_fd()).unwrap() {
            return skipped(test, &"the program is in memory");
        }
        let mapping = SharedMapping::new(file.as_fd(), 0, PAGE).unwrap();
        let node = allowed_nodes().first().copied().unwrap_or(0);
        match prefer_node(mapping.as_ptr().addr(), PAGE, node) {
            Ok(()) => assert_eq!(file_prefers(file.as_fd(), 0, PAGE).unwrap(), None),
            Err(error) => skipped(test, &error),
        }
    }

    #[test]
    fn nodes_that_a_cpuset_hides_are_not_allowed() {
        let status =
            "Cpus_allowed_list:\t0-7\nMems_allowed:\t0,0000000d\nMems_allowed_list:\t0,2-3\n";
        assert_eq!(allowed(status), Some(vec![0, 2, 3]));
        assert_eq!(
            allowed("Mems_allowed:\t1\n"),
            None,
            "a kernel without nodes"
        );
        assert_eq!(allowed("Mems_allowed_list:\tx\n"), None);
    }

    #[test]
    fn a_set_of_two_nodes_prefers_none() {
        let mut nodes = [0; WORDS];
        assert_eq!(only(&nodes), None);
        nodes[15] = 1 << 63;
        assert_eq!(only(&nodes), Some(1023));
        nodes[0] = 1;
        assert_eq!(only(&nodes), None);
        nodes = [0; WORDS];
        nodes[1] = 6;
        assert_eq!(only(&nodes), None);
    }
}
