//! The fast node filled up, so that every method has the same room on it.
//!
//! A pool of huge pages takes the space: nothing demotes or migrates it, unlike a process's memory or a file. While
//! the pool grows, the kernel demotes everything else on the node; so only free memory is left, and memory that
//! cannot leave.

use anyhow::Result;

use crate::control::lab::Lab;

/// Room above the kernel's high watermark: that of the daemon's ceiling in the lab's configuration.
pub const ROOM_MIB: u64 = 24;

/// Commands that fill the node to the brim.
const SQUEEZE: &str = "pool=/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages
demotion=/sys/kernel/mm/numa/demotion_enabled
was=$(cat $demotion)
echo 1 >$demotion
echo 1024 >$pool
echo $was >$demotion";

/// Commands for the fast node before the guest boots: little is left on it, so that the guest's RAM comes to the slow
/// one. The watermarks are near each other, so that it does not matter at which of them a method stops.
pub fn before_vm() -> String {
    format!(
        "echo 16384 >/proc/sys/vm/min_free_kbytes\n{SQUEEZE}\necho $(($(cat $pool) - 32)) >$pool"
    )
}

/// Leaves [`ROOM_MIB`] above the high watermark free.
pub fn leave_room(lab: &mut Lab) -> Result<()> {
    let script = format!(
        r#"{SQUEEZE}
        free() {{ awk '/MemFree/ {{ print $4 }}' /sys/devices/system/node/node0/meminfo; }}
        high=$(awk '/^Node/ {{ node = $2 }} node == "0," && $1 == "high" {{ pages += $2 }}
                    END {{ print 4 * pages }}' /proc/zoneinfo)
        for try in 1 2 3; do
            echo $(($(cat $pool) - (high + {ROOM_MIB} * 1024 - $(free) + 1024) / 2048)) >$pool
        done"#
    );
    lab.check(&script).map(drop)
}
