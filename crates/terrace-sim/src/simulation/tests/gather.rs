//! A guest that gathers its scattered hot pages, under five policies of the host.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::base::number::low;
use crate::machine::costs::Costs;

/// 1.5 GiB with scattered hot pages, about five in each 2 MiB; fast memory for 128 of 768 pages of 2 MiB.
const SCATTERED: &str = "hot = 0.01, hot_access = 1.0, compute_ns = 100_000, duration = \"60s\"";
const ALL: &str = "hot = 1.0, compute_ns = 10_000, duration = \"40s\"";
/// The hosts' policies: each moves pages of 2 MiB.
const HOSTS: [&str; 5] = [
    "{ base = \"memtierd\", where = \"host\" }",
    "{ base = \"tpp\", where = \"host\" }",
    "{ base = \"autonuma\", where = \"host\" }",
    "{ base = \"numab2\", where = \"host\" }",
    "{ base = \"vtmm\", observe = \"ept-scan\" }",
];

fn text(policy: &str, guest: &str, load: &str) -> String {
    format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nvcpus_per_vm = 2\nscale = 1\ncache = \"none\"\nsmall_vms = \"allow\"\n\
         [[vm]]\nname = \"a\"\nfast = \"256MiB\"\nslow = \"1920MiB\"\nguest_page = \"4KiB\"\nhost_page = \"2MiB\"\n\
         start = \"slow\"\npolicy = {policy}\n{guest}\n\
         workload = {{ kind = \"hotset\", size = \"1536MiB\", {load}, write = 0.5 }}\n"
    )
}

fn simulation(policy: &str, guest: &str, load: &str) -> Simulation {
    let text = text(policy, guest, load);
    let scenario = Scenario::parse(&text, "gather", Path::new("/s")).expect("valid");
    Simulation::new(&scenario, Options::default()).expect("it can be run")
}

/// Blocks of 2 MiB of the guest's memory that are accessed in ten seconds.
fn hot_blocks(simulation: &mut Simulation) -> usize {
    let vm = &mut simulation.vms[0];
    let pages = low(vm.space.guest.pages());
    (0..pages).for_each(|page| {
        vm.space.guest.age(page);
    });
    vm.shoot_down(&Costs::default());
    let until = simulation.now().0 + 9_000_000_000;
    simulation.advance(until);
    let guest = &simulation.vms[0].space.guest;
    let accessed = (0..pages).filter(|page| guest.accessed(*page));
    let blocks: BTreeSet<u32> = accessed
        .filter_map(|page| guest.frame(page))
        .map(|frame| frame >> 9)
        .collect();
    blocks.len()
}

#[test]
fn hot_pages_come_together_under_each_policy_of_the_host() {
    for host in HOSTS {
        let mut run = simulation(host, "guest_policy = \"gpac\"", SCATTERED);
        // Between two windows of the guest's, which clears the same bits.
        run.advance(10_500_000_000);
        let before = hot_blocks(&mut run);
        run.advance(50_500_000_000);
        let after = hot_blocks(&mut run);
        assert!(before >= 700 && after <= 16, "{host}: {before} to {after}");
        let gathered = run.result().vms[0].gathered_pages.unwrap_or(0);
        assert!(gathered > 3700, "{host}: {gathered}");
    }
}

#[test]
fn a_host_that_demotes_has_more_of_the_hot_pages_in_fast_memory() {
    let long = SCATTERED.replace("60s", "150s");
    let ratio = |guest| {
        let mut run = simulation(HOSTS[1], guest, &long);
        while run.advance(u64::MAX) {}
        let vm = run.result().vms.remove(0);
        (
            vm.guest_policy,
            vm.gathered_pages.is_some(),
            vm.fast_hit_ratio,
        )
    };
    let (none, _, alone) = ratio("");
    let (name, gathers, gathered) = ratio("guest_policy = \"gpac\"");
    assert_eq!((none, name.as_deref(), gathers), (None, Some("gpac"), true));
    assert!(gathered > alone, "{alone} to {gathered}");
}

#[test]
fn a_guest_without_memory_beyond_its_load_is_refused() {
    let text = text(HOSTS[0], "guest_policy = \"gpac\"", ALL).replace("1536MiB", "2176MiB");
    let scenario = Scenario::parse(&text, "gather", Path::new("/s")).expect("valid");
    let error = Simulation::new(&scenario, Options::default())
        .err()
        .expect("no room");
    assert!(
        error
            .to_string()
            .contains("make the VM larger than its load"),
        "{error}"
    );
}

#[test]
fn gathering_for_a_host_of_small_pages_is_refused() {
    let gathers = text(HOSTS[0], "guest_policy = \"gpac\"", SCATTERED);
    let small = gathers.replace("host_page = \"2MiB\"", "host_page = \"4KiB\"");
    let error = Scenario::parse(&small, "gather", Path::new("/s")).unwrap_err();
    assert!(error.to_string().contains("set guest_page"), "{error}");
}

#[test]
fn a_name_may_have_gathering_behind_it() {
    let scenario =
        Scenario::parse(&text(HOSTS[0], "", SCATTERED), "gather", Path::new("/s")).unwrap();
    for name in ["tpp+gpac", "tpp@host+gpac", "first-touch+gpac"] {
        let with = scenario.with_policy(name).unwrap();
        assert!(with.vms[0].gathers().is_some(), "{name}");
        let mechanism = with.vms[0].baseline();
        assert!(
            mechanism.is_none_or(|(_, side)| side == crate::base::side::Side::Host),
            "{name}"
        );
        let alone = with.with_policy("tpp@host").unwrap();
        assert!(alone.vms[0].gathers().is_none());
    }
    for wrong in ["tpp+gpca", "+gpac", "gpac"] {
        assert!(scenario.with_policy(wrong).is_err(), "{wrong}");
    }
    let error = scenario.with_policy("tpp@guest+gpac").unwrap_err();
    assert!(
        error.to_string().contains("at the host only: tpp+gpac"),
        "{error}"
    );
}

/// 768 blocks with one hot page each.
const ONE_EACH: &str = "hot = 0.001953125, hot_access = 1.0, layout = \"even\", compute_ns = 100_000, duration = \"45s\"";

#[test]
fn one_hot_page_in_each_block_becomes_a_512th_of_the_blocks() {
    for host in HOSTS {
        let mut run = simulation(host, "guest_policy = \"gpac\"", ONE_EACH);
        while run.advance(u64::MAX) {}
        let vm = run.result().vms.remove(0);
        let blocks = vm.hot_blocks.expect("two rounds");
        assert_eq!((blocks.first, blocks.last), (768, 2), "{host}");
        assert_eq!(vm.gathered_pages, Some(768), "{host}");
    }
}

#[test]
fn a_limit_leaves_blocks_with_as_many_hot_pages_alone() {
    let guest = "guest_policy = { base = \"gpac\", cl = 4 }";
    let mut run = simulation(HOSTS[0], guest, SCATTERED);
    while run.advance(u64::MAX) {}
    let vm = run.result().vms.remove(0);
    assert_eq!(vm.guest_policy.as_deref(), Some("gpac cl=4"));
    // Of about five hot pages in each block, a quarter of the blocks has three or fewer.
    let gathered = vm.gathered_pages.expect("it gathers");
    assert!((200..1200).contains(&gathered), "{gathered}");
    let blocks = vm.hot_blocks.expect("rounds");
    assert!(
        blocks.last > 400 && blocks.last < blocks.first,
        "{blocks:?}"
    );
}

#[test]
fn a_name_with_gathering_keeps_the_guests_limit() {
    let guest = "guest_policy = { base = \"gpac\", cl = 50 }";
    let text = text(HOSTS[0], guest, SCATTERED);
    let scenario = Scenario::parse(&text, "gather", Path::new("/s")).unwrap();
    let with = scenario.with_policy("tpp+gpac").unwrap();
    assert_eq!(with.vms[0].guest_policy, scenario.vms[0].guest_policy);
    assert!(
        scenario.with_policy("tpp@host").unwrap().vms[0]
            .gathers()
            .is_none()
    );
}

#[test]
fn nothing_is_gathered_if_all_memory_is_hot() {
    let mut run = simulation(HOSTS[0], "guest_policy = \"gpac\"", ALL);
    while run.advance(u64::MAX) {}
    assert_eq!(run.result().vms[0].gathered_pages, Some(0));
}
