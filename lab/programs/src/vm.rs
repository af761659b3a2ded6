//! The shape of an L2 guest.

use serde::{Deserialize, Serialize};

/// The shape of an L2 guest; the argument of `lab-host start-vm`, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VmSpec {
    /// The name that QEMU gets and that its socket and files carry.
    pub name: String,
    /// RAM. Below 3 GiB, so that the offset in the backing file is the guest physical address.
    pub memory_mib: u64,
    /// Memory that the workload fills, MiB.
    pub region_mib: u64,
    /// Share of the region's pages that the workload keeps touching.
    pub hot_percent: u64,
    /// Seed that picks the first hot set.
    pub seed: u64,
    /// Whether the hot set is one run of pages of the region instead of scattered ones.
    pub clustered: bool,
    /// Hot pages of each 2 MiB of the region, instead of that share; 0 for the share.
    pub sparse: u64,
    /// Whether the guest backs the region with huge pages.
    pub thp: bool,
    /// Whether L1 backs the guest's RAM with huge pages.
    pub host_thp: bool,
    /// Pause between two passes over the hot set.
    pub pause_ms: u64,
    /// NUMA node of L1 on which the guest's RAM starts, if the policy is to prefer it.
    pub node: u32,
    /// Whether only QEMU sees the RAM, as of a VM that was started without any thought of Terrace.
    pub private: bool,
    /// The NUMA policy of the RAM.
    pub policy: RamPolicy,
    /// The first part of the RAM, MiB, which the guest sees as a node of its own and which is bound to L1's fast
    /// node, as the rest is to the slow one; 0 is a guest with one node.
    pub fast_mib: u64,
    /// A node of its own for this much of the RAM, its end, in a file of its own, MiB: of the same tier, to gather hot
    /// pages on; 0 is a guest without.
    pub gather_mib: u64,
    /// Whether the guest's initial file system holds [`AGENT_FILES`] too, and the guest has the agent's
    /// channel.
    pub agent: bool,
    /// Name of L1's port to which the guest's truth channel leads.
    pub truth_port: String,
}

/// The guest's own node of fast memory, if it has two nodes.
pub const GUEST_FAST_NODE: i32 = 0;

/// The guest's own node of slow memory.
pub const GUEST_SLOW_NODE: u32 = 1;

/// The archive in L1 that is appended to a guest's initial file system.
pub const AGENT_FILES: &str = "/run/lab/agent.cpio";

/// The agent's end of its channel, by the name of the guest's port.
pub const AGENT_PORT: &str = "org.terrace.agent.0";

/// Path of the host's end of the agent's channel.
#[must_use]
pub fn agent_socket_path(vm: &str) -> String {
    format!("/run/terrace/agent/{vm}.sock")
}

/// The nodes on which the pages of a guest's RAM may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RamPolicy {
    /// The guest's node first.
    Preferred,
    /// The nodes that the kernel chooses.
    None,
    /// The nodes that the kernel chooses; NUMA balancing may move the pages.
    Balanced,
}

impl Default for VmSpec {
    fn default() -> Self {
        Self {
            name: "vm1".to_owned(),
            memory_mib: 384,
            region_mib: 192,
            hot_percent: 10,
            seed: 1,
            clustered: false,
            sparse: 0,
            thp: false,
            host_thp: false,
            pause_ms: 20,
            node: 1,
            private: false,
            policy: RamPolicy::Preferred,
            fast_mib: 0,
            gather_mib: 0,
            agent: false,
            truth_port: truth_port(1),
        }
    }
}

/// Number of L1's truth ports: as many guests can be asked for their hot sets.
pub const TRUTH_PORTS: usize = 4;

/// The name of L1's truth port of guest `index`, from 1 to [`TRUTH_PORTS`].
#[must_use]
pub fn truth_port(index: usize) -> String {
    format!("truth{index}")
}

/// The file that backs the RAM of a guest, on a tmpfs of L1; that of huge pages is mounted below the
/// other.
#[must_use]
pub fn ram_path(spec: &VmSpec) -> String {
    let folder = if spec.host_thp {
        "/dev/shm/huge"
    } else {
        "/dev/shm"
    };
    format!("{folder}/{}.ram", spec.name)
}

/// The file of the guest's second node, beside the other.
#[must_use]
pub fn gather_path(spec: &VmSpec) -> String {
    format!("{}.gather.ram", ram_path(spec))
}

/// Path of the file in L1 with the process id of a guest's QEMU.
#[must_use]
pub fn pid_path(vm: &str) -> String {
    format!("/run/lab/{vm}.pid")
}

/// Path of the file with a guest's console output.
#[must_use]
pub fn console_path(vm: &str) -> String {
    format!("/run/lab/{vm}.console")
}

/// Path of the file in L1 with what the QEMU of a guest with a node per tier said by QMP unasked, a line each.
#[must_use]
pub fn events_path(vm: &str) -> String {
    format!("/run/lab/{vm}.events")
}

/// Path of a guest's QMP socket. It serves one client, which is the daemon under test.
#[must_use]
pub fn qmp_path(vm: &str) -> String {
    format!("/run/terrace/qmp/{vm}.sock")
}
