//! The memory that the agent's unit may take, by its cgroup.

use std::path::Path;

use terrace_sys::HostRoot;

/// Bytes that this process's cgroup and those above it allow; `None` if none of them limits memory, or the kernel does not say
/// (cgroup v1 is not looked at).
#[must_use]
pub fn memory_limit(root: &HostRoot) -> Option<u64> {
    let groups = root.read("proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limits = Path::new(path).ancestors().filter_map(|group| {
        let file = Path::new("sys/fs/cgroup").join(group).join("memory.max");
        // A group without a limit says `max`.
        root.read(file).ok()?.trim().parse::<u64>().ok()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_lowest_limit_of_the_groups_holds() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let root = HostRoot::new(dir.path());
        assert_eq!(memory_limit(&root), None);
        put(
            "proc/self/cgroup",
            "1:cpu:/x\n0::/system.slice/terrace-agent.service\n",
        );
        let group = "sys/fs/cgroup/system.slice";
        put(
            &format!("{group}/terrace-agent.service/memory.max"),
            "max\n",
        );
        assert_eq!(memory_limit(&root), None);
        put(&format!("{group}/memory.max"), "536870912\n");
        assert_eq!(memory_limit(&root), Some(512 << 20));
        put(
            &format!("{group}/terrace-agent.service/memory.max"),
            "1048576\n",
        );
        assert_eq!(memory_limit(&root), Some(1 << 20));
    }
}
