//! Guests whose nodes a device sizes: the balloon, HyperFlex, virtio-mem.

use std::path::Path;

use terrace_sim::{Options, RunResult, Scenario, Simulation, VmResult};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// The pages that a node of 64 MiB beside another of that size keeps: its min and its low watermark (the root of 16
/// times 128 MiB in KiB, shared, and a quarter more).
const MIN: u64 = 181;
const LOW: u64 = 226;

/// Longest time that a run here may simulate, ns.
const PATIENCE_NS: u64 = 60_000_000_000;

/// A load on pages that are all equally hot.
const EVEN: &str = "kind = \"hotset\", size = \"32MiB\", hot = 0.5, hot_access = 0.5, write = 0.5";

/// A VM at scale 1 on a machine with plenty of both tiers and without a last-level cache, which would hold most of its
/// load; unless a test changes it, it is to have 16 MiB fast and 48
/// MiB slow.
struct Guest {
    /// The target sizes.
    sizes: &'static str,
    provision: &'static str,
    /// Further keys of the VM's table, a line each.
    more: &'static str,
    tables: &'static str,
    policy: &'static str,
    workload: &'static str,
    end: &'static str,
}

impl Guest {
    fn new(provision: &'static str) -> Self {
        Self {
            sizes: "fast = \"16MiB\"\nslow = \"48MiB\"",
            provision,
            more: "",
            tables: "first",
            policy: "first-touch",
            workload: EVEN,
            end: "duration = \"100ms\"",
        }
    }

    fn simulation(&self) -> Simulation {
        let text = format!(
            "[machine]\ntiers = [\"dram\", \"pmem\"]\nsizes = [\"256MiB\", \"256MiB\"]\nscale = 1\n\
             cache = \"none\"\nsmall_vms = \"allow\"\nvcpus_per_vm = 2\n[[vm]]\nname = \"a\"\ntables = \"{}\"\n{}\npolicy = \"{}\"\nprovision = {}\n{}\n\
             workload = {{ {}, {} }}\n",
            self.tables,
            self.sizes,
            self.policy,
            self.provision,
            self.more,
            self.workload,
            self.end
        );
        let scenario = Scenario::parse(&text, "test", Path::new("/s"));
        let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
        Simulation::new(&scenario, Options::default()).expect("it can be run")
    }

    /// Runs the VM, and samples it each millisecond.
    fn watch(&self, mut sample: impl FnMut(&VmResult)) -> RunResult {
        let mut simulation = self.simulation();
        let mut until = 1_000_000;
        while simulation.advance(until) {
            assert!(until < PATIENCE_NS, "it never ends");
            sample(&simulation.result().vms[0]);
            until += 1_000_000;
        }
        simulation.result()
    }

    fn run(&self) -> VmResult {
        self.watch(|_| ()).vms.remove(0)
    }
}

/// The sizes of the VM's nodes, bytes.
fn given(vm: &VmResult) -> &[u64] {
    let provision = vm.provision.as_ref();
    &provision.expect("a device gives its memory").given_bytes
}

fn resize_s(vm: &VmResult) -> f64 {
    let provision = vm.provision.as_ref();
    provision.expect("a device gives its memory").resize_s
}

#[test]
fn a_balloon_empties_the_fast_node_first() {
    let vm = Guest::new("\"balloon\"").run();
    assert_eq!(given(&vm), [LOW * PAGE, 64 * MIB - LOW * PAGE], "{vm:?}");
    // The program's own pages leave the same watermark alone.
    assert_eq!(vm.tier_bytes_end, [0, 32 * MIB]);
    assert!(vm.fast_hit_ratio < 0.01, "{vm:?}");
}

#[test]
fn hyperflex_takes_each_tiers_own_memory() {
    let vm = Guest::new("\"hyperflex\"").run();
    assert_eq!(given(&vm), [16 * MIB, 48 * MIB]);
    let fast = 16 * MIB - LOW * PAGE;
    assert_eq!(vm.tier_bytes_end, [fast, 32 * MIB - fast]);
}

#[test]
fn virtio_mem_does_nothing_if_memory_is_plugged_as_wanted() {
    let vm = Guest::new("\"virtio-mem\"").run();
    assert_eq!(given(&vm), [16 * MIB, 48 * MIB]);
    assert_eq!(resize_s(&vm), 0.0);
}

#[test]
fn inflation_takes_its_time_before_the_program_begins() {
    let run = |provision| {
        let end = "ops = 100000";
        let guest = Guest::new(provision);
        Guest { end, ..guest }.run()
    };
    let (flex, plugged) = (run("\"hyperflex\""), run("\"virtio-mem\""));
    // 48 and 16 MiB go, at 2.24 µs a page.
    let pages = 64.0 * 256.0;
    assert!((resize_s(&flex) - pages * 2.24e-6).abs() < 1e-9, "{flex:?}");
    let later = flex.runtime_s - plugged.runtime_s;
    assert!((later / resize_s(&flex) - 1.0).abs() < 0.1, "{later}");
}

#[test]
fn a_balloon_that_inflates_under_load_takes_vcpu_time() {
    let run = |more| {
        let end = "ops = 2000000";
        let guest = Guest::new("\"hyperflex\"");
        Guest { more, end, ..guest }.run()
    };
    let alone = run("");
    let beside = run("resize = [{ at = \"50ms\", fast = \"16MiB\", slow = \"20MiB\" }]");
    assert_eq!(beside.tier_bytes_end, alone.tier_bytes_end);
    // 28 MiB that are not used, at 1.68 µs a page, shared by two vCPUs.
    let expected = 28.0 * 256.0 * 1.68e-6 / 2.0;
    let later = beside.runtime_s - alone.runtime_s;
    assert!((later / expected - 1.0).abs() < 0.1, "{later} {expected}");
}

#[test]
fn virtio_mem_takes_and_gives_whole_blocks() {
    let more = "resize = [{ at = \"20ms\", fast = \"6MiB\", slow = \"48MiB\" }, \
                { at = \"60ms\", fast = \"20MiB\", slow = \"40MiB\" }]";
    let guest = Guest::new("\"virtio-mem\"");
    let (mut least, mut sizes) = (u64::MAX, std::collections::BTreeSet::new());
    let end = Guest { more, ..guest }.watch(|vm| {
        let fast = given(vm)[0];
        assert!(
            given(vm).iter().all(|bytes| bytes.is_multiple_of(2 * MIB)),
            "{vm:?}"
        );
        least = least.min(fast);
        sizes.insert(fast);
    });
    assert_eq!(least, 6 * MIB);
    // Block after block, not at once.
    assert!(sizes.len() > 5, "{sizes:?}");
    assert_eq!(given(&end.vms[0]), [20 * MIB, 40 * MIB]);
}

#[test]
fn no_page_is_lost_or_held_twice() {
    let more = "resize = [{ at = \"20ms\", fast = \"4MiB\", slow = \"60MiB\" }, \
                { at = \"90ms\", fast = \"40MiB\", slow = \"24MiB\" }]";
    for (provision, tables) in [
        ("\"balloon\"", "first"),
        ("\"hyperflex\"", "first"),
        ("\"virtio-mem\"", "first"),
        ("\"hyperflex\"", "along"),
        ("\"virtio-mem\"", "along"),
    ] {
        for policy in [
            "first-touch",
            "static-best",
            "tpp",
            "numab2",
            "nomad",
            "memtis",
            "hyperplace",
        ] {
            let end = "duration = \"150ms\"";
            let guest = Guest::new(provision);
            // A leaf table for each 2 MiB, and three above them.
            let whole = match tables {
                "along" => 32 * MIB + (16 + 3) * 4096,
                _ => 32 * MIB,
            };
            let guest = Guest {
                more,
                tables,
                policy,
                end,
                ..guest
            };
            let mut samples = 0;
            guest.watch(|vm| {
                samples += 1;
                let held = &vm.tier_bytes_end;
                let fits = held
                    .iter()
                    .zip(given(vm))
                    .all(|(held, given)| held <= given);
                assert!(fits, "{policy} {provision}: {vm:?}");
                // Nomad's shadow copies are held besides.
                let all: u64 = held.iter().sum();
                assert!(all == whole || policy == "nomad" && all > whole, "{vm:?}");
            });
            assert!(samples > 100, "{samples}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let more = "resize = [{ at = \"20ms\", fast = \"4MiB\", slow = \"60MiB\" }]";
    for provision in ["\"balloon\"", "\"hyperflex\"", "\"virtio-mem\""] {
        let run = || {
            let guest = Guest::new(provision);
            let policy = "tpp";
            Guest {
                more,
                policy,
                ..guest
            }
            .watch(|_| ())
        };
        assert_eq!(run(), run(), "{provision}");
    }
}

#[test]
fn hyperflex_takes_cold_pages_and_virtio_mem_whole_blocks() {
    let hits = |provision| {
        let guest = Guest::new(provision);
        let guest = Guest {
            // 4 MiB are hot, the first ones: they are put into fast memory.
            workload: "kind = \"sequential\", size = \"32MiB\", hot = 0.125, write = 0.5, period = \"1h\"",
            more: "resize = [{ at = \"50ms\", fast = \"6MiB\", slow = \"58MiB\" }]",
            end: "duration = \"400ms\"",
            ..guest
        };
        let vm = guest.run();
        assert_eq!(given(&vm), [6 * MIB, 58 * MIB], "{vm:?}");
        assert!(vm.demoted_pages > 2000, "{vm:?}");
        vm.fast_hit_ratio
    };
    let (flex, plugged) = (hits("\"hyperflex\""), hits("\"virtio-mem\""));
    assert!(flex > plugged + 0.05, "{flex} {plugged}");
}

#[test]
fn a_guest_that_does_not_demote_keeps_what_it_uses() {
    let run = |policy| {
        let more = "resize = [{ at = \"20ms\", fast = \"4MiB\", slow = \"60MiB\" }]";
        let guest = Guest::new("\"hyperflex\"");
        Guest {
            more,
            policy,
            ..guest
        }
        .run()
    };
    let (stays, goes) = (run("autonuma"), run("first-touch"));
    // It gives what was free, down to the min watermark.
    assert_eq!(given(&stays)[0], stays.tier_bytes_end[0] + MIN * PAGE);
    assert_eq!((stays.demoted_pages, given(&goes)[0]), (0, 4 * MIB));
}

#[test]
fn a_balloon_gives_back_what_it_took_last() {
    let run = |provision| {
        let more = "resize = [{ at = \"50ms\", fast = \"32MiB\", slow = \"48MiB\" }]";
        let guest = Guest::new(provision);
        Guest { more, ..guest }.run()
    };
    let (blind, flex) = (
        run("{ by = \"balloon\", nodes = [\"64MiB\", \"64MiB\"] }"),
        run("\"hyperflex\""),
    );
    // It took 226 pages of the slow node last.
    let back = 16 * MIB - LOW * PAGE;
    assert_eq!(given(&blind), [LOW * PAGE + back, 64 * MIB], "{blind:?}");
    assert_eq!(given(&flex), [32 * MIB, 48 * MIB]);
}

#[test]
fn a_guest_that_uses_every_page_gives_what_the_watermarks_leave() {
    let full = "kind = \"hotset\", size = \"64MiB\", hot = 0.5, hot_access = 0.5, write = 0.5";
    let more = "resize = [{ at = \"20ms\", fast = \"8MiB\", slow = \"56MiB\" }]";
    for (provision, policy) in [
        ("\"hyperflex\"", "first-touch"),
        ("\"balloon\"", "tpp"),
        ("\"virtio-mem\"", "tpp"),
    ] {
        let guest = Guest::new(provision);
        let vm = Guest {
            workload: full,
            end: "duration = \"500ms\"",
            more,
            policy,
            ..guest
        }
        .run();
        assert_eq!(vm.tier_bytes_end.iter().sum::<u64>(), 64 * MIB, "{vm:?}");
        assert!(given(&vm).iter().sum::<u64>() >= 64 * MIB, "{vm:?}");
        if provision == "\"hyperflex\"" {
            // Demotions leave the slow node its min watermark, and the balloon the fast one its own.
            assert_eq!(given(&vm), [8 * MIB + 2 * MIN * PAGE, 56 * MIB], "{vm:?}");
        }
    }
}

#[test]
fn a_resize_to_nothing_leaves_the_fast_node_its_min_watermark() {
    let more = "resize = [{ at = \"20ms\", fast = \"0B\", slow = \"64MiB\" }]";
    let guest = Guest::new("\"hyperflex\"");
    let end = "duration = \"300ms\"";
    let vm = Guest { more, end, ..guest }.run();
    assert_eq!(given(&vm), [MIN * PAGE, 64 * MIB], "{vm:?}");
    assert_eq!(vm.tier_bytes_end, [0, 32 * MIB]);
}

#[test]
fn a_node_that_is_to_have_nothing_keeps_no_other_from_its_size() {
    let guest = Guest {
        sizes: "tiers = [\"40MiB\", \"0B\"]",
        ..Guest::new("{ by = \"hyperflex\", nodes = [\"64MiB\", \"1MiB\"] }")
    };
    let mut slow = u64::MAX;
    guest.watch(|vm| {
        assert_eq!(given(vm)[0], 40 * MIB, "{vm:?}");
        slow = given(vm)[1];
    });
    // Its min watermark is all that it keeps.
    assert!((1..16).contains(&(slow / PAGE)), "{slow}");
}

#[test]
fn a_resize_to_what_is_there_does_nothing() {
    let more = "resize = [{ at = \"20ms\", fast = \"16MiB\", slow = \"48MiB\" }]";
    for provision in ["\"balloon\"", "\"hyperflex\"", "\"virtio-mem\""] {
        let guest = Guest::new(provision);
        let (mut same, mut alone) = (Guest { more, ..guest }.run(), Guest::new(provision).run());
        let orders = [&mut same, &mut alone].map(|vm| {
            let device = vm.provision.as_mut().expect("a device");
            std::mem::take(&mut device.orders).len()
        });
        assert_eq!(orders, [2, 1], "{provision}");
        assert_eq!(same, alone);
    }
}

#[test]
fn a_later_order_replaces_the_one_under_way() {
    let more = "resize = [{ at = \"50ms\", fast = \"64MiB\", slow = \"0B\" }, \
                { at = \"51ms\", fast = \"20MiB\", slow = \"44MiB\" }]";
    let guest = Guest::new("\"hyperflex\"");
    let mut most = 0;
    let end = Guest { more, ..guest }.watch(|vm| most = most.max(given(vm)[0]));
    assert_eq!(given(&end.vms[0]), [20 * MIB, 44 * MIB]);
    assert!((17 * MIB..64 * MIB).contains(&most), "{most}");
}

#[test]
fn tpp_makes_room_for_a_balloon_that_inflates_while_it_runs() {
    let run = |policy| {
        let guest = Guest {
            policy,
            more: "resize = [{ at = \"50ms\", fast = \"16MiB\", slow = \"32MiB\" }]",
            ..Guest::new("{ by = \"balloon\", nodes = [\"16MiB\", \"48MiB\"] }")
        };
        guest.run()
    };
    let (tpp, still) = (run("tpp"), run("first-touch"));
    // Pages in use stay in place if nothing moves them: the balloon takes slow memory. TPP keeps fast memory free, and
    // the balloon takes that.
    assert!(given(&still)[0] >= still.tier_bytes_end[0], "{still:?}");
    assert!(given(&tpp)[0] < given(&still)[0], "{tpp:?}\n{still:?}");
    assert!(tpp.tier_bytes_end[0] < still.tier_bytes_end[0], "{tpp:?}");
}

#[test]
fn a_bound_has_tiers_without_end_and_no_device() {
    for policy in ["all-fast", "all-slow"] {
        let guest = Guest::new("\"balloon\"");
        let vm = Guest { policy, ..guest }.run();
        assert_eq!(vm.provision, None);
        assert_eq!(vm.tier_bytes_end.iter().max(), Some(&(32 * MIB)));
    }
}

/// A VM wants memory of the machine that another may still take: the engine that sizes real VMs refuses it.
#[test]
fn a_resize_beyond_the_machine_is_refused_and_the_run_continues() {
    let vm = |name: &str, more: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nfast = \"32MiB\"\nslow = \"48MiB\"\ntables = \"first\"\npolicy = \"first-touch\"\n\
             provision = \"hyperflex\"\n{more}\nworkload = {{ {EVEN}, duration = \"200ms\" }}\n"
        )
    };
    let grows = "resize = [{ at = \"20ms\", fast = \"96MiB\", slow = \"48MiB\" }, \
                 { at = \"40ms\", fast = \"16MiB\", slow = \"48MiB\" }]";
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nsizes = [\"96MiB\", \"256MiB\"]\nscale = 1\n\
         vcpus_per_vm = 2\n{}{}",
        vm("a", grows),
        vm("b", "")
    );
    let scenario = Scenario::parse(&text, "test", Path::new("/s"));
    let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
    while simulation.advance(u64::MAX) {}
    let vm = &simulation.result().vms[0];
    let provision = vm.provision.as_ref().unwrap();
    let [refused] = provision.refused.as_slice() else {
        panic!("one resize is refused: {:?}", provision.refused);
    };
    for has in [
        "a: node 0 has",
        "of which b may still take",
        "of fast can be given now",
    ] {
        assert!(refused.why.contains(has), "no {has:?} in {}", refused.why);
    }
    assert_eq!(provision.wanted_bytes, [16 * MIB, 48 * MIB]);
}
