//! The costs of a VM to the others, in `terrace show`.

use terrace_api::types::Neighbours;

use crate::render;

/// The costs in some lines; empty if the VM was neither scanned nor moved and shares with no other.
pub fn text(n: &Neighbours) -> String {
    if n.scan_cpu_ns == 0 && n.moved_bytes == 0 && n.right_bytes.is_none() {
        return String::new();
    }
    let mut out = format!("\nwhat it costs the other VMs (weight {}):\n", n.weight);
    out += &match (n.right_bytes, n.most_bytes) {
        (Some(right), Some(most)) => format!(
            "  fast memory  {} held, {} above its share of {}; may hold {} now\n",
            render::bytes(n.held_bytes),
            render::bytes(n.above_right_bytes),
            render::bytes(right),
            render::bytes(most),
        ),
        _ => format!(
            "  fast memory  {} held; it shares with nobody\n",
            render::bytes(n.held_bytes)
        ),
    };
    out += &format!(
        "  moves        {} of {} of all VMs ({} %)\n",
        render::bytes(n.moved_bytes),
        render::bytes(n.all_moved_bytes),
        render::percent(n.moved_bytes, n.all_moved_bytes),
    );
    out += &format!(
        "  scans        {:.3} s of CPU of {:.3} s of all VMs ({} %)\n",
        seconds(n.scan_cpu_ns),
        seconds(n.all_scan_cpu_ns),
        render::percent(n.scan_cpu_ns, n.all_scan_cpu_ns),
    );
    if !n.fair {
        return out + "  shares are not by weight: engine.fair_shares is off\n";
    }
    out += &format!(
        "  refused      {} of fast memory; {} plans later by {:.1} s, {} scans later by {:.1} s\n",
        render::bytes(n.refused_bytes),
        n.late_plans,
        seconds(n.late_plans_ns),
        n.late_scans,
        seconds(n.late_scans_ns),
    );
    out
}

fn seconds(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Neighbours = Neighbours {
        fair: true,
        weight: 2000,
        right_bytes: Some(24 << 20),
        most_bytes: Some(32 << 20),
        held_bytes: 30 << 20,
        above_right_bytes: 6 << 20,
        moved_bytes: 30 << 20,
        all_moved_bytes: 60 << 20,
        scan_cpu_ns: 750_000_000,
        all_scan_cpu_ns: 1_000_000_000,
        refused_bytes: 2 << 20,
        late_plans: 3,
        late_plans_ns: 1_500_000_000,
        late_scans: 2,
        late_scans_ns: 400_000_000,
    };

    #[test]
    fn show_has_what_a_vm_cost_the_others_and_what_it_was_refused() {
        let shown = text(&BUSY);
        for line in [
            "what it costs the other VMs (weight 2000):",
            "fast memory  30 MiB held, 6 MiB above its share of 24 MiB; may hold 32 MiB now",
            "moves        30 MiB of 60 MiB of all VMs (50 %)",
            "scans        0.750 s of CPU of 1.000 s of all VMs (75 %)",
            "refused      2 MiB of fast memory; 3 plans later by 1.5 s, 2 scans later by 0.4 s",
        ] {
            assert!(shown.contains(line), "{line}\n{shown}");
        }
    }

    #[test]
    fn a_vm_that_costs_nothing_and_shares_nothing_is_not_mentioned() {
        let alone = Neighbours {
            right_bytes: None,
            moved_bytes: 0,
            scan_cpu_ns: 0,
            ..BUSY
        };
        assert_eq!(text(&alone), "");
    }
}
