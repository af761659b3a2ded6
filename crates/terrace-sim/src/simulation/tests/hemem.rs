//! Tests of `hemem` in a run.

use crate::machine::second_stage::bits;
use crate::scenario::Scenario;
use crate::simulation::{Options, Simulation};

#[test]
fn one_page_at_a_time_is_write_protected_on_a_scaled_machine() {
    let text = "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 64\nvcpus_per_vm = 2\n\
                [[vm]]\nname = \"a\"\nfast = \"1GiB\"\nslow = \"3GiB\"\npolicy = \"hemem\"\n\
                start = \"slow\"\nworkload = { kind = \"hotset\", size = \"2GiB\", hot = 0.1, \
                hot_access = 0.9, write = 0.2, duration = \"5s\" }\n";
    let scenario = Scenario::parse(text, "test", std::path::Path::new("/s")).expect("valid");
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
    let mut most = 0;
    while simulation.advance(simulation.now().0 + 1) {
        let second = &simulation.vms[0].space.second;
        let is_protected = |unit: &u32| second.get(*unit) & bits::PROTECTED != 0;
        let protected = (0..second.len()).filter(is_protected).count();
        most = most.max(protected);
    }
    assert_eq!(most, 8);
}
