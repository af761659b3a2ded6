//! `autonuma`.

use crate::common::Small;

const HOT: &str = "kind = \"hotset\", size = \"2048MiB\", hot = 0.05, hot_access = 0.9, write = 0.2, \
                   compute_ns = 200, duration = \"60s\"";

#[test]
fn autonuma_fills_what_is_free_of_the_fast_node_and_never_demotes() {
    let vm = Small {
        policy: "\"autonuma\"",
        more: "start = \"slow\"",
        workload: HOT,
        scale: 64,
    }
    .run();
    assert!(vm.promoted_pages > 0 && vm.demoted_pages == 0, "{vm:?}");
    assert!(vm.fast_bytes_end > 900 << 20, "{vm:?}");
    assert!(vm.rounds >= 3, "{vm:?}");
}

#[test]
fn autonuma_moves_nothing_once_the_fast_node_is_full() {
    let vm = Small {
        policy: "\"autonuma\"",
        more: "",
        workload: HOT,
        scale: 64,
    }
    .run();
    assert_eq!((vm.promoted_pages, vm.demoted_pages), (0, 0));
    assert!(vm.overhead_s.track > 0.0);
}

#[test]
fn a_hinting_fault_exits_at_the_host_and_not_in_the_guest() {
    let run = |policy| {
        Small {
            policy,
            more: "",
            workload: HOT,
            scale: 64,
        }
        .run()
    };
    let (guest, host) = (run("\"autonuma@guest\""), run("\"autonuma@host\""));
    assert!(
        host.vm_exits > 10 * guest.vm_exits.max(1),
        "{guest:?}\n{host:?}"
    );
    assert_eq!(guest.policy, "autonuma@guest");
}
