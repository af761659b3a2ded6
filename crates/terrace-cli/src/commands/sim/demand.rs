//! The demand of a VM in a few lines: what it wants, and how far that can be believed.

use terrace_sim::{Demand, DemandCurve, VmResult};

use crate::render;

/// A line with the demand of a VM, and one for each reason to believe less of it; none if its policy tracks no demand.
pub fn lines(vm: &VmResult) -> Vec<String> {
    let Some(demand) = &vm.demand else {
        return Vec::new();
    };
    let vm = format!("{}, {}", vm.policy, vm.name);
    let cautions = demand.cautions().into_iter();
    let cautions = cautions.map(|caution| format!("{vm}: {caution}"));
    std::iter::once(format!("{vm}: {}", figures(demand)))
        .chain(cautions)
        .collect()
}

/// The last and the largest demand, and from where on the curve is no guess.
fn figures(demand: &Demand) -> String {
    let sizes = || demand.working_sets.iter().map(|set| set.demand_bytes);
    let wanted = match (sizes().next_back(), sizes().max()) {
        (Some(last), Some(most)) => format!(
            "demand {} at last, {} at most",
            render::bytes(last),
            render::bytes(most)
        ),
        _ => "no second was tracked whole".into(),
    };
    let faults = demand.tracked_faults;
    let curve = demand.curve.as_ref().map_or(String::new(), believed);
    format!("{wanted}; {faults} tracked faults{curve}")
}

fn believed(curve: &DemandCurve) -> String {
    if curve.is_all_guess() {
        return String::new();
    }
    let from = render::bytes(curve.guess_below_bytes);
    format!("; its curve can be believed from {from} on")
}
