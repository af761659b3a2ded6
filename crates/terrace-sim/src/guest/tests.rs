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
