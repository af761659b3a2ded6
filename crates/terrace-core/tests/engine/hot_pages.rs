//! The hot base pages that the engine names for a guest that gathers.

use terrace_core::PolicyName;
use terrace_core::engine::HotPages;
use terrace_proto::{Gfn, PageSize, Tick};
use terrace_testkit::engine::{Host, SECOND, spec};

use crate::in_rounds::{VM, config};

const PAGES: u64 = 4096;

/// A VM of which in each block page 3 is touched in every window, pages 5 and 6 in three of four, page 8 in one of six, and the others
/// never.
fn sparse(policy: PolicyName, fast: u64) -> Host {
    let mut host = Host::new(config(policy), &[PAGES, 4 * PAGES]);
    let heat = |page: u64, scan: u64| match page % 512 {
        3 => (true, false),
        5 | 6 => (!scan.is_multiple_of(4), false),
        8 => (scan.is_multiple_of(6), false),
        _ => (false, false),
    };
    host.arrive(spec(1, PAGES, fast), Box::new(heat));
    host
}

fn named(host: &Host, most: usize) -> Option<HotPages> {
    host.engine().hot_pages(VM, most)
}

fn frames(pages: &[u64], blocks: impl Iterator<Item = u64> + Clone) -> Vec<Gfn> {
    pages
        .iter()
        .flat_map(|page| blocks.clone().map(move |block| Gfn(block * 512 + page)))
        .collect()
}

#[test]
fn pages_that_most_windows_touch_are_named_hottest_first() {
    for (policy, fast) in [
        (PolicyName::Vtmm, 900),
        (PolicyName::Vtmm, 4),
        (PolicyName::Hmvisor, 900),
    ] {
        let mut host = sparse(policy, fast);
        host.run_until(Tick(SECOND / 2));
        assert_eq!(named(&host, 100), None, "nothing was seen yet");
        // Epochs that follow each other leave little time between them.
        let mut hot = None;
        while hot.is_none() && host.step(Tick(7 * SECOND)) {
            hot = named(&host, 100);
        }
        let hot = hot.unwrap();
        let mut warm = frames(&[5, 6], 0..8);
        warm.sort_unstable();
        let all = [frames(&[3], 0..8), warm].concat();
        assert_eq!(hot.named, all, "{policy:?}, {fast} pages of fast memory");
        assert_eq!((hot.hot, hot.blocks, hot.round), (24, 8, 1));
        assert_eq!(hot.began.0 / SECOND, 0);
    }
}

#[test]
fn what_does_not_fit_is_left_out_coldest_first() {
    let mut host = sparse(PolicyName::Vtmm, 900);
    host.run_until(Tick(10 * SECOND));
    let hot = named(&host, 10).unwrap();
    let mut all = frames(&[3], 0..8);
    all.extend([Gfn(5), Gfn(6)]);
    assert_eq!(hot.named, all);
    assert_eq!((hot.hot, hot.blocks), (24, 8), "of all of them");
}

#[test]
fn the_parts_of_a_2_mib_leaf_are_never_named() {
    let mut host = sparse(PolicyName::Vtmm, 900);
    host.guests.get_mut(&VM).unwrap().leaves = [1, 7].into();
    host.run_until(Tick(10 * SECOND));
    let hot = named(&host, 10_000).unwrap();
    assert_eq!((hot.hot, hot.blocks), (18, 6));
    let is_part = |gfn: &Gfn| [1, 7].contains(&(gfn.0 / 512));
    assert!(!hot.named.iter().any(is_part));
}

#[test]
fn a_leaf_that_was_split_within_the_round_counts_to_its_end() {
    let mut host = sparse(PolicyName::Vtmm, 900);
    host.guests.get_mut(&VM).unwrap().leaves = [2].into();
    host.run_until(Tick(2 * SECOND));
    host.guests.get_mut(&VM).unwrap().leaves.clear();
    host.run_until(Tick(10 * SECOND));
    assert_eq!(named(&host, 100).unwrap().blocks, 7);
    host.run_until(Tick(70 * SECOND));
    assert_eq!(named(&host, 100).unwrap().blocks, 8);
}

#[test]
fn heat_that_the_next_round_cleared_is_not_named() {
    let mut host = sparse(PolicyName::Vtmm, 900);
    host.run_until(Tick(59 * SECOND));
    assert!(named(&host, 100).is_some());
    host.run_until(Tick(62 * SECOND));
    assert_eq!(named(&host, 100), None, "a round is under way");
}

#[test]
fn pages_that_are_not_seen_one_by_one_are_not_named() {
    let mut host = Host::new(config(PolicyName::Vtmm), &[PAGES, 4 * PAGES]);
    let mut huge = spec(1, PAGES, 1024);
    huge.unit = PageSize::Huge;
    host.arrive(huge, Box::new(|_, _| (true, false)));
    host.run_until(Tick(20 * SECOND));
    assert_eq!(named(&host, 100), None);
    let mut host = sparse(PolicyName::Vtmm, 900);
    host.run_until(Tick(0));
    host.guests.get_mut(&VM).unwrap().leaves = (0..8).collect();
    host.run_until(Tick(20 * SECOND));
    assert_eq!(named(&host, 100), None, "regions alone");
    let mut host = sparse(PolicyName::PreferFast, 900);
    host.run_until(Tick(20 * SECOND));
    assert_eq!(named(&host, 100), None, "a policy that observes nothing");
}
