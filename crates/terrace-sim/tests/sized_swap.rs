//! Guests that swap while a device sizes them.

use std::path::Path;

use terrace_sim::{Options, RunResult, Scenario, Simulation, VmResult};

const MIB: u64 = 1 << 20;

/// Longest time that a run here may simulate, ns.
const PATIENCE_NS: u64 = 60_000_000_000;

/// A VM at scale 1 on a machine with plenty of both tiers.
struct Guest {
    sizes: &'static str,
    provision: &'static str,
    swap: &'static str,
    /// Further keys of the VM's table, a line each.
    more: String,
    load: &'static str,
    end: &'static str,
}

impl Guest {
    /// A VM of 24 MiB in two tiers, whose load has 32 MiB.
    fn new(provision: &'static str) -> Self {
        Self {
            sizes: "fast = \"8MiB\"\nslow = \"16MiB\"",
            provision,
            swap: "swap = \"32MiB\"",
            more: String::new(),
            load: "32MiB",
            end: "duration = \"400ms\"",
        }
    }

    fn scenario(&self) -> Scenario {
        let text = format!(
            "[machine]\ntiers = [\"dram\", \"pmem\"]\nsizes = [\"128MiB\", \"128MiB\"]\nscale = 1\n\
             cache = \"none\"\nvcpus_per_vm = 2\n[[vm]]\nname = \"a\"\ntables = \"first\"\n\
             policy = \"first-touch\"\n{}\nprovision = {}\n{}\n{}\n\
             workload = {{ kind = \"hotset\", size = \"{}\", hot = 0.5, hot_access = 0.5, write = 0.5, {} }}\n",
            self.sizes, self.provision, self.swap, self.more, self.load, self.end
        );
        let scenario = Scenario::parse(&text, "test", Path::new("/s"));
        scenario.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs the VM, and samples it each millisecond.
    fn watch(&self, mut sample: impl FnMut(u64, &VmResult)) -> RunResult {
        let scenario = self.scenario();
        let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
        let mut until = 1_000_000;
        while simulation.advance(until) {
            assert!(until < PATIENCE_NS, "it never ends");
            sample(until, &simulation.result().vms[0]);
            until += 1_000_000;
        }
        simulation.result()
    }
}

/// The sizes of the VM's nodes, bytes.
fn given(vm: &VmResult) -> &[u64] {
    let provision = vm.provision.as_ref();
    &provision.expect("a device gives its memory").given_bytes
}

#[test]
fn a_guest_swaps_until_its_balloon_deflates() {
    for provision in ["\"balloon\"", "\"hyperflex\"", "\"virtio-mem\""] {
        let more = "resize = [{ at = \"200ms\", fast = \"16MiB\", slow = \"32MiB\" }]".to_owned();
        let guest = Guest::new(provision);
        let mut faults = Vec::new();
        let end = Guest { more, ..guest }.watch(|_, vm| faults.push(vm.major_faults));
        let end = &end.vms[0];
        assert_eq!(given(end).iter().sum::<u64>(), 48 * MIB, "{provision}");
        assert_eq!(end.tier_bytes_end.iter().sum::<u64>(), 32 * MIB, "{end:?}");
        assert!(faults[198] > faults[99] + 200, "{provision}: {faults:?}");
        assert_eq!(faults[350], faults[395], "{provision}: {faults:?}");
    }
}

#[test]
fn a_guest_gives_what_is_free_first_and_then_swaps() {
    let guest = |to: &str| Guest {
        sizes: "fast = \"16MiB\"\nslow = \"48MiB\"",
        more: format!("resize = [{{ at = \"50ms\", {to} }}]"),
        ..Guest::new("\"hyperflex\"")
    };
    let free = guest("fast = \"16MiB\", slow = \"24MiB\"").watch(|_, _| ());
    let free = &free.vms[0];
    assert_eq!(
        (free.major_faults, given(free)[1]),
        (0, 24 * MIB),
        "{free:?}"
    );
    let short = guest("fast = \"4MiB\", slow = \"16MiB\"").watch(|_, _| ());
    let short = &short.vms[0];
    assert_eq!(given(short), [4 * MIB, 16 * MIB], "{short:?}");
    assert!(short.major_faults > 1000, "{short:?}");
}

#[test]
fn a_guest_whose_swap_is_full_gives_as_far_as_it_goes() {
    let guest = Guest {
        sizes: "fast = \"16MiB\"\nslow = \"24MiB\"",
        swap: "swap = \"4MiB\"",
        // The load fits the sum, but for what the watermarks keep.
        more: "resize = [{ at = \"50ms\", fast = \"8MiB\", slow = \"20MiB\" }]".into(),
        ..Guest::new("\"balloon\"")
    };
    let end = guest.watch(|_, _| ());
    let provision = end.vms[0].provision.as_ref().expect("a device");
    let sum = |sizes: &[u64]| sizes.iter().sum::<u64>();
    assert_eq!(sum(&provision.wanted_bytes), 28 * MIB);
    let given = sum(&provision.given_bytes);
    assert!((28 * MIB + 1..30 * MIB).contains(&given), "{given}");
}

#[test]
fn a_vm_of_one_tier_is_sized_as_a_whole() {
    let guest = Guest {
        sizes: "tiers = [\"40MiB\", \"0B\"]\nmemory_ceiling = \"48MiB\"",
        more: "resize = [{ at = \"100ms\", tiers = [\"24MiB\", \"0B\"] }, \
               { at = \"250ms\", tiers = [\"48MiB\", \"0B\"] }]"
            .into(),
        ..Guest::new("\"balloon\"")
    };
    let mut least = u64::MAX;
    let end = guest.watch(|_, vm| {
        least = least.min(given(vm)[0]);
        assert_eq!(vm.tier_bytes_end[1], 0, "{vm:?}");
    });
    let vm = &end.vms[0];
    assert_eq!((least, given(vm)), (24 * MIB, &[48 * MIB, 0][..]), "{vm:?}");
    assert!(vm.major_faults > 1000, "{vm:?}");
}

#[test]
fn results_tell_sizes_orders_and_swapped_bytes() {
    let guest = Guest {
        more: "resize = [{ at = \"100ms\", fast = \"6MiB\", slow = \"8MiB\" }]".into(),
        ..Guest::new("\"hyperflex\"")
    };
    let end = guest.watch(|_, _| ());
    let vm = &end.vms[0];
    assert!(vm.swapped_in_bytes > MIB, "{vm:?}");
    assert_eq!(vm.swapped_in_bytes, vm.major_faults * 4096);
    assert!(vm.swapped_out_bytes > vm.swapped_in_bytes, "{vm:?}");
    let provision = vm.provision.as_ref().expect("a device");
    let [boot, order] = provision.orders.as_slice() else {
        panic!("two orders: {:?}", provision.orders);
    };
    // The guest boots with all of its nodes.
    assert_eq!(boot.from_bytes, [24 * MIB; 2]);
    assert_eq!(boot.to_bytes, [Some(8 * MIB), Some(16 * MIB)]);
    assert_eq!(order.from_bytes, [8 * MIB, 16 * MIB]);
    assert_eq!(order.to_bytes, [Some(6 * MIB), Some(8 * MIB)]);
    assert_eq!(order.origin, "operator");
    assert!((0.1..0.11).contains(&order.at_s), "{order:?}");
    let sizes = &provision.sizes;
    assert_eq!(sizes[0].bytes, [8 * MIB, 16 * MIB]);
    assert_eq!(sizes.last().expect("some").bytes, [6 * MIB, 8 * MIB]);
    // Pages leave one after another.
    assert!((10..=1024).contains(&sizes.len()), "{}", sizes.len());
    assert!(sizes.is_sorted_by(|a, b| a.at_s < b.at_s), "{sizes:?}");
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for provision in ["\"balloon\"", "\"hyperflex\"", "\"virtio-mem\""] {
        let run = || {
            let more = "resize = [{ at = \"100ms\", fast = \"4MiB\", slow = \"12MiB\" }]".into();
            let guest = Guest::new(provision);
            Guest { more, ..guest }.watch(|_, _| ())
        };
        assert_eq!(run(), run(), "{provision}");
    }
}

/// A VM of 2 MiB pages with 2 GiB, whose load has more; `keys` are further keys of the VM.
fn huge(provision: &str, load: &str, keys: &str) -> (VmResult, Vec<VmResult>) {
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nsizes = [\"4GiB\", \"4GiB\"]\nscale = 1\n\
         cache = \"none\"\nvcpus_per_vm = 2\n[[vm]]\nname = \"a\"\npage = \"2MiB\"\n\
         policy = \"first-touch\"\nfast = \"1GiB\"\nslow = \"1GiB\"\nswap = \"2GiB\"\n\
         provision = {provision}\n{keys}\n\
         workload = {{ kind = \"hotset\", size = \"{load}\", hot = 0.5, hot_access = 0.5, write = 0.5, \
         duration = \"400ms\" }}\n"
    );
    let scenario = Scenario::parse(&text, "test", Path::new("/s"));
    let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
    let (mut until, mut samples) = (0, Vec::new());
    while simulation.advance(until) {
        samples.push(simulation.result().vms.remove(0));
        until += 10_000_000;
    }
    (simulation.result().vms.remove(0), samples)
}

#[test]
fn blocks_of_2_mib_are_swapped_and_sized_whole() {
    const GIB: u64 = 1 << 30;
    for provision in [
        "{ by = \"balloon\", page = \"2MiB\" }",
        "{ by = \"hyperflex\", page = \"2MiB\" }",
    ] {
        let keys = "resize = [{ at = \"100ms\", fast = \"1GiB\", slow = \"2GiB\" }]";
        let (end, samples) = huge(provision, "2200MiB", keys);
        assert!(end.major_faults > 10, "{provision}: {end:?}");
        assert_eq!(end.swapped_in_bytes, end.major_faults * 2 * MIB);
        assert_eq!(end.swapped_out_bytes % (2 * MIB), 0);
        assert_eq!(given(&end).iter().sum::<u64>(), 3 * GIB, "{provision}");
        for vm in &samples {
            let fits = vm.tier_bytes_end.iter().zip(given(vm));
            assert!(fits.clone().all(|(held, given)| held <= given), "{vm:?}");
            assert!(given(vm).iter().all(|bytes| bytes % (2 * MIB) == 0));
        }
        let faults: Vec<u64> = samples.iter().map(|vm| vm.major_faults).collect();
        assert!(faults[9] > 10, "{provision}: {faults:?}");
        assert!(faults[39] - faults[35] < 10, "{provision}: {faults:?}");
    }
}

/// A load that is larger than all that the guest may ever have: behind its last blocks there are no frames.
#[test]
fn blocks_that_never_had_memory_are_not_free_memory() {
    let (end, _) = huge("{ by = \"balloon\", page = \"2MiB\" }", "2200MiB", "");
    assert!(end.major_faults > 10, "{end:?}");
    let held: u64 = end.tier_bytes_end.iter().sum();
    assert!(held <= 2048 * MIB, "{end:?}");
}

#[test]
fn a_balloon_of_small_pages_splits_what_it_gives_back() {
    // With 4 KiB, the load begins after 150 ms.
    let keys = "resize = [{ at = \"200ms\", fast = \"1GiB\", slow = \"960MiB\" }, \
                { at = \"350ms\", fast = \"1GiB\", slow = \"1280MiB\" }]";
    let run = |page: &str| {
        let provision =
            format!("{{ by = \"hyperflex\", page = \"{page}\", nodes = [\"1GiB\", \"1280MiB\"] }}");
        huge(&provision, "2040MiB", keys).0
    };
    let (small, large) = (run("4KiB"), run("2MiB"));
    // Each page of a block that came back faults on its own.
    assert!(small.vm_exits > 20 * large.vm_exits, "{small:?}\n{large:?}");
    let spent = |vm: &VmResult| vm.provision.as_ref().expect("a device").resize_s;
    assert!(spent(&small) > 2.0 * spent(&large), "{small:?}\n{large:?}");
}
