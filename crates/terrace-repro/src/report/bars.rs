//! Run time and slowdown as bars: text and boxes, which stay legible at any width.

use terrace_sim::{Output, VmResult};

use super::cast::{Cast, result};
use super::chart;
use super::format::{at, escaped, fixed, short};

/// The value of a VM that a bar shows.
type Value = fn(&VmResult) -> Option<f64>;

/// Both figures of all VMs.
pub fn draw(cast: &Cast) -> String {
    format!(
        "<div class=\"bars\">\n{}{}</div>\n",
        figure(cast, "Run time, s", |vm| Some(vm.runtime_s), None),
        figure(
            cast,
            "Slowdown against all-fast (1.0: as fast)",
            |vm| vm.slowdown_vs_all_fast,
            Some(1.0)
        )
    )
}

/// One group of bars per VM, one bar per run; `mark` is a value worth a line.
fn figure(cast: &Cast, title: &str, value: Value, mark: Option<f64>) -> String {
    let all = cast.runs.iter().flat_map(|run| &run.result.vms);
    let found = all.filter_map(value).filter(|v| v.is_finite());
    let most = found.fold(mark.unwrap_or(0.0), f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let mark = mark.map_or_else(String::new, |m| {
        format!(
            "<i class=\"mark\" style=\"left:{}%\"></i>",
            at(m / most * 100.0)
        )
    });
    let mut out = String::new();
    for vm in &cast.vms {
        out += &format!("<h4>{}</h4>\n", escaped(vm));
        for run in &cast.runs {
            if let Some(row) = bar(cast, run, vm, value, most, &mark) {
                out += &row;
            }
        }
    }
    chart::figure(title, &out)
}

fn bar(cast: &Cast, run: &Output, vm: &str, value: Value, most: f64, mark: &str) -> Option<String> {
    let vm = result(run, vm)?;
    let number = value(vm).unwrap_or(f64::NAN);
    let share = if number.is_finite() {
        (number / most).clamp(0.0, 1.0)
    } else {
        0.0
    };
    let policy = escaped(&run.result.policy);
    let hint = format!(
        "{} under {policy}: run time {} s, slowdown {}, {} accesses/s",
        escaped(&vm.name),
        fixed(vm.runtime_s, 2),
        fixed(vm.slowdown_vs_all_fast.unwrap_or(f64::NAN), 3),
        short(vm.ops_per_s),
    );
    Some(format!(
        "<div class=\"row\" title=\"{hint}\"><span>{policy}</span>\
         <div class=\"room\"><b class=\"{}\" style=\"width:{}%\"></b>{mark}</div>\
         <span class=\"n\">{}</span></div>\n",
        cast.colour(&run.result.policy),
        at(share * 100.0),
        fixed(number, 2),
    ))
}
