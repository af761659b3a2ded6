//! The report about the guest and its agent for the host.

use terrace_proto::agent::{
    Activity, Faults, Mechanism, NodeMemory, Pressure, Report, SwapSpace, Text,
};
use terrace_proto::{PAGE_SIZE, TierId};
use terrace_sys::HostRoot;

use crate::view::{AgentParts, cost};

/// The memory pressure from `/proc/pressure/memory`; `None` if the kernel does not report it.
fn pressure(root: &HostRoot) -> Option<Pressure> {
    parse_pressure(&root.read("proc/pressure/memory").ok()?)
}

fn parse_pressure(text: &str) -> Option<Pressure> {
    let line = |which: &str| {
        let line = text.lines().find(|line| line.starts_with(which))?;
        let field = |name: &str| {
            let mut fields = line.split_whitespace();
            fields.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        Some((hundredths(field("avg10")?)?, field("total")?.parse().ok()?))
    };
    let (some, full) = (line("some")?, line("full")?);
    Some(Pressure {
        some_avg10_hundredths: some.0,
        full_avg10_hundredths: full.0,
        some_total_us: some.1,
        full_total_us: full.1,
    })
}

/// A percentage in hundredths: `12.34` as 1234; at most 100 percent.
fn hundredths(text: &str) -> Option<u16> {
    let (whole, part) = text.split_once('.')?;
    let (whole, part): (u16, u16) = (whole.parse().ok()?, part.get(..2)?.parse().ok()?);
    Some(whole.checked_mul(100)?.checked_add(part)?.min(10_000))
}

fn faults(root: &HostRoot) -> Faults {
    let text = root.read("proc/vmstat").unwrap_or_default();
    let field = |name: &str| {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    let major = field("pgmajfault");
    Faults {
        major,
        minor: field("pgfault").saturating_sub(major),
        swap_in_pages: field("pswpin"),
        swap_out_pages: field("pswpout"),
    }
}

/// Swap space; `None` if the kernel does not say.
fn swap(root: &HostRoot) -> Option<SwapSpace> {
    let text = root.read("proc/meminfo").ok()?;
    let bytes = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    let (total_bytes, free) = (bytes("SwapTotal:")?, bytes("SwapFree:")?);
    Some(SwapSpace {
        total_bytes,
        used_bytes: total_bytes.saturating_sub(free),
    })
}

/// Free memory that the host is not to fill, bytes: in coordinated mode the headroom of the first tier.
fn held_back(parts: &AgentParts, tier: TierId) -> u64 {
    match tier {
        TierId::FAST if parts.host.names() => parts.ranges.config().headroom_pages * PAGE_SIZE,
        _ => 0,
    }
}

/// The report for the host.
#[must_use]
pub fn report(parts: &AgentParts, root: &HostRoot) -> Report {
    let (totals, instructions) = (parts.account.totals, parts.host.instructions());
    let mut nodes: Vec<NodeMemory> = parts
        .room
        .nodes()
        .into_iter()
        .map(|(node, tier, total_bytes, free_bytes)| NodeMemory {
            node: node.0,
            tier,
            total_bytes,
            free_bytes: free_bytes
                .min(total_bytes)
                .saturating_sub(held_back(parts, tier)),
        })
        .collect();
    nodes.sort_by_key(|node| node.node);
    Report {
        nodes,
        pressure: pressure(root),
        faults: faults(root),
        cost: cost(),
        mechanism: Mechanism {
            sampler: Text::lossy(parts.samplers.name().unwrap_or("")),
            policy: Text::lossy("hyperplace"),
            mover: Text::lossy(match parts.account.no_migrate {
                None if parts.host.names() => "MIGRATE, move_pages, symmetric exchange",
                _ => "move_pages, symmetric exchange",
            }),
        },
        activity: Activity {
            epochs: parts.ranges.epoch().into(),
            processes: u32::try_from(parts.programs.iter().count()).unwrap_or(u32::MAX),
            promoted_pages: totals.promoted_pages,
            demoted_pages: totals.demoted_pages,
            failed_pages: totals.failed_pages + totals.busy_pages,
        },
        mode: instructions.mode,
        paused: instructions.paused,
        budgets: instructions.budgets,
        frames_taken: totals.frames_taken,
        frames_refused: totals.frames_refused.all(),
        swap: swap(root),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read_as_the_kernel_writes_it() {
        let text = "some avg10=1.53 avg60=0.87 avg300=0.20 total=1234\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=99\n";
        let pressure = parse_pressure(text).unwrap();
        assert_eq!(
            (
                pressure.some_avg10_hundredths,
                pressure.some_total_us,
                pressure.full_total_us
            ),
            (153, 1234, 99)
        );
        assert_eq!(hundredths("100.00"), Some(10_000));
        for bad in ["", "some avg10=x total=1\nfull", "some\nfull"] {
            assert_eq!(parse_pressure(bad), None, "{bad}");
        }
    }

    #[test]
    fn used_swap_is_what_is_not_free() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::new(dir.path());
        assert_eq!(swap(&root), None);
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        let text = "MemTotal: 9 kB\nSwapTotal:     1024 kB\nSwapFree:       24 kB\n";
        std::fs::write(dir.path().join("proc/meminfo"), text).unwrap();
        let expected = SwapSpace {
            total_bytes: 1 << 20,
            used_bytes: 1000 << 10,
        };
        assert_eq!(swap(&root), Some(expected));
    }

    #[test]
    fn counters_that_the_kernel_does_not_have_are_zero() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        let vmstat = "pgfault 100\npgmajfault 7\npswpin 3\n";
        std::fs::write(dir.path().join("proc/vmstat"), vmstat).unwrap();
        let faults = faults(&HostRoot::new(dir.path()));
        assert_eq!(
            (
                faults.major,
                faults.minor,
                faults.swap_in_pages,
                faults.swap_out_pages
            ),
            (7, 93, 3, 0)
        );
    }
}
