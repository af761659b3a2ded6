//! Tests of a guest that lacks memory against results computed by hand.

use terrace_proto::PageSize;

use super::reclaim::Reclaim;
use crate::machine::PS;
use crate::machine::tests::{Script, environment, reads, run_with, space};
use crate::machine::vcpu::Vcpu;

#[test]
fn a_removed_page_is_not_found_through_an_old_translation() {
    let mut env = environment();
    env.end_ps = 1_000_000 * PS;
    let mut space = space(64, PageSize::Base, PageSize::Base);
    for page in 32..64 {
        space.guest.swap_out(page);
    }
    let mut kernel = Reclaim::new(0, 64);
    let script = reads((0..16).chain(0..16));
    let mut first = Vcpu::new(Box::new(Script(script, 0)), 16, &env.costs, 1, false);
    first.run(&mut space, &env, &mut kernel);
    assert_eq!(space.counts.major_faults, 0);
    // The second vCPU brings a page in, for which all that are mapped are taken out.
    run_with(&mut kernel, &mut space, &env, &reads(40..41));
    assert_eq!(space.counts.major_faults, 1);
    first.progress_mut().resume(16);
    env.end_ps *= 10;
    first.run(&mut space, &env, &mut kernel);
    assert_eq!(space.counts.major_faults, 17);
}

#[test]
fn all_that_a_vcpu_waits_for_memory_is_counted() {
    let mut env = environment();
    env.end_ps = 1_000_000_000 * PS;
    let costs = env.costs;
    for page in [PageSize::Base, PageSize::Huge] {
        let mut space = space(4 * 512, page, page);
        let leaf = space.guest.pages_per_leaf();
        let mut kernel = Reclaim::new(0, 4 * 512);
        // Its place is free: the fault waits for the device alone.
        let place = space.guest.swap_out(0).expect("it is mapped");
        kernel.frames().free(&mut space, place);
        run_with(&mut kernel, &mut space, &env, &reads(0..1));
        let read = costs.major_fault + (leaf - 1) * costs.swap_next_read;
        assert_eq!(space.counts.memory_wait, read, "{page:?}");
        // No place is free: the vCPU takes pages out first.
        space.guest.swap_out(0);
        run_with(&mut kernel, &mut space, &env, &reads(0..1));
        let taken = (space.counts.swapped_out / leaf).max(1);
        let write = costs.guest_page_work + costs.swap_write + (leaf - 1) * costs.swap_next_write;
        assert_eq!(
            space.counts.memory_wait,
            2 * read + taken * write,
            "{page:?}"
        );
    }
}
