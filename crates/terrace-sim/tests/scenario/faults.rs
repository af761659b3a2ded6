//! Tests that every fault of a scenario is reported with file, line, key and the allowed values.

use super::{FULL, MINIMAL, parse};

/// Checks that a changed scenario is refused; the message must begin with file, line and key and be one line.
#[track_caller]
pub fn refused(base: &str, from: &str, to: &str, line_and_key: &str, phrases: &[&str]) {
    assert!(base.contains(from), "{from} is not in the text");
    let error = parse(&base.replacen(from, to, 1)).expect_err("refused");
    let start = format!("/s/test.toml:{line_and_key}: ");
    assert!(
        error.starts_with(&start),
        "{error}\nshould start with {start}"
    );
    for phrase in phrases {
        assert!(error.contains(phrase), "{error}\nshould say {phrase}");
    }
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn an_unknown_key_is_refused() {
    refused(
        MINIMAL,
        "slow =",
        "slw = 1\nslow =",
        "6: vm.slw",
        &["unknown field `slw`", "`weight`"],
    );
    refused(
        MINIMAL,
        "[[vm]]",
        "sclae = 1\n[[vm]]",
        "3: machine.sclae",
        &["unknown field `sclae`", "`scale`"],
    );
    refused(
        FULL,
        "where =",
        "wher =",
        "13: vm.policy.wher",
        &["unknown field", "`where`"],
    );
    refused(
        FULL,
        "[host]",
        "[hosts]",
        "33: hosts",
        &["unknown field `hosts`", "`host`"],
    );
}

#[test]
fn a_missing_key_is_refused() {
    refused(
        MINIMAL,
        "name = \"vm1\"\n",
        "",
        "3: vm",
        &["missing field `name`"],
    );
    refused(
        MINIMAL,
        "tiers = [\"dram\", \"pmem\"]\n",
        "",
        "1: machine",
        &["missing field `tiers`"],
    );
    refused(
        MINIMAL,
        "slow = \"32GiB\"\n",
        "",
        "3: vm.slow",
        &["missing beside fast"],
    );
    refused(
        MINIMAL,
        "fast = \"8GiB\"\n",
        "",
        "3: vm.fast",
        &["missing beside slow"],
    );
    refused(
        FULL,
        "tiers = [\"8GiB\", \"0B\", \"32GiB\"]\n",
        "",
        "8: vm.tiers",
        &["3 tiers"],
    );
    let at = MINIMAL.find("workload").expect("a load");
    let error = parse(&MINIMAL[..at]).expect_err("no load");
    assert!(
        error.contains(":3: vm: missing field `workload`"),
        "{error}"
    );
}

#[test]
fn a_value_of_the_wrong_type_is_refused() {
    refused(
        MINIMAL,
        "\"8GiB\"",
        "8",
        "5: vm.fast",
        &["integer `8`", "a size", "8GiB"],
    );
    refused(
        MINIMAL,
        "\"vm1\"",
        "1",
        "4: vm.name",
        &["expected a string"],
    );
    refused(
        FULL,
        "scale = 16",
        "scale = \"big\"",
        "5: machine.scale",
        &["a whole number"],
    );
    refused(
        FULL,
        "scale = 16",
        "scale = 1.5",
        "5: machine.scale",
        &["a whole number"],
    );
    refused(FULL, "\"1m\"", "60", "25: vm.balloon.at", &["a time"]);
    refused(
        FULL,
        "page = \"2MiB\"",
        "page = \"1GiB\"",
        "11: vm.page",
        &["`4KiB` or `2MiB`"],
    );
    refused(
        FULL,
        "\"slow\"",
        "\"middle\"",
        "18: vm.start",
        &["`first-touch` or `slow`"],
    );
    refused(
        MINIMAL,
        "[machine]",
        "machine = 3\n[machines]",
        "1: machine",
        &["a table [machine]"],
    );
}

#[test]
fn a_size_that_is_no_whole_number_of_pages_is_refused() {
    refused(
        MINIMAL,
        "\"8GiB\"",
        "\"8589934593B\"",
        "5: vm.fast",
        &["no whole number of pages of 4KiB"],
    );
    refused(
        FULL,
        "\"0B\", \"32GiB\"",
        "\"0B\", \"4097MiB\"",
        "10: vm.tiers",
        &["pages of 2MiB"],
    );
    let scaled = "8194MiB\", \"0B";
    refused(
        FULL,
        "8GiB\", \"0B",
        scaled,
        "10: vm.tiers",
        &["at scale 16", "the largest scale allowed is"],
    );
    refused(
        FULL,
        "\"1GiB\"",
        "\"1000001KiB\"",
        "24: vm.swap",
        &["no whole number"],
    );
}

#[test]
fn the_largest_scale_allowed_is_named_and_is_one() {
    let small = MINIMAL.replace("8GiB", "1GiB").replace("32GiB", "1GiB");
    let small = small.replace("16GiB", "1GiB");
    refused(
        &small,
        "[[vm]]",
        "scale = 1024\n[[vm]]",
        "3: machine.scale",
        &["512 pages of 4KiB", "allowed is 512"],
    );
    let largest = small.replace("[[vm]]", "scale = 512\n[[vm]]");
    parse(&largest).expect("the largest scale is valid");
    let huge = "page = \"2MiB\"\nworkload";
    // 20,480 pages of 2 MiB: at most 20 times 1,024, and 20 divides both sizes no more than 16 does.
    refused(
        MINIMAL,
        "workload",
        huge,
        "1: machine.scale",
        &["320 pages of 2MiB", "allowed is 16"],
    );
    let small = MINIMAL.replace("8GiB", "1MiB").replace("32GiB", "1MiB");
    refused(
        &small,
        "name",
        "name",
        "3: vm",
        &["512 pages", "at least 1024", "make it larger"],
    );
}

#[test]
fn memory_that_the_machine_does_not_have_is_refused() {
    let machine = "tiers = [\"dram\", \"pmem\"]\nsizes = [\"4GiB\", \"64GiB\"]";
    refused(
        MINIMAL,
        "tiers = [\"dram\", \"pmem\"]",
        machine,
        "6: vm.fast",
        &["more than the machine has of \"dram\" (4GiB)"],
    );
    refused(
        FULL,
        "\"32GiB\", \"64GiB\"",
        "\"12GiB\", \"64GiB\"",
        "22: vm.tiers",
        &["16GiB of \"dram\"", "12GiB"],
    );
    refused(
        FULL,
        "\"192GiB\"]",
        "\"192GiB\", \"1GiB\"]",
        "4: machine.sizes",
        &["4 sizes for 3 tiers"],
    );
    refused(
        MINIMAL,
        "\"32GiB\"",
        "\"1000TiB\"",
        "6: vm.slow",
        &["at most 64TiB"],
    );
    refused(
        MINIMAL,
        "\"32GiB\"",
        "\"10000TiB\"",
        "6: vm.slow",
        &["at most 4096TiB"],
    );
    refused(
        MINIMAL,
        "\"32GiB\"",
        "\"99999999TiB\"",
        "6: vm.slow",
        &["too much"],
    );
    let large = MINIMAL.replace("\"32GiB\"", "\"2TiB\"");
    refused(
        &large,
        "[[vm]]",
        "scale = 1\n[[vm]]",
        "3: machine.scale",
        &["at most 1TiB", "larger scale"],
    );
}

#[test]
fn a_load_that_does_not_fit_the_vm_is_refused() {
    refused(
        MINIMAL,
        "\"16GiB\"",
        "\"41GiB\"",
        "7: vm.workload",
        &["uses 41GiB", "has 40GiB"],
    );
    let swap = MINIMAL.replace("workload", "swap = \"1GiB\"\nworkload");
    let swap = swap.replace("16GiB", "41GiB");
    parse(&swap).expect("the swap holds the rest");
    let taken = "balloon = [{ at = \"1s\", size = \"1GiB\" }]\nworkload";
    refused(
        &swap,
        "workload",
        taken,
        "9: vm.workload",
        &["balloon taken off"],
    );
    let all = "balloon = [{ at = \"1s\", size = \"40GiB\" }]\nworkload";
    refused(
        MINIMAL,
        "workload",
        all,
        "7: vm.balloon.size",
        &["all that the VM has"],
    );
}

#[test]
fn a_phase_of_less_than_one_operation_at_its_scale_is_refused() {
    let phase = |end: &str| {
        format!(
            "{{ kind = \"hotset\", size = \"16GiB\", hot = 0.2, hot_access = 0.9, write = 0.5{end} }}"
        )
    };
    let phases = |ends: [&str; 2], whole: &str| {
        let of = ends.map(phase).join(", ");
        let load = format!("workload = {{ kind = \"phases\", of = [{of}]{whole} }}");
        let (head, _) = MINIMAL.split_once("workload").expect("a workload");
        parse(&format!("{head}{load}\n"))
    };
    for (ends, whole, key) in [
        ([", ops = 64", ", ops = 1"], "", "ops"),
        ([", ops = 63", ", ops = 64"], ", ops = 640", "ops"),
        (["", ""], ", ops = 100", "ops"),
        (
            [", duration = \"1s\"", ", duration = \"63ns\""],
            "",
            "duration",
        ),
    ] {
        let error = phases(ends, whole).expect_err(key);
        let at = format!("/s/test.toml:7: vm.workload.of.{key}: ");
        assert!(error.starts_with(&at), "{error}");
        assert!(error.contains("at scale 64 are less than one"), "{error}");
    }
    assert!(phases([", ops = 64", ", ops = 65"], "").is_ok());
}

#[test]
fn a_load_that_does_nothing_is_refused() {
    for end in ["duration = \"0s\"", "ops = 0"] {
        let error = parse(&MINIMAL.replace("duration = \"60s\"", end)).expect_err(end);
        assert!(error.starts_with("/s/test.toml:7: vm.workload"), "{error}");
    }
    refused(
        MINIMAL,
        "duration = \"60s\"",
        "ops = 63",
        "7: vm.workload.ops",
        &["at scale 64"],
    );
    refused(
        MINIMAL,
        "duration = \"60s\"",
        "duration = \"63ns\"",
        "7: vm.workload.duration",
        &["at scale 64"],
    );
}

#[test]
fn a_load_longer_than_the_machines_clock_is_refused() {
    // 2^64 ps and some ms.
    refused(
        MINIMAL,
        "duration = \"60s\"",
        "duration = \"18446744s 80ms\"",
        "7: vm.workload.duration",
        &["at most 100days"],
    );
    parse(&MINIMAL.replace("60s", "100days")).expect("just short enough");
}

#[test]
fn zero_is_refused_where_something_is_needed() {
    refused(
        MINIMAL,
        "\"8GiB\"",
        "\"0GiB\"",
        "5: vm.fast",
        &["more than nothing"],
    );
    refused(
        MINIMAL,
        "\"32GiB\"",
        "\"0GiB\"",
        "6: vm.slow",
        &["more than nothing"],
    );
    refused(
        FULL,
        "\"8GiB\", \"0B\"",
        "\"0B\", \"8GiB\"",
        "10: vm.tiers",
        &["more than nothing"],
    );
    refused(
        FULL,
        "vcpus_per_vm = 4",
        "vcpus_per_vm = 0",
        "6: machine.vcpus_per_vm",
        &["1 to 1024"],
    );
    refused(
        FULL,
        "cpus = 2",
        "cpus = 0",
        "7: machine.management_cpus",
        &["1 to 1024"],
    );
    refused(
        FULL,
        "scale = 16",
        "scale = 0",
        "5: machine.scale",
        &["1 (full size) to 1024"],
    );
    refused(FULL, "2000", "0", "14: vm.weight", &["1 to 1000000"]);
    refused(
        FULL,
        "swap = \"1GiB\"",
        "swap = \"0B\"",
        "24: vm.swap",
        &["more than nothing"],
    );
}

#[test]
fn numbers_that_are_none_or_out_of_range_are_refused() {
    for (from, key) in [
        ("reserve = 0", "35: host.reserve"),
        ("max_slowdown = 1.2", "17: vm.max_slowdown"),
        ("price_per_gib = 2.5", "3: machine.tiers.price_per_gib"),
    ] {
        let name = from.split(' ').next().expect("a name");
        for bad in ["nan", "inf", "-inf", "-1", "1e400"] {
            let error = parse(&FULL.replace(from, &format!("{name} = {bad}"))).expect_err(bad);
            assert!(
                error.starts_with(&format!("/s/test.toml:{key}: ")),
                "{bad}: {error}"
            );
        }
    }
    refused(
        FULL,
        "read_ns = 150",
        "read_ns = nan",
        "3: machine.tiers.read_ns",
        &["nan"],
    );
    refused(
        FULL,
        "write_gb_s = 60",
        "write_gb_s = 0",
        "3: machine.tiers.write_gb_s",
        &["allowed is"],
    );
    refused(
        FULL,
        "write_gb_s = 60",
        "write_gb_s = 60, line = 100",
        "3: machine.tiers.line",
        &["power of two"],
    );
    refused(
        FULL,
        "seed = 7",
        "seed = -7",
        "1: seed",
        &["`-7`", "0 or more"],
    );
    refused(
        FULL,
        "weight = 2000",
        "weight = 99999999999",
        "14: vm.weight",
        &["1 to 1000000"],
    );
    refused(
        FULL,
        "seed = 7",
        "seed = 99999999999999999999",
        "1: seed",
        &[],
    );
    refused(
        FULL,
        "\"1m\"",
        "\"999999999999years\"",
        "25: vm.balloon.at",
        &[],
    );
}

#[test]
fn names_that_are_none_or_taken_are_refused() {
    refused(FULL, "\"vm2\"", "\"vm1\"", "21: vm.name", &["another VM"]);
    refused(MINIMAL, "\"vm1\"", "\"\"", "4: vm.name", &["not a name"]);
    refused(
        MINIMAL,
        "\"vm1\"",
        "\"a\\u001b[2J\"",
        "4: vm.name",
        &["printable"],
    );
    refused(
        MINIMAL,
        "\"pmem\"",
        "\"dram\"",
        "2: machine.tiers",
        &["another tier"],
    );
}

#[test]
fn a_scenario_without_vm_is_refused() {
    let error = parse("[machine]\ntiers = [\"dram\", \"pmem\"]\n").expect_err("no VM");
    assert!(error.contains("vm: there is no VM"), "{error}");
    assert!(
        parse("")
            .expect_err("nothing")
            .contains("missing field `machine`")
    );
}

#[test]
fn tiers_that_are_too_few_too_many_or_out_of_order_are_refused() {
    let tiers = "\"dram\", \"pmem\"";
    refused(
        MINIMAL,
        tiers,
        "\"dram\"",
        "2: machine.tiers",
        &["two to four"],
    );
    let five = "\"dram-68\", \"dram\", \"remote\", \"cxl\", \"pmem\"";
    refused(
        MINIMAL,
        tiers,
        five,
        "2: machine.tiers",
        &["5 given", "two to four"],
    );
    refused(
        MINIMAL,
        tiers,
        "\"pmem\", \"dram\"",
        "2: machine.tiers",
        &["fastest tier first"],
    );
    refused(
        MINIMAL,
        tiers,
        "\"dram\", \"hbm4\"",
        "2: machine.tiers",
        &[
            "no tier \"hbm4\"",
            "dram, cxl, pmem, dram-68, remote, pmem-177",
        ],
    );
    refused(
        MINIMAL,
        tiers,
        "\"dram\", 3",
        "2: machine.tiers",
        &["a preset's name, or a table"],
    );
    refused(
        FULL,
        "tiers = [\"8GiB\", \"0B\", \"32GiB\"]",
        "fast = \"8GiB\"\nslow = \"1GiB\"",
        "8: vm.tiers",
        &["3 tiers"],
    );
    refused(
        FULL,
        "page = \"2MiB\"",
        "fast = \"8GiB\"",
        "10: vm.tiers",
        &["either, not both"],
    );
}

#[test]
fn floors_and_ceilings_that_contradict_are_refused() {
    refused(
        FULL,
        "ceiling = \"10GiB\"",
        "ceiling = \"5GiB\"",
        "15: vm.floor",
        &["6GiB", "5GiB"],
    );
    refused(
        FULL,
        "floor = \"6GiB\"",
        "floor = \"9GiB\"",
        "15: vm.floor",
        &["more than the VM's first tier (8GiB)"],
    );
    let low = "ceiling = \"4GiB\"\nworkload";
    refused(
        MINIMAL,
        "workload",
        low,
        "7: vm.ceiling",
        &["6GiB, the default", "4GiB"],
    );
    let island = MINIMAL.replace("workload", low) + "[host]\nshare = \"island\"\n";
    parse(&island).expect("an island has no default floor");
}

#[test]
fn what_cannot_be_simulated_yet_is_refused() {
    let guest = "guest_policy = \"gpca\"\nworkload";
    refused(
        MINIMAL,
        "workload",
        guest,
        "7: vm.guest_policy",
        &["gpca", "cannot be simulated", "gpac"],
    );
    for (guest, parts) in [
        ("{ base = \"gpac\", cl = 1 }", &["cl", "2 to 512"][..]),
        ("{ base = \"gpac\", cl = 513 }", &["cl", "2 to 512"]),
        ("{ base = \"tpp\", cl = 50 }", &["belongs to base", "gpac"]),
        ("{ base = \"gpac\", lc = 50 }", &["unknown field `lc`"]),
    ] {
        let guest = format!("guest_policy = {guest}\nworkload");
        let error = parse(&MINIMAL.replacen("workload", &guest, 1)).expect_err(&guest);
        let error = error.to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    refused(
        FULL,
        "\"island\"",
        "\"best\"",
        "34: host.share",
        &["allowed is island, pool, dp, trade, fair"],
    );
}

#[test]
fn steps_of_a_balloon_and_swap_of_unlike_pages_are_refused() {
    let vm = |more: &str| MINIMAL.replace("workload", &format!("{more}\nworkload"));
    let step = vm("balloon = [{ at = \"1s\", size = \"1GiB\" }]");
    refused(
        &step,
        "balloon",
        "page = \"2MiB\"\nballoon",
        "8: vm.balloon",
        &["page = \"4KiB\"", "provision"],
    );
    let swap = vm("swap = \"1GiB\"");
    let huge = swap.replace("swap", "page = \"2MiB\"\nswap");
    let huge = huge.replace("\"]\n", "\"]\nscale = 4\n");
    assert_eq!(parse(&huge).expect("valid").vms[0].shortage.swap, 1 << 30);
    refused(
        &swap,
        "swap",
        "host_page = \"2MiB\"\nswap",
        "8: vm.swap",
        &["set page"],
    );
}

#[test]
fn balloon_steps_out_of_order_are_refused() {
    refused(
        FULL,
        "\"0s\"",
        "\"2m\"",
        "25: vm.balloon.at",
        &["in order of time"],
    );
}

#[test]
fn a_price_that_is_none_is_refused() {
    for price in ["0", "-1", "1e10"] {
        refused(
            FULL,
            "price_per_gib = 2.5",
            &format!("price_per_gib = {price}"),
            "3: machine.tiers.price_per_gib",
            &["above 0"],
        );
    }
}

#[test]
fn room_in_slow_memory_is_whole_pages_and_not_without_end() {
    for (room, what) in [
        ("\"100KiB\"", "no whole number of pages of 4KiB"),
        ("\"8192TiB\"", "too much"),
    ] {
        let key = format!("slow_room = {room}\n[[vm]]");
        refused(MINIMAL, "[[vm]]", &key, "3: machine.slow_room", &[what]);
    }
}
