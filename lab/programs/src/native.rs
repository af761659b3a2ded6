//! The shapes of workloads that run in L1 itself: arguments of `lab-native`, as JSON.

use serde::{Deserialize, Serialize};

/// A process with a hot set, which answers on a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HotSet {
    /// Name of the process's socket.
    pub name: String,
    /// Memory that the process fills, MiB.
    pub region_mib: usize,
    /// The part of the memory that the process keeps touching, MiB: one run of pages, unless `sparse` is set.
    pub hot_mib: usize,
    /// Hot pages in each 2 MiB of the region, instead of the run; 0 for the run.
    pub sparse: usize,
    /// Seed that picks the first hot set.
    pub seed: u64,
    /// Pages anywhere in the region that each pass touches beside the hot set.
    pub elsewhere: usize,
    /// Whether the region is on the heap, instead of a mapping.
    pub heap: bool,
    /// Whether the region is backed by huge pages.
    pub thp: bool,
    /// NUMA node on which the region starts.
    pub node: u32,
    /// The processor to which the process keeps.
    pub processor: usize,
    /// Pause between two passes.
    pub pause_ms: u64,
}

impl Default for HotSet {
    fn default() -> Self {
        Self {
            name: "hotset".to_owned(),
            region_mib: 256,
            hot_mib: 24,
            sparse: 0,
            seed: 1,
            elsewhere: 64,
            heap: false,
            thp: false,
            node: 1,
            processor: 1,
            pause_ms: 2,
        }
    }
}

/// A client that fills a redis-server and then asks some of the keys much more often than all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Load {
    /// Name of the client's socket.
    pub name: String,
    /// The server's Unix socket.
    pub server: String,
    /// Number of keys.
    pub keys: usize,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Share of the keys that are hot: a run of them, in the order in which they were set.
    pub hot_percent: usize,
    /// Share of the requests that are for hot keys.
    pub hot_request_percent: usize,
    /// Standard deviation of the keys that are asked for, by number, around the middle one (a Gaussian load), instead of hot keys
    /// and others; the keys are set in random order then. 0 for hot keys and others.
    pub deviation: usize,
    /// Seed that picks the first hot keys.
    pub seed: u64,
    /// The processor to which the client keeps; the server's own, so that each answer is a switch of processes.
    pub processor: usize,
}

impl Default for Load {
    /// A few large values: a request touches many pages, so that DAMON, which checks one page of a range at a time,
    /// sees a range that is hot in part plainly even if an emulated server answers few requests.
    fn default() -> Self {
        Self {
            name: "load".to_owned(),
            server: "/run/redis.sock".to_owned(),
            keys: 375,
            value_bytes: 256_000,
            hot_percent: 6,
            hot_request_percent: 90,
            deviation: 0,
            seed: 1,
            processor: 1,
        }
    }
}

/// Path of the socket on which a workload of this name answers.
#[must_use]
pub fn socket_path(name: &str) -> String {
    format!("/run/lab/{name}.sock")
}
