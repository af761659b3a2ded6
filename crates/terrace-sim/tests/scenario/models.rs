//! Tests of the scenario's variants on other models of the machine.

use terrace_sim::Tables;

use super::{FULL, MINIMAL, parse};

fn names(text: &str) -> Vec<String> {
    let models = parse(text).expect("valid").models();
    models.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn each_model_differs_from_the_scenario_in_its_part_alone() {
    let written = parse(MINIMAL).expect("valid");
    let models = written.models();
    let of = |name: &str| {
        let found = models.iter().find(|(n, _)| n == name);
        found.unwrap_or_else(|| panic!("{name} is there")).1.clone()
    };
    assert_eq!((of("seed 2").seed, of("seed 3").seed), (2, 3));
    assert_eq!(of("scale 256").machine.scale, 256);
    let queues = of("loaded latency of a queue");
    assert!(queues.machine.tiers.iter().all(|t| t.service.is_none()));
    assert_eq!(of("page tables fast").vms[0].initial.tables, Tables::First);
    assert_eq!(of("half the vCPUs").vms[0].vcpus, 4);
    let slower = of("slow memory slower by half").machine.tiers;
    assert_eq!((slower[0].read_ns, slower[1].read_ns), (81.0, 465.0));
    let pace = |s: &terrace_sim::Scenario| s.vms[0].workload.pace().compute_ns;
    assert_eq!(
        pace(&of("compute_ns halved")) * 4.0,
        pace(&of("compute_ns doubled"))
    );
    for (name, model) in &models {
        assert_ne!(model, &written, "{name}");
        let mut back = model.clone();
        back.seed = written.seed;
        back.machine = written.machine.clone();
        back.vms.clone_from(&written.vms);
        assert_eq!(back, written, "{name}: nothing else differs");
    }
}

#[test]
fn models_that_change_nothing_or_do_not_fit_are_left_out() {
    let queue = MINIMAL.replace("[machine]", "[machine]\nloaded_latency = \"queue\"");
    assert!(!names(&queue).iter().any(|name| name.contains("queue")));
    let first = MINIMAL.replace("slow = ", "tables = \"first\"\nslow = ");
    assert!(!names(&first).contains(&"page tables fast".to_owned()));
    // At 1024, a coarser scale is none: a finer one takes its place.
    let coarse = MINIMAL.replace("[machine]", "[machine]\nscale = 1024");
    assert!(names(&coarse).contains(&"scale 256".to_owned()));
    // So it does if the VMs would be too small.
    assert!(names(FULL).contains(&"scale 4".to_owned()));
}
