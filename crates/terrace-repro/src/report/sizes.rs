//! Sizes of VMs over time, with the orders that led to them.

use terrace_sim::{OrderAt, Output, Provisioned, SizeAt, number::float};

use super::cast::{Cast, result};
use super::chart::{Axis, Chart};
use super::format::{at, bytes, escaped, fixed};

/// Height of a chart, pixels.
const HEIGHT: f64 = 210.0;

/// Charts of all VMs whose size changed after they booted; empty if none did.
pub fn draw(cast: &Cast) -> String {
    let charts: String = cast.vms.iter().map(|vm| chart(cast, vm)).collect();
    if charts.is_empty() {
        return String::new();
    }
    format!(
        "<p>All tiers together. A dot is an order: point at it for its reason.</p>\n<div class=\"cards\">\n{charts}</div>\n"
    )
}

/// A VM's device in a run, if it was told to change the VM's size after the VM had booted.
fn resized<'a>(run: &'a Output, vm: &str) -> Option<&'a Provisioned> {
    let device = result(run, vm)?.provision.as_ref()?;
    device.was_resized().then_some(device)
}

fn chart(cast: &Cast, vm: &str) -> String {
    let runs = || {
        cast.runs.iter().filter_map(|run| {
            let colour = cast.colour(&run.result.policy);
            Some((*run, colour, resized(run, vm)?))
        })
    };
    let sizes = runs().flat_map(|(_, _, device)| device.sizes_after_boot());
    let Some(most) = sizes.map(SizeAt::whole_bytes).max() else {
        return String::new();
    };
    let end = runs().map(|(run, _, _)| run.result.simulated_s);
    let end = end.filter(|s| s.is_finite()).fold(0.0, f64::max);
    let mut chart = Chart::new(HEIGHT, Axis::seconds(end), Axis::bytes(most, "size"));
    for (run, colour, device) in runs() {
        let policy = &run.result.policy;
        let sizes: Vec<&SizeAt> = device.sizes_after_boot().collect();
        let ends = sizes.iter().skip(1).map(|size| size.at_s);
        let ends = ends.chain([run.result.simulated_s]);
        let steps = sizes.iter().zip(ends);
        let steps = steps.map(|(size, to)| (size.at_s, to, float(size.whole_bytes())));
        chart.steps(&colour, policy, &steps.collect::<Vec<_>>());
        let orders = device.orders.iter().skip(1);
        orders.for_each(|order| mark(&mut chart, &colour, policy, order));
    }
    chart.figure(&format!("{vm}: size over time"))
}

/// Adds an order: a dot at the size that the VM had then, which says what was ordered and why.
fn mark(chart: &mut Chart, colour: &str, policy: &str, order: &OrderAt) {
    let from = order.from_bytes.iter().sum::<u64>();
    let to = order.to_bytes.iter().map(|to| to.map_or("–".into(), bytes));
    let text = format!(
        "{policy}, {} s: {} → {}\n{}",
        fixed(order.at_s, 1),
        bytes(from),
        to.collect::<Vec<_>>().join(" + "),
        order.reason
    );
    let (x, y) = (chart.x(order.at_s), chart.y(float(from)));
    chart.draw(&format!(
        "<circle class=\"dot {colour}\" cx=\"{}\" cy=\"{}\" r=\"3\"><title>{}</title></circle>",
        at(x),
        at(y),
        escaped(&text)
    ));
}
