//! Guests that move what lies in the frames that the engine names (`move = "guest"`).

use std::path::Path;

use terrace_sim::{Options, RunResult, Scenario, Simulation, VmResult};

const MIB: u64 = 1 << 20;

/// A VM of two tiers that begins on slow memory, under a policy, with further keys.
fn text(share: &str, policy: &str, keys: &str, load: &str) -> String {
    format!(
        "[machine]\ntiers = [\"dram\", \"cxl\"]\nsizes = [\"4GiB\", \"8GiB\"]\nscale = 16\nvcpus_per_vm = 2\n\
         cache = \"none\"\n[host]\nshare = \"{share}\"\nprice_ratio = 4\n[[vm]]\nname = \"a\"\nstart = \"slow\"\n\
         policy = {policy}\n{keys}\nworkload = {{ {load} }}\n"
    )
}

fn parse(text: &str) -> Result<Scenario, String> {
    Scenario::parse(text, "test", Path::new("/s")).map_err(|error| error.to_string())
}

fn run(text: &str) -> RunResult {
    let scenario = parse(text).unwrap_or_else(|error| panic!("{error}"));
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it fits");
    assert!(!simulation.advance(300_000_000_000), "it does not end");
    simulation.result()
}

/// Keys of a VM of so many MiB of fast and slow memory that a device sizes.
fn sized(fast: u64, slow: u64, by: &str, swap: &str) -> String {
    format!(
        "fast = \"{fast}MiB\"\nslow = \"{slow}MiB\"\n{swap}\nmemory_ceiling = \"4GiB\"\n\
         provision = {{ by = \"{by}\", nodes = [\"2GiB\", \"4GiB\"] }}"
    )
}

const SWAP: &str = "swap = \"4GiB\"";

/// A quarter of 400 MiB gets nine tenths of the accesses.
const HOT: &str =
    "kind = \"hotset\", size = \"400MiB\", hot = 0.25, hot_access = 0.9, duration = \"60s\"";

/// HMvisor's lists with a threshold that the loads here pass.
const LISTS: &str = "{ base = \"hmvisor\", sides = \"double\" }";

fn given(vm: &VmResult) -> &[u64] {
    &vm.provision.as_ref().expect("a device").given_bytes
}

#[test]
fn a_guest_beside_a_device_moves_what_is_named() {
    for swap in [SWAP, ""] {
        let keys = sized(160, 300, "hyperflex", swap);
        let still = run(&text("island", "\"first-touch\"", &keys, HOT));
        let moved = run(&text("island", LISTS, &keys, HOT));
        let (still, moved) = (&still.vms[0], &moved.vms[0]);
        assert!(moved.promoted_pages > 10_000, "{swap}: {moved:?}");
        assert!(
            moved.fast_hit_ratio > still.fast_hit_ratio + 0.2,
            "{moved:?}"
        );
        assert_eq!(moved.policy, "hmvisor sides=double move=guest");
        // Nothing is lost, and no node is overrun.
        let held = |vm: &VmResult| vm.tier_bytes_end.iter().sum::<u64>();
        assert_eq!(held(moved), held(still), "{swap}");
        for (held, given) in moved.tier_bytes_end.iter().zip(given(moved)) {
            assert!(held <= given, "{swap}: {moved:?}");
        }
    }
}

#[test]
fn a_hot_vm_trades_slow_memory_that_it_does_not_use_for_fast() {
    let load =
        "kind = \"hotset\", size = \"178MiB\", hot = 1.0, hot_access = 1.0, duration = \"120s\"";
    let keys = sized(100, 400, "hyperflex", SWAP);
    let [island, trade] = ["island", "trade"].map(|share| run(&text(share, LISTS, &keys, load)));
    let (before, after) = (given(&island.vms[0]), given(&trade.vms[0]));
    assert!(after[0] > 140 * MIB && after[1] < before[1], "{after:?}");
    let cost = |sizes: &[u64]| sizes[0] * 4 + sizes[1];
    assert!(cost(after) <= cost(before), "{after:?} for {before:?}");
    let (island, trade) = (&island.vms[0], &trade.vms[0]);
    assert!(trade.fast_hit_ratio > island.fast_hit_ratio + 0.2);
    assert!(trade.ops_per_s > 1.03 * island.ops_per_s);
    assert_eq!(trade.major_faults, 0);
}

#[test]
fn guests_that_cannot_move_what_is_named_are_refused() {
    let refused = |policy: &str, keys: &str, says: &str| {
        let error = parse(&text("island", policy, keys, HOT)).expect_err("refused");
        assert!(error.contains(says), "{error}");
    };
    let keys = sized(160, 300, "hyperflex", SWAP);
    refused("\"vtmm\"", &keys, "set move = \"guest\"");
    let linux = "{ base = \"hmvisor\", move = \"linux\" }";
    refused(linux, &keys, "set move = \"guest\"");
    let one = "tiers = [\"460MiB\", \"0B\"]\nprovision = \"balloon\"";
    refused("\"hmvisor\"", one, "no other node");
    let huge = format!("{keys}\npage = \"2MiB\"");
    refused("\"hmvisor\"", &huge, "pages of 4KiB");
    let own = "fast = \"256MiB\"\nslow = \"512MiB\"";
    let keys = |more: &str| format!("{own}\n{more}");
    for pages in ["page = \"2MiB\"", "host_page = \"2MiB\""] {
        refused(VTMM, &keys(pages), "pages of 4KiB");
    }
    refused(VTMM, &keys("guest_policy = \"tpp\""), "guest_policy");
    let balloon = "balloon = [{ at = \"10s\", size = \"64MiB\" }]";
    refused(VTMM, &keys(balloon), "leave balloon out");
    let tpp = "{ base = \"tpp\", move = \"guest\" }";
    refused(tpp, own, "one mechanism");
    let in_guest = "{ base = \"vtmm\", move = \"guest\", where = \"guest\" }";
    refused(in_guest, own, "cannot run in the guest");
    let none = "{ base = \"hpmbs\", move = \"guest\" }";
    refused(none, own, "moves no page");
    assert!(parse(&text("island", VTMM, own, HOT)).is_ok());
}

#[test]
fn a_guest_that_its_load_fills_has_no_free_memory_to_move_by() {
    let full = "fast = \"144MiB\"\nslow = \"256MiB\"";
    let scenario = parse(&text("island", VTMM, full, HOT)).expect("valid");
    let error = Simulation::new(&scenario, Options::default());
    let error = error.err().expect("refused").to_string();
    assert!(error.contains("larger than its load"), "{error}");
}

/// vTMM beside a guest that moves pages.
const VTMM: &str = "{ base = \"vtmm\", move = \"guest\" }";

/// HMvisor beside a guest that moves pages.
const HMVISOR: &str = "{ base = \"hmvisor\", move = \"guest\" }";

/// Tiers, fast memory for some of the load and slow memory for all of it; an eighth of the load is hot, at first and then another.
const OWN: &str = "fast = \"64MiB\"\nslow = \"512MiB\"";
const MOVED: &str = "kind = \"hotset\", size = \"256MiB\", hot = 0.125, hot_access = 0.9, compute_ns = 2000, \
    stages = 2, stage_every = \"120s\", duration = \"240s\"";

/// The result without what differs from run to run.
fn bytes(result: &RunResult) -> String {
    let mut result = result.clone();
    (result.wall_s, result.accesses_per_wall_s) = (0.0, 0.0);
    serde_json::to_string(&result).expect("plain data")
}

#[test]
fn hot_data_are_moved_again_and_nothing_is_lost_or_added() {
    for policy in [VTMM, HMVISOR] {
        let text = |policy| text("island", policy, OWN, MOVED);
        let (still, first) = (run(&text("\"first-touch\"")), run(&text(policy)));
        assert_eq!(bytes(&first), bytes(&run(&text(policy))), "{policy}");
        let (still, moved) = (&still.vms[0], &first.vms[0]);
        assert!(
            moved.fast_hit_ratio > still.fast_hit_ratio + 0.3,
            "{policy}: {moved:?}"
        );
        assert!(
            moved.promoted_pages > 8192 && moved.demoted_pages > 0,
            "{policy}: {moved:?}"
        );
        let used = |vm: &VmResult| vm.tier_bytes_end.iter().sum::<u64>();
        assert_eq!(used(moved), used(still), "{policy}");
        assert!(moved.tier_bytes_end[0] <= 64 * MIB, "{policy}: {moved:?}");
        // What the vCPUs pay rises with the pages: each costs some microseconds.
        let all = (moved.promoted_pages + moved.demoted_pages) as f64;
        let each_us = moved.overhead_s.migrate * 1e6 / all;
        assert!((2.0..20.0).contains(&each_us), "{policy}: {each_us} us");
        assert_eq!(still.overhead_s.migrate, 0.0);
        let gained = (moved.promoted_pages - moved.demoted_pages) * 4096;
        assert_eq!(
            moved.tier_bytes_end[0] - still.tier_bytes_end[0],
            gained,
            "{policy}"
        );
    }
}

#[test]
fn no_more_than_a_thousand_frames_a_second_are_moved() {
    for policy in [VTMM, HMVISOR] {
        let scenario = parse(&text("island", policy, OWN, MOVED)).expect("valid");
        let mut simulation = Simulation::new(&scenario, Options::default()).expect("it fits");
        let (mut most, mut before) = (0, vec![0]);
        for second in 1..=240_usize {
            simulation.advance(second as u64 * 1_000_000_000);
            let vm = simulation.result().vms.remove(0);
            before.push(vm.promoted_pages + vm.demoted_pages);
            // Frames that were named within a second may be moved in the next one.
            for span in [1, 10, 60] {
                let since = before[second.saturating_sub(span)];
                let moved = before[second] - since;
                let limit = 1024 * (span as u64 + 1);
                assert!(moved <= limit, "{policy}: {moved} in {span} s");
            }
            most = most.max(before[second] - before[second.saturating_sub(10)]);
        }
        // All that may be named is.
        assert!(most >= 9 * 1024, "{policy}: {most}");
    }
}

#[test]
fn a_vm_with_little_to_sell_is_not_made_to_swap() {
    let load =
        "kind = \"hotset\", size = \"178MiB\", hot = 1.0, hot_access = 1.0, duration = \"75s\"";
    let keys = sized(100, 100, "hyperflex", SWAP);
    let [island, trade] = ["island", "trade"].map(|share| run(&text(share, LISTS, &keys, load)));
    let (island, trade) = (&island.vms[0], &trade.vms[0]);
    assert_eq!(trade.swapped_in_bytes, 0, "{:?}", given(trade));
    assert!(
        trade.ops_per_s > island.ops_per_s * 0.99,
        "{:?}",
        given(trade)
    );
}
